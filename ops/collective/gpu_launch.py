"""Launches of collectives on a GPU: packing kernels around the communicator's work, on arrays with fixed addresses.

A communicator on GPUs handles whole arrays: a gather concatenates the members' arrays, a scatter splits them. Along
another axis than the first, a kernel reorders the slices, through memory that is allocated when the launch is made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, cast

from mspc.ops.cuda.moves import Move, move, strides_of
from mspc.ops.cuda.text import address
from mspc.ops.device import Array, Device, Launch, RankSum, all_of

Ranks = tuple[int, ...]


class DeviceCommunicator(Protocol):
    """The methods of a communicator on GPUs in addition to `runtime.comm.Communicator`: work on the current stream that
    allocates nothing and can be captured. Arrays are contiguous."""

    rank: int

    def combines(self, dtype: Any, op: str) -> bool:
        """Whether elements of this type can be combined by `op`."""

    def direct(self, name: str, array: Array, out: Array, op: str, ranks: Ranks) -> Launch | None:
        """Return the launch of the collective `name` ("AllReduce", "AllGather" or "ReduceScatter" of contiguous parts)
        over mapped memory of the ranks, which call this together when the launch is made. None if the work is small or
        this is not possible; then the methods below are used."""

    def partial_sums(self, array: Array, ranks: Ranks) -> RankSum | None:
        """Return the addresses of the summands of a sum, of which `array` is this rank's, for a kernel that adds them
        up while it reads; the ranks call this together when it is made. None if this is not possible."""

    def all_agree(self, able: bool, ranks: Ranks) -> bool:
        """Return whether `able` is true on every member; their hosts communicate."""

    def all_reduce_into(self, arrays: Sequence[Array], outs: Sequence[Array], op: str, ranks: Ranks) -> None:
        """Combine every array into the one at its place in `outs`, which may be the array itself."""

    def all_gather_into(self, array: Array, out: Array, ranks: Ranks) -> None:
        """Write the members' arrays to `out`, one after the other."""

    def reduce_scatter_into(self, array: Array, out: Array, op: str, ranks: Ranks) -> None:
        """Combine the parts for this rank into `out`; `array` has one part for every member, one after the other."""

    def all_to_all_into(self, array: Array, out: Array, ranks: Ranks) -> None:
        """Exchange parts: `array` has one part for every member, one after the other; `out` gets the parts from every
        member."""

    def exchange_into(
        self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]], ranks: Ranks | None = None
    ) -> None:
        """Send and receive arrays, all at once; arrays between two ranks stay in their order."""

    def exchange_counts(self, numbers: Any, ranks: Ranks) -> Any:
        """Return the numbers that every member sends this rank, as a NumPy array; `numbers[i]` is sent to member i.
        Their hosts communicate; nothing is enqueued."""

    def broadcast_into(self, arrays: Sequence[Array], outs: Sequence[Array], root: int, ranks: Ranks) -> None: ...

    def send(self, array: Array, rank: int, tag: int = 0) -> None: ...

    def receive_into(self, out: Array, rank: int, tag: int = 0) -> None: ...

    def barrier(self, ranks: Ranks) -> None: ...


def launch_all_reduce(device: Device, arrays: Sequence[Array], out: Any, op: str, ranks: Ranks) -> Launch | None:
    """Return the launch; None if the element type cannot be combined on the GPU."""
    outs: Sequence[Array] = cast("tuple[Array, ...]", out) if isinstance(out, tuple) else (out,)
    if len(ranks) == 1:
        return launch_copies(device, arrays, outs)
    comm: DeviceCommunicator = device.comm
    if not comm.combines(arrays[0].dtype, op):
        return None
    if len(arrays) == 1:
        found = comm.direct("AllReduce", arrays[0], outs[0], op, ranks)
        if found is not None:
            return found
    return lambda: comm.all_reduce_into(arrays, outs, op, ranks)


def launch_all_gather(device: Device, array: Array, out: Array, ranks: Ranks, axis: int) -> Launch:
    if len(ranks) == 1:
        return launch_copies(device, (array,), (out,))
    comm: DeviceCommunicator = device.comm
    before = math.prod(array.shape[:axis])
    if before == 1:
        return _gather(comm, array, out, ranks)
    parts = _like(device, out)
    unpack = _swapped(device, parts, out, len(ranks), before)
    return all_of([_gather(comm, array, parts, ranks), unpack])


def launch_reduce_scatter(device: Device, array: Array, out: Array, op: str, ranks: Ranks, axis: int) -> Launch | None:
    """Return the launch; None if the element type cannot be combined on the GPU."""
    if len(ranks) == 1:
        return launch_copies(device, (array,), (out,))
    comm: DeviceCommunicator = device.comm
    if not comm.combines(array.dtype, op):
        return None
    before = math.prod(array.shape[:axis])
    if before == 1:
        return _scatter(comm, array, out, op, ranks)
    parts = _like(device, array)
    pack = _swapped(device, array, parts, before, len(ranks))
    return all_of([pack, _scatter(comm, parts, out, op, ranks)])


def launch_all_to_all(device: Device, array: Array, out: Array, ranks: Ranks, split: int, concat: int) -> Launch:
    count = len(ranks)
    if count == 1:
        return launch_copies(device, (array,), (out,))
    comm: DeviceCommunicator = device.comm
    split_rows = math.prod(array.shape[:split])
    concat_rows = math.prod(out.shape[:concat])
    places = [rows > 1 for rows in (split_rows, concat_rows)]
    room = array.nbytes + -array.nbytes % 256
    held = device.scratch(max(1, room * sum(places)))
    launches: list[Launch] = []
    source, target = array, out
    if places[0]:
        source = _shaped(held[: array.nbytes], array)
        launches.append(_swapped(device, array, source, split_rows, count))
    if places[1]:
        start = room if places[0] else 0
        target = _shaped(held[start : start + array.nbytes], out)
    launches.append(lambda: comm.all_to_all_into(source, target, ranks))
    if places[1]:
        launches.append(_swapped(device, target, out, count, concat_rows))
    return all_of(launches)


def launch_broadcast(device: Device, arrays: Sequence[Array], outs: Sequence[Array], root: int, ranks: Ranks) -> Launch:
    if len(ranks) == 1:
        return launch_copies(device, arrays, outs)
    comm: DeviceCommunicator = device.comm
    return lambda: comm.broadcast_into(arrays, outs, root, ranks)


def launch_exchange(
    device: Device, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]], ranks: Ranks
) -> Launch:
    """Return the launch of an exchange. ranks: the group that takes part; empty for all ranks."""
    comm: DeviceCommunicator = device.comm
    return lambda: comm.exchange_into(sends, receives, ranks or None)


def launch_paste(device: Device, arrays: Sequence[Array], out: Array, begins: Sequence[tuple[int, ...]]) -> Launch:
    """Return the launch that writes every array into `out`, with its first element at its place in `begins`."""
    strides = strides_of(out.shape)
    starts = [sum(b * s for b, s in zip(begin, strides, strict=True)) for begin in begins]
    pairs = zip(arrays, starts, strict=True)
    return _moves(device, [Move(a, out, a.shape, strides_of(a.shape), strides, 0, start) for a, start in pairs])


def launch_copies(device: Device, arrays: Sequence[Array], outs: Sequence[Array]) -> Launch:
    """Return the launch that copies every array to the corresponding one of `outs`, unless it is the same memory."""
    pairs = [(a, o) for a, o in zip(arrays, outs, strict=True) if address(a) != address(o)]
    return _moves(device, [Move(a, o, (math.prod(a.shape),), (1,), (1,)) for a, o in pairs])


def _gather(comm: DeviceCommunicator, array: Array, out: Array, ranks: Ranks) -> Launch:
    found = comm.direct("AllGather", array, out, "", ranks)
    return found or (lambda: comm.all_gather_into(array, out, ranks))


def _scatter(comm: DeviceCommunicator, array: Array, out: Array, op: str, ranks: Ranks) -> Launch:
    found = comm.direct("ReduceScatter", array, out, op, ranks)
    return found or (lambda: comm.reduce_scatter_into(array, out, op, ranks))


def _swapped(device: Device, source: Array, target: Array, rows: int, columns: int) -> Launch:
    """Return the launch of target[j, i] = source[i, j], i below `rows`, j below `columns`: each a run of elements."""
    run = math.prod(source.shape) // max(1, rows * columns)
    return _moves(device, [Move(source, target, (columns, rows, run), (run, columns * run, 1), (rows * run, run, 1))])


def _moves(device: Device, moves: Sequence[Move]) -> Launch:
    """Return the launch of all moves, those of one element type as one kernel if possible."""
    kinds = list(dict.fromkeys(each.source.dtype.itemsize for each in moves))
    launches = [move(device, "put_pieces", [m for m in moves if m.source.dtype.itemsize == kind]) for kind in kinds]
    return all_of([*(launch for launch in launches if launch is not None)])


def _like(device: Device, array: Array) -> Array:
    return _shaped(device.scratch(array.nbytes)[: array.nbytes], array)


def _shaped(memory: Array, array: Array) -> Array:
    return memory.view(array.dtype).reshape(array.shape)
