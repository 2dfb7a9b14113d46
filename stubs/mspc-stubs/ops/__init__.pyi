# Made by `make goldens`.
from typing import Any
from mspc.api.ops.primitive import Primitive as Primitive
from mspc.api.ops.composed_operators import AccumulateNV2 as AccumulateNV2
from mspc.api.ops.composed_table import AddV2 as AddV2
from mspc.api.ops.composed_table import Addcdiv as Addcdiv
from mspc.api.ops.composed_table import Addcmul as Addcmul
from mspc.api.ops.composed_table import AffineGrid as AffineGrid
from mspc.api.ops.composed_updates import ApplyAdaMax as ApplyAdaMax
from mspc.api.ops.composed_updates import ApplyAdadelta as ApplyAdadelta
from mspc.api.ops.composed_updates import ApplyAdagrad as ApplyAdagrad
from mspc.api.ops.composed_updates import ApplyAdagradDA as ApplyAdagradDA
from mspc.api.ops.composed_updates import ApplyAdagradV2 as ApplyAdagradV2
from mspc.api.ops.composed_updates import ApplyAdamWithAmsgrad as ApplyAdamWithAmsgrad
from mspc.api.ops.composed_updates import ApplyAdamWithAmsgradV2 as ApplyAdamWithAmsgradV2
from mspc.api.ops.composed_updates import ApplyAddSign as ApplyAddSign
from mspc.api.ops.composed_updates import ApplyCenteredRMSProp as ApplyCenteredRMSProp
from mspc.api.ops.composed_updates import ApplyFtrl as ApplyFtrl
from mspc.api.ops.composed_updates import ApplyGradientDescent as ApplyGradientDescent
from mspc.api.ops.composed_updates import ApplyKerasMomentum as ApplyKerasMomentum
from mspc.api.ops.composed_updates import ApplyPowerSign as ApplyPowerSign
from mspc.api.ops.composed_updates import ApplyProximalAdagrad as ApplyProximalAdagrad
from mspc.api.ops.composed_updates import ApplyProximalGradientDescent as ApplyProximalGradientDescent
from mspc.api.ops.composed_updates import ApplyRMSProp as ApplyRMSProp
from mspc.api.ops.composed_functions import BCEWithLogitsLoss as BCEWithLogitsLoss
from mspc.api.ops.composed_table import BartlettWindow as BartlettWindow
from mspc.api.ops.composed_operators import BatchToSpace as BatchToSpace
from mspc.api.ops.composed_operators import Bernoulli as Bernoulli
from mspc.api.ops.composed_table import BlackmanWindow as BlackmanWindow
from mspc.api.ops.composed_operators import Bucketize as Bucketize
from mspc.api.ops.composed_sequences import CTCLoss as CTCLoss
from mspc.api.ops.composed_table import CeLU as CeLU
from mspc.api.ops.composed_table import ChannelShuffle as ChannelShuffle
from mspc.api.ops.composed_table import CholeskyInverse as CholeskyInverse
from mspc.api.ops.composed_table import CholeskySolve as CholeskySolve
from mspc.api.ops.composed_operators import ConjugateTranspose as ConjugateTranspose
from mspc.api.ops.composed import ControlDepend as ControlDepend
from mspc.api.ops.composed_table import Cross as Cross
from mspc.api.ops.custom import Custom as Custom
from mspc.api.ops.composed_table import Dense as Dense
from mspc.api.ops.composed_functions import Diag as Diag
from mspc.api.ops.composed_functions import DiagPart as DiagPart
from mspc.api.ops.composed import DropoutExt as DropoutExt
from mspc.api.ops.composed_sequences import DynamicGRUV2 as DynamicGRUV2
from mspc.api.ops.composed_sequences import DynamicRNN as DynamicRNN
from mspc.api.ops.composed_functions import Einsum as Einsum
from mspc.api.ops.composed_operators import Eps as Eps
from mspc.api.ops.composed_operators import EqualCount as EqualCount
from mspc.api.ops.composed_operators import EuclideanNorm as EuclideanNorm
from mspc.api.ops.composed_operators import FFTWithSize as FFTWithSize
from mspc.api.ops.composed_operators import FillDiagonal as FillDiagonal
from mspc.api.ops.composed import FloatStatus as FloatStatus
from mspc.api.ops.composed_table import Fmax as Fmax
from mspc.api.ops.composed_table import Fmin as Fmin
from mspc.api.ops.composed_table import GLU as GLU
from mspc.api.ops.composed_table import Ger as Ger
from mspc.api.common.gradient import GradOperation as GradOperation
from mspc.api.ops.composed_tensors import GroupNorm as GroupNorm
from mspc.api.ops.composed_table import HammingWindow as HammingWindow
from mspc.api.ops.composed_table import Heaviside as Heaviside
from mspc.api.ops.composed_operators import HistogramFixedWidth as HistogramFixedWidth
from mspc.api.ops.composed import HistogramSummary as HistogramSummary
from mspc.api.ops.hyper_map import HyperMap as HyperMap
from mspc.api.ops.composed_operators import IdentityN as IdentityN
from mspc.api.ops.composed import ImageSummary as ImageSummary
from mspc.api.ops.composed_table import InTopK as InTopK
from mspc.api.ops.composed_tensors import Index as Index
from mspc.api.ops.composed_table import IndexAdd as IndexAdd
from mspc.api.ops.composed_table import IndexFill as IndexFill
from mspc.api.ops.composed_table import InplaceIndexAdd as InplaceIndexAdd
from mspc.api.ops.composed_operators import InplaceUpdateV2 as InplaceUpdateV2
from mspc.api.ops.custom import InsertGradientOf as InsertGradientOf
from mspc.api.ops.composed import InvertPermutation as InvertPermutation
from mspc.api.ops.composed_table import Lcm as Lcm
from mspc.api.ops.composed_operators import ListToTensor as ListToTensor
from mspc.api.ops.composed_table import LogSigmoid as LogSigmoid
from mspc.api.ops.composed_operators import LogSpace as LogSpace
from mspc.api.ops.composed_operators import Logit as Logit
from mspc.api.ops.composed_operators import LowerBound as LowerBound
from mspc.api.ops.hyper_map import Map as Map
from mspc.api.ops.composed_table import MaskedSelect as MaskedSelect
from mspc.api.ops.composed_table import MatrixBandPart as MatrixBandPart
from mspc.api.ops.composed_table import MatrixPower as MatrixPower
from mspc.api.ops.composed_operators import Median as Median
from mspc.api.ops.composed_functions import Meshgrid as Meshgrid
from mspc.api.ops.morphing import Morph as Morph
from mspc.api.ops.composed_operators import MultiMarginLoss as MultiMarginLoss
from mspc.api.ops.composed_operators import Multinomial as Multinomial
from mspc.api.ops.composed_table import MultinomialWithReplacement as MultinomialWithReplacement
from mspc.api.ops.multitype import MultitypeFuncGraph as MultitypeFuncGraph
from mspc.api.ops.composed_table import Mvlgamma as Mvlgamma
from mspc.api.ops.composed_functions import NLLLoss as NLLLoss
from mspc.api.ops.composed import NPUAllocFloatStatus as NPUAllocFloatStatus
from mspc.api.ops.composed import NPUClearFloatStatus as NPUClearFloatStatus
from mspc.api.ops.composed import NPUClearFloatStatusV2 as NPUClearFloatStatusV2
from mspc.api.ops.composed import NPUGetFloatStatus as NPUGetFloatStatus
from mspc.api.ops.composed import NPUGetFloatStatusV2 as NPUGetFloatStatusV2
from mspc.api.ops.composed_table import NonZero as NonZero
from mspc.api.ops.composed_table import Padding as Padding
from mspc.api.ops.composed_operators import ParallelConcat as ParallelConcat
from mspc.api.ops.composed import Partial as Partial
from mspc.api.ops.composed_table import Pdist as Pdist
from mspc.api.ops.composed_table import Polygamma as Polygamma
from mspc.api.ops.own_operators import PrimitiveWithCheck as PrimitiveWithCheck
from mspc.api.ops.own_operators import PrimitiveWithInfer as PrimitiveWithInfer
from mspc.api.ops.composed_table import RandomCategorical as RandomCategorical
from mspc.api.ops.composed_operators import RandomGamma as RandomGamma
from mspc.api.ops.composed_operators import RandomShuffle as RandomShuffle
from mspc.api.ops.composed_table import RandpermV2 as RandpermV2
from mspc.api.communication.group import ReduceOp as ReduceOp
from mspc.api.ops.composed_operators import ReduceStd as ReduceStd
from mspc.api.ops.composed_table import Renorm as Renorm
from mspc.api.ops.composed_operators import ResizeNearestNeighborV2 as ResizeNearestNeighborV2
from mspc.api.ops.composed_functions import ReverseSequence as ReverseSequence
from mspc.api.ops.composed_table import Roll as Roll
from mspc.api.ops.composed_functions import ScalarCast as ScalarCast
from mspc.api.ops.composed import ScalarSummary as ScalarSummary
from mspc.api.ops.composed_functions import ScalarToArray as ScalarToArray
from mspc.api.ops.composed_functions import ScalarToTensor as ScalarToTensor
from mspc.api.ops.composed_functions import Scatter as Scatter
from mspc.api.ops.composed_table import ScatterNdDiv as ScatterNdDiv
from mspc.api.ops.composed_table import ScatterNdMax as ScatterNdMax
from mspc.api.ops.composed_table import ScatterNdMin as ScatterNdMin
from mspc.api.ops.composed_table import ScatterNdMul as ScatterNdMul
from mspc.api.ops.composed_operators import SearchSorted as SearchSorted
from mspc.api.ops.composed_table import Sinc as Sinc
from mspc.api.ops.composed_table import SoftMarginLoss as SoftMarginLoss
from mspc.api.ops.composed_operators import SpaceToBatch as SpaceToBatch
from mspc.api.ops.composed_operators import StandardLaplace as StandardLaplace
from mspc.api.ops.composed_functions import StandardNormal as StandardNormal
from mspc.api.ops.composed_table import TensorScatterElements as TensorScatterElements
from mspc.api.ops.composed_operators import TensorShape as TensorShape
from mspc.api.ops.composed import TensorSummary as TensorSummary
from mspc.api.ops.composed_operators import TensorToList as TensorToList
from mspc.api.ops.composed_operators import TensorToScalar as TensorToScalar
from mspc.api.ops.composed_operators import TensorToTuple as TensorToTuple
from mspc.api.ops.composed_table import Trace as Trace
from mspc.api.ops.composed_table import TrilIndices as TrilIndices
from mspc.api.ops.composed_table import TripletMarginLoss as TripletMarginLoss
from mspc.api.ops.composed_table import TriuIndices as TriuIndices
from mspc.api.ops.composed_operators import TupleToTensor as TupleToTensor
from mspc.api.ops.composed_functions import UniformInt as UniformInt
from mspc.api.ops.composed_table import Unique as Unique
from mspc.api.ops.composed_table import UniqueConsecutive as UniqueConsecutive
from mspc.api.ops.composed_table import UniqueWithPad as UniqueWithPad
from mspc.api.ops.composed_operators import UpperBound as UpperBound
from mspc.api.nn.virtual_dataset import _VirtualDataset as _VirtualDataset
from mspc.api.ops.attributed import _add_attr as _add_attr
from mspc.api.ops.compile_time import _constexpr as _constexpr
from mspc.api.ops.compile_time import _primexpr as _primexpr
from mspc.api.ops.function.simple_func import accumulate_n as accumulate_n
from mspc.api.ops.function.pool_func import adaptive_avg_pool1d as adaptive_avg_pool1d
from mspc.api.ops.function.pool_func import adaptive_avg_pool2d as adaptive_avg_pool2d
from mspc.api.ops.function.pool_func import adaptive_avg_pool3d as adaptive_avg_pool3d
from mspc.api.ops.function.pool_func import adaptive_max_pool1d as adaptive_max_pool1d
from mspc.api.ops.function.pool_func import adaptive_max_pool2d as adaptive_max_pool2d
from mspc.api.ops.function.pool_func import adaptive_max_pool3d as adaptive_max_pool3d
from mspc.api.ops.composed import add_flags as add_flags
from mspc.api.ops.function.fused_func import add_layer_norm as add_layer_norm
from mspc.api.ops.function.fused_func import add_rms_norm as add_rms_norm
from mspc.api.ops.function.matrix_func import addbmm as addbmm
from mspc.api.ops.function.derived_func import addcdiv as addcdiv
from mspc.api.ops.function.derived_func import addcmul as addcmul
from mspc.api.ops.function.matrix_func import addmm as addmm
from mspc.api.ops.function.derived_func import addmv as addmv
from mspc.api.ops.function.derived_func import addr as addr
from mspc.api.ops.function.shape_func import adjoint as adjoint
from mspc.api.ops.function.image_func import affine_grid as affine_grid
from mspc.api.ops.function.math_func import all as all
from mspc.api.ops.function.math_func import amax as amax
from mspc.api.ops.function.math_func import amin as amin
from mspc.api.ops.function.simple_func import aminmax as aminmax
from mspc.api.ops.function.math_func import any as any
from mspc.api.ops.function.array_func import arange as arange
from mspc.api.ops.function.math_func import argmax as argmax
from mspc.api.ops.function.math_func import argmin as argmin
from mspc.api.ops.function.order_func import argsort as argsort
from mspc.api.ops.function.known_func import argwhere as argwhere
from mspc.api.ops.function.shape_func import atleast_1d as atleast_1d
from mspc.api.ops.function.shape_func import atleast_2d as atleast_2d
from mspc.api.ops.function.shape_func import atleast_3d as atleast_3d
from mspc.api.ops.function.pool_func import avg_pool1d as avg_pool1d
from mspc.api.ops.function.pool_func import avg_pool2d as avg_pool2d
from mspc.api.ops.function.pool_func import avg_pool3d as avg_pool3d
from mspc.api.ops.function.matrix_func import baddbmm as baddbmm
from mspc.api.ops.function.matrix_func import baddbmm_ext as baddbmm_ext
from mspc.api.mint.distributed import barrier as barrier
from mspc.api.ops.function.window_func import bartlett_window as bartlett_window
from mspc.api.ops.function.matrix_func import batch_dot as batch_dot
from mspc.api.ops.function.conv_func import batch_norm as batch_norm
from mspc.api.ops.function.image_func import batch_to_space_nd as batch_to_space_nd
from mspc.api.ops.function.random_func import bernoulli as bernoulli
from mspc.api.ops.tensor_method_changes import bernoulli_ as bernoulli_
from mspc.api.ops.function.drawn_func import bernoulli_ext as bernoulli_ext
from mspc.api.ops.function.matrix_func import bidense as bidense
from mspc.api.ops.function.loss_func import binary_cross_entropy as binary_cross_entropy
from mspc.api.ops.function.loss_func import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from mspc.api.ops.function.known_func import bincount as bincount
from mspc.api.ops.function.simple_func import bitwise_not as bitwise_not
from mspc.api.ops.function.window_func import blackman_window as blackman_window
from mspc.api.ops.function.shape_func import block_diag as block_diag
from mspc.api.ops.function.array_func import broadcast_to as broadcast_to
from mspc.api.ops.function.statistics_func import bucketize as bucketize
from mspc.api.ops.function.shape_func import cartesian_prod as cartesian_prod
from mspc.api.ops.function.array_func import cat as cat
from mspc.api.ops.function.drawn_func import cauchy as cauchy
from mspc.api.ops.function.math_func import ceil as ceil
from mspc.api.ops.function.activation_func import celu as celu
from mspc.api.ops.function.image_func import channel_shuffle as channel_shuffle
from mspc.api.ops.function.drawn_func import choice_with_mask as choice_with_mask
from mspc.api.ops.function.matrix_func import cholesky as cholesky
from mspc.api.ops.function.matrix_func import cholesky_inverse as cholesky_inverse
from mspc.api.ops.function.matrix_func import cholesky_solve as cholesky_solve
from mspc.api.ops.function.array_func import chunk as chunk
from mspc.api.ops.function.math_func import clamp as clamp
from mspc.api.ops.tensor_method_changes import clamp_ as clamp_
from mspc.api.ops.function.math_func import clip as clip
from mspc.api.ops.function.math_func import clip_by_global_norm as clip_by_global_norm
from mspc.api.ops.function.math_func import clip_by_norm as clip_by_norm
from mspc.api.ops.function.math_func import clip_by_value as clip_by_value
from mspc.api.ops.function.derived_func import column_stack as column_stack
from mspc.api.ops.function.shape_func import combinations as combinations
from mspc.api.ops.function.array_func import concat as concat
from mspc.api.ops.function.matrix_func import cond as cond
from mspc.api.ops.compile_time import constexpr as constexpr
from mspc.api.ops.function.conv_func import conv1d as conv1d
from mspc.api.ops.function.conv_func import conv2d as conv2d
from mspc.api.ops.function.conv_func import conv3d as conv3d
from mspc.api.ops.function.conv_func import conv_transpose2d as conv_transpose2d
from mspc.api.ops.function.sparse_func import coo2csr as coo2csr
from mspc.api.ops.function.sparse_func import coo_concat as coo_concat
from mspc.api.ops.function.simple_func import copysign as copysign
from mspc.api.ops.function.loss_func import cosine_embedding_loss as cosine_embedding_loss
from mspc.api.ops.function.statistics_func import cosine_similarity as cosine_similarity
from mspc.api.ops.function.derived_func import count_nonzero as count_nonzero
from mspc.api.ops.function.statistics_func import cov as cov
from mspc.api.ops.function.image_func import crop_and_resize as crop_and_resize
from mspc.api.ops.function.matrix_func import cross as cross
from mspc.api.ops.function.loss_func import cross_entropy as cross_entropy
from mspc.api.ops.function.sparse_func import csr2coo as csr2coo
from mspc.api.ops.function.sparse_func import csr_mm as csr_mm
from mspc.api.ops.function.sparse_func import csr_mv as csr_mv
from mspc.api.ops.function.sparse_func import csr_softmax as csr_softmax
from mspc.api.ops.function.sparse_func import csr_to_coo as csr_to_coo
from mspc.api.ops.function.sparse_func import csr_to_dense as csr_to_dense
from mspc.api.ops.function.ctc import ctc_loss as ctc_loss
from mspc.api.ops.function.math_func import cumprod as cumprod
from mspc.api.ops.function.math_func import cumsum as cumsum
from mspc.api.ops.function.fused_func import deepcopy as deepcopy
from mspc.api.ops.function.derived_func import deg2rad as deg2rad
from mspc.api.ops.function.nn_func import dense as dense
from mspc.api.ops.function.sparse_func import dense_to_sparse_coo as dense_to_sparse_coo
from mspc.api.ops.function.sparse_func import dense_to_sparse_csr as dense_to_sparse_csr
from mspc.api.ops.function.order_func import diag as diag
from mspc.api.ops.function.order_func import diag_embed as diag_embed
from mspc.api.ops.function.shape_func import diagflat as diagflat
from mspc.api.ops.function.order_func import diagonal as diagonal
from mspc.api.ops.function.scatter_func import diagonal_scatter as diagonal_scatter
from mspc.api.ops.function.derived_func import diff as diff
from mspc.api.ops.function.statistics_func import dist as dist
from mspc.api.ops.function.math_func import div as div
from mspc.api.ops.function.math_func import divide as divide
from mspc.api.ops.function.derived_func import dot as dot
from mspc.api.ops.function.nn_func import dropout as dropout
from mspc.api.ops.function.image_func import dropout1d as dropout1d
from mspc.api.ops.function.image_func import dropout2d as dropout2d
from mspc.api.ops.function.image_func import dropout3d as dropout3d
from mspc.api.ops.function.nn_func import dropout_ext as dropout_ext
from mspc.api.ops.composed import dropout_ext_op as dropout_ext_op
from mspc.api.ops.function.shape_func import dsplit as dsplit
from mspc.api.ops.function.shape_func import dstack as dstack
from mspc.api.ops.function.array_func import dtype as dtype
from mspc.api.ops.function.window_func import dyn_shape as dyn_shape
from mspc.api.ops.function.matrix_func import eig as eig
from mspc.api.ops.function.matrix_func import eigvals as eigvals
from mspc.api.ops.function.einsum_func import einsum as einsum
from mspc.api.ops.function.einsum_func import einsum_ext as einsum_ext
from mspc.api.ops.function.activation_func import elu as elu
from mspc.api.mint.nn.functional.plain import embedding as embedding
from mspc.api.ops.function.simple_func import eps as eps
from mspc.api.ops.tensor_method_changes import erfinv_ as erfinv_
from mspc.api.ops.function.derived_func import exp2 as exp2
from mspc.api.ops.function.shape_func import expand as expand
from mspc.api.ops.function.shape_func import expand_as as expand_as
from mspc.api.ops.tensor_method_changes import exponential_ as exponential_
from mspc.api.ops.function.array_func import eye as eye
from mspc.api.ops.function.window_func import fftfreq as fftfreq
from mspc.api.ops.function.window_func import fills as fills
from mspc.api.ops.function.nn_func import flash_attention_score as flash_attention_score
from mspc.api.ops.function.array_func import flatten as flatten
from mspc.api.ops.function.array_func import flip as flip
from mspc.api.ops.function.order_func import fliplr as fliplr
from mspc.api.ops.function.order_func import flipud as flipud
from mspc.api.ops.function.derived_func import float_power as float_power
from mspc.api.ops.function.derived_func import float_power_ext as float_power_ext
from mspc.api.ops.function.math_func import floor as floor
from mspc.api.ops.function.simple_func import fmax as fmax
from mspc.api.ops.function.simple_func import fmin as fmin
from mspc.api.ops.function.image_func import fold as fold
from mspc.api.ops.function.derived_func import frac as frac
from mspc.api.ops.function.pool_func import fractional_max_pool2d as fractional_max_pool2d
from mspc.api.ops.function.pool_func import fractional_max_pool3d as fractional_max_pool3d
from mspc.api.ops.function.array_func import full as full
from mspc.api.ops.function.array_func import full_like as full_like
from mspc.api.ops.function.random_func import gamma as gamma
from mspc.api.ops.function.array_func import gather as gather
from mspc.api.ops.function.order_func import gather_d as gather_d
from mspc.api.ops.function.order_func import gather_elements as gather_elements
from mspc.api.ops.function.loss_func import gaussian_nll_loss as gaussian_nll_loss
from mspc.api.ops.function.activation_func import gelu as gelu
from mspc.api.ops.function.activation_func import glu as glu
from mspc.api.common.gradient import grad as grad
from mspc.api.ops.function.image_func import grid_sample as grid_sample
from mspc.api.ops.function.conv_func import group_norm as group_norm
from mspc.api.ops.function.drawn_func import gumbel_softmax as gumbel_softmax
from mspc.api.ops.function.window_func import hamming_window as hamming_window
from mspc.api.ops.function.window_func import hann_window as hann_window
from mspc.api.ops.function.activation_func import hardshrink as hardshrink
from mspc.api.ops.function.activation_func import hardsigmoid as hardsigmoid
from mspc.api.ops.function.activation_func import hardswish as hardswish
from mspc.api.ops.function.activation_func import hardtanh as hardtanh
from mspc.api.ops.function.simple_func import heaviside as heaviside
from mspc.api.ops.function.loss_func import hinge_embedding_loss as hinge_embedding_loss
from mspc.api.ops.function.statistics_func import histc as histc
from mspc.api.ops.function.shape_func import hsplit as hsplit
from mspc.api.ops.function.derived_func import hstack as hstack
from mspc.api.ops.function.loss_func import huber_loss as huber_loss
from mspc.api.ops.composed import identity as identity
from mspc.api.ops.function.scatter_func import index_add as index_add
from mspc.api.ops.function.scatter_func import index_fill as index_fill
from mspc.api.ops.function.scatter_func import index_select as index_select
from mspc.api.ops.function.derived_func import inner as inner
from mspc.api.ops.function.scatter_func import inplace_index_add as inplace_index_add
from mspc.api.ops.function.image_func import interpolate as interpolate
from mspc.api.ops.function.statistics_func import intopk as intopk
from mspc.api.ops.function.simple_func import is_complex as is_complex
from mspc.api.ops.function.simple_func import is_floating_point as is_floating_point
from mspc.api.ops.function.simple_func import is_nonzero as is_nonzero
from mspc.api.common.api import is_tensor as is_tensor
from mspc.api.ops.function.derived_func import isneginf as isneginf
from mspc.api.ops.function.derived_func import isposinf as isposinf
from mspc.api.ops.function.simple_func import isreal as isreal
from mspc.api.common.derivatives import jacfwd as jacfwd
from mspc.api.common.derivatives import jacrev as jacrev
from mspc.api.common.derivatives import jvp as jvp
from mspc.api.ops.function.window_func import kaiser_window as kaiser_window
from mspc.api.ops.function.loss_func import kl_div as kl_div
from mspc.api.ops.function.shape_func import kron as kron
from mspc.api.ops.function.loss_func import l1_loss as l1_loss
from mspc.api.ops.function.drawn_func import laplace as laplace
from mspc.api.ops.function.nn_func import layer_norm as layer_norm
from mspc.api.ops.function.simple_func import lcm as lcm
from mspc.api.ops.function.simple_func import ldexp as ldexp
from mspc.api.ops.function.activation_func import leaky_relu as leaky_relu
from mspc.api.common.derivatives import linearize as linearize
from mspc.api.ops.function.array_func import linspace as linspace
from mspc.api.ops.function.derived_func import log10 as log10
from mspc.api.ops.function.derived_func import log2 as log2
from mspc.api.ops.function.drawn_func import log_normal as log_normal
from mspc.api.ops.function.activation_func import log_softmax as log_softmax
from mspc.api.ops.function.derived_func import logaddexp as logaddexp
from mspc.api.ops.function.derived_func import logaddexp2 as logaddexp2
from mspc.api.ops.function.simple_func import logcumsumexp as logcumsumexp
from mspc.api.ops.function.matrix_func import logdet as logdet
from mspc.api.ops.function.simple_func import logit as logit
from mspc.api.ops.function.activation_func import logsigmoid as logsigmoid
from mspc.api.ops.function.window_func import logspace as logspace
from mspc.api.ops.function.math_func import logsumexp as logsumexp
from mspc.api.ops.function.pool_func import lp_pool1d as lp_pool1d
from mspc.api.ops.function.pool_func import lp_pool2d as lp_pool2d
from mspc.api.ops.function.image_func import lrn as lrn
from mspc.api.ops.function.matrix_func import lstsq as lstsq
from mspc.api.ops.composed import make_range as make_range
from mspc.api.ops.function.loss_func import margin_ranking_loss as margin_ranking_loss
from mspc.api.ops.function.array_func import masked_fill as masked_fill
from mspc.api.ops.function.known_func import masked_select as masked_select
from mspc.api.ops.function.math_func import matmul as matmul
from mspc.api.ops.function.shape_func import matrix_band_part as matrix_band_part
from mspc.api.ops.function.matrix_func import matrix_norm as matrix_norm
from mspc.api.ops.function.matrix_func import matrix_power as matrix_power
from mspc.api.ops.function.order_func import max as max
from mspc.api.ops.function.pool_func import max_pool2d as max_pool2d
from mspc.api.ops.function.pool_func import max_pool3d as max_pool3d
from mspc.api.ops.function.pool_func import max_unpool1d as max_unpool1d
from mspc.api.ops.function.pool_func import max_unpool2d as max_unpool2d
from mspc.api.ops.function.pool_func import max_unpool3d as max_unpool3d
from mspc.api.ops.function.math_func import mean as mean
from mspc.api.ops.function.statistics_func import median as median
from mspc.api.ops.function.order_func import meshgrid as meshgrid
from mspc.api.ops.function.order_func import min as min
from mspc.api.ops.function.window_func import mirror_pad as mirror_pad
from mspc.api.ops.function.activation_func import mish as mish
from mspc.api.ops.function.fused_func import mixed_precision_cast as mixed_precision_cast
from mspc.api.ops.function.token_func import moe_token_permute as moe_token_permute
from mspc.api.ops.function.token_func import moe_token_unpermute as moe_token_unpermute
from mspc.api.ops.function.derived_func import moveaxis as moveaxis
from mspc.api.ops.function.derived_func import movedim as movedim
from mspc.api.ops.function.loss_func import mse_loss as mse_loss
from mspc.api.ops.function.loss_func import mse_loss_ext as mse_loss_ext
from mspc.api.ops.function.statistics_func import msort as msort
from mspc.api.ops.function.loss_func import multi_margin_loss as multi_margin_loss
from mspc.api.ops.function.loss_func import multilabel_margin_loss as multilabel_margin_loss
from mspc.api.ops.function.drawn_func import multinomial as multinomial
from mspc.api.ops.function.drawn_func import multinomial_with_replacement as multinomial_with_replacement
from mspc.api.ops.function.matrix_func import mv as mv
from mspc.api.ops.function.simple_func import mvlgamma as mvlgamma
from mspc.api.ops.function.derived_func import nanmean as nanmean
from mspc.api.ops.function.statistics_func import nanmedian as nanmedian
from mspc.api.ops.function.statistics_func import nanquantile as nanquantile
from mspc.api.ops.function.derived_func import nansum as nansum
from mspc.api.ops.function.shape_func import narrow as narrow
from mspc.api.ops.function.loss_func import nll_loss as nll_loss
from mspc.api.ops.function.order_func import nonzero as nonzero
from mspc.api.ops.function.norm_func import norm as norm
from mspc.api.ops.function.random_func import normal as normal
from mspc.api.ops.tensor_method_changes import normal_ as normal_
from mspc.api.ops.function.array_func import numel as numel
from mspc.api.ops.function.array_func import one_hot as one_hot
from mspc.api.ops.function.array_func import ones as ones
from mspc.api.ops.function.array_func import ones_like as ones_like
from mspc.api.ops.function.order_func import pad as pad
from mspc.api.ops.function.window_func import padding as padding
from mspc.api.ops.function.statistics_func import pdist as pdist
from mspc.api.ops.function.matrix_func import pinv as pinv
from mspc.api.ops.function.image_func import pixel_shuffle as pixel_shuffle
from mspc.api.ops.function.image_func import pixel_unshuffle as pixel_unshuffle
from mspc.api.ops.function.simple_func import polygamma as polygamma
from mspc.api.ops.function.simple_func import positive as positive
from mspc.api.ops.function.activation_func import prelu as prelu
from mspc.api.ops.own_operators import prim_attr_register as prim_attr_register
from mspc.api.ops.function.simple_func import print_ as print_
from mspc.api.ops.function.math_func import prod as prod
from mspc.api.ops.tensor_method_changes import put_ as put_
from mspc.api.ops.function.matrix_func import qr as qr
from mspc.api.ops.function.statistics_func import quantile as quantile
from mspc.api.ops.function.derived_func import rad2deg as rad2deg
from mspc.api.ops.function.random_func import rand as rand
from mspc.api.ops.function.drawn_func import rand_like as rand_like
from mspc.api.ops.function.drawn_func import randint as randint
from mspc.api.ops.function.drawn_func import randint_like as randint_like
from mspc.api.ops.function.random_func import randn as randn
from mspc.api.ops.function.drawn_func import randn_like as randn_like
from mspc.api.ops.tensor_method_changes import random_ as random_
from mspc.api.ops.function.drawn_func import random_categorical as random_categorical
from mspc.api.ops.function.random_func import random_gamma as random_gamma
from mspc.api.ops.function.drawn_func import randperm as randperm
from mspc.api.ops.function.window_func import range as range
from mspc.api.ops.function.array_func import rank as rank
from mspc.api.ops.function.shape_func import ravel as ravel
from mspc.api.ops.function.math_func import reduce_all as reduce_all
from mspc.api.ops.function.math_func import reduce_any as reduce_any
from mspc.api.ops.function.math_func import reduce_max as reduce_max
from mspc.api.ops.function.math_func import reduce_mean as reduce_mean
from mspc.api.ops.function.math_func import reduce_min as reduce_min
from mspc.api.ops.function.math_func import reduce_prod as reduce_prod
from mspc.api.ops.function.math_func import reduce_sum as reduce_sum
from mspc.api.ops.function.statistics_func import renorm as renorm
from mspc.api.ops.function.order_func import repeat_elements as repeat_elements
from mspc.api.ops.function.order_func import repeat_interleave as repeat_interleave
from mspc.api.parallel.reshard import reshard as reshard
from mspc.api.ops.function.scatter_func import reverse as reverse
from mspc.api.ops.function.scatter_func import reverse_sequence as reverse_sequence
from mspc.api.ops.function.window_func import rfftfreq as rfftfreq
from mspc.api.ops.function.order_func import roll as roll
from mspc.api.ops.function.order_func import rot90 as rot90
from mspc.api.ops.function.fused_func import rotary_position_embedding as rotary_position_embedding
from mspc.api.ops.function.math_func import round as round
from mspc.api.ops.function.shape_func import row_stack as row_stack
from mspc.api.ops.function.activation_func import rrelu as rrelu
from mspc.api.ops.function.array_func import scalar_to_array as scalar_to_array
from mspc.api.ops.function.array_func import scalar_to_tensor as scalar_to_tensor
from mspc.api.ops.function.scatter_func import scatter as scatter
from mspc.api.ops.function.scatter_func import scatter_nd_div as scatter_nd_div
from mspc.api.ops.function.scatter_func import scatter_nd_max as scatter_nd_max
from mspc.api.ops.function.scatter_func import scatter_nd_min as scatter_nd_min
from mspc.api.ops.function.scatter_func import scatter_nd_mul as scatter_nd_mul
from mspc.api.ops.function.statistics_func import searchsorted as searchsorted
from mspc.api.ops.function.scatter_func import select_scatter as select_scatter
from mspc.api.ops.function.activation_func import selu as selu
from mspc.api.ops.function.known_func import sequence_mask as sequence_mask
from mspc.api.ops.function.simple_func import sgn as sgn
from mspc.api.ops.function.array_func import shape as shape
from mspc.api.parallel.shard import shard as shard
from mspc.api.ops.function.drawn_func import shuffle as shuffle
from mspc.api.ops.tensor_method_changes import sigmoid_ as sigmoid_
from mspc.api.ops.function.simple_func import signbit as signbit
from mspc.api.ops.function.derived_func import sinc as sinc
from mspc.api.ops.function.array_func import size as size
from mspc.api.ops.function.array_func import slice as slice
from mspc.api.ops.function.scatter_func import slice_scatter as slice_scatter
from mspc.api.ops.function.loss_func import smooth_l1_loss as smooth_l1_loss
from mspc.api.ops.function.loss_func import soft_margin_loss as soft_margin_loss
from mspc.api.ops.function.activation_func import soft_shrink as soft_shrink
from mspc.api.ops.function.activation_func import softmax as softmax
from mspc.api.ops.function.activation_func import softmin as softmin
from mspc.api.ops.function.activation_func import softplus as softplus
from mspc.api.ops.function.activation_func import softshrink as softshrink
from mspc.api.ops.function.activation_func import softsign as softsign
from mspc.api.ops.function.order_func import sort as sort
from mspc.api.ops.function.image_func import space_to_batch_nd as space_to_batch_nd
from mspc.api.ops.function.array_func import split as split
from mspc.api.ops.function.array_func import squeeze as squeeze
from mspc.api.ops.function.array_func import stack as stack
from mspc.api.ops.function.drawn_func import standard_laplace as standard_laplace
from mspc.api.ops.function.random_func import standard_normal as standard_normal
from mspc.api.ops.function.norm_func import std as std
from mspc.api.ops.function.norm_func import std_mean as std_mean
from mspc.api.ops.function.window_func import stft as stft
from mspc.api.ops.function.array_func import stop_gradient as stop_gradient
from mspc.api.ops.function.array_func import strided_slice as strided_slice
from mspc.api.ops.function.math_func import sum as sum
from mspc.api.ops.function.matrix_func import svd as svd
from mspc.api.ops.function.array_func import swapaxes as swapaxes
from mspc.api.ops.function.shape_func import swapdims as swapdims
from mspc.api.ops.function.fused_func import swiglu as swiglu
from mspc.api.ops.function.shape_func import t as t
from mspc.api.ops.function.scatter_func import take as take
from mspc.api.ops.tensor_method_changes import tanh_ as tanh_
from mspc.api.ops.function.activation_func import tanhshrink as tanhshrink
from mspc.api.ops.function.math_func import tensor_dot as tensor_dot
from mspc.api.ops.function.scatter_func import tensor_scatter_elements as tensor_scatter_elements
from mspc.api.ops.function.shape_func import tensor_split as tensor_split
from mspc.api.ops.function.array_func import tensordump as tensordump
from mspc.api.ops.function.activation_func import threshold as threshold
from mspc.api.ops.function.statistics_func import top_k as top_k
from mspc.api.ops.function.array_func import topk as topk
from mspc.api.ops.function.derived_func import trace as trace
from mspc.api.ops.function.statistics_func import trapz as trapz
from mspc.api.ops.function.array_func import tril as tril
from mspc.api.ops.function.shape_func import tril_indices as tril_indices
from mspc.api.ops.function.loss_func import triplet_margin_loss as triplet_margin_loss
from mspc.api.ops.function.array_func import triu as triu
from mspc.api.ops.function.shape_func import triu_indices as triu_indices
from mspc.api.ops.function.math_func import true_divide as true_divide
from mspc.api.ops.function.math_func import trunc as trunc
from mspc.api.ops.function.array_func import tuple_len as tuple_len
from mspc.api.ops.function.array_func import tuple_to_array as tuple_to_array
from mspc.api.ops.function.shape_func import type_as as type_as
from mspc.api.ops.function.order_func import unbind as unbind
from mspc.api.ops.function.image_func import unfold as unfold
from mspc.api.ops.function.random_func import uniform as uniform
from mspc.api.ops.tensor_method_changes import uniform_ as uniform_
from mspc.api.ops.function.known_func import unique as unique
from mspc.api.ops.function.known_func import unique_consecutive as unique_consecutive
from mspc.api.ops.function.known_func import unique_with_pad as unique_with_pad
from mspc.api.ops.function.order_func import unstack as unstack
from mspc.api.ops.function.image_func import upsample as upsample
from mspc.api.common.gradient import value_and_grad as value_and_grad
from mspc.api.ops.function.shape_func import vander as vander
from mspc.api.ops.function.norm_func import var as var
from mspc.api.ops.function.norm_func import var_mean as var_mean
from mspc.api.ops.function.statistics_func import vecdot as vecdot
from mspc.api.ops.function.norm_func import vector_norm as vector_norm
from mspc.api.ops.function.shape_func import view_as as view_as
from mspc.api.ops.function.window_func import view_as_real as view_as_real
from mspc.api.common.derivatives import vjp as vjp
from mspc.api.common.derivatives import vmap as vmap
from mspc.api.ops.function.shape_func import vsplit as vsplit
from mspc.api.ops.function.derived_func import vstack as vstack
from mspc.api.ops.tensor_method_changes import zero_ as zero_
from mspc.api.ops.function.array_func import zeros as zeros
from mspc.api.ops.function.array_func import zeros_like as zeros_like
class ACos(Primitive):
    """Inverse cosine, in radians."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Abs(Primitive):
    """The absolute value, of complex numbers a real one; its derivative at 0 is 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Acosh(Primitive):
    """Inverse hyperbolic cosine of x above 1."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Adam(Primitive):
    """Adam; Kingma and Ba, arXiv 1412.6980, algorithm 1 with the corrections folded into the rate."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AdamWeightDecay(Primitive):
    """Adam without bias correction and with decoupled weight decay; Loshchilov and Hutter, arXiv 1711.05101."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AdaptiveAvgPool2D(Primitive):
    """Means of as many windows as the result has places, which cover the image."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AdaptiveAvgPool2DGrad(Primitive):
    """The gradient of AdaptiveAvgPool2D's images."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AdaptiveAvgPool3D(Primitive):
    """AdaptiveAvgPool2D over depth, height and width."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AdaptiveAvgPool3DGrad(Primitive):
    """The gradient of AdaptiveAvgPool3D's images."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AdaptiveMaxPool2D(Primitive):
    """The greatest values of as many windows as the result has places, which cover the image, and their places."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AdaptiveMaxPool3D(Primitive):
    """AdaptiveMaxPool2D over depth, height and width; places are Int32. Called as `AdaptiveMaxPool3D()(x, sizes)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Add(Primitive):
    """x + y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AddExt(Primitive):
    """x + alpha * y. Called as `AddExt()(x, y, alpha)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AddN(Primitive):
    """The sum of several tensors of one shape. Called as `AddN()((a, b, c))`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AddcdivExt(Primitive):
    """x + value * y / z. Called as `AddcdivExt()(x, y, z, value)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AddcmulExt(Primitive):
    """x + value * y * z. Called as `AddcmulExt()(x, y, z, value)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AllFinite(Primitive):
    """True where no element of any operand is an infinity or not a number, a scalar. Called as `AllFinite()((a, b))`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AllGather(Primitive):
    """The group's tensors side by side along `axis`, in the order of the ranks."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AllReduce(Primitive):
    """The group's tensors combined by `op` ('sum', 'max', 'min' or 'prod'); the same on every rank."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AlltoAll(Primitive):
    """Piece i of the tensor, cut along `split_dim`, goes to rank i of the group; what arrives is joined along"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AlltoAllV(Primitive):
    """Pieces of a tensor of one dimension go to the ranks of the group in order, and what arrives is joined in order."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Angle(Primitive):
    """The angle atan2(im, re) in radians; its gradient at 0 is 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AntiQuant(Primitive):
    """scale * (x + offset) for Int8; scale counts twice with `sqrt_mode`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ApplyMomentum(Primitive):
    """accumulation = accumulation * momentum + gradient; variable -= learning_rate * accumulation."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ApplyRotaryPosEmb(Primitive):
    """(query, key), each x * cos + rotated(x) * sin, where rotated(x) is its second half, negated, before its first."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ApproximateEqual(Primitive):
    """Whether |x - y| is below the tolerance."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Arange(Primitive):
    """start, start + step, ... below end. Called as `Arange()(start, end, step, dtype)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ArgMaxWithValue(Primitive):
    """The place and the value of the maximum along `axis`: a tuple of two."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ArgMinWithValue(Primitive):
    """The place and the value of the minimum along `axis`: a tuple of two."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Argmax(Primitive):
    """The place of the maximum along `axis`, the first one where several are equal."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Argmin(Primitive):
    """The place of the minimum along `axis`, the first one where several are equal."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Asin(Primitive):
    """Inverse sine, in radians."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Asinh(Primitive):
    """Inverse hyperbolic sine."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Assign(Primitive):
    """variable = value."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AssignAdd(Primitive):
    """variable += value."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AssignSub(Primitive):
    """variable -= value."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Atan(Primitive):
    """Inverse tangent, in radians."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Atan2(Primitive):
    """The angle of the point (y, x), of the first operand over the second."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Atanh(Primitive):
    """Inverse hyperbolic tangent of x between -1 and 1."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AvgPool(Primitive):
    """The mean of every window over height and width; padding does not count unless asked for."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AvgPool3D(Primitive):
    """The mean of every window over depth, height and width; padding counts unless asked for."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AvgPool3DGrad(Primitive):
    """The gradient of AvgPool3D's images."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class AvgPoolGrad(Primitive):
    """The gradient of AvgPool's images."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Barrier(Primitive):
    """Hands its operands through once every rank of the group has come here."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BatchMatMul(Primitive):
    """x[..., m, k] @ y[..., k, n] -> [..., m, n]; leading dimensions broadcast, flags as in MatMul."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BatchMatMulExt(Primitive):
    """x[b, m, k] @ y[b, k, n] -> [b, m, n]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BatchNorm(Primitive):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta for every channel, dimension 1 of x: a tuple of five, the"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BatchNormApply(Primitive):
    """BatchNorm's results and new moving statistics from those of the batch, inputs 5 and 6."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BatchNormGrad(Primitive):
    """Gradients of x, gamma and beta, from that of the result, x, gamma, and the mean and variance that were used."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BatchNormGradInput(Primitive):
    """The gradient of x, from BatchNormGrad's operands and, in training, the sums of all ranks."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BatchNormGradSums(Primitive):
    """Sums over a rank's elements of every channel: of the gradient times the normalised x, and of the gradient."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BatchStatistics(Primitive):
    """(mean, variance) of every channel of x, counted along dimension `axis`; moving statistics, operands 1 and 2, are"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BatchToSpaceND(Primitive):
    """The reverse of SpaceToBatchND; `crops` are the places that are left out at the sides."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BesselI0(Primitive):
    """The modified Bessel function of the first kind, of order 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BesselI0e(Primitive):
    """exp(-|x|) times the modified Bessel function of the first kind, of order 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BesselI1(Primitive):
    """The modified Bessel function of the first kind, of order 1."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BesselI1e(Primitive):
    """exp(-|x|) times the modified Bessel function of the first kind, of order 1."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BesselJ0(Primitive):
    """The Bessel function of the first kind, of order 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BesselJ1(Primitive):
    """The Bessel function of the first kind, of order 1."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BesselK0(Primitive):
    """The modified Bessel function of the second kind, of order 0: infinite at 0, not a number below."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BesselK0e(Primitive):
    """exp(x) times the modified Bessel function of the second kind, of order 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BesselK1(Primitive):
    """The modified Bessel function of the second kind, of order 1: infinite at 0, not a number below."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BesselK1e(Primitive):
    """exp(x) times the modified Bessel function of the second kind, of order 1."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BesselY0(Primitive):
    """The Bessel function of the second kind, of order 0: minus infinity at 0, not a number below."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BesselY1(Primitive):
    """The Bessel function of the second kind, of order 1: minus infinity at 0, not a number below."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Betainc(Primitive):
    """The share of beta(a, b) that the integral up to x has, for tensors of one shape. By a and b it has no gradient,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BiasAdd(Primitive):
    """x plus a bias along dimension 1, or along the last one when `data_format` is 'NHWC'."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BinaryCrossEntropy(Primitive):
    """-(y log(x) + (1 - y) log(1 - x)) for probabilities x and labels y, times an optional weight."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BitwiseAnd(Primitive):
    """The bits that both have."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BitwiseOr(Primitive):
    """The bits that one of both has."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BitwiseXor(Primitive):
    """The bits that exactly one has."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BoundingBoxDecode(Primitive):
    """The boxes that differ so from anchors: the reverse of BoundingBoxEncode, within an image of `max_shape` (height,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BoundingBoxEncode(Primitive):
    """How boxes [n, 4] differ from anchors [n, 4]: the centre's distance over the anchor's sides and the logarithm of"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Broadcast(Primitive):
    """The tensors of `root_rank` on every rank of the group; takes and returns a tuple, as in MindSpore."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BroadcastTo(Primitive):
    """x repeated to `shape`, aligned at the right; -1 keeps the size of x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CTCLossV2(Primitive):
    """(minus the logarithm of the targets' probability [batch], that of all beginnings [batch, time, 2 labels + 1])."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CTCLossV2Grad(Primitive):
    """The gradient of log_probs, given the loss's [batch] and both results of CTCLossV2."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Cast(Primitive):
    """x with the element type `dst_type`; of a complex number the real part becomes a real one. Called as"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Cdist(Primitive):
    """The p-norm of every x[..., i, :] - y[..., j, :]: [..., m, k], [..., n, k] -> [..., m, n]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Ceil(Primitive):
    """The smallest whole number not below x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ChannelMean(Primitive):
    """The sum of every channel divided by `count`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ChannelVariance(Primitive):
    """The sum of the squared distances from the mean of every channel divided by `count`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ChannelWindowSum(Primitive):
    """The sum over each channel and those around it."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CheckValid(Primitive):
    """Whether boxes[n, 4] (x0, y0, x1, y1) lie inside an image: metas[3] is its height, width and ratio."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Cholesky(Primitive):
    """The lower triangular L with L @ L^T = x, of symmetric positive definite matrices; its transpose where `upper`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CholeskyGrad(Primitive):
    """The gradient of Cholesky, a symmetric matrix: of P = tril(L^T @ dL) with half its diagonal the symmetric part of"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Col2Im(Primitive):
    """Images [n, c, *output_size] whose places are the sums of what columns [n, c, places of a window, positions] have"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CollectiveGather(Primitive):
    """The group's tensors side by side along dimension 0, in the order of the group, on rank `dest_rank`; one zero on"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CollectiveScatter(Primitive):
    """Part i along dimension 0 of the tensor of rank `src_rank` on rank i of the group. On the others the tensor gives"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Complex(Primitive):
    """real + i * imag."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ComplexAbs(Primitive):
    """The absolute value sqrt(re * re + im * im); its gradient at 0 is 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Concat(Primitive):
    """The tensors in a row along `axis`, which must stay whole. Called as `Concat(axis)((a, b))`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Conj(Primitive):
    """The complex conjugate; a real number is its own."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Conv2D(Primitive):
    """A convolution over height and width: images [n, c, h, w], weights [out channels, c / group, *kernel_size]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Conv2DBackpropFilter(Primitive):
    """The gradient of Conv2D's weights."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Conv2DBackpropInput(Primitive):
    """The gradient of Conv2D's images; also a transposed convolution of images [n, out channels, h, w]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Conv2DTranspose(Primitive):
    """A transposed convolution of images: Conv2DBackpropInput as scripts call it."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Conv3D(Primitive):
    """A convolution over depth, height and width."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Conv3DBackpropFilter(Primitive):
    """The gradient of Conv3D's weights."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Conv3DBackpropInput(Primitive):
    """The gradient of Conv3D's images."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Conv3DTranspose(Primitive):
    """A transposed convolution of images of three dimensions."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Cos(Primitive):
    """Cosine, x in radians."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Cosh(Primitive):
    """Hyperbolic cosine."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CropAndResize(Primitive):
    """Parts [boxes, *crop_size, c] of images [n, h, w, c]: boxes [number, 4] are y1, x1, y2, x2 from 0 to 1, and"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CropAndResizeGradBoxes(Primitive):
    """The gradient of CropAndResize's boxes."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CropAndResizeGradImage(Primitive):
    """The gradient of CropAndResize's images, of shape `image_size`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CumProd(Primitive):
    """Running products along an axis. Called as `CumProd(exclusive, reverse)(x, axis)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CumProdGrad(Primitive):
    """Gradient of CumProd, without a division, so that factors may be 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CumSum(Primitive):
    """Running sums along an axis. Called as `CumSum(exclusive, reverse)(x, axis)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Cummax(Primitive):
    """The greatest element so far along `axis` and its place: a tuple of two. Called as `Cummax(axis)(x)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Cummin(Primitive):
    """The smallest element so far along `axis` and its place: a tuple of two. Called as `Cummin(axis)(x)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CumsumExt(Primitive):
    """Running sums along a dimension. Called as `CumsumExt()(input, dim)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DCT(Primitive):
    """The cosine transform along one dimension, the last unless said otherwise. Called as `DCT()(x, type, n, axis,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DCTN(Primitive):
    """The cosine transform along `dim` (() for all dimensions, or for the last ones where `s` says how many), each cut"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
def DType(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
class Depend(Primitive):
    """The first operand, once all others have run."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DepthToSpace(Primitive):
    """Images whose channels, in groups of block_size * block_size, are blocks of places; a block's place is the more"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Dequant(Primitive):
    """x * deq_scale, twice with `sqrt_mode`, and 0 in the place of what is negative with `relu_flag`. A scale of 64"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Digamma(Primitive):
    """The derivative of Lgamma."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Div(Primitive):
    """x / y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DivNoNan(Primitive):
    """x / y, and 0 where y is 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DoubledFrequencies(Primitive):
    """x with twice those of its frequencies along `axis` that stand for a second one, of a transform of `points` real"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Dropout(Primitive):
    """x / keep_prob where a random mask keeps it, 0 elsewhere, and the mask: a tuple of two."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Dropout2D(Primitive):
    """x / keep_prob with whole channels of [n, c, h, w] set to 0 at random, and the mask of its shape: a tuple of 2."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Dropout3D(Primitive):
    """The same of [n, c, d, h, w]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DropoutDoMask(Primitive):
    """x / keep_prob where the mask is true, 0 elsewhere. Called as `DropoutDoMask()(x, mask, keep_prob)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DropoutGenMask(Primitive):
    """A mask that is true with probability keep_prob. Called as `DropoutGenMask()(shape, keep_prob)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DropoutGrad(Primitive):
    """dout / keep_prob where the mask keeps it, 0 elsewhere."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DumpGradient(Primitive):
    """x, whose gradient is written as TensorDump writes. Called as `DumpGradient()(file, x, mode)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DynamicQuantExt(Primitive):
    """(every row of x, times smooth_scales, divided by its scale and rounded to Int8; the scales, Float32: a row's"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Eig(Primitive):
    """(eigenvalues of square matrices, complex, in no order; with compute_v their eigenvectors, columns of length 1,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Elu(Primitive):
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class EluExt(Primitive):
    """x where it is positive, alpha * (exp(x) - 1) elsewhere. Called as `EluExt()(input, alpha)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Embedding(Primitive):
    """Rows of a table, as Gather, with the integers first. Called as `Embedding()(ids, weight)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class EmbeddingLookup(Primitive):
    """Rows of params at ids - offset; rows of zeros where that is no row of params."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Equal(Primitive):
    """x == y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Erf(Primitive):
    """The error function."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Erfc(Primitive):
    """1 minus the error function; for large x relative accuracy is lost."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Erfinv(Primitive):
    """The y with erf(y) = x: infinite at -1 and 1, NaN beyond."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Exchange(Primitive):
    """A change of layout for which every rank sends each other rank the piece that it lacks."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Exp(Primitive):
    """e to the power x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ExpandDims(Primitive):
    """x with a dimension of size 1 inserted at `axis`. Called as `ExpandDims()(x, axis)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Expm1(Primitive):
    """e to the power x, minus 1, accurate for small x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Eye(Primitive):
    """Ones on the diagonal of an n x m matrix. Called as `Eye()(n, m, type)`. k moves the diagonal to the"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FFN(Primitive):
    """act(x @ weight1 + bias1) @ weight2 + bias2 for x [..., k]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FFNExt(Primitive):
    """As FFN."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FFT(Primitive):
    """The discrete Fourier transform, along one dimension."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FFT2(Primitive):
    """The discrete Fourier transform, along two dimensions."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FFTN(Primitive):
    """The discrete Fourier transform, along some dimensions or all."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FFTShift(Primitive):
    """x rolled along the dimensions `dim` (() for all), so that the first element comes to their middle. Called as"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FakeQuantPerChannel(Primitive):
    """As FakeQuantPerLayer, for every channel."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FakeQuantPerChannelGrad(Primitive):
    """As FakeQuantPerLayerGrad, for every channel."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FakeQuantPerLayer(Primitive):
    """One min and one max, each of shape (1,)."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FakeQuantPerLayerGrad(Primitive):
    """dout where x lies between the numbers that can be written, else 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FastGeLU(Primitive):
    """x * sigmoid(1.702 x)."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Fill(Primitive):
    """A tensor of one value. Called as `Fill()(type, shape, value)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FillV2(Primitive):
    """A tensor of one value, a tensor of one element. Called as `FillV2()(shape, value)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FitSizes(Primitive):
    """x with the dimensions `axes` as long as `sizes` says: cut at their ends, or filled up with zeros there."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FlashAttentionScore(Primitive):
    """softmax(scale_value * query @ key^T + real_shift) @ value for every head: a tuple (softmax_max, softmax_sum,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FlashAttentionScoreGrad(Primitive):
    """Gradients of FlashAttentionScore in query, key and value, of (query, key, value, dy, the optional operands,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FlashAttentionScoreShiftGrad(Primitive):
    """Gradient of FlashAttentionScore in real_shift, of (query, key, value, dy, the optional operands, softmax_max)."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FlashAttentionVarlen(Primitive):
    """What FlashAttentionScore is in the layout 'TND', of (query, key, value, ends of queries, ends of keys): a tuple"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FlashAttentionVarlenGrad(Primitive):
    """Gradients of FlashAttentionVarlen in query, key and value, of these, dy, both lists and softmax_max."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Flatten(Primitive):
    """Dimension 0 stays, all others become one: (n, c, h, w) -> (n, c * h * w)."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Floor(Primitive):
    """The largest whole number not above x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FloorDiv(Primitive):
    """The quotient rounded down; its derivative is 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FloorMod(Primitive):
    """x - floor(x / y) * y; the sign is that of y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FmodScalar(Primitive):
    """The remainder with the sign of the dividend, of a division by a number."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FmodTensor(Primitive):
    """The remainder with the sign of the dividend."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FractionalMaxPool3DWithFixedKsize(Primitive):
    """The same of [n, c, d, h, w], with numbers [n or 1, c, 3]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FractionalMaxPoolGrad(Primitive):
    """An image of `size` with the elements of dout added at the places that were the greatest, zeros elsewhere."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FractionalMaxPoolWithFixedKsize(Primitive):
    """The greatest of windows of [n, c, h, w] and their places h * w: called with x and numbers [n or 1, c, 2]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FusedElementwise(Primitive):
    """The operators of `body`, one a line, each applied to operands x0, x1, ... and results t0, t1, ... of lines."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FusedInferAttentionScore(Primitive):
    """Attention over prompts or one query for each sequence: (attention_out, softmax_lse); see ServingAttention."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FusedLayerNorm(Primitive):
    """LayerNorm of the last dimension, computed in the element type of gamma and beta whatever x has; the normalised x"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FusedLayerNormGrad(Primitive):
    """The gradients of LayerNorm of the last dimension in x, gamma and beta: a tuple of three."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FusedMatMul(Primitive):
    """activation(x @ y + addend + bias) over the last two dimensions."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Gamma(Primitive):
    """Float32 numbers of the gamma distribution of shape parameter alpha and rate beta, both Float32 and above 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Gather(Primitive):
    """Rows of a table: params[..., ids, ...] along `axis`. Called as `Gather()(params, ids, axis)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GatherD(Primitive):
    """out[..., j, ...] = x[..., index[..., j, ...], ...] along `dim`. `GatherD()(x, dim, index)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GatherDGrad(Primitive):
    """Zeros of size `size` along `dim` plus dout at index: the transpose of GatherD. offset, total: as there."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GatherGrad(Primitive):
    """Sums the slices of dout that belong to one row: zeros of size `size` along `axis` plus dout at ids."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GatherNd(Primitive):
    """Slices of x at indices[..., k], which name its first k dimensions."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Gcd(Primitive):
    """The greatest common divisor, which is not negative."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GeLU(Primitive):
    """x * P(X <= x) for a normal X, by the tanh formula: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GeLUGrad(Primitive):
    """dout times the derivative of GeLU at x; y, its result, is not needed but part of the signature."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GetNext(Primitive):
    """The next tensors of the queue `shared_name`, of the given element types and shapes over all ranks."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Gradient(Primitive):
    """A request that the pass `grad` replaces: gradients of the first `outputs` operands, with respect to the others."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GradientPlaceholder(Primitive):
    """Stands for the gradient of a result while the operators that compute the script's own gradient are read."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Greater(Primitive):
    """x > y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GreaterEqual(Primitive):
    """x >= y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GridSampler2D(Primitive):
    """Images [n, c, h, w] read at a grid [n, h', w', 2]: [n, c, h', w']."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GridSampler2DGrad(Primitive):
    """The gradients of GridSampler2D's images and grid."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GridSampler3D(Primitive):
    """Images [n, c, d, h, w] read at a grid [n, d', h', w', 3]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GridSampler3DGrad(Primitive):
    """The gradients of GridSampler3D's images and grid."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GroupedMatmul(Primitive):
    """Several products as one operator: a tuple of results. Called as `GroupedMatmul(split_item, group_type)(x, weight,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GroupedOuter(Primitive):
    """For every group the product of the transposed rows of x [m, k] with those of y [m, n]: [groups, k, n]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GroupedProduct(Primitive):
    """x [m, k] with the rows of every group times its matrix of w [groups, k, n], or [groups, n, k] transposed; rows"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GroupedRows(Primitive):
    """Row by row that of its group of b [groups, n], as many rows as like [m, n] has; zeros behind the last group."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GroupedSums(Primitive):
    """The sums of the rows of every group of x [m, n]: [groups, n]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class GroupedUpdate(Primitive):
    """`count` times the operator `update`, written as a line without operands: `AssignAdd()`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class HFFT(Primitive):
    """The frequencies, all real, of numbers of which the first half is given and the rest are the conjugates, along"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class HFFT2(Primitive):
    """The frequencies, all real, of numbers of which the first half is given and the rest are the conjugates, along"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class HFFTN(Primitive):
    """The frequencies, all real, of numbers of which the first half is given and the rest are the conjugates, along"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class HShrink(Primitive):
    """x where its absolute value is above lambd, else 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class HSigmoid(Primitive):
    """x / 6 + 1 / 2, cut off below 0 and above 1."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class HSwish(Primitive):
    """x * HSigmoid(x)."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Hypot(Primitive):
    """The square root of x^2 + y^2."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IDCT(Primitive):
    """The inverse of `DCT`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IDCTN(Primitive):
    """The inverse of `DCTN`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IFFT(Primitive):
    """The inverse of the discrete Fourier transform, along one dimension."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IFFT2(Primitive):
    """The inverse of the discrete Fourier transform, along two dimensions."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IFFTN(Primitive):
    """The inverse of the discrete Fourier transform, along some dimensions or all."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IFFTShift(Primitive):
    """What `FFTShift` has rolled as it was before."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IHFFT(Primitive):
    """The first half of the numbers that have these real frequencies, along one dimension."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IHFFT2(Primitive):
    """The first half of the numbers that have these real frequencies, along two dimensions."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IHFFTN(Primitive):
    """The first half of the numbers that have these real frequencies, along some dimensions or all."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IOU(Primitive):
    """[m, n]: the area that boxes [n, 4] and true boxes [m, 4] share over that of both (mode 'iou'), or over that of"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IRFFT(Primitive):
    """The real numbers that have these frequencies from 0 on, along one dimension."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IRFFT2(Primitive):
    """The real numbers that have these frequencies from 0 on, along two dimensions."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IRFFTN(Primitive):
    """The real numbers that have these frequencies from 0 on, along some dimensions or all."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Identity(Primitive):
    """x itself."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Igamma(Primitive):
    """The share of gamma(a) that the integral up to x has."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IgammaGradA(Primitive):
    """The derivative of Igamma by a."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Igammac(Primitive):
    """The share of gamma(a) that the integral from x on has."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Im2Col(Primitive):
    """[n, c, places of a window, positions] of images [n, c, h, w]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Imag(Primitive):
    """The imaginary part; 0 of a real number."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IncreFlashAttention(Primitive):
    """Attention of one query for each sequence, over keys and values that are kept; see ServingAttention. The lengths"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IndexSelect(Primitive):
    """Slices of a tensor along `axis`. Called as `IndexSelect()(input, axis, index)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class InplaceAdd(Primitive):
    """x plus v in the rows `indices`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class InplaceCopy(Primitive):
    """input = src, broadcast to its shape, for a parameter `input`; the result is its new value."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class InplaceSub(Primitive):
    """x minus v in the rows `indices`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class InplaceUpdate(Primitive):
    """x with v in place of the rows `indices`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Inv(Primitive):
    """1 / x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Invert(Primitive):
    """Every bit turned over."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IsClose(Primitive):
    """Where |x - y| <= atol + rtol * |y|. Called as `IsClose()(input, other, rtol, atol, equal_nan)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IsFinite(Primitive):
    """Where x is neither an infinity nor not a number."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IsInf(Primitive):
    """Where x is an infinity."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IsNan(Primitive):
    """Where x is not a number."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class KLDivLoss(Primitive):
    """y (log(y) - x) for logarithms x and probabilities y; 0 where y is 0. Labels get no gradient. The reduction"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class KVCacheScatterUpdate(Primitive):
    """var with updates in the place of what it holds: those of row i from place indices[i] of `axis` on. Called as"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class L2Loss(Primitive):
    """Half the sum of the squares of x, a scalar."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class L2Normalize(Primitive):
    """x over the root of the larger of `epsilon` and the sum of its squares along `axis`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class L2NormalizeGrad(Primitive):
    """Gradient of L2Normalize, of (x, its result, dout)."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LRN(Primitive):
    """x / (bias + alpha * (the sum of the squares of the channels around))**beta; the channels stay whole."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LayerNorm(Primitive):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance: a tuple of three."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LayerNormGammaGrad(Primitive):
    """Gradient of LayerNorm in gamma, of (dout, x, mean, variance): the sum of dout (x - mean) /"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LayerNormGrad(Primitive):
    """Gradient of LayerNorm in x, of (dout, x, mean, variance, gamma)."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LeakyReLUExt(Primitive):
    """x where it is positive, negative_slope * x elsewhere. Called as `LeakyReLUExt()(input, negative_slope)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LeftShift(Primitive):
    """x with its bits `other` places higher."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Lerp(Primitive):
    """start + weight * (end - start), all broadcast against each other."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Less(Primitive):
    """x < y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LessEqual(Primitive):
    """x <= y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Lgamma(Primitive):
    """log |gamma(x)|."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LinSpace(Primitive):
    """num numbers from start to stop, both included. Called as `LinSpace()(start, stop, num)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LinSpaceBetween(Primitive):
    """num numbers from start to stop, which are tensors without dimensions; what LinSpace becomes for these."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LinSpaceExt(Primitive):
    """steps numbers from start to end, both included. Called as `LinSpaceExt()(start, end, steps, dtype)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LocalSlice(Primitive):
    """A change of layout for which every rank keeps a part of what it holds; nothing is sent."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Log(Primitive):
    """The natural logarithm of x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Log1p(Primitive):
    """The natural logarithm of 1 + x, accurate for small x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LogMatrixDeterminant(Primitive):
    """(signs of the determinants of matrices, logarithms of their absolute values)."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LogSoftmax(Primitive):
    """x minus the logarithm of the sum of exp(x) along `axis`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LogSoftmaxGrad(Primitive):
    """Gradient of LogSoftmax: dout - exp(out) * sum(dout), the sum along `axis`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LogicalAnd(Primitive):
    """x and y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LogicalNot(Primitive):
    """not x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LogicalOr(Primitive):
    """x or y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LogicalXor(Primitive):
    """x or y, not both."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LpNorm(Primitive):
    """The p-norm of x along `axis`, at least `epsilon`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LstsqV2(Primitive):
    """Least squares of a @ x = b for matrices a [..., m, n] and b [..., m] or [..., m, k]: a tuple of x, the sums of"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MakeTuple(Primitive):
    """Puts tensors side by side: `(a, b)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MaskedFill(Primitive):
    """value where the mask is true, x elsewhere; value is a scalar."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MatMul(Primitive):
    """x[m, k] @ y[k, n] -> [m, n]; x is [k, m] when transpose_a, y is [n, k] when transpose_b."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MatMulExt(Primitive):
    """The matrix product of two matrices, or of batches of them."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MatrixDeterminant(Primitive):
    """The determinants of matrices."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MatrixExp(Primitive):
    """The exponentials of matrices: the series of a 2^s-th part, squared s times. Moler and Van Loan 2003."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MatrixInverse(Primitive):
    """The inverses of matrices, transposed where `adjoint`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MatrixSolve(Primitive):
    """x of a @ x = b for matrices a [..., n, n] and b [..., n, k]; of the transpose of a where `adjoint`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Max(Primitive):
    """Maximum of all elements; its gradient is shared equally among equal maxima."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MaxDim(Primitive):
    """The maximum along `dim` and its first place: a tuple of two. Called as `MaxDim()(input, dim, keepdim)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MaxPool(Primitive):
    """The greatest value of every window over height and width."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MaxPool3D(Primitive):
    """The greatest value of every window over depth, height and width."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MaxPool3DGrad(Primitive):
    """The gradient of MaxPool3D's images."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MaxPool3DWithArgmax(Primitive):
    """MaxPool3D with `pads` and the places that its values come from, counted over depth, height and width."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MaxPoolGrad(Primitive):
    """The gradient of MaxPool's images, from them, the result and its gradient."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MaxPoolWithArgmax(Primitive):
    """MaxPool and the places that its values come from, counted over channels, height and width, Int32."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MaxPoolWithArgmaxV2(Primitive):
    """MaxPool with `pads` and the places that its values come from, counted over height and width; strides of None are"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MaxUnpool2D(Primitive):
    """Zeros with the values of x at the places `argmax`, which MaxPoolWithArgmaxV2 tells, in images [n, c, h, w]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MaxUnpool3D(Primitive):
    """MaxUnpool2D of images [n, c, d, h, w]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Maximum(Primitive):
    """The larger of x and y; half the gradient goes to each where they are equal."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MeanExt(Primitive):
    """Mean along dimensions. Called as `MeanExt()(input, dim, keepdim)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Min(Primitive):
    """Minimum of all elements; its gradient is shared equally among equal minima."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MinDim(Primitive):
    """The minimum along `dim` and its first place: a tuple of two. Called as `MinDim()(input, dim, keepdim)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Minimum(Primitive):
    """The smaller of x and y; half the gradient goes to each where they are equal."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MirrorPad(Primitive):
    """x with margins in which it is mirrored: about its last element (mode 'REFLECT') or behind it ('SYMMETRIC')."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MirrorPadGrad(Primitive):
    """The gradient of what MirrorPad gave margins: every element gets what all its copies got."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Mish(Primitive):
    """x * tanh(log(1 + exp(x))); Misra, arXiv 1908.08681."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Mod(Primitive):
    """The remainder of the division truncated towards 0; the sign is that of x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MoeComputeExpertTokens(Primitive):
    """How many rows the experts 0 to i have together, for every one of num_expert, Int32. Called as"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MoeFinalizeRouting(Primitive):
    """Row by row x1 [rows, n], and x2 where it is not None, and for every choice of the row its weight in scales [rows,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MoeGatingTopKSoftmax(Primitive):
    """(the k largest softmax weights of every row of x [rows, experts], their experts, Int32, and where each of them"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MoeInitRouting(Primitive):
    """(x [rows, n] once for every choice, those of one expert together: [min(rows, active_num) * k, n]; where each"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MoveTo(Primitive):
    """x itself: where values lie is planned. Called as `MoveTo()(x, to, blocking)`; to: the memory that is wanted, a"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MovingStatistics(Primitive):
    """`mean`, with moving statistics, operands 1 and 2, updated from it and `variance`, which are those of `count`"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Mul(Primitive):
    """x * y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MulNoNan(Primitive):
    """x * y, and 0 where y is 0, even when x is infinite or not a number."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class NMSWithMask(Primitive):
    """(boxes [n, 5] with a score behind, the best first; 0 to n, Int32; which are left): a box goes if one that is left"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class NanToNum(Primitive):
    """x with other numbers in place of NaN and the infinities. Called as `NanToNum()(x, nan, posinf, neginf)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Neg(Primitive):
    """-x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class NeighborExchange(Primitive):
    """Sends operand i to rank `send_rank_ids[i]` and returns what comes from `recv_rank_ids`, as a tuple of"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class NeighborExchangeV2(Primitive):
    """x [n, c, h, w] with the borders of its neighbours around it."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class NextAfter(Primitive):
    """The number that follows x on the way to y, in Float32 or Float64."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class NotEqual(Primitive):
    """x != y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class OneHot(Primitive):
    """on_value where the class along the new dimension `axis` is the integer, off_value elsewhere."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class OneHotExt(Primitive):
    """OneHot with the axis at the call. Called as `OneHotExt()(indices, depth, on_value, off_value, axis)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Ones(Primitive):
    """A tensor of ones. Called as `Ones()(shape, dtype)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class OnesLike(Primitive):
    """Ones of the shape and element type of x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class OnesLikeExt(Primitive):
    """Ones of the shape of x. Called as `OnesLikeExt()(x, dtype)`; None is the element type of x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Outer(Primitive):
    """The products x[i] * y[j] of two vectors."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class OwnGradient(Primitive):
    """The first `results` operands, whose gradient the script gives. Behind them stand what they were computed from,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class PReLU(Primitive):
    """x where it is positive, weight * x elsewhere; one weight, or one per channel (dimension 1)."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Pad(Primitive):
    """x with zeros around it: paddings[d] = (before, after) in dimension d; those stay whole."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class PadV3(Primitive):
    """x with a margin of one value. Called as `PadV3()(x, paddings, value)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class PagedAttention(Primitive):
    """Attention over keys and values in blocks; see _Paged. mask_mode must be 'MASK_DEFAULT' and mla_v_dim 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class PagedAttentionMask(Primitive):
    """PagedAttention with alibi_mask as the last operand."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class PasteSlices(Primitive):
    """A new tensor of `shape` made of the operands, operand i with its first element at `begins[i]`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Polar(Primitive):
    """abs * (cos(angle) + i * sin(angle))."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class PopulationCount(Primitive):
    """How many bits of a number are 1, UInt8; of a negative one those of its two's complement."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Pow(Primitive):
    """x to the power y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Print(Primitive):
    """Prints values, a line each, at every step: of the first tensor this rank's slice, the others whole. Called as"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class PromptFlashAttention(Primitive):
    """Attention over whole prompts; see ServingAttention. Quantised operands are not built."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Qr(Primitive):
    """(orthogonal matrices Q, upper triangular matrices R) with Q @ R = x [..., m, n]: Q has min(m, n) columns, or m"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class QrGrad(Primitive):
    """Gradient of Qr: (dQ + Q @ S) @ R^-T, where S has the lower triangle of R @ dR^T - dQ^T @ Q on both sides. Walter"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Quant(Primitive):
    """scale * x + offset rounded to Int8, what lies outside at its ends; scale counts twice with `sqrt_mode`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class QuantBatchMatmul(Primitive):
    """(x1 @ x2 + bias) * scale + offset of Int8 matrices, summed in Int32. Called as `QuantBatchMatmul(...)(x1, x2,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class QuantV2(Primitive):
    """As Quant, with tensors `scale` and `offset`. Called as `QuantV2()(x, scale, offset, sqrt_mode, rounding_mode,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RFFT(Primitive):
    """The frequencies from 0 on of real numbers, along one dimension."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RFFT2(Primitive):
    """The frequencies from 0 on of real numbers, along two dimensions."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RFFTN(Primitive):
    """The frequencies from 0 on of real numbers, along some dimensions or all."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ROIAlign(Primitive):
    """The means of features [n, c, h, w] in the places of boxes [number, 5], which are the image's number, x1, y1, x2,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ROIAlignGrad(Primitive):
    """The gradient of ROIAlign's features, of shape `xdiff_shape`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RandomChoiceWithMask(Primitive):
    """(places [count, dimensions] of elements of x that are true, drawn evenly and each at most once, Int32; which of"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Range(Primitive):
    """start, start + delta, ... below limit. Called as `Range()(start, limit, delta)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
def Rank(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
class ReLU(Primitive):
    """max(x, 0); its derivative at 0 is 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReLU6(Primitive):
    """min(max(x, 0), 6)."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Real(Primitive):
    """The real part."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RealDiv(Primitive):
    """x / y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Receive(Primitive):
    """A tensor of `shape` and `dtype` from `src_rank`, sent there under the same `sr_tag`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Reciprocal(Primitive):
    """1 / x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Redistribute(Primitive):
    """Brings a tensor from `source` to `target`; `lower_redistribution` replaces it by the cheapest steps."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Reduce(Primitive):
    """The group's tensors combined by `op` ('sum', 'max', 'min' or 'prod') on the rank with number `dest_rank` in the"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReduceAll(Primitive):
    """Whether all elements along `axis` are true."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReduceAny(Primitive):
    """Whether any element along `axis` is true."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReduceMax(Primitive):
    """Maximum along `axis`; its gradient is shared equally among equal maxima."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReduceMean(Primitive):
    """Mean along `axis`, of integers cut off to one; partial means of equal parts combine by their mean, those of"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReduceMin(Primitive):
    """Minimum along `axis`; its gradient is shared equally among equal minima."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReduceProd(Primitive):
    """Product along `axis`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReduceProdGrad(Primitive):
    """Gradient of ReduceProd: dout times the product of all other elements, which may hold zeros."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReduceScatter(Primitive):
    """This rank's slice along `axis` of the group's tensors combined by `op`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReduceSum(Primitive):
    """Sum along `axis`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Regroup(Primitive):
    """A change of layout by one AlltoAll and one AllGather, then a transposition on each rank."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReluGrad(Primitive):
    """dout where y, the result of ReLU, is positive, else 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RemainderScalarTensor(Primitive):
    """The remainder of a number, with the sign of the divisor."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RemainderTensorScalar(Primitive):
    """The remainder with the sign of the divisor, a number."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RemainderTensorTensor(Primitive):
    """The remainder with the sign of the divisor."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RepeatInterleaveInt(Primitive):
    """Every slice along `dim` `repeats` times in a row; without dim every element of x, in one dimension."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RepeatInterleaveTensor(Primitive):
    """Slice i along `dim`, which must stay whole, repeats[i] times in a row; without dim those of x made flat."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Reshape(Primitive):
    """x in another shape; one -1 stands for what is left. Called as `Reshape()(x, shape)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReshapeAndCache(Primitive):
    """key itself; beside it the rows of key and value [..., heads * size] are written to key_cache and value_cache"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ResizeBicubic(Primitive):
    """Images of another size, by cubic interpolation. Called as `ResizeBicubic(...)(x, size)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ResizeBicubicGrad(Primitive):
    """The gradient of ResizeBicubic's images."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ResizeBilinear(Primitive):
    """Images of another size, by linear interpolation along height and width."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ResizeBilinearGrad(Primitive):
    """The gradient of ResizeBilinear's images."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ResizeBilinearV2(Primitive):
    """ResizeBilinear, called as `ResizeBilinearV2(...)(x, size)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ResizeBilinearV2Grad(Primitive):
    """The gradient of ResizeBilinearV2's images."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ResizeNearest3D(Primitive):
    """ResizeNearestNeighbor of [n, c, d, h, w]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ResizeNearest3DGrad(Primitive):
    """The gradient of ResizeNearest3D's images."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ResizeNearestNeighbor(Primitive):
    """Images of another size, every place the nearest one of the image."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ResizeNearestNeighborGrad(Primitive):
    """The gradient of ResizeNearestNeighbor's images."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ResizeTrilinear(Primitive):
    """ResizeBilinear of [n, c, d, h, w]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ResizeTrilinearGrad(Primitive):
    """The gradient of ResizeTrilinear's images."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ReverseV2(Primitive):
    """x with the order of its elements turned round along `axis`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RightShift(Primitive):
    """x with its bits `other` places lower; a negative number keeps its sign."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Rint(Primitive):
    """The nearest whole number, halves to the even one."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RmsNorm(Primitive):
    """x / sqrt(mean(x^2) + epsilon) * gamma and the reciprocal root: a tuple of two."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RmsNormGrad(Primitive):
    """Gradient of RmsNorm in x, of (dout, x, rstd, gamma): rstd (g - y mean(g y)), g = dout gamma and y = x"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class RotaryPositionEmbedding(Primitive):
    """x * cos + rotated(x) * sin, where rotated(x) is the second half of the last dimension, negated, before the first;"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Round(Primitive):
    """The nearest whole number, halves to the even one."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Rsqrt(Primitive):
    """1 over the square root of x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SGD(Primitive):
    """Stochastic gradient descent with momentum, dampening, weight decay and Nesterov's step."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ScatterAdd(Primitive):
    """Adds to the rows of a parameter."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ScatterDiv(Primitive):
    """Divides the rows of a parameter."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ScatterMax(Primitive):
    """The larger of the rows of a parameter and the updates."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ScatterMin(Primitive):
    """The smaller of the rows of a parameter and the updates."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ScatterMul(Primitive):
    """Multiplies the rows of a parameter."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ScatterNd(Primitive):
    """Zeros of `shape` plus the updates at indices[..., k]; updates of one place are added."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ScatterNdAdd(Primitive):
    """Adds the updates to a parameter at indices[..., k]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ScatterNdSub(Primitive):
    """Subtracts the updates from a parameter at indices[..., k]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ScatterNdUpdate(Primitive):
    """Puts the updates into a parameter at indices[..., k]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ScatterSub(Primitive):
    """Subtracts from the rows of a parameter."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ScatterUpdate(Primitive):
    """Puts the updates in place of rows of a parameter; of several for one row the last counts."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SeLU(Primitive):
    """scale * x above 0, scale * alpha * (exp(x) - 1) elsewhere; Klambauer et al., arXiv 1706.02515."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Select(Primitive):
    """x where the condition holds, y elsewhere; all three are broadcast against each other."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Send(Primitive):
    """Sends the tensor to `dest_rank`; the result is the operand, so that a Depend can order what follows."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
def Shape(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
class ShardingConstraint(Primitive):
    """x itself, sharded as the operator's strategy says: `ShardingConstraint().shard(((2, 4),))(x)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SiLU(Primitive):
    """x * sigmoid(x)."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SiLUGrad(Primitive):
    """dout times the derivative of SiLU at x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Sigmoid(Primitive):
    """1 / (1 + exp(-x)), without overflow."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SigmoidCrossEntropyWithLogits(Primitive):
    """max(x, 0) - x * label + log(1 + exp(-|x|)), the cross entropy of sigmoid(x) with label."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SigmoidGrad(Primitive):
    """dout * y * (1 - y) for y, the result of Sigmoid."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Sign(Primitive):
    """-1, 0 or 1; 0 for NaN."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Sin(Primitive):
    """Sine, x in radians."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SingularValues(Primitive):
    """The singular values of the matrices of the last two dimensions, in descending order."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SingularValuesGrad(Primitive):
    """Gradient of SingularValues: the outer products of the singular vectors, weighted by dout."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Sinh(Primitive):
    """Hyperbolic sine."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
def Size(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
class Slice(Primitive):
    """x[begin : begin + size] in every dimension; a size of -1 takes the rest. `Slice()(x, begin, size)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SliceExt(Primitive):
    """The elements start, start + step, ... below end of one dimension."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SmoothL1Loss(Primitive):
    """0.5 d^2 / beta where |d| < beta, |d| - 0.5 beta elsewhere, d = prediction - target."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SoftShrink(Primitive):
    """x moved towards 0 by lambd, and 0 where it would pass it."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Softmax(Primitive):
    """exp(x) over its sum along `axis`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SoftmaxBackward(Primitive):
    """Gradient of Softmax: (dout - sum(dout * out)) * out, the sum along `dim`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SoftmaxCrossEntropyWithLogits(Primitive):
    """Cross entropy of every row of logits[n, c] with labels[n, c], and its derivative in the logits:"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Softplus(Primitive):
    """log(1 + exp(x)), without overflow."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SoftplusExt(Primitive):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is above `threshold`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Softsign(Primitive):
    """x / (1 + |x|)."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SolveTriangular(Primitive):
    """x of a @ x = b for triangular matrices a [..., n, n] and b [..., n] or [..., n, k]. Called as"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Sort(Primitive):
    """x in order along `axis`, and the places that the elements come from: a tuple of two. Equal ones keep their order,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SortExt(Primitive):
    """x in order along `dim`, and the places that the elements come from: a tuple of two. Equal ones keep their order."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SpaceToBatchND(Primitive):
    """Places with `paddings` of zeros around them, whose places within a block become images of the batch; a block's"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SpaceToDepth(Primitive):
    """The reverse of DepthToSpace: every block of places becomes channels of one place."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SparseGatherV2(Primitive):
    """Rows of a table, as Gather."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SparseSoftmaxCrossEntropyWithLogits(Primitive):
    """The mean cross entropy of logits[n, c] with the classes labels[n]; with is_grad its derivative in the"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Split(Primitive):
    """`output_num` equal parts along `axis`, which must stay whole; a tuple."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SplitTensor(Primitive):
    """Parts of `split_size`, the last one smaller where it does not divide."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SplitV(Primitive):
    """Parts of the given sizes along `split_dim`; one size may be -1, the rest."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SplitWithSize(Primitive):
    """Parts of the given sizes. Called as `SplitWithSize()(input, split_sizes, dim)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Sqrt(Primitive):
    """The square root of x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Square(Primitive):
    """x * x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SquareSumAll(Primitive):
    """The sum of the squares of all elements of x, and that of y: a tuple of two."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SquaredDifference(Primitive):
    """(x - y) ** 2."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Squeeze(Primitive):
    """x without the dimensions `axis`, all of size 1; without all dimensions of size 1 when `axis` is ()."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Stack(Primitive):
    """The tensors side by side along a new dimension `axis`. Called as `Stack(axis)((a, b))`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class StackExt(Primitive):
    """The tensors side by side along a new dimension. Called as `StackExt(dim)((a, b))`, or `()((a, b), dim)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class StopGradient(Primitive):
    """The operand; differentiation does not pass."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class StridedSlice(Primitive):
    """A slice of x with MindSpore's masks. Called as `StridedSlice()(x, begin, end, strides)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class StridedSliceGrad(Primitive):
    """Zeros of `shape` with dy in the place that StridedSlice takes from."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Sub(Primitive):
    """x - y."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SubExt(Primitive):
    """x - alpha * y. Called as `SubExt()(x, y, alpha)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SumExt(Primitive):
    """Sum along dimensions. Called as `SumExt()(input, dim, keepdim)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Svd(Primitive):
    """(singular values, left singular vectors U, right ones V) with U @ diag(s) @ V^T = x, as many as there are"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class SvdGrad(Primitive):
    """Gradient of Svd by its values and its vectors. Townsend 2016."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Swiglu(Primitive):
    """silu(a) * b for the two halves a and b of x along `dim`. Called as `Swiglu()(input, dim)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Tan(Primitive):
    """Tangent, x in radians."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Tanh(Primitive):
    """Hyperbolic tangent."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TanhGrad(Primitive):
    """dout * (1 - y * y) for y, the result of Tanh."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TensorDump(Primitive):
    """Writes this rank's slice of x to `file` at every step, and returns x. Called as `TensorDump()(file, x)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TensorScatterAdd(Primitive):
    """x plus the updates at indices[..., k]; updates of one place are all added."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TensorScatterDiv(Primitive):
    """x divided by the updates at indices[..., k]; by all updates of one place."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TensorScatterMax(Primitive):
    """The larger of x and the updates at indices[..., k]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TensorScatterMin(Primitive):
    """The smaller of x and the updates at indices[..., k]."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TensorScatterMul(Primitive):
    """x times the updates at indices[..., k]; all updates of one place are multiplied."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TensorScatterSub(Primitive):
    """x minus the updates at indices[..., k]; all updates of one place are subtracted."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TensorScatterUpdate(Primitive):
    """x with the updates in place of what stands at indices[..., k]; of several the last counts."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Tile(Primitive):
    """x repeated `multiples[d]` times along every dimension d, aligned at the right. Called as `Tile()(x,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TopK(Primitive):
    """The k largest elements along the last axis, in descending order, and their places: a tuple of two."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TopKRouter(Primitive):
    """(the tokens of every expert [batch, expert_num, capacity], counted from 1, 0 where there is none; the place of"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TopPRouter(Primitive):
    """TopKRouter, of whose choices those are left out with which the weights of a token, router_prob in the shape of"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TopkExt(Primitive):
    """The k largest (or smallest) elements along `dim` in order, and their places: a tuple of two."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TraceV2(Primitive):
    """The sum along the diagonal `offset` of the dimensions axis1 and axis2: called as `TraceV2()(x, offset, axis1,"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TraceV2Grad(Primitive):
    """Zeros of `shape` with dout everywhere on the diagonal."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Transpose(Primitive):
    """x with its dimensions in the order `perm`: dimension d of the result is dimension perm[d] of x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Tril(Primitive):
    """x on and below the diagonal of the last two dimensions, 0 above; `diagonal` moves it up."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Triu(Primitive):
    """x on and above the diagonal of the last two dimensions, 0 below; `diagonal` moves it up."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Trunc(Primitive):
    """x without its fraction."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TruncateDiv(Primitive):
    """The quotient truncated towards 0; its derivative is 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TruncateMod(Primitive):
    """The remainder of the division truncated towards 0; the sign is that of x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class TupleGetItem(Primitive):
    """Element `index` of a tuple."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
def TupleToArray(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
class UniformCandidateSampler(Primitive):
    """num_sampled classes of 0 to range_max - 1, each as likely as the others, for true classes x [batch, num_true]: a"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class UniformReal(Primitive):
    """Float32 numbers drawn evenly from [0, 1). Called as `UniformReal(seed, seed2)(shape)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class UnsortedSegmentMax(Primitive):
    """The maximum of the rows of x that share a segment; the least number where there is none."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class UnsortedSegmentMin(Primitive):
    """The minimum of the rows of x that share a segment; the greatest number where there is none."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class UnsortedSegmentProd(Primitive):
    """The product of the rows of x that share a segment; 1 where there is none."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class UnsortedSegmentSum(Primitive):
    """Sums the rows of x that share a segment: out[s] = sum of x[i] with segment_ids[i] == offset + s; others are"""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Unstack(Primitive):
    """The slices of x along `axis` without that dimension, a tuple; `num` is their number when given."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class WeightAntiQuant(Primitive):
    """scale * (weight + offset) for the Int8 matrices of the last two dimensions, [k, n], or [n, k] with `transposed`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class WeightQuantBatchMatmul(Primitive):
    """x @ (antiquant_scale * (weight + antiquant_offset)) + bias for an Int8 weight; see WeightAntiQuant for shapes."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Xdivy(Primitive):
    """x / y, and 0 where x is 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Xlogy(Primitive):
    """x * log(y), and 0 where x is 0."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Zeros(Primitive):
    """A tensor of zeros. Called as `Zeros()(shape, dtype)`."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ZerosLike(Primitive):
    """Zeros of the shape and element type of x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ZerosLikeExt(Primitive):
    """Zeros of the shape of x. Called as `ZerosLikeExt()(x, dtype)`; None is the element type of x."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class Zeta(Primitive):
    """Hurwitz' zeta function: the sum of (q + n)^-x over n from 0 on. By x it has no gradient, as in MindSpore."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
def abs(*args: Any, **kwargs: Any) -> Any:
    """The absolute value, of complex numbers a real one; its derivative at 0 is 0."""
def absolute(*args: Any, **kwargs: Any) -> Any:
    """The absolute value, of complex numbers a real one; its derivative at 0 is 0."""
def acos(*args: Any, **kwargs: Any) -> Any:
    """Inverse cosine, in radians."""
def acosh(*args: Any, **kwargs: Any) -> Any:
    """Inverse hyperbolic cosine of x above 1."""
def add(*args: Any, **kwargs: Any) -> Any:
    """x + y."""
def add_ext(*args: Any, **kwargs: Any) -> Any:
    """x + alpha * y. Called as `AddExt()(x, y, alpha)`."""
def addcdiv_ext_op(*args: Any, **kwargs: Any) -> Any:
    """x + value * y / z. Called as `AddcdivExt()(x, y, z, value)`."""
def addcmul_ext_op(*args: Any, **kwargs: Any) -> Any:
    """x + value * y * z. Called as `AddcmulExt()(x, y, z, value)`."""
def addn(*args: Any, **kwargs: Any) -> Any:
    """The sum of several tensors of one shape. Called as `AddN()((a, b, c))`."""
def angle(*args: Any, **kwargs: Any) -> Any:
    """The angle atan2(im, re) in radians; its gradient at 0 is 0."""
def apply_rotary_pos_emb_(*args: Any, **kwargs: Any) -> Any:
    """(query, key), each x * cos + rotated(x) * sin, where rotated(x) is its second half, negated, before its first."""
def approximate_equal(*args: Any, **kwargs: Any) -> Any:
    """Whether |x - y| is below the tolerance."""
def arccos(*args: Any, **kwargs: Any) -> Any:
    """Inverse cosine, in radians."""
def arccosh(*args: Any, **kwargs: Any) -> Any:
    """Inverse hyperbolic cosine of x above 1."""
def arcsin(*args: Any, **kwargs: Any) -> Any:
    """Inverse sine, in radians."""
def arcsinh(*args: Any, **kwargs: Any) -> Any:
    """Inverse hyperbolic sine."""
def arctan(*args: Any, **kwargs: Any) -> Any:
    """Inverse tangent, in radians."""
def arctan2(*args: Any, **kwargs: Any) -> Any:
    """The angle of the point (y, x), of the first operand over the second."""
def arctanh(*args: Any, **kwargs: Any) -> Any:
    """Inverse hyperbolic tangent of x between -1 and 1."""
def asin(*args: Any, **kwargs: Any) -> Any:
    """Inverse sine, in radians."""
def asinh(*args: Any, **kwargs: Any) -> Any:
    """Inverse hyperbolic sine."""
def assign(*args: Any, **kwargs: Any) -> Any:
    """variable = value."""
def assign_add(*args: Any, **kwargs: Any) -> Any:
    """variable += value."""
def assign_sub(*args: Any, **kwargs: Any) -> Any:
    """variable -= value."""
def atan(*args: Any, **kwargs: Any) -> Any:
    """Inverse tangent, in radians."""
def atan2(*args: Any, **kwargs: Any) -> Any:
    """The angle of the point (y, x), of the first operand over the second."""
def atanh(*args: Any, **kwargs: Any) -> Any:
    """Inverse hyperbolic tangent of x between -1 and 1."""
def batch_matmul(*args: Any, **kwargs: Any) -> Any:
    """x[..., m, k] @ y[..., k, n] -> [..., m, n]; leading dimensions broadcast, flags as in MatMul."""
def bessel_i0(*args: Any, **kwargs: Any) -> Any:
    """The modified Bessel function of the first kind, of order 0."""
def bessel_i0e(*args: Any, **kwargs: Any) -> Any:
    """exp(-|x|) times the modified Bessel function of the first kind, of order 0."""
def bessel_i1(*args: Any, **kwargs: Any) -> Any:
    """The modified Bessel function of the first kind, of order 1."""
def bessel_i1e(*args: Any, **kwargs: Any) -> Any:
    """exp(-|x|) times the modified Bessel function of the first kind, of order 1."""
def bessel_j0(*args: Any, **kwargs: Any) -> Any:
    """The Bessel function of the first kind, of order 0."""
def bessel_j1(*args: Any, **kwargs: Any) -> Any:
    """The Bessel function of the first kind, of order 1."""
def bessel_k0(*args: Any, **kwargs: Any) -> Any:
    """The modified Bessel function of the second kind, of order 0: infinite at 0, not a number below."""
def bessel_k0e(*args: Any, **kwargs: Any) -> Any:
    """exp(x) times the modified Bessel function of the second kind, of order 0."""
def bessel_k1(*args: Any, **kwargs: Any) -> Any:
    """The modified Bessel function of the second kind, of order 1: infinite at 0, not a number below."""
def bessel_k1e(*args: Any, **kwargs: Any) -> Any:
    """exp(x) times the modified Bessel function of the second kind, of order 1."""
def bessel_y0(*args: Any, **kwargs: Any) -> Any:
    """The Bessel function of the second kind, of order 0: minus infinity at 0, not a number below."""
def bessel_y1(*args: Any, **kwargs: Any) -> Any:
    """The Bessel function of the second kind, of order 1: minus infinity at 0, not a number below."""
def bias_add(*args: Any, **kwargs: Any) -> Any:
    """x plus a bias along dimension 1, or along the last one when `data_format` is 'NHWC'."""
def bitwise_and(*args: Any, **kwargs: Any) -> Any:
    """The bits that both have."""
def bitwise_left_shift(*args: Any, **kwargs: Any) -> Any:
    """x with its bits `other` places higher."""
def bitwise_or(*args: Any, **kwargs: Any) -> Any:
    """The bits that one of both has."""
def bitwise_right_shift(*args: Any, **kwargs: Any) -> Any:
    """x with its bits `other` places lower; a negative number keeps its sign."""
def bitwise_xor(*args: Any, **kwargs: Any) -> Any:
    """The bits that exactly one has."""
def bmm(*args: Any, **kwargs: Any) -> Any:
    """x[..., m, k] @ y[..., k, n] -> [..., m, n]; leading dimensions broadcast, flags as in MatMul."""
def bounding_box_decode(*args: Any, **kwargs: Any) -> Any:
    """The boxes that differ so from anchors: the reverse of BoundingBoxEncode, within an image of `max_shape` (height,"""
def bounding_box_encode(*args: Any, **kwargs: Any) -> Any:
    """How boxes [n, 4] differ from anchors [n, 4]: the centre's distance over the anchor's sides and the logarithm of"""
def cast(*args: Any, **kwargs: Any) -> Any:
    """x with the element type `dst_type`; of a complex number the real part becomes a real one. Called as"""
def cdist(*args: Any, **kwargs: Any) -> Any:
    """The p-norm of every x[..., i, :] - y[..., j, :]: [..., m, k], [..., n, k] -> [..., m, n]."""
def check_valid(*args: Any, **kwargs: Any) -> Any:
    """Whether boxes[n, 4] (x0, y0, x1, y1) lie inside an image: metas[3] is its height, width and ratio."""
def conj(*args: Any, **kwargs: Any) -> Any:
    """The complex conjugate; a real number is its own."""
def coo_abs(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_acos(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_acosh(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_asin(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_asinh(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_atan(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_atanh(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_ceil(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_cos(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_cosh(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_exp(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_expm1(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_floor(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_inv(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_isfinite(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_isinf(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_isnan(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_log(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_log1p(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_neg(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_relu(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_relu6(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_round(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_sigmoid(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_sin(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_sinh(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_softsign(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_sqrt(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_square(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_tan(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def coo_tanh(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def cos(*args: Any, **kwargs: Any) -> Any:
    """Cosine, x in radians."""
def cosh(*args: Any, **kwargs: Any) -> Any:
    """Hyperbolic cosine."""
def csr_abs(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_acos(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_acosh(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_asin(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_asinh(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_atan(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_atanh(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_ceil(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_cos(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_cosh(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_exp(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_expm1(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_floor(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_inv(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_isfinite(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_isinf(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_isnan(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_log(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_log1p(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_neg(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_relu(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_relu6(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_round(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_sigmoid(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_sin(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_sinh(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_softsign(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_sqrt(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_square(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_tan(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def csr_tanh(*args: Any, **kwargs: Any) -> Any:
    """partial(func, *args, **keywords) - new function with partial application"""
def cummax(*args: Any, **kwargs: Any) -> Any:
    """The greatest element so far along `axis` and its place: a tuple of two. Called as `Cummax(axis)(x)`."""
def cummin(*args: Any, **kwargs: Any) -> Any:
    """The smallest element so far along `axis` and its place: a tuple of two. Called as `Cummin(axis)(x)`."""
def depend(*args: Any, **kwargs: Any) -> Any:
    """The first operand, once all others have run."""
def det(*args: Any, **kwargs: Any) -> Any:
    """The determinants of matrices."""
def digamma(*args: Any, **kwargs: Any) -> Any:
    """The derivative of Lgamma."""
def eq(*args: Any, **kwargs: Any) -> Any:
    """x == y."""
def equal(*args: Any, **kwargs: Any) -> Any:
    """x == y."""
def erf(*args: Any, **kwargs: Any) -> Any:
    """The error function."""
def erfc(*args: Any, **kwargs: Any) -> Any:
    """1 minus the error function; for large x relative accuracy is lost."""
def erfinv(*args: Any, **kwargs: Any) -> Any:
    """The y with erf(y) = x: infinite at -1 and 1, NaN beyond."""
def exp(*args: Any, **kwargs: Any) -> Any:
    """e to the power x."""
def expand_dims(*args: Any, **kwargs: Any) -> Any:
    """x with a dimension of size 1 inserted at `axis`. Called as `ExpandDims()(x, axis)`."""
def expm1(*args: Any, **kwargs: Any) -> Any:
    """e to the power x, minus 1, accurate for small x."""
def fast_gelu(*args: Any, **kwargs: Any) -> Any:
    """x * sigmoid(1.702 x)."""
def fft(*args: Any, **kwargs: Any) -> Any:
    """The discrete Fourier transform, along one dimension."""
def fft2(*args: Any, **kwargs: Any) -> Any:
    """The discrete Fourier transform, along two dimensions."""
def fftn(*args: Any, **kwargs: Any) -> Any:
    """The discrete Fourier transform, along some dimensions or all."""
def fftshift(*args: Any, **kwargs: Any) -> Any:
    """x rolled along the dimensions `dim` (() for all), so that the first element comes to their middle. Called as"""
def fill(*args: Any, **kwargs: Any) -> Any:
    """A tensor of one value. Called as `Fill()(type, shape, value)`."""
def floor_div(*args: Any, **kwargs: Any) -> Any:
    """The quotient rounded down; its derivative is 0."""
def floor_divide(*args: Any, **kwargs: Any) -> Any:
    """The quotient rounded down; its derivative is 0."""
def floor_mod(*args: Any, **kwargs: Any) -> Any:
    """x - floor(x / y) * y; the sign is that of y."""
def floordiv(*args: Any, **kwargs: Any) -> Any:
    """The quotient rounded down; its derivative is 0."""
def floormod(*args: Any, **kwargs: Any) -> Any:
    """x - floor(x / y) * y; the sign is that of y."""
def fmod(*args: Any, **kwargs: Any) -> Any:
    """The remainder of the division truncated towards 0; the sign is that of x."""
def gather_nd(*args: Any, **kwargs: Any) -> Any:
    """Slices of x at indices[..., k], which name its first k dimensions."""
def gcd(*args: Any, **kwargs: Any) -> Any:
    """The greatest common divisor, which is not negative."""
def ge(*args: Any, **kwargs: Any) -> Any:
    """x >= y."""
def ger(*args: Any, **kwargs: Any) -> Any:
    """The products x[i] * y[j] of two vectors."""
def greater(*args: Any, **kwargs: Any) -> Any:
    """x > y."""
def greater_equal(*args: Any, **kwargs: Any) -> Any:
    """x >= y."""
def gt(*args: Any, **kwargs: Any) -> Any:
    """x > y."""
def hfft(*args: Any, **kwargs: Any) -> Any:
    """The frequencies, all real, of numbers of which the first half is given and the rest are the conjugates, along"""
def hfft2(*args: Any, **kwargs: Any) -> Any:
    """The frequencies, all real, of numbers of which the first half is given and the rest are the conjugates, along"""
def hfftn(*args: Any, **kwargs: Any) -> Any:
    """The frequencies, all real, of numbers of which the first half is given and the rest are the conjugates, along"""
def hypot(*args: Any, **kwargs: Any) -> Any:
    """The square root of x^2 + y^2."""
def i0(*args: Any, **kwargs: Any) -> Any:
    """The modified Bessel function of the first kind, of order 0."""
def ifft(*args: Any, **kwargs: Any) -> Any:
    """The inverse of the discrete Fourier transform, along one dimension."""
def ifft2(*args: Any, **kwargs: Any) -> Any:
    """The inverse of the discrete Fourier transform, along two dimensions."""
def ifftn(*args: Any, **kwargs: Any) -> Any:
    """The inverse of the discrete Fourier transform, along some dimensions or all."""
def ifftshift(*args: Any, **kwargs: Any) -> Any:
    """What `FFTShift` has rolled as it was before."""
def igamma(*args: Any, **kwargs: Any) -> Any:
    """The share of gamma(a) that the integral up to x has."""
def igammac(*args: Any, **kwargs: Any) -> Any:
    """The share of gamma(a) that the integral from x on has."""
def ihfft(*args: Any, **kwargs: Any) -> Any:
    """The first half of the numbers that have these real frequencies, along one dimension."""
def ihfft2(*args: Any, **kwargs: Any) -> Any:
    """The first half of the numbers that have these real frequencies, along two dimensions."""
def ihfftn(*args: Any, **kwargs: Any) -> Any:
    """The first half of the numbers that have these real frequencies, along some dimensions or all."""
def imag(*args: Any, **kwargs: Any) -> Any:
    """The imaginary part; 0 of a real number."""
def inplace_add(*args: Any, **kwargs: Any) -> Any:
    """x plus v in the rows `indices`."""
def inplace_sub(*args: Any, **kwargs: Any) -> Any:
    """x minus v in the rows `indices`."""
def inplace_update(*args: Any, **kwargs: Any) -> Any:
    """x with v in place of the rows `indices`."""
def inv(*args: Any, **kwargs: Any) -> Any:
    """1 / x."""
def inverse(*args: Any, **kwargs: Any) -> Any:
    """The inverses of matrices, transposed where `adjoint`."""
def invert(*args: Any, **kwargs: Any) -> Any:
    """Every bit turned over."""
def iou(*args: Any, **kwargs: Any) -> Any:
    """[m, n]: the area that boxes [n, 4] and true boxes [m, 4] share over that of both (mode 'iou'), or over that of"""
def irfft(*args: Any, **kwargs: Any) -> Any:
    """The real numbers that have these frequencies from 0 on, along one dimension."""
def irfft2(*args: Any, **kwargs: Any) -> Any:
    """The real numbers that have these frequencies from 0 on, along two dimensions."""
def irfftn(*args: Any, **kwargs: Any) -> Any:
    """The real numbers that have these frequencies from 0 on, along some dimensions or all."""
def isclose(*args: Any, **kwargs: Any) -> Any:
    """Where |x - y| <= atol + rtol * |y|. Called as `IsClose()(input, other, rtol, atol, equal_nan)`."""
def isfinite(*args: Any, **kwargs: Any) -> Any:
    """Where x is neither an infinity nor not a number."""
def isinf(*args: Any, **kwargs: Any) -> Any:
    """Where x is an infinity."""
def isnan(*args: Any, **kwargs: Any) -> Any:
    """Where x is not a number."""
def isnan_ext(*args: Any, **kwargs: Any) -> Any:
    """Where x is not a number."""
def le(*args: Any, **kwargs: Any) -> Any:
    """x <= y."""
def lerp(*args: Any, **kwargs: Any) -> Any:
    """start + weight * (end - start), all broadcast against each other."""
def less(*args: Any, **kwargs: Any) -> Any:
    """x < y."""
def less_equal(*args: Any, **kwargs: Any) -> Any:
    """x <= y."""
def lgamma(*args: Any, **kwargs: Any) -> Any:
    """log |gamma(x)|."""
def log(*args: Any, **kwargs: Any) -> Any:
    """The natural logarithm of x."""
def log1p(*args: Any, **kwargs: Any) -> Any:
    """The natural logarithm of 1 + x, accurate for small x."""
def log_matrix_determinant(*args: Any, **kwargs: Any) -> Any:
    """(signs of the determinants of matrices, logarithms of their absolute values)."""
def logical_and(*args: Any, **kwargs: Any) -> Any:
    """x and y."""
def logical_not(*args: Any, **kwargs: Any) -> Any:
    """not x."""
def logical_or(*args: Any, **kwargs: Any) -> Any:
    """x or y."""
def logical_xor(*args: Any, **kwargs: Any) -> Any:
    """x or y, not both."""
def lt(*args: Any, **kwargs: Any) -> Any:
    """x < y."""
def matrix_determinant(*args: Any, **kwargs: Any) -> Any:
    """The determinants of matrices."""
def matrix_exp(*args: Any, **kwargs: Any) -> Any:
    """The exponentials of matrices: the series of a 2^s-th part, squared s times. Moler and Van Loan 2003."""
def matrix_solve(*args: Any, **kwargs: Any) -> Any:
    """x of a @ x = b for matrices a [..., n, n] and b [..., n, k]; of the transpose of a where `adjoint`."""
def maximum(*args: Any, **kwargs: Any) -> Any:
    """The larger of x and y; half the gradient goes to each where they are equal."""
def minimum(*args: Any, **kwargs: Any) -> Any:
    """The smaller of x and y; half the gradient goes to each where they are equal."""
def mm(*args: Any, **kwargs: Any) -> Any:
    """x[m, k] @ y[k, n] -> [m, n]; x is [k, m] when transpose_a, y is [n, k] when transpose_b."""
def mul(*args: Any, **kwargs: Any) -> Any:
    """x * y."""
def multiply(*args: Any, **kwargs: Any) -> Any:
    """x * y."""
def nan_to_num(*args: Any, **kwargs: Any) -> Any:
    """x with other numbers in place of NaN and the infinities. Called as `NanToNum()(x, nan, posinf, neginf)`."""
def ne(*args: Any, **kwargs: Any) -> Any:
    """x != y."""
def neg(*args: Any, **kwargs: Any) -> Any:
    """-x."""
def negative(*args: Any, **kwargs: Any) -> Any:
    """-x."""
def nextafter(*args: Any, **kwargs: Any) -> Any:
    """The number that follows x on the way to y, in Float32 or Float64."""
def not_equal(*args: Any, **kwargs: Any) -> Any:
    """x != y."""
def outer(*args: Any, **kwargs: Any) -> Any:
    """The products x[i] * y[j] of two vectors."""
def permute(*args: Any, **kwargs: Any) -> Any:
    """x with its dimensions in the order `perm`: dimension d of the result is dimension perm[d] of x."""
def polar(*args: Any, **kwargs: Any) -> Any:
    """abs * (cos(angle) + i * sin(angle))."""
def population_count(*args: Any, **kwargs: Any) -> Any:
    """How many bits of a number are 1, UInt8; of a negative one those of its two's complement."""
def pow(*args: Any, **kwargs: Any) -> Any:
    """x to the power y."""
def pows(*args: Any, **kwargs: Any) -> Any:
    """x to the power y."""
def real(*args: Any, **kwargs: Any) -> Any:
    """The real part."""
def reciprocal(*args: Any, **kwargs: Any) -> Any:
    """1 / x."""
def relu(*args: Any, **kwargs: Any) -> Any:
    """max(x, 0); its derivative at 0 is 0."""
def relu6(*args: Any, **kwargs: Any) -> Any:
    """min(max(x, 0), 6)."""
def remainder(*args: Any, **kwargs: Any) -> Any:
    """x - floor(x / y) * y; the sign is that of y."""
def reshape(*args: Any, **kwargs: Any) -> Any:
    """x in another shape; one -1 stands for what is left. Called as `Reshape()(x, shape)`."""
def rfft(*args: Any, **kwargs: Any) -> Any:
    """The frequencies from 0 on of real numbers, along one dimension."""
def rfft2(*args: Any, **kwargs: Any) -> Any:
    """The frequencies from 0 on of real numbers, along two dimensions."""
def rfftn(*args: Any, **kwargs: Any) -> Any:
    """The frequencies from 0 on of real numbers, along some dimensions or all."""
def rms_norm(*args: Any, **kwargs: Any) -> Any:
    """x / sqrt(mean(x^2) + epsilon) * gamma and the reciprocal root: a tuple of two."""
def rsqrt(*args: Any, **kwargs: Any) -> Any:
    """1 over the square root of x."""
def scatter_add(*args: Any, **kwargs: Any) -> Any:
    """Adds to the rows of a parameter."""
def scatter_div(*args: Any, **kwargs: Any) -> Any:
    """Divides the rows of a parameter."""
def scatter_max(*args: Any, **kwargs: Any) -> Any:
    """The larger of the rows of a parameter and the updates."""
def scatter_min(*args: Any, **kwargs: Any) -> Any:
    """The smaller of the rows of a parameter and the updates."""
def scatter_mul(*args: Any, **kwargs: Any) -> Any:
    """Multiplies the rows of a parameter."""
def scatter_nd(*args: Any, **kwargs: Any) -> Any:
    """Zeros of `shape` plus the updates at indices[..., k]; updates of one place are added."""
def scatter_nd_add(*args: Any, **kwargs: Any) -> Any:
    """Adds the updates to a parameter at indices[..., k]."""
def scatter_nd_sub(*args: Any, **kwargs: Any) -> Any:
    """Subtracts the updates from a parameter at indices[..., k]."""
def scatter_nd_update(*args: Any, **kwargs: Any) -> Any:
    """Puts the updates into a parameter at indices[..., k]."""
def scatter_update(*args: Any, **kwargs: Any) -> Any:
    """Puts the updates in place of rows of a parameter; of several for one row the last counts."""
def select(*args: Any, **kwargs: Any) -> Any:
    """x where the condition holds, y elsewhere; all three are broadcast against each other."""
def sigmoid(*args: Any, **kwargs: Any) -> Any:
    """1 / (1 + exp(-x)), without overflow."""
def sign(*args: Any, **kwargs: Any) -> Any:
    """-1, 0 or 1; 0 for NaN."""
def silu(*args: Any, **kwargs: Any) -> Any:
    """x * sigmoid(x)."""
def sin(*args: Any, **kwargs: Any) -> Any:
    """Sine, x in radians."""
def sinh(*args: Any, **kwargs: Any) -> Any:
    """Hyperbolic sine."""
def slogdet(*args: Any, **kwargs: Any) -> Any:
    """(signs of the determinants of matrices, logarithms of their absolute values)."""
def sqrt(*args: Any, **kwargs: Any) -> Any:
    """The square root of x."""
def square(*args: Any, **kwargs: Any) -> Any:
    """x * x."""
def sub(*args: Any, **kwargs: Any) -> Any:
    """x - y."""
def sub_ext(*args: Any, **kwargs: Any) -> Any:
    """x - alpha * y. Called as `SubExt()(x, y, alpha)`."""
def subtract(*args: Any, **kwargs: Any) -> Any:
    """x - y."""
def tan(*args: Any, **kwargs: Any) -> Any:
    """Tangent, x in radians."""
def tanh(*args: Any, **kwargs: Any) -> Any:
    """Hyperbolic tangent."""
def tensor_add(*args: Any, **kwargs: Any) -> Any:
    """x + y."""
def tensor_div(*args: Any, **kwargs: Any) -> Any:
    """x / y."""
def tensor_exp(*args: Any, **kwargs: Any) -> Any:
    """e to the power x."""
def tensor_expm1(*args: Any, **kwargs: Any) -> Any:
    """e to the power x, minus 1, accurate for small x."""
def tensor_floordiv(*args: Any, **kwargs: Any) -> Any:
    """The quotient rounded down; its derivative is 0."""
def tensor_ge(*args: Any, **kwargs: Any) -> Any:
    """x >= y."""
def tensor_gt(*args: Any, **kwargs: Any) -> Any:
    """x > y."""
def tensor_le(*args: Any, **kwargs: Any) -> Any:
    """x <= y."""
def tensor_lt(*args: Any, **kwargs: Any) -> Any:
    """x < y."""
def tensor_mod(*args: Any, **kwargs: Any) -> Any:
    """x - floor(x / y) * y; the sign is that of y."""
def tensor_mul(*args: Any, **kwargs: Any) -> Any:
    """x * y."""
def tensor_muls(*args: Any, **kwargs: Any) -> Any:
    """x * y."""
def tensor_pow(*args: Any, **kwargs: Any) -> Any:
    """x to the power y."""
def tensor_scatter_add(*args: Any, **kwargs: Any) -> Any:
    """x plus the updates at indices[..., k]; updates of one place are all added."""
def tensor_scatter_div(*args: Any, **kwargs: Any) -> Any:
    """x divided by the updates at indices[..., k]; by all updates of one place."""
def tensor_scatter_max(*args: Any, **kwargs: Any) -> Any:
    """The larger of x and the updates at indices[..., k]."""
def tensor_scatter_min(*args: Any, **kwargs: Any) -> Any:
    """The smaller of x and the updates at indices[..., k]."""
def tensor_scatter_mul(*args: Any, **kwargs: Any) -> Any:
    """x times the updates at indices[..., k]; all updates of one place are multiplied."""
def tensor_scatter_sub(*args: Any, **kwargs: Any) -> Any:
    """x minus the updates at indices[..., k]; all updates of one place are subtracted."""
def tensor_scatter_update(*args: Any, **kwargs: Any) -> Any:
    """x with the updates in place of what stands at indices[..., k]; of several the last counts."""
def tensor_sub(*args: Any, **kwargs: Any) -> Any:
    """x - y."""
def tile(*args: Any, **kwargs: Any) -> Any:
    """x repeated `multiples[d]` times along every dimension d, aligned at the right. Called as `Tile()(x,"""
def transpose(*args: Any, **kwargs: Any) -> Any:
    """x with its dimensions in the order `perm`: dimension d of the result is dimension perm[d] of x."""
def truncate_div(*args: Any, **kwargs: Any) -> Any:
    """The quotient truncated towards 0; its derivative is 0."""
def truncate_mod(*args: Any, **kwargs: Any) -> Any:
    """The remainder of the division truncated towards 0; the sign is that of x."""
def unsorted_segment_max(*args: Any, **kwargs: Any) -> Any:
    """The maximum of the rows of x that share a segment; the least number where there is none."""
def unsorted_segment_min(*args: Any, **kwargs: Any) -> Any:
    """The minimum of the rows of x that share a segment; the greatest number where there is none."""
def unsorted_segment_prod(*args: Any, **kwargs: Any) -> Any:
    """The product of the rows of x that share a segment; 1 where there is none."""
def unsorted_segment_sum(*args: Any, **kwargs: Any) -> Any:
    """Sums the rows of x that share a segment: out[s] = sum of x[i] with segment_ids[i] == offset + s; others are"""
def unsqueeze(*args: Any, **kwargs: Any) -> Any:
    """x with a dimension of size 1 inserted at `axis`. Called as `ExpandDims()(x, axis)`."""
def where(*args: Any, **kwargs: Any) -> Any:
    """x where the condition holds, y elsewhere; all three are broadcast against each other."""
def xdivy(*args: Any, **kwargs: Any) -> Any:
    """x / y, and 0 where x is 0."""
def xlogy(*args: Any, **kwargs: Any) -> Any:
    """x * log(y), and 0 where x is 0."""
def zeta(*args: Any, **kwargs: Any) -> Any:
    """Hurwitz' zeta function: the sum of (q + n)^-x over n from 0 on. By x it has no gradient, as in MindSpore."""
from mspc.ops import extended as extended
from mspc.ops import functional as functional
from mspc.ops import operations as operations
