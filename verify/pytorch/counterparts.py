"""Writes operators in PyTorch: one line each, of the operator and its operands as tensors.

An operator that is missing here has no counterpart: it draws random numbers, changes parameters, sends to other ranks,
or is the gradient of another, which is judged by differentiating that one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.verify.pytorch.attention import attention
from mspc.verify.pytorch.images import images
from mspc.verify.pytorch.special import special

Tensor = Any
Counterpart = Callable[..., Any]
"""Called with the operator and its operands; gives a tensor, or a tuple with None for results that are not judged."""


def load_torch() -> Any:
    """PyTorch. Raises MspcError where it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise MspcError(
            "verify --against torch needs PyTorch, which is not installed", notes=["pip install 'mspc[oracle]'"]
        ) from None


def counterparts(torch: Any) -> dict[str, Counterpart]:
    """Every counterpart by the operator's name."""
    families = (
        _alike, _elementwise, _arithmetic, _activations, _reductions, _products, _normalisations, _choices, _shapes,
        _slices, _joins, _lookups, _places, _losses, _masks, images, special,
    )  # fmt: skip
    return {name: function for family in families for name, function in family(torch).items()}


def _named(module: Any, names: dict[str, str]) -> dict[str, Counterpart]:
    """Operators that are one function of their operands alone, by its name."""

    def called(function: Any) -> Counterpart:
        return lambda op, *operands: function(*operands)

    return {name: called(getattr(module, short)) for name, short in names.items()}


def _alike(torch: Any) -> dict[str, Counterpart]:
    return _named(
        torch,
        {
            "Abs": "abs", "ACos": "acos", "Acosh": "acosh", "Add": "add", "Asin": "asin", "Asinh": "asinh",
            "Atan": "atan", "Atan2": "atan2", "Atanh": "atanh", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
            "BitwiseXor": "bitwise_xor", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Div": "div", "Equal": "eq",
            "Erf": "erf", "Erfc": "erfc", "Exp": "exp", "Expm1": "expm1", "Floor": "floor", "FloorMod": "remainder",
            "FmodScalar": "fmod", "FmodTensor": "fmod", "Greater": "gt", "GreaterEqual": "ge", "Hypot": "hypot",
            "Identity": "clone", "Inv": "reciprocal", "Invert": "bitwise_not", "IsFinite": "isfinite",
            "IsInf": "isinf", "IsNan": "isnan",
            "Lerp": "lerp", "Less": "lt", "LessEqual": "le", "Log": "log", "Log1p": "log1p",
            "LogicalAnd": "logical_and", "LogicalNot": "logical_not", "LogicalOr": "logical_or",
            "LogicalXor": "logical_xor", "Maximum": "maximum", "Minimum": "minimum", "Mod": "fmod", "Mul": "mul",
            "Neg": "neg", "NotEqual": "ne", "OnesLike": "ones_like", "Outer": "outer", "Pow": "pow", "RealDiv": "div",
            "Reciprocal": "reciprocal", "RemainderScalarTensor": "remainder", "RemainderTensorScalar": "remainder",
            "RemainderTensorTensor": "remainder", "Rint": "round", "Round": "round", "Rsqrt": "rsqrt",
            "Select": "where", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt",
            "Square": "square", "Sub": "sub", "Tan": "tan", "Tanh": "tanh", "Trunc": "trunc", "TruncateMod": "fmod",
            "ZerosLike": "zeros_like",
        },
    )  # fmt: skip


def _elementwise(torch: Any) -> dict[str, Counterpart]:
    return {
        "ApproximateEqual": lambda op, x, y: (x - y).abs() < op.tolerance,
        "Cast": lambda op, x: x.to(getattr(torch, op.dst_type.numpy.name)),
        "DivNoNan": lambda op, x, y: torch.where(y == 0, torch.zeros_like(x / y), x / torch.where(y == 0, 1, y)),
        "FloorDiv": lambda op, x, y: torch.div(x, y, rounding_mode="floor"),
        "IsClose": lambda op, x, y: torch.isclose(x, y, op.rtol, op.atol, op.equal_nan),
        "MulNoNan": lambda op, x, y: torch.where(y == 0, 0, x) * y,
        "NanToNum": lambda op, x: torch.nan_to_num(x, op.nan, op.posinf, op.neginf),
        "SquaredDifference": lambda op, x, y: (x - y) ** 2,
        "TruncateDiv": lambda op, x, y: torch.div(x, y, rounding_mode="trunc"),
        "Xdivy": lambda op, x, y: torch.where(x == 0, 0, x / torch.where(x == 0, 1, y)),
        "Xlogy": torch_xlogy(torch),
    }


def torch_xlogy(torch: Any) -> Counterpart:
    """x log(y), 0 where x is 0."""
    return lambda op, x, y: torch.where(x == 0, 0, torch.xlogy(x, torch.where(x == 0, 1, y)))


def _arithmetic(torch: Any) -> dict[str, Counterpart]:
    return {
        "AddcdivExt": lambda op, x, y, z: torch.addcdiv(x, y, z, value=op.value),
        "AddcmulExt": lambda op, x, y, z: torch.addcmul(x, y, z, value=op.value),
        "AddExt": lambda op, x, y: torch.add(x, y, alpha=op.alpha),
        "AddN": lambda op, *terms: sum(terms[1:], terms[0]),
        "SquareSumAll": lambda op, x, y: (x.square().sum(), y.square().sum()),
        "Muls": lambda op, x: torch.mul(x, op.other),
        "SubExt": lambda op, x, y: torch.sub(x, y, alpha=op.alpha),
    }


def _activations(torch: Any) -> dict[str, Counterpart]:
    functional = torch.nn.functional
    plain = _named(
        functional,
        {
            "HSigmoid": "hardsigmoid", "HSwish": "hardswish", "Mish": "mish", "ReLU": "relu", "ReLU6": "relu6",
            "SeLU": "selu", "SiLU": "silu", "Softplus": "softplus", "Softsign": "softsign",
        },
    )  # fmt: skip
    return plain | {
        "FastGeLU": lambda op, x: x * torch.sigmoid(1.702 * x),
        "Elu": lambda op, x: functional.elu(x, op.alpha),
        "EluExt": lambda op, x: functional.elu(x, op.alpha),
        "GeLU": lambda op, x: functional.gelu(x, approximate="tanh"),
        "HShrink": lambda op, x: functional.hardshrink(x, op.lambd),
        "LeakyReLUExt": lambda op, x: functional.leaky_relu(x, op.negative_slope),
        "LogSoftmax": lambda op, x: torch.log_softmax(x, op.axis),
        "PReLU": lambda op, x, weight: functional.prelu(x, weight),
        "Softmax": lambda op, x: (x - torch.logsumexp(x, op.axis, keepdim=True)).exp(),
        "SoftplusExt": lambda op, x: functional.softplus(x, op.beta, op.threshold),
        "SoftShrink": lambda op, x: functional.softshrink(x, op.lambd),
        "Swiglu": lambda op, x: functional.silu(x.chunk(2, op.dim)[0]) * x.chunk(2, op.dim)[1],
    }


def _dims(op: Any, x: Tensor) -> tuple[int, ...]:
    """The dimensions that an operator reduces: all where it names none."""
    axis = (op.axis,) if isinstance(op.axis, int) else tuple(op.axis or ())
    return axis or tuple(range(x.dim()))


def _reductions(torch: Any) -> dict[str, Counterpart]:
    def product(op: Any, x: Tensor) -> Tensor:
        for axis in sorted((axis % x.dim() for axis in _dims(op, x)), reverse=True):
            x = torch.prod(x, axis, keepdim=op.keep_dims)
        return x

    def reduced(function: Any) -> Counterpart:
        return lambda op, x: function(x, _dims(op, x), keepdim=op.keep_dims) if x.dim() else x.clone()

    return {
        "CumSum": lambda op, x: _cumulated(torch, op, x),
        "CumsumExt": lambda op, x: _cumulated(torch, op, x),
        "L2Loss": lambda op, x: x.square().sum() / 2,
        "Max": reduced(torch.amax),
        "MeanExt": reduced(torch.mean),
        "Min": reduced(torch.amin),
        "ReduceAll": reduced(torch.all),
        "ReduceAny": reduced(torch.any),
        "ReduceMax": reduced(torch.amax),
        "ReduceMean": reduced(torch.mean),
        "ReduceMin": reduced(torch.amin),
        "ReduceProd": product,
        "ReduceSum": reduced(torch.sum),
        "SumExt": reduced(torch.sum),
    }


def _cumulated(torch: Any, op: Any, x: Tensor) -> Tensor:
    turned = x.flip(op.axis) if op.reverse else x
    total = turned.cumsum(op.axis)
    total = total - turned if op.exclusive else total
    return total.flip(op.axis) if op.reverse else total


def _products(torch: Any) -> dict[str, Counterpart]:
    def product(op: Any, x: Tensor, y: Tensor) -> Tensor:
        return torch.matmul(x.mT if op.transpose_a else x, y.mT if op.transpose_b else y)

    def biased(op: Any, x: Tensor, bias: Tensor) -> Tensor:
        last = op.data_format == "NHWC"
        return x + (bias if last else bias.reshape(-1, *[1] * (x.dim() - 2)))

    return {
        "BatchMatMul": product,
        "BiasAdd": biased,
        "Cdist": lambda op, x, y: torch.cdist(x, y, op.p),
        "MatMul": product,
        "MatMulExt": product,
    }


def _normalisations(torch: Any) -> dict[str, Counterpart]:
    def layer_norm(op: Any, x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dims = tuple(range(op.begin_norm_axis % x.dim(), x.dim()))
        mean = x.mean(dims, keepdim=True)
        variance = ((x - mean) ** 2).mean(dims, keepdim=True)
        return (x - mean) * (variance + op.epsilon).rsqrt() * gamma + beta, mean, variance

    def rms_norm(op: Any, x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
        root = (x.square().mean(dims, keepdim=True) + op.epsilon).rsqrt()
        return x * root * gamma, root

    def unit(op: Any, x: Tensor) -> Tensor:
        total = x.square().sum(op.axis, keepdim=True)
        return x / total.clamp_min(op.epsilon).sqrt()

    return {"L2Normalize": unit, "LayerNorm": layer_norm, "RmsNorm": rms_norm}


def _choices(torch: Any) -> dict[str, Counterpart]:
    def with_value(function: Any) -> Counterpart:
        return lambda op, x: tuple(reversed(function(x, op.axis, keepdim=op.keep_dims)))

    return {
        "Argmax": lambda op, x: torch.argmax(x, op.axis),
        "Argmin": lambda op, x: torch.argmin(x, op.axis),
        "ArgMaxWithValue": with_value(torch.max),
        "ArgMinWithValue": with_value(torch.min),
        "MaskedFill": lambda op, x, mask, value: torch.where(mask, value, x),
        "MaxDim": lambda op, x: tuple(torch.max(x, op.dim, op.keepdim)),
        "MinDim": lambda op, x: tuple(torch.min(x, op.dim, op.keepdim)),
        "SortExt": lambda op, x: tuple(torch.sort(x, stable=True, dim=op.dim, descending=op.descending)),
        "TopK": lambda op, x: tuple(torch.topk(x, op.k)),
        "TopkExt": lambda op, x: tuple(torch.topk(x, op.k, op.dim, op.largest)),
        "Tril": lambda op, x: torch.tril(x, op.diagonal),
        "Triu": lambda op, x: torch.triu(x, op.diagonal),
    }


def _shapes(torch: Any) -> dict[str, Counterpart]:
    def broadcast(op: Any, x: Tensor) -> Tensor:
        given = len(op.shape) - x.dim()
        shape = [x.shape[i - given] if size == -1 else size for i, size in enumerate(op.shape)]
        return torch.broadcast_to(x, shape)

    def squeezed(op: Any, x: Tensor) -> Tensor:
        axes = (op.axis,) if isinstance(op.axis, int) else tuple(op.axis)
        return x.squeeze(axes) if axes else x.squeeze()

    return {
        "BroadcastTo": broadcast,
        "ExpandDims": lambda op, x: x.unsqueeze(op.axis),
        "Flatten": lambda op, x: x.reshape(x.shape[0], -1),
        "Reshape": lambda op, x: x.reshape(op.shape),
        "ReverseV2": lambda op, x: x.flip(op.axis if isinstance(op.axis, tuple) else (op.axis,)),
        "Squeeze": squeezed,
        "Tile": lambda op, x: x.tile(op.multiples),
        "Transpose": lambda op, x: x.permute(op.perm),
    }


def _slices(torch: Any) -> dict[str, Counterpart]:
    def strided(op: Any, x: Tensor) -> Tensor:
        if op.ellipsis_mask or op.new_axis_mask or op.shrink_axis_mask:
            return None
        for dim, (begin, end, stride) in enumerate(zip(op.begin, op.end, op.strides, strict=True)):
            first = None if op.begin_mask >> dim & 1 else begin
            last = None if op.end_mask >> dim & 1 else end
            places = range(x.shape[dim])[slice(first, last, stride)]
            x = x.index_select(dim, torch.tensor(list(places), dtype=torch.int64))
        return x

    def sliced(op: Any, x: Tensor) -> Tensor:
        for dim, (begin, size) in enumerate(zip(op.begin, op.size, strict=True)):
            x = x.narrow(dim, begin, x.shape[dim] - begin if size == -1 else size)
        return x

    def padded(op: Any, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, [n for pair in reversed(op.paddings) for n in pair])

    return {"Pad": padded, "Slice": sliced, "SliceExt": strided, "StridedSlice": strided}


def _joins(torch: Any) -> dict[str, Counterpart]:
    def equal_parts(op: Any, x: Tensor) -> Sequence[Tensor]:
        return x.split(x.shape[op.axis] // op.output_num, op.axis)

    return {
        "Concat": lambda op, *parts: torch.cat(parts, op.axis),
        "RepeatInterleaveInt": lambda op, x: torch.repeat_interleave(x, op.repeats, op.dim),
        "Split": equal_parts,
        "SplitTensor": lambda op, x: x.split(op.split_size, op.dim),
        "SplitWithSize": lambda op, x: x.split(list(op.split_sizes), op.dim),
        "Stack": lambda op, *parts: torch.stack(parts, op.axis),
        "StackExt": lambda op, *parts: torch.stack(parts, op.axis),
        "Unstack": lambda op, x: x.unbind(op.axis),
    }


def _lookups(torch: Any) -> dict[str, Counterpart]:
    def gathered(op: Any, table: Tensor, places: Tensor) -> Tensor:
        """Places outside of the table give zeros, or its rows from the end: neither is judged."""
        size = table.shape[op.axis]
        if op.batch_dims or op.offset or bool(((places < 0) | (places >= size)).any()):
            return None
        axis = op.axis % table.dim()
        found = table.index_select(axis, places.reshape(-1).long())
        return found.reshape(*table.shape[:axis], *places.shape, *table.shape[axis + 1 :])

    def looked_up(op: Any, table: Tensor, places: Tensor) -> Tensor:
        rows = places.long() - op.offset
        inside = (rows >= 0) & (rows < table.shape[0])
        found = table[torch.where(inside, rows, 0)]
        return found * inside.reshape(*inside.shape, *[1] * (table.dim() - 1))

    def one_hot(op: Any, places: Tensor, on: Tensor, off: Tensor) -> Tensor:
        if op.offset:
            return None
        axis = op.axis if op.axis >= 0 else places.dim()
        classes = torch.arange(op.depth).reshape(-1, *[1] * (places.dim() - axis))
        return torch.where(places.unsqueeze(axis) == classes, on, off)

    def nested(op: Any, table: Tensor, places: Tensor) -> Tensor:
        return table[tuple(places.long().unbind(-1))]

    lookups = ("Embedding", "Gather", "IndexSelect", "SparseGatherV2")
    return dict.fromkeys(lookups, gathered) | {
        "EmbeddingLookup": looked_up,
        "GatherD": lambda op, x, places: torch.gather(x, op.dim, places.long() % max(1, x.shape[op.dim])),
        "GatherNd": nested,
        "OneHot": one_hot,
        "OneHotExt": one_hot,
    }


def _places(torch: Any) -> dict[str, Counterpart]:
    def put(accumulate: bool, sign: int = 1) -> Counterpart:
        def run(op: Any, x: Tensor, places: Tensor, values: Tensor) -> Tensor:
            return x.index_put(tuple(places.long().unbind(-1)), values * sign, accumulate)

        return run

    def added_along(op: Any, x: Tensor, places: Tensor, values: Tensor) -> Tensor:
        if not op.adds:
            return None
        return x.scatter_add(op.axis, places.long() % max(1, x.shape[op.axis]), values)

    def scattered(op: Any, places: Tensor, values: Tensor) -> Tensor:
        zeros = torch.zeros(tuple(op.shape), dtype=values.dtype)
        return zeros.index_put(tuple(places.long().unbind(-1)), values, True)

    def summed(op: Any, x: Tensor, segments: Tensor) -> Tensor:
        rows = segments.long().reshape(-1) - op.offset
        inside = (rows >= 0) & (rows < op.num_segments)
        values = x.reshape(rows.shape[0], *x.shape[segments.dim() :])
        zeros = torch.zeros((op.num_segments, *values.shape[1:]), dtype=x.dtype)
        return zeros.index_add(0, rows[inside], values[inside])

    return {
        "ScatterElements": added_along,
        "ScatterNd": scattered,
        "TensorScatterAdd": put(True),
        "TensorScatterSub": put(True, -1),
        "UnsortedSegmentSum": summed,
    }


def _losses(torch: Any) -> dict[str, Counterpart]:
    functional = torch.nn.functional

    def cross_entropy(op: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        if not torch.allclose(labels.sum(-1), torch.ones((), dtype=labels.dtype)):
            return None  # its gradient is that of distributions
        loss = -(labels.detach() * torch.log_softmax(logits, -1)).sum(-1)
        return loss, (torch.softmax(logits, -1) - labels).detach()

    def sparse(op: Any, logits: Tensor, labels: Tensor) -> Tensor:
        if op.is_grad:
            return None
        return functional.cross_entropy(logits, labels.long())

    def binary(op: Any, x: Tensor, labels: Tensor, *weight: Tensor) -> Tensor:
        fixed = [operand.detach() for operand in (labels, *weight)]
        return functional.binary_cross_entropy(x, *fixed, reduction=op.reduction)

    return {
        "BinaryCrossEntropy": binary,
        "KLDivLoss": lambda op, x, labels: functional.kl_div(x, labels.detach(), reduction=op.reduction),
        "SigmoidCrossEntropyWithLogits": lambda op, x, y: functional.binary_cross_entropy_with_logits(
            x, y, reduction="none"
        ),
        "SmoothL1Loss": lambda op, x, y: functional.smooth_l1_loss(x, y, reduction=op.reduction, beta=op.beta),
        "SoftmaxCrossEntropyWithLogits": cross_entropy,
        "SparseSoftmaxCrossEntropyWithLogits": sparse,
    }


def _masks(torch: Any) -> dict[str, Counterpart]:
    return {
        "DropoutDoMask": lambda op, x, mask, keep: x * mask / keep.detach(),
        "FlashAttentionScore": attention(torch),
    }


def counterparts_of_draws(torch: Any) -> dict[str, Counterpart]:
    """Of operators that draw random numbers: called with the operator, its results and its operands."""
    return {"Dropout": lambda op, results, x: (x * results[1] / op.keep_prob, None)}
