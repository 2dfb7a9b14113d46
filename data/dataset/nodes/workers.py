"""Processes make blocks here, straight into memory that the reader sees.

Threads share Python's lock: after every call of NumPy a thread waits for it, and from some four threads on they mostly
wait. Processes do not; but it takes a while to start them, so that only long passes over large results are worth them.
"""

from __future__ import annotations

import math
import mmap
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mspc.data.dataset.nodes.block import Block, Column
from mspc.data.dataset.nodes.block_slices import BlockColumns, ReusedMemory, RowSlice
from mspc.data.dataset.nodes.faults import RowFault
from mspc.data.dataset.nodes.prefetching import AHEAD_BYTES
from mspc.data.dataset.nodes.processes import Task, in_processes
from mspc.data.dataset.row_values import Row

FROM_BYTES = 256 << 20
"""So much of a pass is made by threads before processes take over."""
Kind = tuple[tuple[int, ...], np.dtype]
"""Shape of a row of a column, and its element type."""


class Arena(ReusedMemory):
    """Memory as any other until it is opened; from then on processes that are forked share it, in slots of one size.

    Args:
        workers: how many processes there will be; none with one.
    """

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.workers = workers
        self.kinds: list[Kind] | None = None
        self.bytes = np.empty(0, np.uint8)
        self._slots: deque[np.ndarray] = deque()
        self._made = 0

    def before(self, pieces: Iterator[RowSlice]) -> Iterator[RowSlice]:
        """The pieces that come before the processes: all of a short pass, or where there will be none."""
        while self.workers == 1 or self.kinds is None or self._made < FROM_BYTES:
            piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def learn(self, columns: Sequence[Column] | None) -> None:
        """What was made of a piece; none where an operation failed."""
        arrays = [column for column in columns or () if isinstance(column, np.ndarray)]
        self._made += sum(array.nbytes for array in arrays)
        shared = len(arrays) == len(columns or ()) and not any(array.dtype.hasobject for array in arrays)
        self.kinds = [(array.shape[1:], array.dtype) for array in arrays] if arrays and shared else None

    def open(self, rows: int) -> None:
        """For blocks of so many rows: those that wait to be read, those that are made, and a few that the reader holds.
        The system gives memory where somebody writes."""
        sizes = [rows * math.prod(shape) * dtype.itemsize for shape, dtype in self.kinds or ()]
        size = -(-max(1, *sizes) // mmap.PAGESIZE) * mmap.PAGESIZE
        count = len(sizes) * (AHEAD_BYTES // size + self.workers + 5)
        self.least = 1
        self.bytes = np.frombuffer(mmap.mmap(-1, size * count), np.uint8)
        self._slots.extend(self.bytes[i * size : (i + 1) * size] for i in range(count))

    def offset(self, array: np.ndarray | None) -> int:
        """Where an array lies in the shared memory, -1 where it does not."""
        found = -1 if array is None else _address(array) - _address(self.bytes)
        return found if 0 <= found < self.bytes.size else -1

    def _taken(self, size: int) -> np.ndarray:
        try:
            raw = self._slots.pop()
        except IndexError:
            return super()._taken(size)
        if raw.size >= size:
            return raw
        self._slots.append(raw)
        return super()._taken(size)

    def _returned(self, raw: np.ndarray) -> None:
        (self._free if self.offset(raw) < 0 else self._slots).append(raw)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


class _Lent(BlockColumns):
    """What a process writes: the columns of one piece, at these offsets."""

    def __init__(self, arena: Arena, offsets: Sequence[int]) -> None:
        super().__init__(0, arena)
        self._arena, self._offsets = arena, offsets

    def part(self, column: int, first: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        if self._arena.kinds is None or (shape[1:], dtype) != self._arena.kinds[column]:
            return None
        begin = self._offsets[column]
        return self._arena.bytes[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def by_crew(
    change: Callable[[RowSlice, tuple[Column, ...], np.ndarray], object],
    pieces: Iterator[tuple[RowSlice, tuple[Column, ...], np.ndarray]], arena: Arena, fault: RowFault,
) -> Iterator[tuple[RowSlice, tuple[np.ndarray, ...] | None]]:
    """Pieces in their order with the columns that processes made of them; None where this process has to do it, since
    an operation failed, or the columns are of other kinds than before.

    Args:
        change: makes the columns of a piece, from columns and the positions of their rows, in its place where they fit.
        pieces: with these columns and positions. arena: of the wholes of the pieces.

    Raises:
        MspcError: a process ended.
    """
    kinds = arena.kinds or []
    waiting: deque[tuple[RowSlice, tuple[np.ndarray, ...] | None]] = deque()

    def tasks() -> Iterator[Task]:
        for piece, columns, positions in pieces:
            rooms = [piece.room(i, (piece.count, *shape), dtype) for i, (shape, dtype) in enumerate(kinds)]
            arrays = [column for column in columns if isinstance(column, np.ndarray) and not column.dtype.hasobject]
            places = np.array([arena.offset(room) for room in rooms], np.int64)
            good = len(arrays) == len(columns) and (places >= 0).all()
            waiting.append((piece, tuple(room for room in rooms if room is not None) if good else None))
            yield Task(piece.number, (*arrays, positions, places) if good else ())

    def work(task: Task) -> Row:
        if not task.row:
            return ()
        *columns, positions, places = task.row
        piece = RowSlice(Block(tuple(columns)), 0, len(positions), _Lent(arena, places.tolist()), 0, task.number)
        try:
            change(piece, tuple(columns), positions)
        except Exception:  # raised again where the row is known
            return ()
        return (positions[:0],) if len(piece.in_place) == len(kinds) else ()

    for done in in_processes(work, tasks(), arena.workers, fault):
        piece, made = waiting.popleft()
        if not done:
            piece.in_place.clear()
            made = None
        yield piece, made
