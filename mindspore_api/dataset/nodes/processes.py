"""Processes that run user functions over rows, for functions that hold the Python interpreter.

A worker is a fork of the reading process, so that any function can be given. Rows are sent in both directions through a
pipe: a line of names, types and shapes, followed by the bytes of the arrays. Nothing is pickled.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from mspc.ir.diagnostics import KINDS, Location, MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.dataset.nodes.base import RowFault
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
