"""FetchRows and SendRows on a GPU. The host reads how many rows go to each rank, and rows are sent in rounds of a
planned size.

Hosts exchange how many indices each rank has in each slice, and launch sends and receives of these sizes. The indices
are sorted on the GPU. If indices are computed early, the host can launch later work early.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.types import DType, TensorType, dtype_of
from mspc.ops.collective.gpu_launch import DeviceCommunicator, Ranks
from mspc.ops.cuda.expert_rows import ArrivedRows, NamedPlaces, Slots, slots_per_peer
from mspc.ops.cuda.rows_by_number import divided
from mspc.ops.cuda.text import lanes_of
from mspc.ops.device import Array, Device, Launch
from mspc.ops.nn.experts import require_below


def launch_fetch(device: Device, ranks: Ranks, table: Array, places: Array, out: Array, limit: int) -> Launch:
    """Return the launch that fetches rows at this rank's indices from the table, of which every rank has a slice.
    limit: as in FetchRows."""
    return _Exchange(device, ranks, table, places, out, limit).fetching()


def launch_send(
    device: Device, ranks: Ranks, rows: Array, places: Array, out: Array, limit: int, sets: bool
) -> Launch:  # fmt: skip
    """Return the launch that makes a slice of the table of the sums of all ranks' rows at each place; `sets`: of the
    last row of each."""
    return _Exchange(device, ranks, rows, places, out, limit).sending(sets)


def scratch_bytes(places: TensorType, table: TensorType, ranks: int, adds: bool) -> int:
    """Return the scratch bytes of a launch. table: a rank's slice. adds: rows of an index are added; else the last is
    stored."""
    sizes = _sizes(places.size, table.shape[0], math.prod(table.shape[1:]), table.dtype, ranks, adds)
    return sum(map(sum, sizes))


def _sizes(count: int, size: int, inner: int, dtype: DType, ranks: int, adds: bool) -> tuple[tuple[int, ...], ...]:
    """Return the bytes of all scratch memory: of slots (places asked and wanted, rows of either), of `count` named
    places, and of rows that arrive for a table [size, inner]."""
    row_bytes = inner * dtype.itemsize
    slots = ranks * slots_per_peer(count, ranks, row_bytes)
    of_slots = 4 * slots, 4 * slots, row_bytes * slots, row_bytes * slots
    wide = adds and ArrivedRows.is_wide(dtype)
    return of_slots, NamedPlaces.bytes_of(count, ranks), ArrivedRows.bytes_of(slots, size, inner, wide)


class _Exchange:
    """Launches of an exchange. `mine`: slots by the owner's number in the group, with the indices that this rank
    requests or the rows that it sends; `theirs`: slots by the other ranks, ascending."""

    def __init__(self, device: Device, ranks: Ranks, x: Array, places: Array, out: Array, limit: int) -> None:
        self._device, self._x, self._places, self._out, self._limit = device, x, places, out, limit
        self._comm: DeviceCommunicator = device.comm
        self._owners, self._others = ranks, tuple(sorted(ranks))

    def fetching(self) -> Launch:
        """See `launch_fetch`."""
        table, out = self._x, self._out
        self._prepare(table.shape[0], table, False, False)
        named = self._named

        def run(places: Any) -> None:
            own, others = self._exchanged_counts(places)
            named.clear(out)
            for first in self._rounds(own, others):
                named.name(first, self._asked, self._wanted)
                self._exchange(self._parts(first, self._owners, own, self._asked),
                               self._parts(first, self._others, others, self._wanted))  # fmt: skip
                named.take(table, self._wanted, self._theirs)
                self._exchange(self._parts(first, self._others, others, self._theirs),
                               self._parts(first, self._owners, own, self._mine))  # fmt: skip
                named.put(first, self._mine, out)

        return self._device.host_query([self._places], run, ahead=named.sort)

    def sending(self, sets: bool) -> Launch:
        """See `launch_send`."""
        rows, out = self._x, self._out
        arrived = self._prepare(out.shape[0], out, True, sets)
        assert arrived is not None
        named = self._named

        def run(places: Any) -> None:
            own, others = self._exchanged_counts(places)
            arrived.begin()
            for first in self._rounds(own, others):
                named.name(first, self._asked, self._wanted)
                named.pack(first, rows, self._mine)
                self._exchange(self._parts(first, self._owners, own, self._mine, self._asked),
                               self._parts(first, self._others, others, self._theirs, self._wanted))  # fmt: skip
                arrived.take()
            arrived.end()

        return self._device.host_query([self._places], run, ahead=named.sort)

    def _prepare(self, size: int, table: Array, takes: bool, sets: bool) -> ArrivedRows | None:
        """Prepare memory and kernels for a table of `size` rows per rank; return the object that processes received
        rows, or None if there are none."""
        ranks, inner, dtype = len(self._owners), math.prod(table.shape[1:]), dtype_of(table.dtype)
        lanes = lanes_of(dtype.itemsize, inner, self._x, self._out)
        self._each = slots_per_peer(self._places.size, ranks, inner * dtype.itemsize)
        self._slice = size
        slots = Slots(ranks, self._each, size, lanes, inner // lanes)
        of_slots, named, arrived = _sizes(self._places.size, size, inner, dtype, ranks, takes and not sets)
        memory = divided(self._device, 0, [*of_slots, *named, *(arrived if takes else ())])
        self._asked, self._wanted = (array.view("int32") for array in memory[:2])
        self._mine, self._theirs = (array.view(table.dtype).reshape(slots.all, inner) for array in memory[2:4])
        begin = len(of_slots) + len(named)
        self._named = NamedPlaces(self._device, slots, self._places, table, memory[len(of_slots) : begin])
        if not takes:
            return None
        return ArrivedRows(self._device, slots, self._out, self._wanted, self._theirs, sets, memory[begin:])

    def _exchanged_counts(self, places: Any) -> tuple[Sequence[int], Sequence[int]]:
        """Return the numbers of indices that this rank has in each owner's slice, and that each other rank has in this
        one's. Raise IndexError if an index exceeds the limit."""
        require_below(np, places, self._limit)
        ranks = len(self._owners)
        owners = places.reshape(-1) // max(self._slice, 1)  # below 0 for places below 0
        own = np.bincount(owners[(owners >= 0) & (owners < ranks)], minlength=ranks)
        told = self._comm.exchange_counts(own, self._owners)
        order = [self._owners.index(rank) for rank in self._others]
        return own.tolist(), told[order].tolist()

    def _rounds(self, own: Sequence[int], others: Sequence[int]) -> range:
        """Return the first row of each round, up to the longest run of rows that this rank sends or takes."""
        return range(0, max(*own, *others), self._each)

    def _parts(self, first: int, ranks: Ranks, counts: Sequence[int], *arrays: Array) -> list[tuple[int, Array]]:
        """Return the filled slots of a round in every array, with the rank that they go to or come from."""
        found: list[tuple[int, Array]] = []
        for number, (rank, count) in enumerate(zip(ranks, counts, strict=True)):
            begin, filled = number * self._each, min(self._each, count - first)
            if filled > 0:
                found += [(rank, array[begin : begin + filled]) for array in arrays]
        return found

    def _exchange(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        self._comm.exchange_into(sends, receives, self._others)
