"""Ranks look rows up in a table of which each has a slice, and add rows to one: only rows that are named travel.

Gathering the table, or summing the rows that every rank finds in its own slice, sends every row to every rank. Here
ranks first exchange how many rows they name, then which, and then the rows travel, as AlltoAllV sends slices of sizes
that depend on the data. Results, and the tensors that each rank sends, have sizes that are known before the run, so
that memory is planned; a rank that has a row which all others ask for sends it to each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import element_types
from mspc.ir.types import TensorType, Type
from mspc.ops.collective.base import Collective, Ranks
from mspc.ops.collective.collectives import NO_GRADIENT
from mspc.ops.device import Array, Device, Launch
from mspc.ops.nn.experts import require_below
from mspc.ops.op import ArrayBackend, Op, RankPlacement
from mspc.sharding.groups import WORLD_GROUPS

Pieces = list[tuple[int, Any]]


def _operands(op: Op, types: Sequence[Type]) -> tuple[TensorType, TensorType]:
    """Return the types of rows and of integers. Raise MspcError for other operands."""
    tensors = [t for t in types if isinstance(t, TensorType)]
    if len(types) != 2 or len(tensors) != 2 or not tensors[0].shape or not tensors[1].dtype.is_integer:
        given = ", ".join(map(str, types)) or "none"
        raise MspcError(f"{op.name} takes a tensor with rows and a tensor of integers, not {given}")
    return tensors[0], tensors[1]


class _ByPlaces(Collective, abstract=True):
    """Messages that depend on places; their channel does not depend on the group's order."""

    host_reads = (1,)
    bprop = NO_GRADIENT

    def channel(self, rank: int) -> tuple[Ranks, int]:
        return tuple(sorted(self.members)), -1

    def scratch_bytes(self, operands: Sequence[TensorType], result: Type) -> int:
        from mspc.ops.collective.row_exchange_launch import scratch_bytes  # late: only a GPU needs it

        (x, places), (out,) = operands, element_types(result)
        adds = isinstance(self, SendRows) and not self.sets
        return scratch_bytes(places, x if isinstance(self, FetchRows) else out, self.group_size, adds)


class FetchRows(_ByPlaces):
    """Rows of a table [total, ...] at indices of any shape; zeros for indices outside [0, total). Every rank of the
    group has a slice of the table, in order, and its own indices. limit: exclusive upper bound of the indices, 0 if
    unknown. share: mean share of the rows that are sent between ranks."""

    total: int = 0
    limit: int = 0
    share: float = 1.0
    group: str = WORLD_GROUPS[0]
    mesh: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    rank_list: Ranks = ()
    omitted = (*Collective.omitted, "limit", "share")

    def travelling(self, operands: Sequence[float], result: float) -> float:
        return (result + operands[1]) * self.share

    def infer(self, *types: Type) -> Type:
        table, places = _operands(self, types)
        return table.with_shape((*places.shape, *table.shape[1:]))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        if self.over_mesh:
            return self._global
        comm, ranks = be.comm, self.ranks

        def kernel(table: Any, places: Any) -> Any:
            flat = places.reshape(-1)
            require_below(np, flat, self.limit)
            found = np.zeros((flat.size, *table.shape[1:]), table.dtype)
            asked = _by_owner(flat, self.total, len(ranks))
            wanted = _received(comm, ranks, [flat[mine] % max(table.shape[0], 1) for mine in asked])
            arriving = [mine.size for mine in asked]
            rows = _exchanged(comm, ranks, [table[own] for own in wanted], arriving, table.shape[1:], table.dtype)
            for mine, each in zip(asked, rows, strict=True):
                found[mine] = each
            return found.reshape(*places.shape, *table.shape[1:])

        return kernel

    def launch(self, device: Device, out: Any, table: Array, places: Array) -> Launch | None:
        from mspc.ops.collective.row_exchange_launch import launch_fetch  # late: only a GPU needs it

        return launch_fetch(device, self.ranks, table, places, out, self.limit)

    def _global(self, table: Any, places: Any) -> Any:
        require_below(np, places, self.limit)
        inside = (places >= 0) & (places < self.total)
        rows = table[np.where(inside, places, 0)]
        return np.where(inside.reshape(inside.shape + (1,) * (table.ndim - 1)), rows, np.zeros((), table.dtype))


class SendRows(_ByPlaces):
    """A table [size, ...] of sums of the rows sent to each index. Rows with indices outside [0, size) are dropped.
    Every rank of the group has its own rows with their indices [rows], and a slice of the table, in order. Rows are
    added in rank order. sets: the last row of an index is stored instead of the sum. limit, share: as in FetchRows."""

    size: int = 0
    total: int = 0
    limit: int = 0
    sets: bool = False
    share: float = 1.0
    group: str = WORLD_GROUPS[0]
    mesh: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    rank_list: Ranks = ()
    omitted = (*Collective.omitted, "limit", "sets", "share")

    def travelling(self, operands: Sequence[float], result: float) -> float:
        return sum(operands) * self.share

    def infer(self, *types: Type) -> Type:
        rows, places = _operands(self, types)
        count = len(places.shape)
        if rows.shape[:count] != places.shape:
            raise MspcError(f"{self.name}: places {places.shape} are not those of rows {rows.shape}")
        return rows.with_shape((self.size, *rows.shape[count:]))

    def localize(self, placement: RankPlacement) -> Op:
        local = super().localize(placement)
        assert isinstance(local, SendRows)
        return replace(local, size=self.size // local.group_size)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        if self.over_mesh:
            return self._global
        comm, ranks, size, total = be.comm, self.ranks, self.size, self.total

        def kernel(rows: Any, places: Any) -> Any:
            rows, flat = _flat(rows, places), places.reshape(-1)
            require_below(np, flat, self.limit)
            sent = _by_owner(flat, total, len(ranks))
            told = _received(comm, ranks, [flat[mine] % max(size, 1) for mine in sent])
            arriving = [each.size for each in told]
            found = _exchanged(comm, ranks, [rows[mine] for mine in sent], arriving, rows.shape[1:], rows.dtype)
            parts = sorted(zip(ranks, told, found, strict=True), key=lambda part: part[0])
            return self._table([part[1:] for part in parts], rows)

        return kernel

    def launch(self, device: Device, out: Any, rows: Array, places: Array) -> Launch | None:
        from mspc.ops.collective.row_exchange_launch import launch_send  # late: only a GPU needs it

        return launch_send(device, self.ranks, rows, places, out, self.limit, self.sets)

    def _global(self, rows: Any, places: Any) -> Any:
        require_below(np, places, self.limit)
        flat = _flat(rows, places)
        return self._table([(places.reshape(-1), flat)], flat)

    def _table(self, parts: Sequence[tuple[Any, Any]], like: Any) -> Any:
        """Return the table of (indices, rows), concatenated over parts; halves are accumulated in Float32."""
        wide = np.float32 if like.dtype.itemsize == 2 and not self.sets else like.dtype
        table = np.zeros((self.size, *like.shape[1:]), wide)
        for places, rows in parts:
            inside = (places >= 0) & (places < self.size)
            if self.sets:
                table[places[inside]] = rows[inside]
            else:
                np.add.at(table, places[inside], rows[inside].astype(wide))
        return table.astype(like.dtype)


def _flat(rows: Any, places: Any) -> Any:
    return rows.reshape(places.size, *rows.shape[places.ndim :])


def _by_owner(places: Any, total: int, count: int) -> list[Any]:
    """Return, for each of `count` owners of equal slices, which of the places are theirs."""
    size = max(total // count, 1)
    owner = np.where((places >= 0) & (places < total), places // size, count)
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=count + 1)
    return np.split(order, np.cumsum(counts))[:count]


def _received(comm: Any, ranks: Ranks, places: Sequence[Any]) -> list[Any]:
    """Return the one-dimensional arrays, of different lengths, that the other ranks send this rank. places: those for
    each rank."""
    lengths = np.array([each.size for each in places], np.int64)
    arriving = comm.all_to_all(lengths, ranks, 0, 0).tolist()
    return _exchanged(comm, ranks, [each.astype(np.int32) for each in places], arriving, (), np.dtype(np.int32))


def _exchanged(
    comm: Any, ranks: Ranks, pieces: Sequence[Any], arriving: Sequence[int], shape: tuple[int, ...], dtype: Any
) -> list[Any]:
    """Return the rows that arrive from every rank of the group, `arriving` rows of a shape; nothing travels for 0
    rows."""
    sends: Pieces = [(rank, piece) for rank, piece in zip(ranks, pieces, strict=True) if len(piece)]
    receives = [(rank, (n, *shape), dtype) for rank, n in zip(ranks, arriving, strict=True) if n]
    received = iter(comm.exchange(sends, receives))
    return [next(received) if n else np.empty((0, *shape), dtype) for n in arriving]
