"""What a collective gives on all ranks at once: along dimensions of the ranks' mesh, or from tensors by their ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, Broadcast, NeighborExchange, ReduceScatter
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank, combine, pieces
from mspc.verify.scale.routed_kernels import rows_along
from mspc.verify.scale.spread import common_lead, widened

Array = Any
Axes = Sequence[int]
_REDUCE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def partners_of(op: Any) -> tuple[int, ...]:
    """The ranks that take part in a collective."""
    if isinstance(op, NeighborExchange):
        return (*op.send_rank_ids, *op.recv_rank_ids)
    return op.members


def along_axes(op: Collective, arrays: Sequence[Array], mesh: Sequence[int], axes: Axes) -> Any:
    """The result where every group lies along dimensions of the mesh, in the order of its ranks; None for a kind of
    collective that has no such form."""
    if isinstance(op, FetchRows | SendRows):
        return rows_along(op, arrays, mesh, axes)
    form = _ALONG.get(type(op))
    if form is None:
        return None
    lead = common_lead(arrays, len(mesh))
    lead = tuple(size if axis in axes else given for axis, (size, given) in enumerate(zip(mesh, lead, strict=True)))
    found = [form(op, array, lead, axes) for array in arrays]
    return tuple(found) if len(found) > 1 else found[0]


def _wide(array: Array, lead: Sequence[int], axes: Axes) -> Array:
    """The array with all ranks of a group along `axes`."""
    shape = [lead[a] if a in axes else array.shape[a] for a in range(len(lead))]
    return widened(array, tuple(shape))


def _combined(array: Array, lead: Sequence[int], axes: Axes, how: str) -> Array:
    array = _wide(array, lead, axes)
    if array.dtype == bool:
        return (np.any if how in ("sum", "max") else np.all)(array, tuple(axes), keepdims=True)
    return _REDUCE[how].reduce(array, tuple(axes), keepdims=True, dtype=array.dtype)


def _all_reduce(op: Any, array: Array, lead: Sequence[int], axes: Axes) -> Array:
    return _combined(array, lead, axes, op.op)


def _all_gather(op: Any, array: Array, lead: Sequence[int], axes: Axes) -> Array:
    depth = len(lead)
    array = _wide(array, lead, axes)
    own = array.ndim - depth
    dim = op.axis % own
    rest = [axis for axis in range(depth) if axis not in axes]
    moved = array.transpose(
        *rest, *range(depth, depth + dim), *axes, *range(depth + dim, depth + own)
    )
    shape = list(array.shape[depth:])
    shape[dim] *= int(np.prod([lead[a] for a in axes]))
    return moved.reshape(*(1 if a in axes else array.shape[a] for a in range(depth)), *shape)


def _scattered(array: Array, lead: Sequence[int], axes: Axes, dim: int) -> Array:
    """The parts of an array that is equal along `axes`, one for each place along them."""
    depth = len(lead)
    sizes = [lead[a] for a in axes]
    count = int(np.prod(sizes))
    own = list(array.shape[depth:])
    if own[dim] % count:
        raise ValueError(f"dimension {dim} of {tuple(own)} does not divide by {count} ranks")
    parts = array.reshape(*array.shape[:depth], *own[:dim], *sizes, own[dim] // count, *own[dim + 1 :])
    begin = depth + dim
    order: list[int] = []
    for axis in range(depth):
        order.append(begin + list(axes).index(axis) if axis in axes else axis)
    behind = [*range(depth, begin), *range(begin + len(axes), parts.ndim)]
    ones = [axis for axis in range(depth) if axis in axes]
    moved = parts.transpose(*order, *ones, *behind)
    return moved.reshape(*moved.shape[:depth], *moved.shape[depth + len(ones) :])


def _reduce_scatter(op: Any, array: Array, lead: Sequence[int], axes: Axes) -> Array:
    combined = _combined(array, lead, axes, op.op)
    return _scattered(combined, lead, axes, op.axis % (array.ndim - len(lead)))


def _all_to_all(op: Any, array: Array, lead: Sequence[int], axes: Axes) -> Array:
    depth = len(lead)
    own = array.ndim - depth
    split, concat = op.split_dim % own, op.concat_dim % own
    gathered = _wide(array, lead, axes)
    sizes = [lead[a] for a in axes]
    count = int(np.prod(sizes))
    shape = list(gathered.shape[depth:])
    parts = gathered.reshape(
        *gathered.shape[:depth], *shape[:split], *sizes, shape[split] // count, *shape[split + 1 :]
    )
    begin, many = depth + split, len(axes)
    receivers = list(range(begin, begin + many))
    front = [receivers[list(axes).index(a)] if a in axes else a for a in range(depth)]
    behind: list[int] = []
    places = [p for p in range(depth, parts.ndim) if p not in receivers]
    for dim, place in enumerate(places):
        if dim == concat:
            behind += list(axes)
        behind.append(place)
    moved = parts.transpose(*front, *behind)
    shape[split] //= count
    shape[concat] *= count
    return moved.reshape(*moved.shape[:depth], *shape)


_ALONG: dict[type[Collective], Callable[[Any, Array, Sequence[int], Axes], Array]] = {
    AllReduce: _all_reduce,
    AllGather: _all_gather,
    ReduceScatter: _reduce_scatter,
    AlltoAll: _all_to_all,
}


# From tensors by their ranks


def by_ranks(
    ops: Mapping[int, Collective], tensors: Mapping[int, Sequence[Array]]
) -> dict[int, Any]:
    """The result of every rank, from what every rank calls and its operands; of collectives over groups, but not of
    messages.

    Raises:
        ValueError: the parts of a group do not fit together. KeyError: a member of a group calls nothing.
    """
    return {rank: _on(op, rank, tensors) for rank, op in ops.items()}


def _on(op: Any, rank: int, tensors: Mapping[int, Sequence[Array]]) -> Any:
    members = op.ranks
    place = members.index(rank)
    if isinstance(op, AllReduce):
        found = tuple(
            combine([tensors[member][i] for member in members], op.op) for i in range(len(tensors[rank]))
        )
        return found if len(found) > 1 else found[0]
    own = [tensors[member][0] for member in members]
    if isinstance(op, AllGather):
        return np.concatenate(own, op.axis)
    if isinstance(op, ReduceScatter):
        return pieces(combine(own, op.op), len(members), op.axis)[place]
    if isinstance(op, AlltoAll):
        return np.concatenate([pieces(part, len(members), op.split_dim)[place] for part in own], op.concat_dim)
    if isinstance(op, Broadcast):
        found = tuple(np.array(part) for part in tensors[op.root_rank])
        return found if len(found) > 1 else found[0]
    if isinstance(op, FetchRows):
        return _as_one(op)(np.concatenate(own), tensors[rank][1])
    if isinstance(op, SendRows):  # rows are added in the order of ranks
        rows, places = zip(*(_rows(*tensors[member]) for member in sorted(members)), strict=True)
        table = _as_one(replace(op, size=op.total))(np.concatenate(rows), np.concatenate(places))
        return pieces(table, len(members), 0)[place]
    raise KeyError(op.name)



def _as_one(op: Any) -> Callable[..., Any]:
    """What a collective does where one device has the tensors of all ranks."""
    return replace(op, mesh=(1,)).kernel(NumPyBackend(OneRank()))


def _rows(rows: Array, places: Array) -> tuple[Array, Array]:
    return rows.reshape(places.size, *rows.shape[places.ndim :]), places.reshape(-1)


def exchanged(
    ops: Sequence[NeighborExchange], place: Mapping[int, int], ranks: Sequence[int], arrays: Sequence[Array]
) -> tuple[Array, ...]:
    """What every rank of a kind gets from others of it. arrays: operands by rank.

    Raises:
        ValueError: a rank waits for what no other sends.
    """
    found: list[Array] = []
    if len({len(op.recv_rank_ids) for op in ops}) > 1:
        raise ValueError("ranks of one kind receive different numbers of tensors")
    for number in range(len(ops[0].recv_rank_ids)):
        sources = np.empty(len(ranks), np.int64)
        operands = np.empty(len(ranks), np.int64)
        for at, (rank, op) in enumerate(zip(ranks, ops, strict=True)):
            source = op.recv_rank_ids[number]
            earlier = op.recv_rank_ids[:number].count(source)
            mine = [i for i, target in enumerate(ops[place[source]].send_rank_ids) if target == rank]
            if earlier >= len(mine):
                raise ValueError(f"rank {source} sends nothing to rank {rank} that it waits for")
            sources[at], operands[at] = place[source], mine[earlier]
        chosen = [arrays[i][sources[operands == i]] for i in range(len(arrays))]
        shape = next(part.shape[1:] for part in chosen if len(part))
        if any(len(part) and part.shape[1:] != shape for part in chosen):
            raise ValueError("tensors of different shapes arrive where one shape is waited for")
        made = np.empty((len(ranks), *shape), arrays[0].dtype)
        for i, part in enumerate(chosen):
            made[operands == i] = part
        found.append(made)
    return tuple(found)
