"""Processes that run user functions over rows, for functions that hold the Python interpreter.

A worker is a fork of the reading process, so that any function can be given. Rows are sent in both directions through a
pipe: a line of names, types and shapes, followed by the bytes of the arrays. Nothing is pickled.
"""

from __future__ import annotations

import json
import math
import mmap
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from mspc.ir.diagnostics import KINDS, Location, MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.dataset.nodes.base import RowFault
from mspc.mindspore_api.dataset.nodes.block import Block, BlockColumns, Column, ReusedMemory, RowSlice
from mspc.mindspore_api.dataset.nodes.prefetching import AHEAD_BYTES
from mspc.mindspore_api.dataset.row_values import Row


@dataclass(frozen=True)
class Task:
    """Row to work on. number: in its pass. position: in the order of all shards. place: its origin, for messages."""

    number: int
    row: Row = ()
    position: int = 0
    place: str = ""


_PROCESSES = multiprocessing.get_context("fork") if "fork" in multiprocessing.get_all_start_methods() else None


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    row: int = 0


def can_fork() -> bool:
    """Return whether a forked process can be started, which inherits the memory of this one."""
    return _PROCESSES is not None


def in_processes(
    function: Callable[[Task], Row], tasks: Iterable[Task], workers: int, fault: RowFault
) -> Iterator[Row]:
    """Yield the function's results in the order of the tasks; `workers` processes take turns.

    Raises:
        MspcError: the function raised it, reported as in one process, or a process ended.
    """
    if _PROCESSES is None:
        yield from map(function, tasks)
        return
    crew: list[_Worker] = []
    try:
        for _ in range(workers):
            crew.append(_started(function, crew))
        yield from _served(crew, tasks, fault)
    finally:
        for worker in crew:
            worker.pipe.close()
            worker.process.kill()  # whatever the script does with other signals
        for worker in crew:
            worker.process.join()


def _started(function: Callable[[Task], Row], before: list[_Worker]) -> _Worker:
    assert _PROCESSES is not None
    here, there = _PROCESSES.Pipe()
    others = [worker.pipe for worker in before]
    process = _PROCESSES.Process(target=_work, args=(function, there, [here, *others]), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here)


def _served(crew: list[_Worker], tasks: Iterable[Task], fault: RowFault) -> Iterator[Row]:
    """Request the next row of a process only after its last result has been read: two ends that both write would
    deadlock."""
    turns: deque[_Worker] = deque()
    for count, task in enumerate(tasks):
        worker = crew[count % len(crew)]
        answer = _answer(turns.popleft(), fault) if len(turns) == len(crew) else None
        _ask(worker, task, fault)
        turns.append(worker)
        if answer is not None:
            yield answer
    while turns:
        yield _answer(turns.popleft(), fault)


def _ask(worker: _Worker, task: Task, fault: RowFault) -> None:
    worker.row = task.number
    try:
        _send(worker.pipe, {"number": task.number, "position": task.position, "place": task.place}, task.row)
    except OSError:
        raise _ended(worker, fault) from None


def _answer(worker: _Worker, fault: RowFault) -> Row:
    if worker.pipe not in wait([worker.pipe, worker.process.sentinel]):
        raise _ended(worker, fault)
    try:
        said, row = _receive(worker.pipe)
    except (EOFError, OSError):
        raise _ended(worker, fault) from None
    if "error" in said:
        raise _read_error(said["error"])
    return row


def _ended(worker: _Worker, fault: RowFault) -> MspcError:
    worker.process.join(1)
    code = worker.process.exitcode
    how = f"was ended by {_signal(-code)}" if code is not None and code < 0 else f"ended with status {code}"
    message = f"{fault.step}: a worker process {how} while it worked on row {worker.row}"
    return MspcError(message, fault.location, kind=RuntimeError)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _work(function: Callable[[Task], Row], pipe: Connection, others: list[Connection]) -> None:
    """Run a worker: process rows until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    try:
        while True:
            said, row = _receive(pipe)
            _tell(pipe, function, Task(row=row, **said))
    except (EOFError, OSError):
        os._exit(0)  # the reader is gone


def _tell(pipe: Connection, function: Callable[[Task], Row], task: Task) -> None:
    try:
        result = function(task)
    except MspcError as error:
        _send(pipe, {"error": _written_error(error)}, ())
        return
    finally:
        sys.stdout.flush()  # shows the function's output, however the worker ends
    _send(pipe, {}, result)


def _send(pipe: Connection, said: dict[str, Any], row: Row) -> None:
    arrays = [np.ascontiguousarray(value) for value in row]
    kinds = [value.dtype.name if value.dtype.kind == "V" else value.dtype.str for value in row]
    head = {**said, "arrays": [(kind, value.shape) for kind, value in zip(kinds, row, strict=True)]}
    pipe.send_bytes(json.dumps(head).encode())
    for array in arrays:
        pipe.send_bytes(array.reshape(-1).view(np.uint8).data if array.size else b"")


def _receive(pipe: Connection) -> tuple[dict[str, Any], Row]:
    said = json.loads(pipe.recv_bytes())
    row: list[np.ndarray] = []
    for name, shape in said.pop("arrays"):
        data = bytearray(pipe.recv_bytes())
        row.append(np.frombuffer(data, np.dtype(name)).reshape(shape))
    return said, tuple(row)


def _written_error(error: MspcError) -> dict[str, Any]:
    where = error.location
    place = None if where is None else [where.file, where.line, where.column, where.end_column, where.text]
    kind = next((kind.__name__ for kind in KINDS if isinstance(error, kind)), "RuntimeError")
    return {"message": error.message, "place": place, "notes": list(error.notes), "kind": kind}


def _read_error(said: dict[str, Any]) -> MspcError:
    kind = next(kind for kind in KINDS if kind.__name__ == said["kind"])
    where = None if said["place"] is None else Location(*said["place"])
    return MspcError(said["message"], where, said["notes"], kind=kind)


FROM_BYTES = 256 << 20
"""Number of bytes of a pass that threads make before processes take over."""
Kind = tuple[tuple[int, ...], np.dtype]
"""Shape of a row of a column, and its element type."""


class Arena(ReusedMemory):
    """Pool of ordinary memory until it is opened; then processes that are forked later share it, in slots of one size.

    Args:
        workers: number of processes to start; with one, none are started.
    """

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.workers = workers
        self.kinds: list[Kind] | None = None
        self.bytes = np.empty(0, np.uint8)
        self._slots: deque[np.ndarray] = deque()
        self._made = 0

    def before(self, pieces: Iterator[RowSlice]) -> Iterator[RowSlice]:
        """Yield the pieces that threads handle before processes start: all of a short pass, or all if no process will
        be started."""
        while self.workers == 1 or self.kinds is None or self._made < FROM_BYTES:
            piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def learn(self, columns: Sequence[Column] | None) -> None:
        """Note the columns made from a piece; None if an operation failed."""
        arrays = [column for column in columns or () if isinstance(column, np.ndarray)]
        self._made += sum(array.nbytes for array in arrays)
        shared = len(arrays) == len(columns or ()) and not any(array.dtype.hasobject for array in arrays)
        self.kinds = [(array.shape[1:], array.dtype) for array in arrays] if arrays and shared else None

    def open(self, rows: int) -> None:
        """Allocate shared memory for blocks of `rows` rows: those waiting to be read, those in progress, and a few that
        the reader holds. The system provides pages only when they are written."""
        sizes = [rows * math.prod(shape) * dtype.itemsize for shape, dtype in self.kinds or ()]
        size = -(-max(1, *sizes) // mmap.PAGESIZE) * mmap.PAGESIZE
        count = len(sizes) * (AHEAD_BYTES // size + self.workers + 5)
        self.least = 1
        self.bytes = np.frombuffer(mmap.mmap(-1, size * count), np.uint8)
        self._slots.extend(self.bytes[i * size : (i + 1) * size] for i in range(count))

    def offset(self, array: np.ndarray | None) -> int:
        """Return the offset of an array in the shared memory, or -1 if the array is elsewhere."""
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
    """Memory that a process writes: the columns of one piece, at these offsets."""

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
    """Yield pieces in order with the columns that processes made from them. The columns are None if this process must
    make them, because an operation failed or the columns have other shapes or types than before.

    Args:
        change: makes the columns of a piece from columns and the positions of their rows, in the target's memory if
            they fit.
        pieces: with these columns and positions. arena: the memory of the targets.

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
        except Exception:  # raised again by the process that knows the row
            return ()
        return (positions[:0],) if len(piece.in_place) == len(kinds) else ()

    for done in in_processes(work, tasks(), arena.workers, fault):
        piece, made = waiting.popleft()
        if not done:
            piece.in_place.clear()
            made = None
        yield piece, made
