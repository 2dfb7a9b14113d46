"""Functions over operators: `ops.relu(x)`. They are parsed when a compiled function calls them, so
they keep to the part of Python that mspc compiles; called by a script they run at once.
"""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.ir.types import FLOAT32, INT64

OPERATORS = {
    "abs": "Abs", "absolute": "Abs", "acos": "ACos", "add": "Add", "add_ext": "AddExt",
    "addcdiv_ext_op": "AddcdivExt", "addcmul_ext_op": "AddcmulExt", "sub_ext": "SubExt", "addn": "AddN", "asin": "Asin",
    "assign": "Assign", "assign_add": "AssignAdd", "assign_sub": "AssignSub", "atan": "Atan",
    "batch_matmul": "BatchMatMul", "bias_add": "BiasAdd", "bmm": "BatchMatMul", "cast": "Cast",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "depend": "Depend",
    "eq": "Equal", "equal": "Equal", "erf": "Erf", "exp": "Exp", "expand_dims": "ExpandDims",
    "expm1": "Expm1", "fill": "Fill", "floor": "Floor", "floor_div": "FloorDiv", "floor_mod": "FloorMod",
    "ge": "GreaterEqual", "gelu": "GeLU", "greater": "Greater", "greater_equal": "GreaterEqual",
    "gt": "Greater", "isfinite": "IsFinite", "isinf": "IsInf", "isnan": "IsNan", "le": "LessEqual",
    "less": "Less", "less_equal": "LessEqual", "log": "Log", "log1p": "Log1p", "logical_and": "LogicalAnd",
    "logical_not": "LogicalNot", "logical_or": "LogicalOr", "logical_xor": "LogicalXor", "lt": "Less",
    "maximum": "Maximum", "minimum": "Minimum", "masked_fill": "MaskedFill", "mm": "MatMul",
    "mul": "Mul", "multiply": "Mul",
    "ne": "NotEqual", "neg": "Neg", "negative": "Neg", "not_equal": "NotEqual", "permute": "Transpose",
    "pow": "Pow", "reciprocal": "Reciprocal", "relu": "ReLU", "relu6": "ReLU6", "reshape": "Reshape",
    "round": "Round", "rsqrt": "Rsqrt", "select": "Select", "sigmoid": "Sigmoid", "sign": "Sign",
    "silu": "SiLU", "sin": "Sin", "sinh": "Sinh", "softplus": "Softplus", "sqrt": "Sqrt",
    "square": "Square", "stop_gradient": "StopGradient", "sub": "Sub", "subtract": "Sub", "tan": "Tan",
    "tanh": "Tanh", "tensor_pow": "Pow", "tile": "Tile", "transpose": "Transpose", "trunc": "Trunc",
    "unsqueeze": "ExpandDims", "where": "Select",
}  # fmt: skip
"""Functions that are one operator with its default attributes: `ops.relu` is `ops.ReLU()`."""


def shape(input_x: Any) -> Any:
    """The shape, a tuple of ints."""
    return input_x.shape


def rank(input_x: Any) -> Any:
    """Number of dimensions, an int."""
    return len(input_x.shape)


def size(input_x: Any) -> Any:
    """Number of elements, an int."""
    return input_x.size


def dtype(input_x: Any) -> Any:
    """The element type."""
    return input_x.dtype


# Shape --------------------------------------------------------------------------------------------


def flatten(input: Any, order: str = "C", *, start_dim: int = 1, end_dim: int = -1) -> Any:
    """Dimensions start_dim to end_dim made one."""
    sizes = input.shape
    last = end_dim if end_dim >= 0 else len(sizes) + end_dim
    return ops.Reshape()(input, (*sizes[:start_dim], -1, *sizes[last + 1 :]))


def swapaxes(input: Any, axis0: int, axis1: int) -> Any:
    """Two dimensions exchanged."""
    n = len(input.shape)
    perm = [axis1 % n if d == axis0 % n else axis0 % n if d == axis1 % n else d for d in range(n)]
    return ops.Transpose()(input, tuple(perm))


def squeeze(input: Any, axis: Any = None) -> Any:
    """Without dimensions of size 1 (all, or those of `axis`)."""
    if axis is None:
        return ops.Squeeze()(input)
    return ops.Squeeze(axis)(input)


def concat(tensors: Any, axis: int = 0) -> Any:
    """Tensors one after another along `axis`."""
    return ops.Concat(axis)(tensors)


def cat(tensors: Any, axis: int = 0) -> Any:
    """Tensors one after another along `axis`."""
    return ops.Concat(axis)(tensors)


def stack(tensors: Any, axis: int = 0) -> Any:
    """Tensors side by side along a new dimension."""
    return ops.Stack(axis)(tensors)


def split(tensor: Any, split_size_or_sections: int, axis: int = 0) -> Any:
    """Parts of `split_size_or_sections` elements along `axis`, a tuple; they must be equal."""
    return ops.Split(axis, tensor.shape[axis] // split_size_or_sections)(tensor)


def chunk(input: Any, chunks: int, axis: int = 0) -> Any:
    """`chunks` equal parts along `axis`, a tuple."""
    return ops.Split(axis, chunks)(input)


def broadcast_to(input: Any, shape: Any) -> Any:
    """`input` repeated to `shape`."""
    return ops.BroadcastTo(shape)(input)


def strided_slice(
    input_x: Any, begin: Any, end: Any, strides: Any, begin_mask: int = 0, end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0, shrink_axis_mask: int = 0,
) -> Any:  # fmt: skip
    """begin[d]:end[d]:strides[d] of every dimension d."""
    cut = ops.StridedSlice(begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    return cut(input_x, begin, end, strides)


def slice(input_x: Any, begin: Any, size: Any) -> Any:
    """size[d] elements from begin[d] of every dimension d."""
    end = [b + s if s >= 0 else n for b, s, n in zip(begin, size, input_x.shape, strict=True)]
    return ops.StridedSlice()(input_x, begin, tuple(end), (1,) * len(end))


def gather(input_params: Any, input_indices: Any, axis: int, batch_dims: int = 0) -> Any:
    """Slices of `input_params` along `axis` at `input_indices`."""
    return ops.Gather(batch_dims)(input_params, input_indices, axis)


def one_hot(indices: Any, depth: int, on_value: Any = 1, off_value: Any = 0, axis: int = -1) -> Any:
    """A new dimension of `depth`: on_value at the index, off_value elsewhere."""
    return ops.OneHot(axis)(indices, depth, on_value, off_value)


def full(size: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """A tensor of one value."""
    return ops.Fill()(FLOAT32 if dtype is None else dtype, size, fill_value)


def zeros(size: Any, dtype: Any = None) -> Any:
    """A tensor of zeros."""
    return ops.Fill()(FLOAT32 if dtype is None else dtype, size, 0)


def ones(shape: Any, dtype: Any = None) -> Any:
    """A tensor of ones."""
    return ops.Fill()(FLOAT32 if dtype is None else dtype, shape, 1)


def zeros_like(input: Any, *, dtype: Any = None) -> Any:
    """Zeros of the shape of `input`."""
    return ops.Fill()(input.dtype if dtype is None else dtype, input.shape, 0)


def full_like(input: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """A tensor of one value, of the shape of `input`."""
    return ops.Fill()(input.dtype if dtype is None else dtype, input.shape, fill_value)


def ones_like(input: Any, *, dtype: Any = None) -> Any:
    """Ones of the shape of `input`."""
    return ops.Fill()(input.dtype if dtype is None else dtype, input.shape, 1)


def div(input: Any, other: Any, *, rounding_mode: Any = None) -> Any:
    """The quotient; rounded towards 0 for rounding_mode "trunc", down for "floor"."""
    if rounding_mode == "floor":
        return ops.FloorDiv()(input, other)
    quotient = ops.Div()(input, other)
    if rounding_mode == "trunc":
        return ops.Trunc()(quotient)
    return quotient


divide = div


def scalar_to_array(input_scalar: Any, dtype: Any = None) -> Any:
    """A number as a tensor without dimensions, of Float32 or Int64 unless `dtype` is given."""
    if dtype is None:
        dtype = FLOAT32 if isinstance(input_scalar, float) else INT64
    return ops.Fill()(dtype, (), input_scalar)


scalar_to_tensor = scalar_to_array


def arange(start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None) -> Any:
    """Numbers from start up to end, without end, by step."""
    if end is None:
        return ops.Range()(0, start, step, dtype)
    return ops.Range()(start, end, step, dtype)


def eye(n: int, m: Any = None, dtype: Any = FLOAT32) -> Any:
    """Ones on the diagonal of an n x m matrix."""
    return ops.Eye()(n, n if m is None else m, dtype)


def tril(input: Any, diagonal: int = 0) -> Any:
    """`input` on and below the diagonal, 0 above."""
    return ops.Tril(diagonal)(input)


def triu(input: Any, diagonal: int = 0) -> Any:
    """`input` on and above the diagonal, 0 below."""
    return ops.Triu(diagonal)(input)


def topk(input: Any, k: int, dim: Any = None, largest: bool = True, sorted: bool = True) -> Any:
    """(the k largest elements along the last dimension, their places)."""
    return ops.TopK(sorted)(input, k)


def cumsum(x: Any, axis: int, dtype: Any = None) -> Any:
    """Running sums along `axis`."""
    return ops.CumSum()(x, axis)


def flip(input: Any, dims: Any) -> Any:
    """`input` in reverse order along `dims`."""
    return ops.ReverseV2(dims)(input)


def tensordump(file_name: str, tensor: Any, mode: str = "out") -> Any:
    """Writes a tensor to a file at every step; see TensorDump."""
    return ops.TensorDump(mode)(file_name, tensor)


# Products -----------------------------------------------------------------------------------------


def matmul(input: Any, other: Any) -> Any:
    """Matrix product; more dimensions than two are a batch."""
    if len(input.shape) == 2 and len(other.shape) == 2:
        return ops.MatMul()(input, other)
    return ops.BatchMatMul()(input, other)


def dense(input: Any, weight: Any, bias: Any = None) -> Any:
    """input @ weight.T + bias, weight [out, in]."""
    out = ops.MatMul(transpose_b=True)(input, weight)
    if bias is None:
        return out
    return ops.BiasAdd()(out, bias)


# Losses and normalisation -------------------------------------------------------------------------


def softmax(input: Any, axis: int = -1) -> Any:
    """exp(input) divided by its sum along `axis`."""
    return ops.Softmax(axis)(input)


def log_softmax(logits: Any, axis: int = -1) -> Any:
    """Logarithm of the softmax along `axis`."""
    return ops.LogSoftmax(axis)(logits)


def flash_attention_score(
    query: Any, key: Any, value: Any, head_num: int, real_shift: Any = None, drop_mask: Any = None,
    padding_mask: Any = None, attn_mask: Any = None, prefix: Any = None, actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None, keep_prob: float = 1.0, scalar_value: float = 1.0, pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647, inner_precise: int = 0, input_layout: str = "BSH", sparse_mode: int = 0,
) -> Any:  # fmt: skip
    """softmax(scalar_value * query @ key^T + real_shift) @ value for every head; see FlashAttentionScore."""
    score = ops.FlashAttentionScore(
        head_num, keep_prob, scalar_value, pre_tokens, next_tokens, inner_precise, input_layout, sparse_mode
    )
    _, _, _, out = score(
        query, key, value, real_shift, drop_mask, padding_mask, attn_mask, prefix, actual_seq_qlen, actual_seq_kvlen
    )
    return out


def layer_norm(input_x: Any, normalized_shape: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> Any:
    """`input_x` normalised over its last dimensions, those of normalized_shape."""
    axis = len(input_x.shape) - len(normalized_shape)
    out, _, _ = ops.LayerNorm(axis, axis, eps)(input_x, gamma, beta)
    return out


def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """(input - target)^2, reduced."""
    return _reduced(ops.Square()(input - target), reduction)


def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """|input - target|, reduced."""
    return _reduced(ops.Abs()(input - target), reduction)


def nll_loss(
    inputs: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Negative log-probability [n, classes] of the target classes [n]."""
    hot = ops.OneHot()(target, inputs.shape[-1], 1.0, 0.0)
    if label_smoothing:
        hot = hot * (1.0 - label_smoothing) + label_smoothing / inputs.shape[-1]
    return _reduced(ops.Neg()(ops.ReduceSum()(inputs * hot, -1)), reduction)


def cross_entropy(
    input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Cross entropy of logits [n, classes] and class numbers [n] or probabilities [n, classes]."""
    logits = ops.LogSoftmax(-1)(input)
    if len(target.shape) < len(input.shape):
        return nll_loss(logits, target, weight, ignore_index, reduction, label_smoothing)
    if label_smoothing:
        target = target * (1.0 - label_smoothing) + label_smoothing / input.shape[-1]
    return _reduced(ops.Neg()(ops.ReduceSum()(logits * target, -1)), reduction)


def dropout(input: Any, p: float = 0.5, training: bool = True, seed: Any = None) -> Any:
    """Elements set to 0 with probability p, the others divided by 1 - p."""
    if not training or p == 0.0:
        return input
    out, _ = ops.Dropout(1.0 - p, 0 if seed is None else seed)(input)
    return out


def _reduced(x: Any, reduction: str) -> Any:
    if reduction == "mean":
        return ops.ReduceMean()(x)
    if reduction == "sum":
        return ops.ReduceSum()(x)
    return x


# Reductions ---------------------------------------------------------------------------------------


def reduce_sum(x: Any, axis: Any = (), keep_dims: bool = False) -> Any:
    """Sum along `axis`, () for all."""
    return ops.ReduceSum(keep_dims)(x, axis)


def reduce_mean(x: Any, axis: Any = (), keep_dims: bool = False) -> Any:
    """Mean along `axis`, () for all."""
    return ops.ReduceMean(keep_dims)(x, axis)


def sum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Sum along `dim`, None for all."""
    return ops.ReduceSum(keepdim)(input, () if dim is None else dim)


def mean(x: Any, axis: Any = None, keep_dims: bool = False) -> Any:
    """Mean along `axis`, None for all."""
    return ops.ReduceMean(keep_dims)(x, () if axis is None else axis)


def prod(input: Any, axis: Any = None, keep_dims: bool = False, dtype: Any = None) -> Any:
    """Product along `axis`, None for all."""
    return ops.ReduceProd(keep_dims)(input, () if axis is None else axis)


def amax(input: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Maximum along `axis`, None for all."""
    return ops.ReduceMax(keepdims)(input, () if axis is None else axis)


def amin(input: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Minimum along `axis`, None for all."""
    return ops.ReduceMin(keepdims)(input, () if axis is None else axis)


def argmax(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Index of the maximum along `dim`."""
    return ops.Argmax(-1 if dim is None else dim, INT64)(input)


def clip_by_value(x: Any, clip_value_min: Any = None, clip_value_max: Any = None) -> Any:
    """`x` kept between two values."""
    if clip_value_min is not None:
        x = ops.Maximum()(x, clip_value_min)
    if clip_value_max is not None:
        x = ops.Minimum()(x, clip_value_max)
    return x


def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """`input` kept between two values."""
    return clip_by_value(input, min, max)


def clip_by_global_norm(x: Any, clip_norm: float = 1.0) -> Any:
    """Tensors scaled together so that the norm of them all is at most `clip_norm`; a tuple."""
    total = ops.AddN()([ops.ReduceSum()(ops.Square()(t)) for t in x])
    scale = clip_norm / ops.Maximum()(ops.Sqrt()(total), clip_norm)
    return tuple([t * scale for t in x])
