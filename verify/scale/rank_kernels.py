"""Says of which operators the first dimension is a batch, whose rows have nothing to do with each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Graph, Node, Value, element_types
from mspc.ir.types import TensorType, Type, dtype_of
from mspc.ops.bases import ArrayFunction, Elementwise
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.ops.convolution.convolve import Conv2D, Conv3D
from mspc.ops.convolution.pooling import AvgPool, AvgPool3D, MaxPool, MaxPool3D, MaxPool3DGrad, MaxPoolGrad
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.fused.updates import FusedUpdate, GroupedUpdate
from mspc.ops.loss.loss import SoftmaxCrossEntropyWithLogits
from mspc.ops.math.arithmetic import AddN
from mspc.ops.math.float8 import ScaledMatMul
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.math.scans import ScanOp
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.nn.experts import ExpertOuter, ExpertPlaces, ExpertProduct, ExpertRows, ExpertSums
from mspc.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxBackward
from mspc.ops.op import Op
from mspc.ops.optim.optimizer import Update
from mspc.ops.tensor.creation import Tril, Triu
from mspc.ops.tensor.embedding import EmbeddingLookup, Gather, OneHot, UnsortedSegmentSum
from mspc.ops.tensor.moving import Concat, Split, Stack, Tile, Transpose
from mspc.ops.tensor.reshape import BroadcastTo, ReductionOp
from mspc.ops.tensor.scatter import GatherNd
from mspc.ops.tensor.selection import GatherD, GatherDGrad
from mspc.ops.tensor.slicing import StridedSlice
from mspc.runtime.backend import NumPyBackend
from mspc.verify.scale.rank_kinds import (
    Shape,
    aligned,
    block_by_block,
    common_lead,
    mapped,
    on_mesh,
    one_or_all,
    own_shape,
    wide_axes,
    widened,
)

ROW_BY_ROW = (
    AvgPool, AvgPool3D, Conv2D, Conv3D, EmbeddingLookup, FlashAttentionScore,
    FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad, Gather,
    GatherD, GatherDGrad, GatherNd, MaxPool, MaxPool3D, MaxPool3DGrad, MaxPoolGrad, OneHot,
    SoftmaxCrossEntropyWithLogits,
)  # fmt: skip
"""Operators whose rows have nothing to do with each other, though on slices ranks run others."""
SAYS_NOTHING: dict[type[Op], tuple[int, ...]] = {FlashAttentionScore: (2,)}
"""Results that are placeholders."""


@lru_cache(maxsize=4096)
def batch_of(op: Op, types: tuple[TensorType, ...]) -> tuple[bool, ...] | None:
    """Say which operands have the batch as their first dimension; None if there is no batch.

    A rule says how an operator is sharded. Rows are independent only if ranks run the operator as it is, on slices
    alone.
    """
    kind = type(op)
    if (kind.localize is not Op.localize or kind.expand is not Op.expand) and not issubclass(kind, ROW_BY_ROW):
        return None
    try:
        rule = op.parsed_rule(*types)
    except (MspcError, NotImplementedError):
        return None
    shown = [dims for i, dims in enumerate(rule.outputs) if i not in SAYS_NOTHING.get(kind, ())]
    firsts = {dims[0] if dims else () for dims in shown}
    if len(firsts) != 1 or len(first := firsts.pop()) != 1 or first[0] in rule.frozen:
        return None
    (factor,) = first
    has = tuple(bool(dims) and dims[0] == (factor,) for dims in rule.inputs)
    elsewhere = any(
        factor in dim for dims, own in zip(rule.inputs, has, strict=True) for dim in (dims[1:] if own else dims)
    )
    if elsewhere or any(factor in dim for dims in shown for dim in dims[1:]):
        return None
    # A batch of another size must give a result of that size, or the operator knows its batch by an attribute.
    more = [t.with_shape((2 * t.shape[0], *t.shape[1:])) if own else t for t, own in zip(types, has, strict=True)]
    try:
        before, behind = _shapes(op.infer(*types)), _shapes(op.infer(*more))
    except MspcError:
        return None
    same = SAYS_NOTHING.get(kind, ())
    doubled = [shape if i in same else (2 * shape[0], *shape[1:]) for i, shape in enumerate(before)]
    return has if behind == doubled else None


def _shapes(type: Type) -> list[tuple[int, ...]]:
    return [t.shape for t in element_types(type)]


# Rows that are routed to experts, on all ranks at once: blocks of rows times the matrices of their experts, the places
# of rows in blocks, and rows that travel to their places.


Array = Any
Form = Callable[[Any, Any, int, Sequence[Array]], Any]


# Blocks


def _size(rows: int, ends: Array, depth: int) -> int:
    """Return the number of rows of a block. Raise ValueError if an expert's rows end outside of its block; at other
    sizes other rows are there."""
    outer, parts = ends.shape[depth : depth + 2]
    size = rows // (outer * parts)
    if ends.size and not 0 <= ends.min() <= ends.max() <= size:
        raise ValueError(f"rows of an expert end at {ends.min()} to {ends.max()} of a block of {size}")
    return size


def _belonging(ends: Array, size: int) -> Iterator[Array]:
    """Yield, for every expert of a part, which rows of its blocks are its own: [..., outer, parts, rows of a block,
    1]."""
    place, start = np.arange(size), np.zeros_like(ends[..., :1])
    for number in range(ends.shape[-1]):
        end = ends[..., number : number + 1]
        yield ((place >= start) & (place < end))[..., None]
        start = end


class _Grouped:
    """The rows of blocks that belong to experts, grouped.

    Dimensions of the ranks along which `ends` differ decide which rows these are (`along`), so each rank along them has
    its own; along the others ranks have the same ones, and these dimensions go first (`ahead`).
    """

    def __init__(self, ends: Array, depth: int, rows: int) -> None:
        self.along = [axis for axis in range(depth) if ends.shape[axis] > 1]
        self.ahead = [axis for axis in range(depth) if ends.shape[axis] == 1]
        _, parts, experts = ends.shape[depth:]
        size = _size(rows, ends, depth)
        starts = np.concatenate([np.zeros_like(ends[..., :1]), ends[..., :-1]], -1).reshape(-1)
        counts = np.maximum(ends.reshape(-1) - starts, 0)
        of = np.repeat(np.arange(counts.size), counts)
        within = np.arange(of.size) - np.repeat(np.cumsum(counts) - counts, counts)
        *ranks, block, part, expert = np.unravel_index(of, ends.shape)
        self._ranks = [ranks[axis] for axis in self.along]
        self.expert = part * experts + expert
        self._place = (block * parts + part) * size + starts[of] + within
        self._lead = ends.shape[:depth]

    def keys(self, array: Array, experts: int) -> Array:
        """Return a number for every row, equal for rows that have their expert's own of an array [..., experts, ...] in
        the same place."""
        found = np.zeros_like(self.expert)
        for axis, rank in zip(self.along, self._ranks, strict=True):
            if array.shape[axis] > 1:
                found = found * array.shape[axis] + rank
        return found * experts + self.expert

    def runs(self, keys: Array) -> Array:
        """Sort rows by key; return the beginning of each key, and the end of all."""
        order = np.argsort(keys, kind="stable")
        self._ranks, self._place = [rank[order] for rank in self._ranks], self._place[order]
        self.expert, keys = self.expert[order], keys[order]
        return np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [keys.size]]) if keys.size else keys

    def index(self, array: Array, places: Array) -> tuple[Any, ...]:
        """Return the index of each row's entry in an array whose dimensions are in the order of `turned`."""
        ranks = [rank if array.shape[axis] > 1 else 0 for axis, rank in zip(self.along, self._ranks, strict=True)]
        return (..., *ranks, places, *(slice(None),) * (array.ndim - len(self._lead) - 1))

    def turned(self, array: Array) -> Array:
        """Return a view with the shared dimensions first."""
        return array.transpose(*self.ahead, *self.along, *range(len(self._lead), array.ndim))

    def rows(self, array: Array) -> Array:
        """Return the rows of an array [..., rows, width]: [shared, rows, width]."""
        return self.turned(array)[self.index(array, self._place)]

    def put(self, made: Array, rows: Array) -> None:
        """Let an array [..., rows, width] have these rows."""
        self.turned(made)[self.index(made, self._place)] = rows


def _expert_product(op: ExpertProduct, backend: Any, depth: int, arrays: Sequence[Array]) -> Array:
    x, w, ends = arrays
    w = w.swapaxes(-1, -2) if op.transpose_b else w
    grouped = _Grouped(ends, depth, x.shape[depth])
    starts = grouped.runs(grouped.keys(w, w.shape[depth]))
    made = np.zeros((*common_lead(arrays, depth), x.shape[depth], w.shape[-1]), x.dtype)
    rows, matrices = grouped.rows(x), grouped.turned(w)
    index = grouped.index(w, grouped.expert)
    found = [
        np.matmul(rows[..., begin:end, :], matrices[tuple(i[begin] if isinstance(i, np.ndarray) else i for i in index)])
        for begin, end in itertools.pairwise(starts.tolist())
    ]
    if found:
        grouped.put(made, np.concatenate(found, -2))
    return made


def _expert_outer(op: ExpertOuter, backend: Any, depth: int, arrays: Sequence[Array]) -> Array:
    x, y, ends = arrays
    experts = ends.shape[depth + 1] * ends.shape[depth + 2]
    lead = common_lead(arrays, depth)
    made = np.zeros((*lead, experts, x.shape[-1], y.shape[-1]), x.dtype)
    grouped = _Grouped(ends, depth, x.shape[depth])
    starts = grouped.runs(grouped.keys(made, experts))
    left, right = grouped.rows(x), grouped.rows(y)
    sums = grouped.turned(made)
    index = grouped.index(made, grouped.expert)
    lengths = np.diff(starts)
    for length in np.unique(lengths).tolist():  # runs that are as long in one product
        first = starts[:-1][lengths == length]
        read = first[:, None] + np.arange(length)
        products = np.matmul(left[..., read, :].swapaxes(-1, -2), right[..., read, :])
        sums[tuple(i[first] if isinstance(i, np.ndarray) else i for i in index)] = products
    return made


def _expert_rows(op: ExpertRows, backend: Any, depth: int, arrays: Sequence[Array]) -> Array:
    like, b, ends = arrays
    vectors = b.reshape(*b.shape[:depth], 1, *ends.shape[depth + 1 :], *b.shape[depth + 1 :])
    made: Any = 0.0
    for number, own in enumerate(_belonging(ends, _size(like.shape[depth], ends, depth))):
        made = made + np.where(own, vectors[..., number, None, :], 0.0)
    return made.reshape(*made.shape[:depth], -1, made.shape[-1])


def _expert_sums(op: ExpertSums, backend: Any, depth: int, arrays: Sequence[Array]) -> Array:
    x, ends = arrays
    blocks = (*ends.shape[depth : depth + 2], _size(x.shape[depth], ends, depth))
    rows = x.reshape(*x.shape[:depth], *blocks, x.shape[-1])[..., : int(ends.max(initial=0)), :]
    found = [np.where(own, rows, 0.0).sum(-2).sum(depth) for own in _belonging(ends, rows.shape[-2])]
    made = np.stack(found, depth + 1)
    return made.reshape(*made.shape[:depth], -1, made.shape[-1])


# Places


def places_on_each(ops: Sequence[Any], mesh: Sequence[int], backend: Any, arrays: Sequence[Array]) -> Any:
    """Return each rank's own places among those of all blocks; None if ranks have other operands, or more blocks than
    others."""
    depth = len(mesh)
    first = ops[0]
    if not isinstance(first, ExpertPlaces) or any(size > 1 for size in common_lead(arrays, depth)):
        return None
    whole = replace(first, own=())
    owns = [op.own or (0, op.outer, 0, op.parts) for op in ops]
    if any(replace(op, own=()) != whole for op in set(ops)) or len({(own[1], own[3]) for own in owns}) > 1:
        return None
    source, number, slots, ends = whole.kernel(backend)(*(array.reshape(array.shape[depth:]) for array in arrays))

    def of_ranks(array: Array, rest: tuple[int, ...]) -> Array:
        by_block = array.reshape(first.outer, first.parts, -1)
        parts = [by_block[a : a + n, b : b + m].reshape(rest) for a, n, b, m in owns]
        return on_mesh(np.stack(parts), tuple(mesh))

    shape = (owns[0][1], owns[0][3], -1)
    return (
        of_ranks(source, (-1,)), of_ranks(number, (-1,)), slots.reshape((1,) * depth + slots.shape),
        of_ranks(ends, shape),
    )  # fmt: skip


# Rows that travel


def rows_along(op: FetchRows | SendRows, arrays: Sequence[Array], lead: Shape, axes: Sequence[int]) -> Array:
    """Return the rows of ranks whose groups are along dimensions of the mesh, in the order of their ranks. lead: the
    leading dimensions of all arrays, those along `axes` as in the mesh."""
    depth = len(lead)
    rest = [axis for axis in range(depth) if axis not in axes]
    given = [widened(array, lead).transpose(*rest, *axes, *range(depth, array.ndim)) for array in arrays]
    sizes = [lead[axis] for axis in axes]
    members = math.prod(sizes)
    found: list[Array] = []
    for place in itertools.product(*(range(lead[axis]) for axis in rest)):
        own = [array[place] for array in given]
        own = [array.reshape(members, *array.shape[len(axes) :]) for array in own]
        found.append(_fetched(op, own) if isinstance(op, FetchRows) else _sent(op, own, arrays[1].ndim - depth))
    made = np.stack(found).reshape(*(lead[axis] for axis in rest), *sizes, *found[0].shape[1:])
    back = [(*rest, *axes).index(axis) for axis in range(depth)]
    return made.transpose(*back, *range(depth, made.ndim))


def as_one_rank(op: Any, **changes: int) -> Callable[..., Any]:
    """Return the kernel of an operator on the rows of all ranks. changes: of its fields."""
    return replace(op, mesh=(1,), **changes).kernel(NumPyBackend(OneRank()))


def _fetched(op: FetchRows, own: Sequence[Array]) -> Array:
    table, places = own
    return as_one_rank(op)(table.reshape(-1, *table.shape[2:]), places)


def _sent(op: SendRows, own: Sequence[Array], count: int) -> Array:
    rows, places = own
    flat = rows.reshape(places.size, *rows.shape[1 + count :])
    table = as_one_rank(op, size=op.total)(flat, places.reshape(-1))
    return table.reshape(len(rows), -1, *table.shape[1:])


# An operator runs on the tensors of all ranks at once by its own kernel, with the ranks as dimensions before the
# tensors' own, by one of these:
#
# - it works element by element, so that NumPy's broadcasting does it;
# - a row of `FORMS`, by operator class: the same operator with its axes moved, or on the last two dimensions;
# - it decomposes into several operators (`as_rows`, `as_reductions`), of which each is one of these;
# - the first dimension of some operands is a batch, which every result has, too: ranks become more of it;
# - else the kernel runs rank by rank, or only for ranks that differ.


def run_on_all(op: Op, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    """Return the result of an operator that is the same on all ranks. arrays: operands with `depth` leading dimensions,
    those that the operator overwrites with all that any operand has, and writable. Raise MspcError if the operands are
    none that the operator takes."""
    if not wide_axes(arrays, depth):
        found = op.kernel(backend)(*(array.reshape(own_shape(array, depth)) for array in arrays))
        if op.mutates and not op.updates_aside:
            return _written(op, arrays, found)
        return mapped(found, lambda made: np.asarray(made).reshape((1,) * depth + np.shape(made)))
    form = _form(type(op))
    if form is not None:
        return form(op, backend, depth, arrays)
    types = [_type(array, depth) for array in arrays]
    several = _several(op, tuple(types))
    if several is not None:
        return _run_several(several, backend, depth, arrays)
    if not op.mutates and not op.draws:
        batch = batch_of(op, tuple(types))
        if batch is not None:
            return _in_batch(op, backend, depth, arrays, batch)
    return _one_by_one(op, backend, depth, arrays)


def _type(array: Array, depth: int) -> TensorType:
    return TensorType(dtype_of(array.dtype), own_shape(array, depth))


def _written(op: Op, arrays: Sequence[Array], found: Any) -> Any:
    """Return the result of an update: the operands that it overwrites."""
    count = len(found) if isinstance(found, tuple) else 1
    changed = tuple(arrays[i] for i in op.mutates)[:count]
    return changed if isinstance(found, tuple) else changed[0]


# Element by element


def _elementwise(op: Elementwise, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    if op.broadcasts and "{i}" not in op.cuda:
        return op.kernel(backend)(*aligned(arrays, depth))
    return _one_by_one(op, backend, depth, arrays)


def _added(op: AddN, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    lead = common_lead(arrays, depth)
    return op.kernel(backend)(*(widened(array, lead) for array in arrays))


def _one_by_one(op: Op, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    return block_by_block(lambda *own: run_on_all(op, backend, depth, own), arrays, depth)


def _fused(op: FusedElementwise, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    lines = _lines(steps_of(op), backend, depth, arrays)
    return one_or_all([lines[index] for index in op.returns])


def _lines(steps: Iterable[Any], backend: Any, depth: int, arrays: Sequence[Array]) -> list[Any]:
    """Return the results of the lines of a fused operator."""
    lines: list[Any] = []
    for step in steps:
        read = [(arrays if kind == "x" else lines)[index] for kind, index in step.operands]
        lines.append(run_on_all(step.op, backend, depth, read))
    return lines


# Updates


def _update(op: Update, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    rank = arrays[0].ndim - depth
    operands = [
        array.reshape(*array.shape[:depth], *(1,) * rank) if i in op.scalars and array.ndim == depth else array
        for i, array in enumerate(arrays)
    ]
    if isinstance(op, FusedUpdate):
        lines = _lines(op.lines(), backend, depth, operands)
        for target, line in zip(operands, op.writes, strict=False):
            target[...] = lines[line]
        return one_or_all(operands[: len(op.writes)])
    lead = common_lead(arrays, depth)
    scalars_wide = any(arrays[i].shape[:depth] != (1,) * depth for i in op.scalars)
    if not op.cuda_update or scalars_wide:
        return _one_by_one(op, backend, depth, arrays)
    given = [
        array.reshape(()) if i in op.scalars else array if i in op.mutates else widened(array, lead)
        for i, array in enumerate(arrays)
    ]
    op.run(backend, *given)
    changed = tuple(arrays[i] for i in op.mutates)
    return changed[: op.outputs] if op.outputs > 1 else changed[0]


def _grouped(op: GroupedUpdate, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    found: list[Any] = []
    for operands in op.members(arrays):
        made = run_on_all(op.member, backend, depth, operands)
        found += made if isinstance(made, tuple) else (made,)
    return tuple(found)


# Operators whose axes move


def _along_axis(op: Any, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    rank = arrays[0].ndim - depth + isinstance(op, Stack)
    name = "dim" if hasattr(op, "dim") else "axis"
    axis: Any = getattr(op, name)
    moved = tuple(a % rank + depth for a in axis) if isinstance(axis, tuple) else axis % rank + depth
    lead = common_lead(arrays, depth)
    return replace(op, **{name: moved}).kernel(backend)(*(widened(array, lead) for array in arrays))


def _reduced(op: ReductionOp, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    rank = arrays[0].ndim - depth
    axes = op.axes(rank) or tuple(range(rank))
    if not axes:
        return _one_by_one(op, backend, depth, arrays)
    return replace(op, axis=tuple(axis + depth for axis in axes)).kernel(backend)(*arrays)


def _transposed(op: Transpose, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    rank = arrays[0].ndim - depth
    return arrays[0].transpose(*range(depth), *(p % rank + depth for p in op.perm))


def _product(op: MatMul | BatchMatMul, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    return BatchMatMul(op.transpose_a, op.transpose_b).kernel(backend)(*aligned(arrays, depth))


def _scaled_product(op: ScaledMatMul, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    if any(scale.ndim > depth for scale in arrays[2:]):
        return _one_by_one(op, backend, depth, arrays)
    operands = aligned([array.astype(np.float64) for array in arrays[:2]], depth)
    made = BatchMatMul(op.transpose_a, op.transpose_b).kernel(backend)(*operands)
    for scale in arrays[2:]:
        made = made * scale.reshape(*scale.shape, *(1,) * (made.ndim - depth))
    return made


def _fused_product(op: FusedMatMul, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    # If it is wide, its addend must have the result's shape.
    return _one_by_one(op, backend, depth, arrays) if op.wide else op.kernel(backend)(*aligned(arrays, depth))


def _sliced(op: StridedSlice, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    index = op.index()
    index = index if isinstance(index, tuple) else (index,)
    return arrays[0][(*(slice(None),) * depth, *index)]


def _broadcast(op: BroadcastTo, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    found = op.infer(_type(arrays[0], depth))
    assert isinstance(found, TensorType)
    (given,) = aligned(arrays, depth, len(found.shape))
    return np.broadcast_to(given, (*given.shape[:depth], *found.shape))


def _tiled(op: Tile, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    (given,) = aligned(arrays, depth, len(op.multiples))
    return np.tile(given, (*(1,) * depth, *op.multiples))


def _as_it_is(op: Op, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    return op.kernel(backend)(*arrays)


FORMS: dict[type[Op], Form] = {
    Elementwise: _elementwise,
    AddN: _added,
    **dict.fromkeys((ArrayFunction, Tril, Triu), _as_it_is),
    FusedElementwise: _fused,
    Update: _update,
    GroupedUpdate: _grouped,
    ReductionOp: _reduced,
    **dict.fromkeys(
        (Softmax, SoftmaxBackward, LogSoftmax, LogSoftmaxGrad, ScanOp, Concat, Stack, Split), _along_axis
    ),
    Transpose: _transposed,
    **dict.fromkeys((MatMul, BatchMatMul), _product),
    ScaledMatMul: _scaled_product,
    FusedMatMul: _fused_product,
    StridedSlice: _sliced,
    BroadcastTo: _broadcast,
    Tile: _tiled,
    ExpertProduct: _expert_product,
    ExpertOuter: _expert_outer,
    ExpertRows: _expert_rows,
    ExpertSums: _expert_sums,
}


@cache
def _form(kind: type[Op]) -> Form | None:
    if kind.reshapes:
        return _reshaped
    return next((FORMS[base] for base in kind.__mro__ if base in FORMS), None)


def _reshaped(op: Op, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    found = op.infer(_type(arrays[0], depth))
    assert isinstance(found, TensorType)
    return arrays[0].reshape(*arrays[0].shape[:depth], *found.shape)


# Operators that are several


_SeveralOps = tuple[Sequence[Value], Sequence[Node], Sequence[Value]]
"""The operators that one is, as a graph: operands, nodes, results."""


@lru_cache(maxsize=4096)
def _several(op: Op, types: tuple[TensorType, ...]) -> _SeveralOps | None:
    if type(op).as_reductions is Op.as_reductions and type(op).as_rows is Op.as_rows:
        return None
    builder = Builder(Graph(""))
    given = [Value(type) for type in types]
    try:
        results = op.as_reductions(builder, *given)
    except (MspcError, NotImplementedError):
        return None
    return given, builder.nodes, list(results)


def _run_several(several: _SeveralOps, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    given, nodes, results = several
    values: dict[Value, Any] = dict(zip(given, arrays, strict=True))

    def value(of: Value) -> Any:
        return of.value.reshape((1,) * depth + of.value.shape) if isinstance(of, Constant) else values[of]

    for node in nodes:
        assert isinstance(node.op, Op)
        values[node] = run_on_all(node.op, backend, depth, [value(v) for v in node.inputs])
    return one_or_all(list(map(value, results)))


# More of a batch


def _in_batch(op: Op, backend: Any, depth: int, arrays: Sequence[Array], batch: tuple[bool, ...]) -> Any:
    same = SAYS_NOTHING.get(type(op), ())

    def run(*own: Array) -> Any:
        lead = common_lead((a for a, more in zip(own, batch, strict=True) if more), depth)
        ranks = math.prod(lead)
        given = [
            np.ascontiguousarray(widened(a, lead)).reshape(ranks * a.shape[depth], *a.shape[depth + 1 :])
            if more
            else a.reshape(own_shape(a, depth))
            for a, more in zip(own, batch, strict=True)
        ]

        def apart(number: int, made: Array) -> Array:
            if number in same:
                return made.reshape((1,) * depth + made.shape)
            return made.reshape(*lead, made.shape[0] // ranks, *made.shape[1:])

        found = op.kernel(backend)(*given)
        return tuple(map(apart, range(len(found)), found)) if isinstance(found, tuple) else apart(0, found)

    return block_by_block(run, arrays, depth, [array for array, own in zip(arrays, batch, strict=True) if not own])


# Sums of rows in a sharded table are made once if ranks add up the same rows.


def slices_on_each(distinct: Sequence[Any], which: Array, depth: int, backend: Any, arrays: Sequence[Array]) -> Any:
    """Return each rank's slice of one table; None if ranks that have other slices have other rows, or it is another
    operator. distinct: the operators that differ. which: of every rank the number of its own among these."""
    first = distinct[0]
    if not isinstance(first, UnsortedSegmentSum) or any(replace(op, offset=first.offset) != first for op in distinct):
        return None
    axes = wide_axes([which], depth)
    if any(array.shape[axis] > 1 for array in arrays for axis in axes):
        return None
    size, begins = first.num_segments, [op.offset for op in distinct]
    begin = min(begins)
    if max(begins) - begin + size > 2 * size * len(distinct):  # they are far apart
        return None
    whole = replace(first, offset=begin, num_segments=max(begins) - begin + size)
    table = run_on_all(whole, backend, depth, arrays)
    ahead = (slice(None),) * depth
    slices = [table[(*ahead, slice(at - begin, at - begin + size))] for at in begins]
    return _along(np.stack(slices), which, depth)


def _along(slices: Array, which: Array, depth: int) -> Array:
    """Return the slices [number, lead..., own...] in their places along dimensions that are of size 1 in `lead`."""
    lead, own = slices.shape[1 : depth + 1], slices.shape[depth + 1 :]
    pairs = [place for axis in range(depth) for place in (axis, depth + axis)]
    made = slices[which].transpose(*pairs, *range(2 * depth, 2 * depth + len(own)))
    return made.reshape(*(n * m for n, m in zip(which.shape, lead, strict=True)), *own)
