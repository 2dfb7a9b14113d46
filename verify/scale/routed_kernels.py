"""Rows that are routed to experts, on all ranks at once: blocks of rows by the matrices of their experts, the places of
rows in blocks, and rows that travel to where they are named."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.ops.nn.experts import ExpertOuter, ExpertPlaces, ExpertProduct, ExpertRows, ExpertSums
from mspc.ops.op import Op
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank
from mspc.verify.scale.spread import common_lead, narrowed, widened

Array = Any
Form = Callable[[Any, Any, int, Sequence[Array]], Any]


# Blocks


def _size(rows: int, ends: Array, depth: int) -> int:
    """Rows of a block.

    Raises:
        ValueError: an expert's rows end outside of its block. What lies there belongs to other blocks, which at other
        sizes have other rows there.
    """
    outer, parts = ends.shape[depth : depth + 2]
    size = rows // (outer * parts)
    if ends.size and not 0 <= ends.min() <= ends.max() <= size:
        raise ValueError(f"rows of an expert end at {ends.min()} to {ends.max()} of a block of {size}")
    return size


def _blocks(array: Array, ends: Array, depth: int) -> Array:
    """The rows of an array by blocks: [..., outer, parts, rows of a block, width]; errors are those of `_size`."""
    outer, parts = ends.shape[depth : depth + 2]
    lead, (rows, width) = array.shape[:depth], array.shape[depth:]
    return array.reshape(*lead, outer, parts, _size(rows, ends, depth), width)


def _filled(rows: Array, ends: Array) -> Array:
    """The rows up to the last that belongs to an expert in any block: most of a block may be empty."""
    return rows[..., : int(ends.max(initial=0)), :]


def _by_part(array: Array, ends: Array, depth: int) -> Array:
    """What each expert has, by parts, ahead of the rest of its dimensions: [..., 1, parts, experts, ...]."""
    parts, experts = ends.shape[depth + 1 :]
    return array.reshape(*array.shape[:depth], 1, parts, experts, *array.shape[depth + 1 :])


def _belonging(ends: Array, depth: int, size: int) -> Iterator[Array]:
    """For every expert of a part which rows of its blocks are its own: [..., outer, parts, rows of a block, 1]."""
    place, start = np.arange(size), np.zeros_like(ends[..., :1])
    for number in range(ends.shape[-1]):
        end = ends[..., number : number + 1]
        yield ((place >= start) & (place < end))[..., None]
        start = end


class _Grouped:
    """The rows of blocks that belong to experts, by what they meet there.

    Dimensions of the ranks along which `ends` differ say which rows these are (`along`), so that each rank along them
    has its own; along the others ranks have the same ones, and these dimensions go ahead (`ahead`) of the rows.
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
        """For every row a number, equal for rows that have their expert's own of an array [..., experts, ...] in the
        same place."""
        found = np.zeros_like(self.expert)
        for axis, rank in zip(self.along, self._ranks, strict=True):
            if array.shape[axis] > 1:
                found = found * array.shape[axis] + rank
        return found * experts + self.expert

    def runs(self, keys: Array) -> Array:
        """Bring rows of one key together; where each of these begins, and the end of all."""
        order = np.argsort(keys, kind="stable")
        self._ranks, self._place = [rank[order] for rank in self._ranks], self._place[order]
        self.expert, keys = self.expert[order], keys[order]
        return np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [keys.size]]) if keys.size else keys

    def index(self, array: Array, places: Array) -> tuple[Any, ...]:
        """Where each row has its own of an array whose dimensions are in the order of `turned`."""
        ranks = [rank if array.shape[axis] > 1 else 0 for axis, rank in zip(self.along, self._ranks, strict=True)]
        return (..., *ranks, places, *(slice(None),) * (array.ndim - len(self._lead) - 1))

    def turned(self, array: Array) -> Array:
        """A view with the dimensions ahead of those along which rows differ."""
        return array.transpose(*self.ahead, *self.along, *range(len(self._lead), array.ndim))

    def rows(self, array: Array) -> Array:
        """The rows of an array [..., rows, width]: [ahead, rows, width]."""
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
    vectors = _by_part(b, ends, depth)
    made: Any = 0.0
    for number, own in enumerate(_belonging(ends, depth, _size(like.shape[depth], ends, depth))):
        made = made + np.where(own, vectors[..., number, None, :], 0.0)
    return made.reshape(*made.shape[:depth], -1, made.shape[-1])


def _expert_sums(op: ExpertSums, backend: Any, depth: int, arrays: Sequence[Array]) -> Array:
    x, ends = arrays
    rows = _filled(_blocks(x, ends, depth), ends)
    found = [np.where(own, rows, 0.0).sum(-2).sum(depth) for own in _belonging(ends, depth, rows.shape[-2])]
    made = np.stack(found, depth + 1)
    return made.reshape(*made.shape[:depth], -1, made.shape[-1])


BLOCKS: dict[type[Op], Form] = {
    ExpertProduct: _expert_product,
    ExpertOuter: _expert_outer,
    ExpertRows: _expert_rows,
    ExpertSums: _expert_sums,
}


# Places


def places_on_each(ops: Sequence[Any], mesh: Sequence[int], backend: Any, arrays: Sequence[Array]) -> Any:
    """Each rank's own places of those of all blocks; None where ranks have other operands, or have more blocks than
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
        return narrowed(np.stack(parts).reshape(*mesh, *parts[0].shape), depth)

    shape = (owns[0][1], owns[0][3], -1)
    return (
        of_ranks(source, (-1,)), of_ranks(number, (-1,)), slots.reshape((1,) * depth + slots.shape),
        of_ranks(ends, shape),
    )  # fmt: skip


# Rows that travel


def rows_along(op: FetchRows | SendRows, arrays: Sequence[Array], mesh: Sequence[int], axes: Sequence[int]) -> Array:
    """What ranks get whose groups lie along dimensions of the mesh, in the order of their ranks."""
    depth = len(mesh)
    rest = [axis for axis in range(depth) if axis not in axes]
    lead = common_lead(arrays, depth)
    lead = tuple(mesh[axis] if axis in axes else lead[axis] for axis in range(depth))
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


def _as_one(op: Any, **changes: int) -> Callable[..., Any]:
    return replace(op, mesh=(1,), **changes).kernel(NumPyBackend(OneRank()))


def _fetched(op: FetchRows, own: Sequence[Array]) -> Array:
    table, places = own
    return _as_one(op)(table.reshape(-1, *table.shape[2:]), places)


def _sent(op: SendRows, own: Sequence[Array], count: int) -> Array:
    rows, places = own
    flat = rows.reshape(places.size, *rows.shape[1 + count :])
    table = _as_one(op, size=op.total)(flat, places.reshape(-1))
    return table.reshape(len(rows), -1, *table.shape[1:])
