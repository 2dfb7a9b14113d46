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
from mspc.ops.math.expert_product import ExpertOuter, ExpertProduct, ExpertRows, ExpertSums
from mspc.ops.nn.expert_places import ExpertPlaces
from mspc.ops.op import Op
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank
from mspc.verify.scale.spread import common_lead, narrowed, widened

Array = Any
Form = Callable[[Any, Any, int, Sequence[Array]], Any]


# Blocks


def _blocks(array: Array, ends: Array, depth: int) -> Array:
    """The rows of an array by blocks: [..., outer, parts, rows of a block, width]."""
    outer, parts = ends.shape[depth : depth + 2]
    lead, (rows, width) = array.shape[:depth], array.shape[depth:]
    return array.reshape(*lead, outer, parts, rows // (outer * parts), width)


def _filled(rows: Array, ends: Array) -> Array:
    """The rows up to the last that belongs to an expert in any block: most of a block may be empty."""
    return rows[..., : int(ends.max(initial=0)), :]


def _emptied(made: Array, depth: int, size: int) -> Array:
    """The blocks [..., outer, parts, rows, width] with empty rows up to a size behind them, one after the other."""
    *around, rows, width = made.shape
    whole = np.zeros((*around, size, width), made.dtype)
    whole[..., :rows, :] = made
    return whole.reshape(*around[:depth], -1, width)


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


def _expert_product(op: ExpertProduct, backend: Any, depth: int, arrays: Sequence[Array]) -> Array:
    x, w, ends = arrays
    blocks, matrices = _blocks(x, ends, depth), _by_part(w, ends, depth)
    rows = _filled(blocks, ends)
    matrices = matrices.swapaxes(-1, -2) if op.transpose_b else matrices
    made: Any = 0.0
    for number, own in enumerate(_belonging(ends, depth, rows.shape[-2])):
        made = made + np.matmul(np.where(own, rows, 0.0), matrices[..., number, :, :])
    return _emptied(made, depth, blocks.shape[-2])


def _expert_outer(op: ExpertOuter, backend: Any, depth: int, arrays: Sequence[Array]) -> Array:
    x, y, ends = arrays
    left, right = (_filled(_blocks(array, ends, depth), ends) for array in (x, y))
    left = left.swapaxes(-1, -2)
    found = [np.matmul(left, np.where(own, right, 0.0)).sum(depth) for own in _belonging(ends, depth, right.shape[-2])]
    made = np.stack(found, depth + 1)
    return made.reshape(*made.shape[:depth], -1, *made.shape[-2:])


def _expert_rows(op: ExpertRows, backend: Any, depth: int, arrays: Sequence[Array]) -> Array:
    like, b, ends = arrays
    outer, parts = ends.shape[depth : depth + 2]
    vectors = _by_part(b, ends, depth)
    made: Any = 0.0
    for number, own in enumerate(_belonging(ends, depth, like.shape[depth] // (outer * parts))):
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
