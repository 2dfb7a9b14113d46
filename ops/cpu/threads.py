"""Kernels share their work out to these threads.

Calls go to threads through a queue: what wakes a thread is most of the cost of a small call, and a future's locks
would double it.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from mspc.ir.text.limits import number_of

Call = Callable[[], object]


def in_parallel(calls: Sequence[Call]) -> None:
    """Make all calls at the same time, the first one on this thread. Raises what the first to fail raised."""
    ended: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
    queue = _queue(max(1, thread_count() - 1), os.getpid())
    for number, call in enumerate(calls[1:]):
        # A thread takes over the context, which holds NumPy's settings for overflows.
        queue.put((contextvars.copy_context(), call, number, ended))
    try:
        calls[0]()
    finally:
        others = dict(ended.get() for _ in calls[1:])
    for number in range(len(others)):
        error = others[number]
        if error is not None:
            raise error


MOST_THREADS = 1 << 12


@functools.cache
def thread_count() -> int:
    """Threads that a kernel may use: as many as BLAS is given (a rank of a job gets its share), else all cores."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        count = number_of(os.environ.get(name, ""), MOST_THREADS)
        if count:
            return count
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _queue(threads: int, process: int) -> SimpleQueue[Any]:
    """Where calls are put for so many threads of this process; a process that was forked off has none of its own."""
    queue: SimpleQueue[Any] = SimpleQueue()
    for number in range(threads):
        threading.Thread(target=_work, args=(queue,), name=f"mspc-kernel_{number}", daemon=True).start()
    return queue


def _work(queue: SimpleQueue[Any]) -> None:
    while True:
        context, call, number, ended = queue.get()
        try:
            context.run(call)
        except BaseException as error:  # it is raised where the work was shared out
            ended.put((number, error))
        else:
            ended.put((number, None))
        del context, call, ended
