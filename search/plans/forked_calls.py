"""Runs calls in processes forked from this one, at once as many as there are cores beside its own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

MOST = 3
"""Calls that run at once at most: each holds a complete compile."""


class ForkedCalls:
    """Calls without arguments. All processes are forked at once, so that each has what this one had then, whatever this
    one changes afterwards; a semaphore lets them begin. Their results come back through pipes. Used in a `with`, which
    ends them."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        context = multiprocessing.get_context("fork")
        self._begin = context.Semaphore(max(1, min(MOST, len(os.sched_getaffinity(0)) - 1)))
        self._ends: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        for call in calls:
            end, other = context.Pipe(duplex=False)
            process = context.Process(target=self._run, args=(call, other), daemon=True)
            process.start()
            other.close()
            self._ends.append(end)
            self._processes.append(process)

    @property
    def count(self) -> int:
        """How many calls there are."""
        return len(self._processes)

    def one_more(self) -> None:
        """Let one more run at once: this process has nothing else to do."""
        self._begin.release()

    def result(self, index: int) -> Any:
        """What a call gave; None where it raised, or its process was ended. It waits for it."""
        try:
            return self._ends[index].recv()
        except EOFError:
            return None

    def _run(self, call: Callable[[], Any], end: Connection) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that forked this one ends it
        gc.freeze()  # what was made before stays until the end
        with suppress(Exception):  # who asks for the result makes the call itself, and sees why
            with self._begin:
                found = call()
            end.send(found)  # others go on meanwhile: it may be more than a pipe holds, and read later than theirs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, end in zip(self._processes, self._ends, strict=True):
            process.terminate()
            process.join()
            end.close()


def can_fork() -> bool:
    """Whether there are forks here, and a core beside this process's own."""
    return "fork" in multiprocessing.get_all_start_methods() and len(os.sched_getaffinity(0)) > 1


def calls_beside(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What calls without arguments give, in their order, made beside one another where that can be."""
    if len(calls) < 2 or not can_fork():
        return [call() for call in calls]
    with ForkedCalls(calls) as forked:
        forked.one_more()
        results = (forked.result(i) for i in range(len(calls)))
        return [call() if result is None else result for call, result in zip(calls, results, strict=True)]
