"""Writes operators in PyTorch: one line each, of the operator and its operands as tensors.

An operator that is missing here has no counterpart: it draws random numbers, changes parameters, sends to other ranks,
or is the gradient of another, which is judged by differentiating that one.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from mspc.ir.diagnostics import MspcError

# Operators on images: convolutions, pooling, sampling and rearranging.


Tensor = Any
Counterpart = Callable[..., Any]


def _sides(along: Sequence[Any]) -> list[int]:
    """Return the windows' padding as PyTorch takes it: the last dimension first."""
    return [n for window in reversed(along) for n in (window.before, window.after)]


def _moves(along: Sequence[Any]) -> tuple[list[int], list[int], list[int]]:
    """(sizes, strides, dilations)."""
    return [w.size for w in along], [w.stride for w in along], [w.dilation for w in along]


def _convolutions(torch: Any) -> dict[str, Counterpart]:
    f = torch.nn.functional

    def forward(op: Any, x: Tensor, weight: Tensor) -> Tensor:
        along = op.along(x.shape[2:])
        _, strides, dilations = _moves(along)
        run = f.conv3d if op.dims == 3 else f.conv2d
        return run(f.pad(x, _sides(along)), weight, None, strides, 0, dilations, op.group)

    def transposed(op: Any, x: Tensor, weight: Tensor) -> Tensor:
        lengths = op.input_size[2:]
        along = op.along(lengths)
        _, strides, dilations = _moves(along)
        run = f.conv_transpose3d if op.dims == 3 else f.conv_transpose2d
        unpadded = run(x, weight, None, strides, 0, 0, op.group, dilations)
        pairs = zip(reversed(along), reversed(lengths), reversed(unpadded.shape[2:]), strict=True)
        return f.pad(unpadded, [n for w, length, made in pairs for n in (-w.before, length + w.before - made)])

    return {"Conv2D": forward, "Conv3D": forward, "Conv2DTranspose": transposed, "Conv3DTranspose": transposed}


def _pools(torch: Any) -> dict[str, Counterpart]:
    f = torch.nn.functional

    def greatest(op: Any, x: Tensor) -> Tensor:
        along = op.exact(x.shape[2:])
        sizes, strides, dilations = _moves(along)
        run = f.max_pool3d if op.dims == 3 else f.max_pool2d
        return run(f.pad(x, _sides(along), value=-math.inf), sizes, strides, 0, dilations)

    def mean(op: Any, x: Tensor) -> Tensor:
        exact, given = op.exact(x.shape[2:]), op.along(x.shape[2:])
        sizes, strides, dilations = _moves(exact)
        if any(n != 1 for n in dilations):
            return None
        run = f.avg_pool3d if op.dims == 3 else f.avg_pool2d
        places = math.prod(sizes)
        total = run(f.pad(x, _sides(exact)), sizes, strides) * places
        if op.divisor_override is not None:
            return total / op.divisor_override
        counted = torch.ones_like(x)
        if op.count_include_pad:
            counted = f.pad(counted, _sides(given), value=1.0)
            rest = [a - b for a, b in zip(_sides(exact), _sides(given), strict=True)]
        else:
            rest = _sides(exact)
        return total / (run(f.pad(counted, rest), sizes, strides) * places).clamp_min(1)

    def adaptive(op: Any, x: Tensor) -> Tensor:
        run = f.adaptive_avg_pool3d if op.dims == 3 else f.adaptive_avg_pool2d
        return run(x, op.lengths(tuple(x.shape[2:])))

    return {
        "MaxPool": greatest, "MaxPool3D": greatest, "AvgPool": mean, "AvgPool3D": mean, "AdaptiveAvgPool2D": adaptive,
        "AdaptiveAvgPool3D": adaptive,
    }  # fmt: skip


def _sampled(torch: Any) -> dict[str, Counterpart]:
    f = torch.nn.functional

    def linear(op: Any, x: Tensor) -> Any:
        if op.align_corners or op.half_pixel_centers:
            mode = "trilinear" if op.dims == 3 else "bilinear"
            return f.interpolate(x, list(op.size), None, mode, op.align_corners)
        return None

    def nearest(op: Any, x: Tensor) -> Any:
        if op.align_corners:
            return None
        return f.interpolate(x, list(op.size), mode="nearest-exact" if op.half_pixel_centers else "nearest")

    return {
        "ResizeBilinear": linear, "ResizeBilinearV2": linear, "ResizeTrilinear": linear,
        "ResizeNearestNeighbor": nearest, "ResizeNearest3D": nearest,
    }  # fmt: skip


def _rearranged(torch: Any) -> dict[str, Counterpart]:
    f = torch.nn.functional

    def columns(op: Any, x: Tensor) -> Tensor:
        along = op.along()
        sizes, strides, dilations = _moves(along)
        found = f.unfold(f.pad(x, _sides(along)), sizes, dilations, 0, strides)
        return found.reshape(*x.shape[:2], math.prod(sizes), -1)

    return {"Im2Col": columns}


# Writes attention out in PyTorch, as the counterpart of the operator that stores no scores.


def attention(torch: Any) -> Callable[..., Any]:
    """Called with the operator and its operands; gives its four results, of which the last alone is judged."""

    def run(op: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Tensor) -> Any:
        if op.packed or op.keep_prob != 1.0:
            return None
        given = dict(zip(op.optional, rest, strict=True))
        q = _by_head(query, op.input_layout, op.head_num)
        heads = key.shape[-1] // q.shape[-1]  # in layouts that have heads and their depth in one dimension
        k, v = (_by_head(x, op.input_layout, heads) for x in (key, value))
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = q @ k.mT * op.scale_value
        if "real_shift" in given:
            scores = scores + given["real_shift"]
        if "key_shift" in given:
            scores = scores + given["key_shift"]
        hidden = torch.broadcast_to(_hidden(torch, op, given.get("attn_mask"), *scores.shape[-2:]), scores.shape)
        if "actual_seq_qlen" in given:
            mine, other = (
                (torch.arange(size).reshape(-1, 1) >= given[name]).sum(-1)
                for size, name in zip(scores.shape[-2:], ("actual_seq_qlen", "actual_seq_kvlen"), strict=True)
            )
            last = given["actual_seq_qlen"].shape[0]
            hidden = hidden | (mine.reshape(-1, 1) != other) | (mine.reshape(-1, 1) == last)
        blind = hidden.all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(hidden & ~blind, -torch.inf), -1)
        return None, None, None, _as_given(torch.where(blind, 0, weights @ v), op.input_layout)

    return run


def _by_head(x: Tensor, layout: str, heads: int) -> Tensor:
    """[batch, heads, places, depth]."""
    if layout == "BNSD":
        return x
    if layout == "BSND":
        return x.transpose(1, 2)
    rows = x if layout == "BSH" else x.transpose(0, 1)
    return rows.reshape(*rows.shape[:2], heads, -1).transpose(1, 2)


def _as_given(x: Tensor, layout: str) -> Tensor:
    if layout == "BNSD":
        return x
    rows = x.transpose(1, 2)
    if layout == "BSND":
        return rows
    rows = rows.flatten(2)
    return rows if layout == "BSH" else rows.transpose(0, 1)


def _hidden(torch: Any, op: Any, mask: Tensor | None, queries: int, keys: int) -> Tensor:
    """Return the mask of keys that a query does not see."""
    place, other = torch.arange(queries).reshape(-1, 1), torch.arange(keys)
    if op.sparse_mode in (3, 4):
        place = place + keys - queries
    nothing = torch.zeros((queries, keys), dtype=torch.bool)
    if op.sparse_mode in (2, 3):
        return other > place
    own = nothing if mask is None else mask.to(torch.bool)
    if op.sparse_mode == 1 or (op.sparse_mode == 0 and mask is None):
        return own
    return own | (other < place - op.pre_tokens) | (other > place + op.next_tokens)


def _scans(torch: Any) -> dict[str, Counterpart]:
    def running(scan: Any, none: float = 0) -> Counterpart:
        def result(op: Any, x: Tensor) -> Tensor:
            turned = x.flip(op.axis) if op.reverse else x
            if op.exclusive:
                first = torch.full_like(turned.narrow(op.axis, 0, 1), none)
                turned = torch.cat([first, turned.narrow(op.axis, 0, x.shape[op.axis] - 1)], op.axis)
            found = scan(turned, op.axis)
            return found.flip(op.axis) if op.reverse else found

        return result

    return {
        "CumProd": running(torch.cumprod, 1),
        "CumSum": running(torch.cumsum),
        "CumulativeLogsumexp": running(torch.logcumsumexp, -math.inf),
        "Cummax": lambda op, x: (torch.cummax(x, op.axis)[0], None),
        "Cummin": lambda op, x: (torch.cummin(x, op.axis)[0], None),
        "Sort": lambda op, x: (torch.sort(x, op.axis, op.descending)[0], None),
    }


def load_torch() -> Any:
    """Import PyTorch. Raises MspcError if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise MspcError(
            "verify --against torch needs PyTorch, which is not installed", notes=["pip install 'mspc[oracle]'"]
        ) from None


@contextmanager
def first_of_ties(torch: Any) -> Generator[None]:
    """Let `topk` take the first of equal elements, as mspc does; PyTorch takes any of them."""

    def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        found = torch.sort(input, dim=dim, descending=largest, stable=True)
        return torch.return_types.topk([each.narrow(dim, 0, k) if input.ndim else each for each in found])

    with patch.object(torch, "topk", topk), patch.object(torch.Tensor, "topk", topk):
        yield


def counterparts(torch: Any) -> dict[str, Counterpart]:
    """Return every counterpart by the operator's name."""
    families = (
        _alike, _elementwise, _activations, _reductions, _products, _normalisations, _choices, _shapes, _slices, _joins,
        _lookups, _places, _losses, _convolutions, _pools, _sampled, _rearranged, _scans,
    )  # fmt: skip
    return {name: function for family in families for name, function in family(torch).items()}


def _named(module: Any, names: dict[str, str]) -> dict[str, Counterpart]:
    """Return the operators that are one function of their operands alone, by its name."""

    def called(function: Any) -> Counterpart:
        return lambda op, *operands: function(*operands)

    return {name: called(getattr(module, short)) for name, short in names.items()}


def _alike(torch: Any) -> dict[str, Counterpart]:
    """Return the operators that are one function of PyTorch: those that are ATen's in the reader's table, and
    others."""
    from mspc.readers.pytorch.kinds.pointwise import BINARY, UNARY  # late: the reader is loaded on demand

    found: dict[str, Counterpart] = {}
    for names, op in (*UNARY.items(), *BINARY.items()):
        name, overload = names.split()[0].split(".")
        found |= _named(getattr(torch.ops.aten, name), {op.__name__: overload})
    others = {
        "Abs": "abs", "Add": "add", "Atan2": "atan2", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
        "BitwiseXor": "bitwise_xor", "Ceil": "ceil", "Div": "div", "Floor": "floor", "FloorMod": "remainder",
        "Hypot": "hypot", "Identity": "clone", "Inv": "reciprocal",
        "Invert": "bitwise_not",
        "Lerp": "lerp", "LogicalAnd": "logical_and", "LogicalNot": "logical_not", "LogicalOr": "logical_or",
        "LogicalXor": "logical_xor", "Mod": "fmod", "OnesLike": "ones_like", "Pow": "pow", "RealDiv": "div",
        "Rint": "round", "Round": "round", "Select": "where",
        "Sigmoid": "sigmoid", "Sign": "sign", "Square": "square", "Sub": "sub", "Tanh": "tanh", "Trunc": "trunc",
        "TruncateMod": "fmod", "ZerosLike": "zeros_like",
    }  # fmt: skip
    return found | _named(torch, others)


def _elementwise(torch: Any) -> dict[str, Counterpart]:
    return {
        "AddExt": lambda op, x, y: torch.add(x, y, alpha=op.alpha),
        "AddN": lambda op, *terms: sum(terms[1:], terms[0]),
        "Cast": lambda op, x: x.to(getattr(torch, op.dst_type.numpy.name)),
        "DivNoNan": lambda op, x, y: torch.where(y == 0, torch.zeros_like(x / y), x / torch.where(y == 0, 1, y)),
        "NanToNum": lambda op, x: torch.nan_to_num(x, op.nan, op.posinf, op.neginf),
        "SquaredDifference": lambda op, x, y: (x - y) ** 2,
        "SubExt": lambda op, x, y: torch.sub(x, y, alpha=op.alpha),
        "TruncateDiv": lambda op, x, y: torch.div(x, y, rounding_mode="trunc"),
        "Xlogy": lambda op, x, y: torch.where(x == 0, 0, torch.xlogy(x, torch.where(x == 0, 1, y))),
    }


def _activations(torch: Any) -> dict[str, Counterpart]:
    functional = torch.nn.functional
    plain = _named(
        functional,
        {
            "HSigmoid": "hardsigmoid", "HSwish": "hardswish", "Mish": "mish", "ReLU6": "relu6", "SeLU": "selu",
            "Softplus": "softplus", "Softsign": "softsign",
        },
    )  # fmt: skip
    return plain | {
        "FastGeLU": lambda op, x: x * torch.sigmoid(1.702 * x),
        "Elu": lambda op, x: functional.elu(x, op.alpha),
        "GeLU": lambda op, x: functional.gelu(x, approximate="tanh"),
        "HShrink": lambda op, x: functional.hardshrink(x, op.lambd),
        "LogSoftmax": lambda op, x: torch.log_softmax(x, op.axis),
        "PReLU": lambda op, x, weight: functional.prelu(x, weight),
        "Softmax": lambda op, x: (x - torch.logsumexp(x, op.axis, keepdim=True)).exp(),
        "SoftShrink": lambda op, x: functional.softshrink(x, op.lambd),
    }


def _dims(op: Any, x: Tensor) -> tuple[int, ...]:
    """Return the dimensions that an operator reduces: all if it names none."""
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
        "L2Loss": lambda op, x: x.square().sum() / 2,
        "MeanExt": reduced(torch.mean),
        "ReduceAll": reduced(torch.all),
        "ReduceAny": reduced(torch.any),
        "ReduceMax": reduced(torch.amax),
        "ReduceMean": reduced(torch.mean),
        "ReduceMin": reduced(torch.amin),
        "ReduceProd": product,
        "ReduceSum": reduced(torch.sum),
        "SumExt": reduced(torch.sum),
    }


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
    def batch_norm(op: Any, x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor) -> Any:
        given = (None, None) if op.is_training else (mean, variance)
        found = torch.nn.functional.batch_norm(x, *given, gamma, beta, op.is_training, 0.0, op.epsilon)
        return found, None, None, None, None

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

    return {"BatchNorm": batch_norm, "L2Normalize": unit, "LayerNorm": layer_norm, "RmsNorm": rms_norm}


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

    return {"Pad": padded, "Slice": sliced, "StridedSlice": strided}


def _joins(torch: Any) -> dict[str, Counterpart]:
    def equal_parts(op: Any, x: Tensor) -> Sequence[Tensor]:
        return x.split(x.shape[op.axis] // op.output_num, op.axis)

    return {
        "Concat": lambda op, *parts: torch.cat(parts, op.axis),
        "RepeatInterleaveInt": lambda op, x: torch.repeat_interleave(x, op.repeats, op.dim),
        "RepeatInterleaveTensor": lambda op, x: torch.repeat_interleave(x, torch.tensor(op.repeats), op.dim),
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
    }


def _places(torch: Any) -> dict[str, Counterpart]:
    def put(accumulate: bool, sign: int = 1) -> Counterpart:
        def run(op: Any, x: Tensor, places: Tensor, values: Tensor) -> Tensor:
            return x.index_put(tuple(places.long().unbind(-1)), values * sign, accumulate)

        return run

    reductions = {"": "sum", "maximum": "amax", "minimum": "amin"}

    def along(op: Any, x: Tensor, places: Tensor, values: Tensor) -> Tensor:
        if not (op.adds or op.combine):
            return None
        return x.scatter_reduce(op.axis, places.long() % max(1, x.shape[op.axis]), values, reductions[op.combine])

    def extrema(op: Any, x: Tensor, places: Tensor, values: Tensor) -> Tensor:
        sizes = x.shape[: places.shape[-1]]
        steps = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        rows = sum(p.long() % n * step for p, n, step in zip(places.unbind(-1), sizes, steps, strict=True))
        flat, given = x.reshape(math.prod(sizes), -1), values.reshape(rows.numel(), -1)
        index = rows.reshape(-1, 1).expand(given.shape)
        return flat.scatter_reduce(0, index, given, reductions[op.combine]).reshape(x.shape)

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
        "ScatterElements": along,
        "ScatterNd": scattered,
        "TensorScatterAdd": put(True),
        "TensorScatterMax": extrema,
        "TensorScatterMin": extrema,
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
        "FlashAttentionScore": attention(torch),
        "KLDivLoss": lambda op, x, labels: functional.kl_div(x, labels.detach(), reduction=op.reduction),
        "SigmoidCrossEntropyWithLogits": lambda op, x, y: functional.binary_cross_entropy_with_logits(
            x, y, reduction="none"
        ),
        "SmoothL1Loss": lambda op, x, y: functional.smooth_l1_loss(x, y, reduction=op.reduction, beta=op.beta),
        "SoftmaxCrossEntropyWithLogits": cross_entropy,
        "SparseSoftmaxCrossEntropyWithLogits": sparse,
    }


COUNTERPARTS_OF_DRAWS: Mapping[str, Counterpart] = {
    "Dropout": lambda op, results, x: (x * results[1] / op.keep_prob, None)
}
"""Counterparts of operators that draw random numbers, called with the operator, its results and its operands."""


# Writes the updates of parameters as formulas in PyTorch's arithmetic.
#
# Sources: Kingma and Ba 2015; Loshchilov and Hutter 2019; Sutskever et al. 2013; MindSpore's documentation.


Formula = Callable[..., tuple[Tensor, ...]]
"""(operator, operands) -> new values of the operands that it overwrites, in the order of `mutates`."""


def update_formulas(torch: Any) -> Mapping[str, Formula]:
    """Return the formulas of updates by the operator's name."""

    def momentum(op: Any, w: Tensor, v: Tensor, rate: Tensor, g: Tensor, mu: Tensor) -> tuple[Tensor, ...]:
        g = g * op.gradient_scale
        v = mu * v + g
        return w - rate * (g + mu * v if op.use_nesterov else v), v

    def sgd(op: Any, w: Tensor, g: Tensor, rate: Tensor, v: Tensor, mu: Tensor, fresh: Tensor) -> tuple[Tensor, ...]:
        g = g + op.weight_decay * w
        if not float(mu) > 0:
            return w - rate * g, v, fresh
        v = torch.where(fresh > 0, g, mu * v + (1 - op.dampening) * g)
        return w - rate * (g + mu * v if op.nesterov else v), v, torch.zeros_like(fresh)

    def adam(op: Any, w: Tensor, m: Tensor, v: Tensor, power1: Tensor, power2: Tensor, rate: Tensor, beta1: Tensor,
             beta2: Tensor, eps: Tensor, g: Tensor) -> tuple[Tensor, ...]:  # fmt: skip
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        step = beta1 * m + (1 - beta1) * g if op.use_nesterov else m
        return w - rate * (1 - power2) ** 0.5 / (1 - power1) * step / (v**0.5 + eps), m, v

    def decoupled(op: Any, w: Tensor, m: Tensor, v: Tensor, rate: Tensor, beta1: Tensor, beta2: Tensor, eps: Tensor,
                  decay: Tensor, g: Tensor) -> tuple[Tensor, ...]:  # fmt: skip
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        return w - rate * (m / (v**0.5 + eps) + decay * w), m, v

    return {
        "Assign": lambda op, w, value: (value.to(w.dtype).expand(w.shape),),
        "AssignAdd": lambda op, w, value: (w + value.to(w.dtype),),
        "AssignSub": lambda op, w, value: (w - value.to(w.dtype),),
        "ApplyGradientDescent": lambda op, w, rate, g: (w - rate * g,),
        "ApplyMomentum": momentum,
        "SGD": sgd,
        "Adam": adam,
        "AdamWeightDecay": decoupled,
    }
