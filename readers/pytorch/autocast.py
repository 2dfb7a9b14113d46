"""In which element types kinds compute under `torch.autocast`: some in half precision, some in Float32, all others in
the widest that they read. A program may be trained so, and blocks of it may say so themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes

from mspc.api import ops
from mspc.api.nn.precision import Precision
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, HALVES, DType, TensorType
from mspc.readers.pytorch.program import ExportedGraph, ExportedNode

NARROW = frozenset((
    "linear", "matmul", "mm", "bmm", "mv", "addmm", "addmv", "addbmm", "baddbmm", "addr", "einsum", "tensordot",
    "bilinear", "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "prelu", "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "grouped_mm_fallback", "_grouped_mm", "lstm", "gru", "rnn_tanh", "rnn_relu",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
))  # fmt: skip
"""Kinds that compute in half precision: products, which take most of a step's time and add up in Float32."""
WIDE = frozenset((
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow", "softplus", "layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "rms_norm",
    "cosine_similarity", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "nll_loss_nd", "nll_loss_forward",
    "nll_loss2d_forward", "cross_entropy_loss", "hinge_embedding_loss", "kl_div", "poisson_nll_loss", "l1_loss",
    "smooth_l1_loss",
    "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "dist",
    "pdist", "cdist", "_cdist_forward", "renorm", "logsumexp", "logcumsumexp", "prod", "softmax", "_softmax",
    "_safe_softmax", "log_softmax", "_log_softmax", "cumprod", "cumsum", "sum", "norm", "linalg_norm",
    "linalg_vector_norm", "linalg_matrix_norm", "linalg_inv", "inverse", "linalg_det", "linalg_slogdet", "linalg_qr",
    "linalg_cholesky", "linalg_solve", "linalg_solve_triangular", "grid_sampler", "grid_sampler_2d", "fft_fft",
    "fft_fft2", "fft_fftn", "fft_ifft", "fft_ifftn", "fft_irfft", "fft_irfft2", "fft_rfft", "fft_rfft2",
))  # fmt: skip
"""Kinds that compute in Float32 whatever they read."""
BY_BATCH = frozenset((
    "batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "instance_norm",
))  # fmt: skip
"""Kinds with statistics and weights in Float32, whose first result has the type of what they normalise."""
BLOCK = "higher_order.wrap_with_autocast"
AS_THEY_ARE = Precision(FLOAT32)
"""Operators compute in the types of their operands."""

Call = Callable[[Callable[..., Any], Sequence[Any]], Any]
TypeOf = Callable[[Any], TensorType | None]


@dataclass(frozen=True)
class Autocast:
    """How kinds compute. dtype: the half, None where they compute in the types of their operands. is_exported: a block
    of the program says so, whose values have the types that were exported."""

    dtype: DType | None
    is_exported: bool = False

    def operands(self, name: str, given: Sequence[Any], call: Call, type_of: TypeOf) -> list[Any]:
        """What a kind computes of."""
        if self.dtype is None:
            return list(given)
        if name in NARROW:
            return [_as(value, self.dtype, (FLOAT32, *HALVES), call, type_of) for value in given]
        if name in WIDE:
            return [_as(value, FLOAT32, HALVES, call, type_of) for value in given]
        floats = [type for type in map(type_of, _flat(given)) if type is not None and type.dtype.is_float]
        shaped = {type.dtype for type in floats if type.shape}
        if not shaped.intersection(HALVES):
            return list(given)
        dtype = _widest(shaped)
        if len({type.dtype for type in floats}) > 1:
            given = [_as(value, dtype, (FLOAT32, *HALVES), call, type_of) for value in given]
        return [_within(value, dtype) for value in given]

    def results(self, name: str, given: Sequence[Any], found: list[Any], call: Call, type_of: TypeOf) -> list[Any]:
        """The results of a kind that computed of what `operands` gave for this."""
        if self.dtype is None or name not in BY_BATCH:
            return found
        first = type_of(given[0])
        return found if first is None else [_as(found[0], first.dtype, (FLOAT32,), call, type_of), *found[1:]]


def name_of(target: str) -> str:
    """The name of a kind without its library and its overload, and without the sign that it writes."""
    name = target.split(".")[1] if "." in target else target
    return name.removesuffix("_") if not name.endswith("__") else name


def inside(node: ExportedNode, around: Autocast | None) -> Autocast | None:
    """How the graph inside of a node computes: as what is around it, or as a block of autocast says.

    The arguments of autocast are the device, the element type, whether it is on, and whether casts are kept.
    """
    if node.target != BLOCK:
        return around
    values = [value for _, value in node.arguments]
    settings = values[: next((i for i, value in enumerate(values) if isinstance(value, ExportedGraph)), 0)]
    if len(settings) < 3 or settings[2] is not True:
        return Autocast(None, True)
    return Autocast(settings[1], True) if isinstance(settings[1], DType) else around


def _flat(given: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for value in given:
        if isinstance(value, (tuple, list)):
            found += _flat(value)
        else:
            found.append(value)
    return found


def _widest(dtypes: set[DType]) -> DType:
    others = dtypes.difference(HALVES)
    if others:
        return max(others, key=lambda dtype: dtype.itemsize)
    return next(iter(dtypes)) if len(dtypes) == 1 else FLOAT32


def _within(value: Any, dtype: DType) -> Any:
    """A number that was the largest of Float32, as masks are filled with, as the largest of another type."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    largest = float(ml_dtypes.finfo(dtype.numpy).max)
    return min(max(value, -largest), largest)


def _as(value: Any, dtype: DType, of: Sequence[DType], call: Call, type_of: TypeOf) -> Any:
    """A tensor of one of the types `of` in another one; of a list its tensors; all else as it is."""
    if isinstance(value, (tuple, list)):
        return tuple([_as(each, dtype, of, call, type_of) for each in value])
    type = type_of(value)
    if type is None or type.dtype == dtype or type.dtype not in of:
        return value
    return call(ops.cast, [value, dtype])
