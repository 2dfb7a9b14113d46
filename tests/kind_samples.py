"""Calls of the kinds of ATen that are read, for tests that compare them with PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.types import FLOAT32, FLOAT64, INT64
from tests.drawn import Drawn, bools, exactly, floats, integers


class Call(NamedTuple):
    """One call of a kind: its arguments by place and by name."""

    kind: str
    args: tuple[Any, ...]
    named: dict[str, Any]


X, Y, ROW = floats(3, 4), floats(3, 4), floats(4)
POSITIVE, WHOLE, MORE = floats(3, 4, low=0.5, high=2.0), integers(3, 4, low=-5, high=6), integers(3, 4, low=1, high=5)
IMAGE, TRUTH = floats(2, 4, 6, 6), bools(3, 4)
FIXED = Drawn("positive", (3, 3))
COMPLEX, COMPLEX_ROW = Drawn("complex64", (2, 4)), Drawn("complex64", (4,))


def calls() -> Iterator[Call]:
    """At least one of every kind whose numbers PyTorch has, too."""
    yield from _calls(*_CALLS, *_MORE, *_SPECIAL, *_GRADIENTS, *_LISTS)


def writing_calls() -> Iterator[Call]:
    """Calls of kinds that overwrite arguments."""
    yield from _calls(*_WRITTEN)


def _calls(*rows: tuple[Any, ...]) -> Iterator[Call]:
    for kinds, *args in rows:
        named = args.pop() if args and isinstance(args[-1], dict) else {}
        for kind in kinds.split():
            yield Call(kind if kind.count(".") > 1 else f"aten.{kind}", tuple(args), named)


_ATTENTION = (floats(2, 4, 5, 8), floats(2, 4, 6, 8), floats(2, 4, 6, 8))
_NORM = (IMAGE, floats(4), floats(4), floats(4), floats(4, low=0.5))

_CALLS: tuple[tuple[Any, ...], ...] = (
    ("add.Tensor sub.Tensor subtract.Tensor rsub.Tensor", X, ROW, {"alpha": 2}),
    ("add.Scalar sub.Scalar rsub.Scalar", X, 0.5, {"alpha": 2}),
    ("add.Tensor mul.Tensor div.Tensor", WHOLE, floats(4, low=0.5)),
    ("add.Scalar mul.Scalar div.Scalar", WHOLE, 2),
    ("add.Scalar mul.Scalar", WHOLE, 0.5),
    ("mul.Tensor multiply.Tensor maximum.default max.other minimum.default min.other atan2.default hypot.default",
     X, ROW),
    ("logaddexp.default isclose.default", X, ROW),
    ("mul.Scalar", X, 2.0),
    ("div.Tensor divide.Tensor true_divide.Tensor remainder.Tensor fmod.Tensor", X, POSITIVE),
    ("div.Scalar true_divide.Scalar remainder.Scalar fmod.Scalar", X, 0.3),
    ("remainder.Tensor floor_divide.default fmod.Tensor div.Tensor", WHOLE, MORE),
    ("floor_divide.Scalar remainder.Scalar", WHOLE, 3),
    ("div.Tensor_mode", X, POSITIVE, {"rounding_mode": "floor"}),
    ("div.Tensor_mode", WHOLE, MORE, {"rounding_mode": "trunc"}),
    ("div.Scalar_mode", WHOLE, 2, {"rounding_mode": "floor"}),
    ("pow.Tensor_Scalar float_power.Tensor_Scalar", POSITIVE, 2),
    ("pow.Tensor_Scalar", POSITIVE, 0.5), ("pow.Tensor_Scalar", POSITIVE, -0.5), ("pow.Tensor_Scalar", POSITIVE, 3.5),
    ("pow.Tensor_Scalar", WHOLE, 2), ("pow.Tensor_Tensor", POSITIVE, X), ("pow.Scalar", 2.0, X),
    ("xlogy.Tensor", X, POSITIVE),
    ("addcmul.default addcdiv.default", X, Y, POSITIVE, {"value": 0.5}),
    ("lerp.Scalar", X, Y, 0.3), ("lerp.Tensor", X, Y, POSITIVE),
    ("eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor", WHOLE, MORE),
    ("eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar", WHOLE, 1),
    ("__and__.Tensor bitwise_and.Tensor __or__.Tensor bitwise_or.Tensor __xor__.Tensor bitwise_xor.Tensor", TRUTH,
     bools(4)),
    ("__and__.Tensor bitwise_or.Tensor bitwise_xor.Tensor", WHOLE, MORE),
    ("bitwise_and.Scalar __and__.Scalar bitwise_or.Scalar __or__.Scalar bitwise_xor.Scalar", WHOLE, 5),
    ("bitwise_not.default", TRUTH), ("bitwise_not.default", WHOLE), ("logical_not.default", WHOLE),
    ("logical_and.default logical_or.default logical_xor.default", WHOLE, TRUTH),
    ("isin.Tensor_Tensor", WHOLE, integers(3), {"invert": True}),
    ("where.self", TRUTH, X, ROW), ("where.ScalarOther", TRUTH, X, 0.5), ("where.ScalarSelf", TRUTH, 0.5, X),
    ("where.Scalar", TRUTH, 1.5, 0.5), ("masked_fill.Scalar", X, TRUTH, -2.0),
    ("masked_fill.Tensor", X, TRUTH, floats()),
    ("clamp.default clip.default", X, -0.5, 0.5), ("clamp.default", X, {"max": 0.5}),
    ("clamp.Tensor", X, ROW, POSITIVE),
    ("clamp_min.default clamp_max.default", X, 0.1), ("clamp_min.Tensor clamp_max.Tensor", X, ROW),
    ("nan_to_num.default neg.default negative.default abs.default absolute.default sign.default sgn.default", X),
    ("square.default exp.default exp2.default expm1.default sin.default cos.default tan.default asin.default", X),
    ("acos.default atan.default sinh.default cosh.default tanh.default erf.default erfc.default asinh.default", X),
    ("floor.default ceil.default round.default trunc.default frac.default sinc.default", floats(3, 4, low=-4, high=4)),
    ("isnan.default isinf.default isfinite.default", X),
    ("erfinv.default atanh.default", floats(3, 4, low=-0.9, high=0.9)),
    ("sqrt.default rsqrt.default reciprocal.default log.default log2.default log10.default log1p.default", POSITIVE),
    ("lgamma.default digamma.default", POSITIVE), ("acosh.default", floats(3, 4, low=1.5, high=3)),
    ("relu.default silu.default sigmoid.default special_expit.default log_sigmoid.default elu.default celu.default", X),
    ("selu.default mish.default softplus.default hardtanh.default leaky_relu.default hardshrink.default", X),
    ("softshrink.default glu.default", X),
    ("relu6.default hardswish.default hardsigmoid.default elu.default", floats(3, 4, low=-8, high=8)),
    ("gelu.default", X), ("gelu.default", X, {"approximate": "tanh"}), ("softplus.default", X, 2.0, 1.0),
    ("prelu.default", IMAGE, floats(4)), ("threshold.default", X, 0.2, 7.0), ("threshold_backward.default", X, Y, 0.1),
    ("view.default reshape.default _unsafe_view.default view_copy.default", X, (2, -1)),
    ("as_strided.default", floats(2, 3, 1, 1), (3, 2, 1, 1), (2, 1, 7, 7)),
    ("as_strided.default", floats(2, 3, 4), (3, 2, 2), (4, 12, 2), 1),
    ("as_strided.default", floats(2, 3, 4), (4, 3), (1, 4), 12),
    ("as_strided.default", floats(2, 3, 4), (3, 5), (2, 3), 1), ("as_strided.default", floats(4), (2, 4), (0, 1)),
    ("_reshape_alias.default", X, (2, 6), (6, 1)),
    ("view_as.default reshape_as.default expand_as.default", floats(4), floats(4)),
    ("expand.default expand_copy.default", floats(3, 1), (2, -1, 4)), ("broadcast_to.default", floats(3, 1), (2, 3, 4)),
    ("broadcast_tensors.default", (floats(3, 1), floats(2, 1, 4))),
    ("transpose.int swapdims.default swapaxes.default", floats(2, 3, 4), 0, -1),
    ("t.default numpy_T.default mT.default adjoint.default matrix_H.default", X),
    ("permute.default", floats(2, 3, 4), (2, 0, -2)), ("movedim.int moveaxis.int", floats(2, 3, 4), 0, -1),
    ("movedim.intlist moveaxis.intlist", floats(2, 3, 4), (0, 1), (2, 0)),
    ("unsqueeze.default", X, -1), ("squeeze.default", floats(1, 3, 1)), ("squeeze.dim", floats(1, 3, 1), 0),
    ("squeeze.dim", floats(2, 3), 0), ("squeeze.dims", floats(1, 3, 1), (0, 2)),
    ("flatten.using_ints", floats(2, 3, 4, 5), 1, 2), ("flatten.using_ints", floats()), ("ravel.default", X),
    ("unflatten.int", floats(2, 12), 1, (3, 4)), ("hstack.default vstack.default dstack.default", (X, Y)),
    ("tensor_split.sections", floats(7, 2), 3), ("diag_embed.default", X), ("diag.default", ROW), ("fliplr.default", X),
    ("reflection_pad1d.default replication_pad1d.default", floats(2, 3, 4), (1, 2)),
    ("reflection_pad2d.default replication_pad2d.default", IMAGE, (1, 2, 0, 3)),
    ("reflection_pad3d.default replication_pad3d.default", floats(2, 3, 4, 4, 4), (1, 2, 0, 3, 1, 1)),
    ("slice.Tensor", floats(7, 3), 0, 1, 6, 2), ("slice.Tensor", floats(7, 3), 0, -3, 100), ("slice.Tensor", X),
    ("narrow.default", floats(7, 3), 0, 2, 3), ("select.int", X, 1, -2),
    ("slice_scatter.default", floats(7, 3), floats(3, 3), 0, 1, 6, 2),
    ("slice_scatter.default", floats(7, 3), floats(2, 3), 0, 3, 5), ("select_scatter.default", X, floats(3), 1, -1),
    ("split.Tensor unsafe_split.Tensor", floats(7, 2), 3),
    ("split.sizes split_with_sizes.default unsafe_split_with_sizes.default", floats(7, 2), (3, 4)),
    ("split.Tensor chunk.default unsafe_chunk.default", floats(3, 8), 3, -1), ("unbind.int", X, 1),
    ("cat.default concat.default", (X, Y), 1), ("cat.default", (floats(0), X)), ("stack.default", (X, Y), -1),
    ("repeat.default tile.default", X, (2, 1, 3)), ("repeat_interleave.self_int", X, 2, 1),
    ("repeat_interleave.self_int", X, 2),
    ("flip.default", X, (0, 1)), ("roll.default", X, (1, -1), (0, 1)), ("roll.default", X, (2,)),
    ("tril.default triu.default", X, 1), ("diagonal.default", X, 1),
    ("pad.default", X, (1, 2), "constant", 0.5), ("pad.default", X, (-1, 2, 1, -1)),
    ("pad.default", IMAGE, (1, 1, 2, 2), "reflect"),
    ("constant_pad_nd.default", X, (1, 0)), ("unfold.default", floats(2, 7), 1, 3, 2),
    ("pixel_shuffle.default pixel_unshuffle.default channel_shuffle.default native_channel_shuffle.default", IMAGE, 2),
    ("meshgrid.indexing", (floats(2), floats(3)), {"indexing": "xy"}), ("meshgrid.default", (floats(2), floats(3))),
    ("arange.default", 5), ("arange.default", 5.5), ("arange.start", 2, 7), ("arange.start_step", 1, 9, 3),
    ("arange.start_step", 0.0, 1.0, 0.25, {"dtype": FLOAT64}), ("linspace.default", 0, 1, 5),
    ("zeros.default ones.default", (2, 3)), ("zeros.default", (2, 3), {"dtype": INT64}), ("full.default", (2, 3), 4),
    ("full.default", (2, 3), 0.5), ("zeros_like.default ones_like.default", X), ("full_like.default", X, 2),
    ("new_zeros.default new_ones.default", WHOLE, (2, 2)), ("new_full.default", X, (2,), 3),
    ("scalar_tensor.default", 0.5), ("triu_indices.default tril_indices.default", 3, 4), ("eye.default", 3),
    ("eye.m", 2, 3),
    ("copy.default", X, ROW), ("copy.default", WHOLE, X), ("fill.Scalar", X, 2), ("fill.Tensor", X, floats()),
    ("zero.default", X),
    ("sum.default mean.default prod.default", X), ("sum.default prod.default", WHOLE), ("sum.default", TRUTH),
    ("sum.dim_IntList mean.dim amax.default amin.default", floats(2, 3, 4), (0, 2), True), ("prod.dim_int", X, 1),
    ("mean.dim", WHOLE, (1,), {"dtype": FLOAT64}),
    ("var.correction std.correction var_mean.correction std_mean.correction", X, (1,), {"correction": 0}),
    ("var.correction", X), ("var.dim std.dim var_mean.dim", X, (1,), True), ("var.default std.default", X),
    ("max.default min.default argmax.default argmin.default", X), ("max.dim min.dim", X, 1),
    ("argmax.default argmin.default", X, 0, True), ("all.default any.default", TRUTH), ("all.dim any.dim", TRUTH, 1),
    ("all.dims any.dims", TRUTH, (0, 1)), ("norm.ScalarOpt_dim", X, 2, (1,)),
    ("linalg_vector_norm.default", X, 2, (1,), True),
    ("linalg_norm.default norm.Scalar", X), ("median.dim", floats(3, 5), 1), ("kthvalue.default", floats(3, 5), 2),
    ("cummax.default cummin.default", X, 1), ("nansum.default", X, (1,)), ("logsumexp.default", X, (1,)),
    ("cumsum.default cumprod.default", X, 1), ("cumsum.default", TRUTH, 1), ("diff.default", X),
    ("sort.default argsort.default", X, 1, True), ("topk.default", floats(3, 6), 2),
    ("sort.stable argsort.stable", X, {"stable": True}),
    ("histc.default", floats(40, low=-1, high=5), 5, 0, 4), ("count_nonzero.default", WHOLE),
    ("linear.default", floats(2, 3, 4), floats(5, 4), floats(5)), ("linear.default", floats(4), floats(5, 4)),
    ("matmul.default", floats(2, 3, 4), floats(4, 5)), ("matmul.default", floats(4), floats(4)),
    ("matmul.default", floats(2, 3, 4), floats(4)), ("mm.default", X, floats(4, 5)),
    ("bmm.default", floats(2, 3, 4), floats(2, 4, 5)), ("mv.default", X, ROW), ("dot.default", ROW, ROW),
    ("addmm.default", floats(5), X, floats(4, 5), {"beta": 0.5, "alpha": 2}),
    ("baddbmm.default", floats(2, 3, 5), floats(2, 3, 4), floats(2, 4, 5), {"beta": 0}),
    ("addmv.default", floats(3), X, ROW), ("cdist.default", floats(3, 4), floats(5, 4)),
    ("_cdist_forward.default", floats(3, 4), floats(5, 4), 2.0, None),
    ("einsum.default", "ij,kj->ik", (X, floats(5, 4))), ("outer.default", ROW, floats(3)),
    ("softmax.int log_softmax.int", X, -1), ("softmax.int", X, 0, {"dtype": FLOAT64}),
    ("_softmax.default _log_softmax.default", X, 1, False), ("_safe_softmax.default", X, -1),
    ("layer_norm.default", floats(2, 3, 4), (3, 4), floats(3, 4), floats(3, 4)), ("layer_norm.default", X, (4,)),
    ("native_layer_norm.default", floats(2, 3, 4), (4,), ROW, ROW, 1e-5), ("rms_norm.default", X, (4,), ROW),
    ("rms_norm.default", floats(2, 3, 4), (3, 4), None, 1e-3), ("group_norm.default", IMAGE, 2, floats(4), floats(4)),
    ("native_group_norm.default", IMAGE, floats(4), floats(4), 2, 4, 36, 2, 1e-5),
    ("_native_batch_norm_legit_functional.default", *_NORM, True, 0.1, 1e-5),
    ("_native_batch_norm_legit_no_training.default", *_NORM, 0.1, 1e-5),
    ("_native_batch_norm_legit.no_stats", IMAGE, floats(4), floats(4), True, 0.1, 1e-5),
    ("instance_norm.default", IMAGE, floats(4), floats(4), None, None, True, 0.1, 1e-5, False),
    ("cosine_similarity.default", X, Y), ("_weight_norm.default", X, floats(3, 1)),
    ("scaled_dot_product_attention.default", *_ATTENTION),
    ("scaled_dot_product_attention.default", *_ATTENTION, floats(5, 6)),
    ("scaled_dot_product_attention.default", *_ATTENTION, {"is_causal": True, "scale": 0.3}),
    ("scaled_dot_product_attention.default", floats(2, 4, 5, 8), floats(2, 2, 6, 8), floats(2, 2, 6, 8),
     {"enable_gqa": True}),
    ("scaled_dot_product_attention.default", floats(4, 5, 8), floats(4, 6, 8), floats(4, 6, 3)),
    ("scaled_dot_product_attention.default", *_ATTENTION[:2], floats(2, 4, 6, 3), {"is_causal": True}),
    ("embedding.default", floats(5, 4), integers(2, 3), 1), ("index.Tensor", floats(5, 4), (integers(2, 3),)),
    ("index.Tensor", floats(4, 5, 4), (integers(3), None, integers(3))),
    ("index.Tensor", floats(4, 5, 4), (None, integers(2, 2), integers(2, 2))),
    ("index_put.default _unsafe_index_put.default", floats(5, 4), (integers(3),), floats(3, 4), {"accumulate": True}),
    ("index_put.default", floats(3, 4), (bools(3, 4),), floats()),
    ("index_put.default", floats(3, 4, 2), (bools(3, 4),), floats(2)),
    ("index_put.default", X, (bools(3),), floats(1, 4)),
    ("index_select.default", floats(5, 4), 0, integers(3)), ("gather.default", X, 1, integers(3, 2)),
    ("scatter_add.default", X, 1, integers(3, 2), floats(3, 2)), ("scatter.value", X, 1, integers(3, 1), 2.0),
    ("scatter.src", X, 1, integers(3, 1), floats(3, 1)),
    ("scatter_reduce.two", X, 1, integers(3, 4), Y, "sum"), ("scatter_reduce.two", X, 1, integers(3, 4), Y, "mean"),
    ("scatter_reduce.two", X, 1, integers(3, 4), Y, "mean", {"include_self": False}),
    ("index_copy.default", floats(5, 4), 0, integers(1), floats(1, 4)),
    ("index_fill.int_Scalar", X, 1, integers(2), 3.0), ("index_fill.int_Tensor", X, 1, integers(2), floats()),
    ("take.default", X, integers(2, 2)),
    ("index_add.default", floats(5, 4), 0, integers(3), floats(3, 4), {"alpha": 2}),
    ("one_hot.default", integers(3), 5), ("take_along_dim.default", X, integers(3, 2), 1),
    ("conv1d.default", floats(2, 4, 8), floats(6, 4, 3), floats(6), (2,), (1,)),
    ("conv1d.padding", floats(2, 4, 8), floats(6, 4, 3), None, (1,), "same"),
    ("conv2d.default", IMAGE, floats(6, 2, 3, 3), floats(6), (1, 2), (1, 1), (1, 1), 2),
    ("conv2d.default", floats(4, 6, 6), floats(2, 4, 3, 3)),
    ("conv2d.padding", IMAGE, floats(6, 4, 3, 3), None, (1, 1), "same"),
    ("conv3d.default", floats(2, 2, 4, 4, 4), floats(3, 2, 2, 2, 2)),
    ("conv3d.padding", floats(2, 2, 4, 4, 4), floats(3, 2, 2, 2, 2)),
    ("conv_transpose2d.input", IMAGE, floats(4, 3, 2, 2), floats(3), (2, 2)),
    ("convolution.default", IMAGE, floats(6, 4, 3, 3), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1),
    ("max_pool2d.default max_pool2d_with_indices.default", IMAGE, (3, 3), (2, 2), (1, 1)),
    ("max_pool2d.default", IMAGE, (2, 2)), ("max_pool1d.default", floats(2, 4, 8), (2,)),
    ("max_pool3d.default avg_pool3d.default", floats(2, 2, 4, 4, 4), (2, 2, 2)),
    ("avg_pool1d.default", floats(2, 4, 8), (2,)),
    ("adaptive_avg_pool3d.default _adaptive_avg_pool3d.default", floats(2, 2, 4, 4, 4), (2, 2, 2)),
    ("avg_pool2d.default", IMAGE, (3, 3), (2, 2), (1, 1), True, False),
    ("adaptive_avg_pool2d.default _adaptive_avg_pool2d.default adaptive_max_pool2d.default", IMAGE, (3, 2)),
    ("adaptive_avg_pool2d.default", IMAGE, (1, 1)), ("adaptive_avg_pool1d.default", floats(2, 4, 8), (4,)),
    ("adaptive_avg_pool1d.default", floats(2, 4, 8), (1,)),
    ("upsample_nearest2d.vec", IMAGE, None, (2.0, 2.0)), ("upsample_nearest2d.default", IMAGE, (9, 12)),
    ("upsample_nearest2d.vec _upsample_nearest_exact2d.vec", IMAGE, None, (1.7, 0.6)),
    ("upsample_bilinear2d.vec", IMAGE, (9, 12), False, None), ("upsample_bilinear2d.default", IMAGE, (9, 12), True),
    ("upsample_bilinear2d.vec", IMAGE, None, False, (1.7, 0.6)),
    ("upsample_bilinear2d.vec", IMAGE, None, True, (1.7, 2.0)),
    ("upsample_nearest2d.default", IMAGE, (9, 82), 1.5, 13.8),
    ("upsample_bilinear2d.default upsample_bicubic2d.default", IMAGE, (10, 3), False, 1.7, 0.6),
    ("upsample_bicubic2d.vec", IMAGE, (9, 12), False, None), ("upsample_bicubic2d.default", IMAGE, (9, 12), False),
    ("upsample_bicubic2d.vec _upsample_bicubic2d_aa.vec _upsample_bilinear2d_aa.vec", IMAGE, (4, 5), False, None),
    ("upsample_bicubic2d.vec", IMAGE, None, True, (1.5, 2.0)),
    ("_upsample_bicubic2d_aa.vec", IMAGE, (9, 12), False, None),
    ("upsample_nearest1d.vec", floats(2, 4, 8), None, (2.0,)), ("upsample_nearest1d.vec", floats(2, 1, 2), (82,), None),
    ("_upsample_nearest_exact1d.vec", floats(2, 4, 7), None, (1.6,)),
    ("upsample_linear1d.vec", floats(2, 4, 8), (16,), False, None),
    ("upsample_nearest3d.vec _upsample_nearest_exact3d.vec", floats(2, 2, 3, 3, 3), None, (2.0, 2.0, 1.5)),
    ("im2col.default", IMAGE, (2, 2), (1, 1), (0, 0), (2, 2)),
    ("col2im.default", floats(2, 16, 9), (6, 6), (2, 2), (1, 1), (0, 0), (2, 2)),
    ("grid_sampler.default grid_sampler_2d.default", IMAGE, floats(2, 3, 3, 2), 0, 0, False),
    ("cross_entropy_loss.default", floats(6, 4), integers(6)),
    ("cross_entropy_loss.default", floats(6, 4), integers(6), None, 2, 1, 0.1),
    ("cross_entropy_loss.default", floats(2, 4, 3, 3), integers(2, 3, 3)),
    ("nll_loss.default nll_loss_nd.default", floats(6, 4), integers(6)),
    ("nll_loss2d.default", floats(2, 4, 3, 3), integers(2, 3, 3)),
    ("nll_loss_forward.default", floats(6, 4), integers(6), None, 1, -100),
    ("nll_loss2d_forward.default", floats(2, 4, 3, 3), integers(2, 3, 3), None, 1, -100),
    ("mse_loss.default l1_loss.default smooth_l1_loss.default huber_loss.default kl_div.default", X, POSITIVE, 2),
    ("mse_loss.default", X, Y), ("soft_margin_loss.default binary_cross_entropy_with_logits.default", X, POSITIVE),
    ("binary_cross_entropy.default", floats(3, 4, low=0.1, high=0.9), floats(3, 4, low=0.1, high=0.9)),
    ("linalg_inv.default inverse.default linalg_det.default", floats(2, 3, 3)),
    ("linalg_cholesky.default", FIXED), ("linalg_solve.default", floats(2, 3, 3), floats(2, 3, 2)),
    ("linalg_matrix_norm.str_ord", X), ("linalg_matrix_norm.default", X, 1),
    ("linalg_cross.default", floats(2, 3), floats(2, 3)), ("kron.default", X, floats(2, 2)), ("trace.default", X),
    ("tensordot.default", floats(2, 3, 4), floats(4, 5, 3), (1, 2), (2, 0)), ("vdot.default", ROW, ROW),
    ("bilinear.default", floats(2, 5, 3), floats(2, 5, 4), floats(6, 3, 4), floats(6)),
    ("pairwise_distance.default", X, Y),
    ("logit.default", floats(3, 4, low=0.1, high=0.9)),
    ("conv_transpose1d.default", floats(2, 4, 5), floats(4, 3, 2), floats(3), (2,), (1,)),
    ("affine_grid_generator.default", floats(2, 2, 3), (2, 1, 3, 4), False),
    ("affine_grid_generator.default", floats(2, 2, 3), (2, 1, 3, 4), True),
    ("lstm.input", floats(5, 2, 3), (floats(2, 2, 4), floats(2, 2, 4)), (
        floats(16, 3), floats(16, 4), floats(16), floats(16), floats(16, 4), floats(16, 4), floats(16), floats(16)),
     True, 2, 0.0, True, False, False),
    ("lstm.input", floats(5, 2, 3), (floats(1, 2, 2), floats(1, 2, 4)), (
        floats(16, 3), floats(16, 2), floats(16), floats(16), floats(2, 4)), True, 1, 0.0, True, False, False),
    ("lstm.input", floats(2, 5, 3), (floats(2, 2, 2), floats(2, 2, 4)), (
        floats(16, 3), floats(16, 2), floats(2, 4)) * 2, False, 1, 0.0, True, True, True),
    ("gru.input", floats(2, 5, 3), floats(2, 2, 4), (
        floats(12, 3), floats(12, 4), floats(12, 3), floats(12, 4)), False, 1, 0.0, False, True, True),
    ("rnn_tanh.input rnn_relu.input", floats(5, 2, 3), floats(1, 2, 4), (
        floats(4, 3), floats(4, 4), floats(4), floats(4)), True, 1, 0.0, False, False, False),
    ("lstm_cell.default", floats(2, 3), (floats(2, 4), floats(2, 4)), floats(16, 3), floats(16, 4), floats(16),
     floats(16)),
    ("gru_cell.default", floats(2, 3), floats(2, 4), floats(12, 3), floats(12, 4)),
    ("rnn_tanh_cell.default rnn_relu_cell.default", floats(2, 3), floats(2, 4), floats(4, 3), floats(4, 4)),
    ("view_as_real.default real.default imag.default conj.default _conj.default", COMPLEX),
    ("view_as_complex.default", floats(3, 2)), ("complex.default", X, Y), ("polar.default", POSITIVE, X),
    ("fft_fft.default fft_rfft.default fft_fftn.default fft_fft2.default fft_rfft2.default", X),
    ("fft_ifft.default fft_irfft.default fft_ifftn.default fft_irfft2.default", COMPLEX),
    ("alias.default lift.default positive.default contiguous.default detach.default clone.default "
     "lift_fresh_copy.default", X),
    ("lift_fresh.default", X), ("to.dtype _to_copy.default to.dtype_layout", X, {"dtype": INT64}),
    ("to.other type_as.default", X, WHOLE),
    ("dropout.default feature_dropout.default native_dropout.default", X, 0.5, False),
)  # fmt: skip

SIGNS, WHOLE_FLOATS = Drawn("signs", (6,)), Drawn("whole", (3, 4))
SQUARES = floats(2, 3, 3)

_MORE: tuple[tuple[Any, ...], ...] = (
    ("margin_ranking_loss.default", floats(6), floats(6), SIGNS, 0.1),
    ("poisson_nll_loss.default", X, POSITIVE, True, False, 1e-8, 1),
    ("poisson_nll_loss.default", POSITIVE, POSITIVE, False, True, 1e-8, 2),
    ("hinge_embedding_loss.default", floats(6), SIGNS), ("hinge_embedding_loss.default", floats(6), SIGNS, 0.5, 2),
    ("cosine_embedding_loss.default", floats(6, 4), floats(6, 4), SIGNS, 0.1),
    ("triplet_margin_loss.default", X, Y, floats(3, 4)),
    ("triplet_margin_loss.default", X, Y, floats(3, 4), 0.5, 1.0, 1e-6, True, 2),
    ("multi_margin_loss.default", floats(6, 4), integers(6)),
    ("multi_margin_loss.default", floats(6, 4), integers(6), 2, 0.5, floats(4, low=0.5), 2),
    ("multilabel_margin_loss.default", floats(3, 4), integers(3, 4, low=-1, high=4)),
    ("kl_div.default", X, POSITIVE), ("kl_div.default", X, Y, 1, {"log_target": True}),
    ("kl_div.default", X, POSITIVE, 0),
    ("copysign.Tensor fmax.default fmin.default", X, ROW), ("copysign.Scalar", X, -1.0),
    ("heaviside.default", WHOLE_FLOATS, floats()), ("ldexp.Tensor", X, integers(3, 4, high=3)),
    ("signbit.default deg2rad.default rad2deg.default i0.default special_i0.default special_i0e.default "
     "special_i1.default special_i1e.default special_ndtr.default angle.default", X),
    ("angle.default abs.default sum.default", COMPLEX), ("sum.dim_IntList", COMPLEX, (1,), True),
    ("round.decimals", floats(3, 4, low=-30, high=30), {"decimals": 1}),
    ("round.decimals", floats(3, 4, low=-300, high=300), {"decimals": -1}),
    ("polygamma.default", 1, POSITIVE), ("special_entr.default", POSITIVE), ("special_xlog1py.default", X, POSITIVE),
    ("special_ndtri.default", floats(3, 4, low=0.1, high=0.9)),
    ("linalg_solve_triangular.default", SQUARES, floats(2, 3, 2), {"upper": True, "unitriangular": True}),
    ("linalg_solve_triangular.default", FIXED, floats(2, 3), {"upper": False, "left": False}),
    ("linalg_slogdet.default", SQUARES), ("linalg_matrix_power.default matrix_power.default", SQUARES, 3),
    ("linalg_qr.default", floats(4, 3)), ("cross.default", floats(4, 3), floats(4, 3)),
    ("inner.default", X, Y), ("addr.default", X, floats(3), floats(4), {"beta": 0.5, "alpha": 2}),
    ("addbmm.default", X, floats(2, 3, 5), floats(2, 5, 4), {"beta": 0.5, "alpha": 2}),
    ("dist.default", X, Y, 3), ("dist.default", X, Y), ("pdist.default", X), ("renorm.default", X, 2, 0, 0.5),
    ("tensor_split.indices", X, (1, 3), 1), ("vsplit.int", floats(4, 4), 2), ("hsplit.int", floats(4, 4), 2),
    ("dsplit.int", floats(2, 3, 4), 2), ("atleast_1d.default atleast_2d.default atleast_3d.default", ROW),
    ("column_stack.default", (floats(3), X)), ("diagflat.default", ROW, 1),
    ("diagonal_scatter.default", floats(4, 4), floats(3), 1),
    ("aminmax.default", X), ("aminmax.default", X, {"dim": 1, "keepdim": True}),
    ("nanmean.default", X, (1,)), ("logcumsumexp.default", X, 1), ("msort.default", X),
    ("quantile.scalar", X, 0.3, 1), ("quantile.scalar", X, 0.5, None, True), ("std_mean.dim", X, (1,)),
    ("quantile.scalar", X, 0.4, 0, False, {"interpolation": "lower"}),
    ("quantile.scalar", X, 0.4, 0, True, {"interpolation": "nearest"}),
    ("adaptive_max_pool1d.default", floats(2, 4, 8), (3,)),
    ("upsample_trilinear3d.vec", floats(2, 2, 3, 4, 5), None, False, (2.0, 1.5, 1.5)),
    ("upsample_trilinear3d.vec", floats(2, 2, 3, 4, 5), (4, 2, 7), True, None),
    ("conv_transpose3d.input", floats(2, 4, 3, 4, 5), floats(4, 3, 2, 2, 3), floats(6), (2, 1, 2), (1, 0, 1),
     (1, 0, 0), 2),
    ("max_unpool2d.default", floats(1, 2, 2, 2), Drawn("places", (1, 2, 2, 2)), (3, 4)),
    ("put.default", X, integers(2, 2), floats(2, 2), True), ("masked_scatter.default", X, TRUTH, floats(20)),
    ("masked_scatter.default", X, bools(4), floats(20)),
    ("scatter_reduce.two", X, 1, integers(3, 6), floats(3, 6), "amax"),
    ("scatter_reduce.two", X, 1, integers(3, 6), floats(3, 6), "amin", {"include_self": False}),
    ("scatter_reduce.two", X, 0, integers(5, 4, high=3), floats(5, 4), "prod"),
    ("embedding_bag.padding_idx", floats(4, 3), integers(7), Drawn("bags", (3,)), False, 1, False, None, False, 2),
    ("embedding_bag.padding_idx", floats(4, 3), integers(7), Drawn("bags", (4,)), False, 0, False, floats(7), True, -1),
    ("embedding_bag.default", floats(4, 3), integers(7), Drawn("bags", (3,))),
    ("hann_window.default hamming_window.default blackman_window.default bartlett_window.default", 6),
    ("hann_window.periodic hamming_window.periodic blackman_window.periodic bartlett_window.periodic", 7, False),
    ("logspace.default", 0.0, 2.0, 5, 2.0),
    ("hardtanh.default", floats(3, low=1, high=1)), ("logcumsumexp.default", floats(3, 5, low=-300, high=300), 1),
    ("linalg_norm.default", X, 1), ("linalg_norm.default", X, -2), ("linalg_norm.default", floats(2, 3, 4), 1, (0, 2)),
    ("linalg_norm.default", floats(2, 3, 4), 3, (1,), True), ("linalg_norm.default", ROW, 1),
    ("linalg_norm.ord_str", X, "fro"), ("linalg_norm.ord_str", floats(2, 3, 4), "nuc", (0, 2), True),
    ("special_xlog1py.default", floats(3, 4, low=1e4, high=1e5), floats(3, 4, high=1e-7, low=1e-8)),
    ("special_entr.default", X), ("special_xlog1py.default", Drawn("whole", (3, 4)), floats(4, low=0.5)),
    ("sigmoid.default tanh.default", WHOLE), ("sigmoid.default tanh.default", TRUTH),
    ("median.default", floats(3, 5)), ("rot90.default", X), ("rot90.default", floats(2, 3, 4), -3, (2, 1)),
    ("__lshift__.Tensor bitwise_left_shift.Tensor __rshift__.Tensor bitwise_right_shift.Tensor", WHOLE, MORE),
    ("__lshift__.Scalar bitwise_left_shift.Tensor_Scalar __rshift__.Scalar bitwise_right_shift.Tensor_Scalar",
     WHOLE, 2),
    ("scatter_reduce.two", WHOLE, 1, integers(3, 4), WHOLE, "mean"),
    ("scatter_reduce.two", WHOLE, 1, integers(3, 4), MORE, "mean", {"include_self": False}),
    ("repeat_interleave.self_Tensor", X, integers(1, low=2, high=3), 1, {"output_size": 8}),
    ("repeat_interleave.self_Tensor", floats(6, 2), Drawn("counts", (6,)), 0, {"output_size": 9}),
    ("stft.default", floats(2, 40), 16, 4, 12, floats(12), True, False, True),
    ("istft.default", Drawn("complex64", (2, 9, 5)), 16, 4, 12, floats(12, low=0.5), True, True, None, 20),
    ("istft.default", Drawn("complex64", (9, 6)), 16),
    ("fft_fftshift.default fft_ifftshift.default", floats(3, 5)), ("fft_fftshift.default", COMPLEX, (1,)),
    ("fft_rfftn.default", floats(3, 4, 5)), ("fft_rfftn.default", floats(3, 4, 5), None, (0, 2), "ortho"),
    ("fft_irfftn.default", Drawn("complex64", (3, 4, 3)), (4, 5), (1, 2)),
    ("fft_ifft2.default", Drawn("complex64", (3, 4))),
    ("matmul.default", Drawn("complex64", (2, 3, 4)), Drawn("complex64", (4, 2))), ("mv.default", COMPLEX, COMPLEX_ROW),
    ("mm.default", COMPLEX, Drawn("complex64", (4, 3))), ("bmm.default", *[Drawn("complex64", (2, 3, 3))] * 2),
    ("einsum.default", "bixy,ioxy->boxy", (Drawn("complex64", (2, 3, 2, 2)), Drawn("complex64", (3, 4, 2, 2)))),
    ("index_put.default", floats(3, 4, 5), (None, None, integers(1)), floats(1)),
    ("index_put.default", floats(3, 4, 5), (None, integers(2, 1, high=3)), floats(2, 1, 5), True),
    ("index_put.default", floats(3, 4, 5), (integers(2, high=3), None, integers(2)), floats(2, 4), True),
    ("index_put.default", floats(3, 4, 5, 2), (None, integers(2, 1), integers(3)), floats(3, 1, 3, 2), True),
    ("std.dim std_mean.dim var_mean.dim", floats(3, 4, low=1, high=1), (1,)), ("std.default", floats(3, low=1, high=1)),
    ("std.correction std_mean.correction", floats(3, 4, low=1, high=1), (0,), {"correction": 1}),
    ("atan2.default", floats(3, low=0, high=0), floats(3, low=0, high=0)), ("median.default", floats(4, low=1, high=1)),
    ("xlogy.Tensor", floats(3, low=0, high=0), floats(3, low=2, high=3)), ("median.default", WHOLE),
)  # fmt: skip

NAN, INF = float("nan"), float("inf")
NANS = exactly([[NAN] * 4] * 3)
HIDDEN = exactly([[0, 0, -INF, -INF, 0, 0], [-INF] * 6, [0] * 6, [0, -INF] * 3, [-INF] * 6])
HIDDEN_BOOL = exactly([[True, True, False, False, True, True], [False] * 6, [True] * 6, [True, False] * 3, [False] * 6],
                      "bool")
NEVER = 1e-12
"""A probability with which nothing is dropped, and which is above 0."""
ONE_HEAD = (_ATTENTION[0], floats(2, 1, 6, 8), floats(2, 1, 6, 3))
COUNTED = floats(1, 1, 4, 4, low=1, high=9)

TIES, LIMITS = exactly([1, 2, 3, NAN, 5, INF, -INF]), exactly([1, 3, 2, 0, NAN, 1, 1])
EQUAL, ORDERED = exactly([1, 2, 3, 3]), exactly([1, 3, 2, 3])
OTHERS = exactly([4] * 7), exactly([3] * 4)

_SPECIAL: tuple[tuple[Any, ...], ...] = (
    ("_safe_softmax.default", HIDDEN, -1), ("_safe_softmax.default", HIDDEN, 0),
    *(("scaled_dot_product_attention.default", *operands, mask, dropout, {"enable_gqa": operands is ONE_HEAD})
      for operands in (_ATTENTION, (*_ATTENTION[:2], floats(2, 4, 6, 3)), ONE_HEAD)
      for mask in (HIDDEN, HIDDEN_BOOL) for dropout in (0.0, NEVER)),
    ("pad.default", COUNTED, (-1, 1, -2, 1), "circular"), ("pad.default", COUNTED, (-1, 1, 0, 0), "circular"),
    ("var.correction std.correction var_mean.correction std_mean.correction", X, {"correction": 0.5}),
    ("addr.default", NANS, floats(3), floats(4), {"beta": 0}),
    ("addmm.default", NANS, floats(3, 2), floats(2, 4), {"beta": 0}),
    ("addbmm.default", NANS, floats(2, 3, 2), floats(2, 2, 4), {"beta": 0}),
    ("clamp.Tensor", TIES, LIMITS, OTHERS[0]), ("clamp_min.Tensor clamp_max.Tensor", TIES, LIMITS),
    ("fmax.default fmin.default", TIES, LIMITS), ("fmax.default fmin.default", LIMITS, TIES),
    ("clamp.Tensor", EQUAL, exactly([1, 3, 2, 0]), OTHERS[1]), ("clamp_min.Tensor clamp_max.Tensor", EQUAL, ORDERED),
    ("fmax.default fmin.default", EQUAL, ORDERED),
    ("lerp.Tensor", OTHERS[0], exactly([INF, 1, 2, 3, -INF, 0, NAN]), exactly([1, 0, 0.75, 0.5, 1, 0.25, -0.5])),
    ("lerp.Scalar", exactly([1e8, -INF]), exactly([1, 3]), 1.0),
    ("logit.default", exactly([0, 1, 0.25, NAN])), ("angle.default", exactly([NAN, INF, -INF, -0.0, 2])),
    ("quantile.scalar", exactly([[NAN, 1, 2], [3, 1, 2]]), 0.5, 1),
    ("trace.default", exactly([[1, NAN], [INF, 2]])),
    ("scatter_reduce.two", exactly([[0, 1, 1]]), 1, exactly([[0, 0, 1]], "int64"), exactly([[2, 2, 1]]), "amax"),
    ("scatter_reduce.two", exactly([[5, 0]]), 1, exactly([[0, 0, 1]], "int64"), exactly([[2, 5, 1]]), "amin"),
    ("margin_ranking_loss.default", EQUAL, ORDERED, exactly([1, -1, 1, -1])),
)  # fmt: skip
"""Calls with infinite numbers and NaN, equal elements, and other arguments that are easily forgotten."""

IMAGE_AFTER, VOLUME = floats(2, 4, 3, 3), floats(2, 2, 4, 4, 4)
_ALL, ENDS = [True] * 3, exactly([2, 2, 8], "int32")
_LABELS = (floats(6, 4), integers(6))
_PLACES = integers(2, 4, 3, 3, high=36)
_POOLED = (floats(2, 4, 3, 3), IMAGE, (2, 2), (2, 2), (0, 0))
_ATTENDED = (floats(2, 4, 5, 8), *_ATTENTION, floats(2, 4, 5, 8), floats(2, 4, 5, low=1, high=3))

_GRADIENTS: tuple[tuple[Any, ...], ...] = (
    ("sigmoid_backward.default tanh_backward.default silu_backward.default gelu_backward.default "
     "mish_backward.default", X, Y), ("native_dropout_backward.default", X, TRUTH, 2.0),
    ("gelu_backward.default", X, Y, {"approximate": "tanh"}),
    ("hardswish_backward.default hardsigmoid_backward.default", floats(3, 4), floats(3, 4, low=-8, high=8)),
    ("elu_backward.default", X, 0.7, 1.2, 0.5, False, Y), ("elu_backward.default", X, 0.7, 1.2, 0.5, True, Y),
    ("elu.default", X, 0.7, 1.2), ("elu.default", X, 0.7, 1.2, 0.5),
    ("leaky_relu_backward.default", X, Y, 0.1, False), ("hardtanh_backward.default", X, Y, -0.3, 0.5),
    ("softplus_backward.default", X, Y, 2.0, 1.0),
    ("softshrink_backward.default hardshrink_backward.default", X, Y, 0.3),
    ("glu_backward.default", floats(3, 2), X, 1), ("logit_backward.default", X, floats(3, 4, low=0.1, high=0.9)),
    ("log_sigmoid_forward.default", X),
    ("log_sigmoid_backward.default", floats(3), exactly([0, 1, -2]), exactly(np.exp([0, -1, -2]))),
    ("_prelu_kernel.default", X, floats(3, 4)), ("_prelu_kernel_backward.default", X, Y, floats(3, 4)),
    ("_softmax_backward_data.default _log_softmax_backward_data.default", X, Y, 1, FLOAT32),
    ("native_layer_norm_backward.default", X, Y, [4], floats(3, 1), floats(3, 1), floats(4), floats(4), _ALL),
    ("_fused_rms_norm.default", X, (4,), ROW, None), ("_fused_rms_norm.default", floats(2, 3, 4), (3, 4), None, 1e-3),
    ("native_group_norm_backward.default", IMAGE, IMAGE, floats(2, 2), floats(2, 2), floats(4), 2, 4, 36, 2, _ALL),
    ("native_batch_norm_backward.default", IMAGE, *_NORM[:2], None, None, floats(4), floats(4), True, 1e-5, _ALL),
    ("native_batch_norm_backward.default", IMAGE, *_NORM[:2], *_NORM[3:], None, None, False, 1e-5, _ALL),
    ("_weight_norm_interface.default", X, floats(3, 1)),
    ("_weight_norm_interface_backward.default", floats(2, 2), exactly([[3, 4], [8, 6]]), floats(2, 1),
     exactly([[5], [10]]), 0),
    ("embedding_dense_backward.default", floats(2, 3, 4), integers(2, 3), 5, 1, False),
    ("nll_loss_forward.default", *_LABELS, floats(4, low=0.5), 2, 1),
    ("nll_loss_forward.default", *_LABELS, None, 0, 2),
    ("nll_loss_backward.default", floats(), *_LABELS, floats(4, low=0.5), 1, 2, floats(low=1, high=2)),
    ("nll_loss_backward.default", floats(6), *_LABELS, None, 0, -100, floats()),
    ("nll_loss_backward.default", floats(), floats(4), integers(), None, 2, -100, floats()),
    ("nll_loss2d_backward.default", floats(), floats(2, 4, 3, 3), integers(2, 3, 3), floats(4), 1, 2, floats(low=1)),
    ("mse_loss_backward.default soft_margin_loss_backward.default", X, X, Y, 0),
    ("mse_loss_backward.default", floats(), X, Y, 1),
    ("multi_margin_loss_backward.default", floats(), *_LABELS, 1, 0.5, floats(4, low=0.5), 1),
    ("multilabel_margin_loss_forward.default", floats(3, 4), integers(3, 4, low=-1, high=4), 1),
    ("multilabel_margin_loss_backward.default", floats(), floats(1, 4), exactly([[2, 0, -1, 1]], "int64"), 1,
     exactly([[1, 0, 1, 0]])),
    ("smooth_l1_loss_backward.default huber_loss_backward.default", floats(), X, Y, 1, 0.4),
    ("binary_cross_entropy_backward.default", floats(), floats(3, 4, low=0.1, high=0.9), POSITIVE, X),
    ("slice_backward.default", floats(3, 3), (7, 3), 0, 1, 6, 2),
    ("slice_backward.default", floats(2, 3), (7, 3), 0, 3, 5, 1),
    ("select_backward.default", floats(3), (3, 4), 1, -2), ("diagonal_backward.default", floats(3), (3, 4), 1, 0, 1),
    ("unfold_backward.default", floats(2, 3, 3), (2, 7), 1, 3, 2),
    ("reflection_pad1d_backward.default replication_pad1d_backward.default", floats(2, 3, 7), floats(2, 3, 4), (1, 2)),
    ("reflection_pad2d_backward.default replication_pad2d_backward.default", floats(2, 4, 9, 9), IMAGE, (1, 2, 0, 3)),
    ("reflection_pad3d_backward.default replication_pad3d_backward.default", floats(2, 2, 6, 7, 7), VOLUME,
     (1, 2, 0, 3, 1, 1)),
    ("convolution_backward.default", floats(2, 6, 6, 3), IMAGE, floats(6, 2, 3, 3), (6,), (1, 2), (1, 1), (1, 1),
     False, (0, 0), 2, _ALL),
    ("convolution_backward.default", floats(2, 3, 12, 12), IMAGE, floats(4, 3, 3, 3), (3,), (2, 2), (1, 1), (1, 1),
     True, (1, 1), 1, _ALL),
    ("convolution.default", floats(2, 4, 5), floats(4, 3, 2), floats(3), (2,), (1,), (1,), True, (0,), 1),
    ("convolution.default", floats(2, 4, 3, 4, 5), floats(4, 3, 2, 2, 3), floats(3), (2, 1, 2), (1, 0, 1), (1, 1, 1),
     True, (1, 0, 0), 1),
    ("_grouped_mm.default", floats(8, 4), floats(3, 4, 4), ENDS),
    ("_grouped_mm.default", floats(4, 8), floats(8, 4), ENDS),
    ("max_pool2d_with_indices_backward.default", *_POOLED, (1, 1), False, _PLACES),
    ("max_pool3d_with_indices.default", VOLUME, (2, 2, 2)),
    ("max_pool3d_with_indices_backward.default", floats(2, 2, 2, 2, 2), VOLUME, (2, 2, 2), (2, 2, 2), (0, 0, 0),
     (1, 1, 1), False, integers(2, 2, 2, 2, 2, high=64)),
    ("adaptive_max_pool2d_backward.default", floats(2, 4, 3, 3), IMAGE, _PLACES),
    ("adaptive_max_pool3d_backward.default", floats(2, 2, 2, 2, 2), VOLUME, integers(2, 2, 2, 2, 2, high=64)),
    ("avg_pool2d_backward.default", floats(2, 4, 4, 4), IMAGE, (3, 3), (2, 2), (1, 1), True, False, None),
    ("avg_pool3d_backward.default", floats(2, 2, 2, 2, 2), VOLUME, (2, 2, 2), (2, 2, 2), (0, 0, 0), False, True, None),
    ("_adaptive_avg_pool2d_backward.default", IMAGE_AFTER, IMAGE),
    ("_adaptive_avg_pool2d_backward.default", floats(2, 4, 1, 1), IMAGE),
    ("_adaptive_avg_pool3d_backward.default", floats(2, 2, 2, 2, 2), VOLUME),
    ("upsample_nearest1d_backward.default _upsample_nearest_exact1d_backward.default", floats(2, 4, 9), (9,),
     (2, 4, 4)),
    ("upsample_nearest2d_backward.default _upsample_nearest_exact2d_backward.default", floats(2, 4, 9, 12), (9, 12),
     (2, 4, 6, 6)),
    ("upsample_nearest3d_backward.default _upsample_nearest_exact3d_backward.default", floats(2, 2, 8, 6, 6), (8, 6, 6),
     (2, 2, 4, 4, 4)),
    ("upsample_linear1d_backward.default", floats(2, 4, 9), (9,), (2, 4, 4), False),
    ("upsample_bilinear2d_backward.default upsample_bicubic2d_backward.default", floats(2, 4, 9, 12), (9, 12),
     (2, 4, 6, 6), False),
    ("upsample_bilinear2d_backward.default upsample_bicubic2d_backward.default", floats(2, 4, 10, 3), (10, 3),
     (2, 4, 6, 6), False, 1.7, 0.6),
    ("grid_sampler_2d_backward.default", IMAGE_AFTER, IMAGE, floats(2, 3, 3, 2), 0, 0, False, [True, True]),
    ("_cdist_backward.default", floats(3, 5), floats(3, 4), floats(5, 4), 1.0, floats(3, 5)),
    ("_scaled_dot_product_flash_attention_for_cpu.default", *_ATTENTION, 0.0, False),
    ("_scaled_dot_product_flash_attention_for_cpu.default", *_ATTENTION, 0.0, True, {"scale": 0.3}),
    ("_scaled_dot_product_flash_attention_for_cpu.default", *_ATTENTION, {"attn_mask": floats(1, 1, 5, 6)}),
    ("_scaled_dot_product_flash_attention_for_cpu_backward.default", *_ATTENDED, 0.0, False),
    ("_scaled_dot_product_flash_attention_for_cpu_backward.default", *_ATTENDED, 0.0, True, {"scale": 0.3}),
    ("_scaled_dot_product_flash_attention_for_cpu_backward.default", *_ATTENDED, 0.0, False,
     {"attn_mask": floats(1, 1, 5, 6)}),
)  # fmt: skip
"""Calls of the kinds that autograd calls."""

PAIR, OTHER_PAIR, LARGE = (X, ROW), (Y, floats(4)), (POSITIVE, floats(4, low=0.5, high=2.0))
_ONE = """abs neg sqrt rsqrt reciprocal exp log sign tanh sigmoid""".split()
_TWO = """mul div maximum minimum clamp_min clamp_max pow add sub""".split()
_LISTED: tuple[tuple[Any, ...], ...] = (
    *((f"{name}{{}}.default", LARGE) for name in _ONE), *((f"{name}{{}}.List", LARGE, OTHER_PAIR) for name in _TWO),
    *((f"{name}{{}}.Scalar", LARGE, 0.7) for name in _TWO),
    *((f"{name}{{}}.ScalarList", LARGE, [0.7, 2.0]) for name in _TWO),
    *((f"{name}{{}}.Tensor", PAIR, floats()) for name in ("mul", "div", "add")),
    *((f"{name}{{}}.Scalar", PAIR, OTHER_PAIR, LARGE, 0.5) for name in ("addcmul", "addcdiv")),
    *((f"{name}{{}}.ScalarList", PAIR, OTHER_PAIR, LARGE, [0.5, 2.0]) for name in ("addcmul", "addcdiv")),
    ("lerp{}.Scalar", PAIR, OTHER_PAIR, 0.3), ("lerp{}.List", PAIR, OTHER_PAIR, LARGE),
    ("add{}.List", PAIR, OTHER_PAIR, {"alpha": 0.3}), ("copy{}.default", PAIR, OTHER_PAIR),
)  # fmt: skip
_LISTS: tuple[tuple[Any, ...], ...] = (
    *((f"_foreach_{name.format('')}", *args) for name, *args in _LISTED),
    ("_foreach_norm.Scalar", PAIR), ("_foreach_norm.Scalar", PAIR, 1), ("_foreach_pow.ScalarAndTensor", 0.9, PAIR),
)  # fmt: skip
_ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.3, "eps": 1e-6, "amsgrad": False, "maximize": False}
_SGD = {"weight_decay": 0.3, "momentum": 0.9, "lr": 0.1, "dampening": 0.2, "nesterov": False, "maximize": False,
        "is_first_step": False}  # fmt: skip
_STATES = (PAIR, OTHER_PAIR, PAIR, LARGE)
_STEPS = (exactly(3.0), exactly(3.0))

_WRITTEN: tuple[tuple[Any, ...], ...] = (
    *((f"_foreach_{name.format('_')}", *args) for name, *args in _LISTED), ("_foreach_zero_.default", PAIR),
    ("_fused_adam_.default _fused_adamw_.default", *_STATES, (), _STEPS, _ADAM),
    ("_fused_adamw_.default", *_STATES, LARGE, _STEPS, _ADAM | {"amsgrad": True, "maximize": True}),
    ("_fused_adam_.tensor_lr _fused_adamw_.tensor_lr", *_STATES, (), _STEPS, _ADAM | {"lr": exactly(0.1)}),
    ("_fused_sgd_.default", *_STATES[:3], _SGD), ("_fused_sgd_.default", *_STATES[:2], (), _SGD | {"momentum": 0.0}),
    ("_fused_sgd_.tensor_lr", *_STATES[:3], _SGD | {"lr": exactly(0.1), "nesterov": True, "dampening": 0.0}),
)  # fmt: skip
"""Calls of kinds that overwrite arguments."""
