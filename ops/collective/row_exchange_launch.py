"""FetchRows and SendRows on a GPU: the host reads how many rows go where while a step runs, and they travel in rounds
whose memory is known ahead.

Each rank sorts its places on the GPU, ranks tell each other how many are of each one's slice, and the hosts launch what
sends and receives so many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mspc.ops.collective.gpu_launch import DeviceCommunicator, Ranks
from mspc.ops.cuda.row_exchange import ArrivedRows, NamedPlaces, Slots, slots_each
from mspc.ops.cuda.row_names import divided
from mspc.ops.cuda.source import lanes_of
from mspc.ops.device import Array, Device, Launch


def launch_fetch(device: Device, ranks: Ranks, table: Array, places: Array, out: Array) -> Launch:
    """Rows of the table, of which every rank has a slice, at this rank's places."""
    return _Exchange(device, ranks, table, places, out).fetching()


def launch_send(device: Device, ranks: Ranks, rows: Array, places: Array, out: Array, sets: bool) -> Launch:
    """A slice of the table of the sums of all ranks' rows at each place; `sets`: of the last row of each."""
    return _Exchange(device, ranks, rows, places, out).sending(sets)


def scratch_bytes(count: int, size: int, inner: int, itemsize: int, ranks: int, wide: bool) -> int:
    """Bytes that a launch takes beside operands and result.

    Args:
        count: places. size: rows of a slice of the table. inner, itemsize: elements of a row, bytes of one. wide: they
        are halves that are added up.
    """
    slots = ranks * slots_each(count, ranks, inner * itemsize)
    named, arrived = NamedPlaces.bytes_of(count, ranks), ArrivedRows.bytes_of(slots, size, inner, wide)
    return sum(_of_slots(slots, ranks, inner * itemsize)) + sum(named) + sum(arrived)


def _of_slots(slots: int, ranks: int, row_bytes: int) -> tuple[int, ...]:
    return 4 * ranks, 4 * slots, 4 * slots, row_bytes * slots, row_bytes * slots


class _Exchange:
    """The launches of an exchange. `mine`: slots by the number of a table's owner in the group, with what this rank
    asks or sends; `theirs`: slots by the others' ranks, ascending."""

    def __init__(self, device: Device, ranks: Ranks, x: Array, places: Array, out: Array) -> None:
        self._device, self._x, self._out = device, x, out
        self._comm: DeviceCommunicator = device.comm
        self._owners, self._others = ranks, tuple(sorted(ranks))
        self._places = places
        self._first: list[list[tuple[int, Array]]] | None = None

    def fetching(self) -> Launch:
        """See `launch_fetch`."""
        table, out = self._x, self._out
        self._prepare(table.shape[0], table, False, False)
        named = self._named

        def run(counts: Any, told: Any) -> None:
            own, others = counts.tolist(), told.tolist()
            for first in self._rounds(own, others):
                if first:
                    named.name(first, self._asked)
                    self._exchange(self._parts(first, self._owners, own, self._asked),
                                   self._parts(first, self._others, others, self._wanted))  # fmt: skip
                named.take(first, table, self._wanted, self._told, self._theirs)
                self._exchange(self._parts(first, self._others, others, self._theirs),
                               self._parts(first, self._owners, own, self._mine))  # fmt: skip
                named.put(first, self._mine, out)

        def ahead() -> None:
            self._tell()
            named.clear(out)

        return self._device.asking([named.counts, self._told], run, ahead=ahead)

    def sending(self, sets: bool) -> Launch:
        """See `launch_send`."""
        rows, out = self._x, self._out
        arrived = self._prepare(out.shape[0], out, True, sets)
        assert arrived is not None
        named = self._named

        def run(counts: Any, told: Any) -> None:
            own, others = counts.tolist(), told.tolist()
            for first in self._rounds(own, others):
                if first:
                    named.name(first, self._asked)
                    named.pack(first, rows, self._mine)
                mine, theirs = [self._mine, self._asked], [self._theirs, self._wanted]
                together = 1 + (first > 0)  # the places of the first round are there
                self._exchange(self._parts(first, self._owners, own, *mine[:together]),
                               self._parts(first, self._others, others, *theirs[:together]))  # fmt: skip
                arrived.take(first, self._told)
            arrived.end()

        def ahead() -> None:
            self._tell()
            named.pack(0, rows, self._mine)
            arrived.begin()

        return self._device.asking([named.counts, self._told], run, ahead=ahead)

    def _prepare(self, size: int, table: Array, adds: bool, sets: bool) -> ArrivedRows | None:
        """Memory and kernels for a table of which each rank has `size` rows; what takes rows that arrive, if it
        `adds`."""
        ranks, inner, item = len(self._owners), math.prod(table.shape[1:]), table.dtype.itemsize
        lanes = lanes_of(item, inner, self._x, self._out)
        each = slots_each(self._places.size, ranks, inner * item)
        slots = Slots(ranks, each, size, lanes, inner // lanes)
        named = NamedPlaces.bytes_of(self._places.size, ranks)
        wide = adds and not sets and ArrivedRows.is_wide(table)
        arrived = ArrivedRows.bytes_of(slots.all, size, inner, wide) if adds else ()
        memory = divided(self._device, 0, [*_of_slots(slots.all, ranks, inner * item), *named, *arrived])
        self._each = each
        self._told, self._asked, self._wanted = (array.view("int32") for array in memory[:3])
        self._mine, self._theirs = (array.view(table.dtype).reshape(slots.all, inner) for array in memory[3:5])
        begin = 5 + len(named)
        self._named = NamedPlaces(self._device, slots, self._places, table, memory[5:begin])
        if not adds:
            return None
        return ArrivedRows(self._device, slots, self._out, self._wanted, self._theirs, sets, memory[begin:])

    def _tell(self) -> None:
        """Sort the places, and tell each owner how many it is asked for, or sent, and the places of the first round:
        all slots, of which nobody has to know how many are filled."""
        self._named.sort()
        self._named.name(0, self._asked)
        if self._first is None:
            each, counts = self._each, self._named.counts
            told = [[(rank, a[n * size : (n + 1) * size]) for n, rank in enumerate(ranks) for a, size in arrays]
                    for ranks, arrays in ((self._owners, ((counts, 1), (self._asked, each))),
                                          (self._others, ((self._told, 1), (self._wanted, each))))]  # fmt: skip
            self._first = told
        self._exchange(*self._first)

    def _rounds(self, own: Sequence[int], others: Sequence[int]) -> range:
        """The first row of each round: until the longest of all that this rank sends or takes is over."""
        return range(0, max(*own, *others), self._each)

    def _parts(
        self, first: int, ranks: Ranks, counts: Sequence[int], *arrays: Array
    ) -> list[tuple[int, Array]]:  # fmt: skip
        """Of every array the slots of a round that are filled, with the rank that they go to or come from."""
        found: list[tuple[int, Array]] = []
        for number, (rank, count) in enumerate(zip(ranks, counts, strict=True)):
            begin, filled = number * self._each, min(self._each, count - first)
            if filled > 0:
                found += [(rank, array[begin : begin + filled]) for array in arrays]
        return found

    def _exchange(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        self._comm.exchange_into(sends, receives, self._others)
