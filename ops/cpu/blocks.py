"""Kernels that pass over memory once: they apply several array functions to one cache-sized block after the other.

An array function over 16 MB reads and writes main memory; ten of them in a row do so ten times. Applied block by block,
they find their operands in the cache. Large arrays are divided among as many threads as BLAS may use; rows are
processed independently, so that the number of threads changes no bit.
"""

from __future__ import annotations

import contextvars
import functools
import math
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from mspc.ir.text.limits import number_of

# Kernels share their work out to these threads.
#
# Calls go to threads through a queue: waking a thread is most of the cost of a small call, and a future's locks would
# double it.


Call = Callable[[], object]


def in_parallel(calls: Sequence[Call]) -> None:
    """Make all calls at the same time, the first one on this thread. Raise the error of the first to fail."""
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


MAX_THREADS = 1 << 12


@functools.cache
def thread_count() -> int:
    """Return the number of threads of a kernel: those of BLAS, which is limited to a rank's share, else all cores."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        count = number_of(os.environ.get(name, ""), MAX_THREADS)
        if count:
            return count
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _queue(threads: int, process: int) -> SimpleQueue[Any]:
    """Return the queue of calls for this number of threads of this process; a forked process has its own."""
    queue: SimpleQueue[Any] = SimpleQueue()
    for number in range(threads):
        threading.Thread(target=_work, args=(queue,), name=f"mspc-kernel_{number}", daemon=True).start()
    return queue


def _work(queue: SimpleQueue[Any]) -> None:
    while True:
        context, call, number, ended = queue.get()
        try:
            context.run(call)
        except BaseException as error:  # it is raised by the thread that shared out the work
            ended.put((number, error))
        else:
            ended.put((number, None))
        del context, call, ended


BLOCK = 1 << 18
"""Elements of a block: 1 MiB of Float32. Smaller ones would fit a core's own cache, but the threads of several cores
would make calls one after the other: on two, BatchNorm takes a quarter less than with blocks of a quarter."""
SHARED = 1 << 18
"""Elements from which a second thread is worth waking (some 20 us)."""

Work = Callable[..., None]
"""`work(out, scratch, *operands)`: fills `out`, a block of rows, from the operands' same rows. It may read `out`
only after writing it, and must read every operand before its first write to `out`, which may be an operand."""


def in_rows(xp: Any, work: Work, out: Sequence[Any], operands: Sequence[Any], scratch: int = 0) -> None:
    """Fill the arrays `out` block by block. xp: NumPy, or another array module, for which all rows are one block. out:
    contiguous arrays with equally many rows (their first dimension); the first one determines the block size. operands:
    arrays with as many rows. scratch: number of arrays shaped like a block of `out[0]` that `work` needs."""
    first = out[0]
    rows = first.shape[0]
    if not rows or not first.size:
        return
    step = rows if xp is not np else max(1, BLOCK * rows // first.size)
    arrays = (*out, *operands)
    count = len(out)

    def part(begin: int, end: int) -> None:
        size = min(step, end - begin)
        spare = [xp.empty((size, *first.shape[1:]), first.dtype) for _ in range(scratch)]
        for start in range(begin, end, step):
            stop = min(start + step, end)
            block = [array[start:stop] for array in arrays]
            if stop - start < size:
                spare = [array[: stop - start] for array in spare]
            work(block[:count] if count > 1 else block[0], spare, *block[count:])

    shared_out(xp, rows, step, first.size, part)


def shared_out(xp: Any, rows: int, step: int, size: int, part: Callable[[int, int], None]) -> None:
    """Call `part(begin, end)` for ranges that cover all `rows`: once, or on several threads if `size` elements are
    enough. Ranges start at multiples of `step`."""
    threads = min(thread_count(), -(-rows // step)) if xp is np and size >= SHARED else 1
    if threads == 1:
        part(0, rows)
        return
    share = -(-rows // threads // step) * step
    in_parallel([functools.partial(part, begin, min(begin + share, rows)) for begin in range(0, rows, share)])


def elementwise(xp: Any, work: Work, out: Any, operands: Sequence[Any], scratch: int = 0) -> None:
    """Fill `out` from operands of its shape."""
    in_rows(xp, work, (out.reshape(-1),), [array.reshape(-1) for array in operands], scratch)


def blockwise(xp: Any, work: Work, scratch: int = 0) -> Callable[..., Any]:
    """Return the kernel `function(*operands, out=None)` of operands that are broadcast to one shape: a fused operator
    passes numbers unchanged."""

    def kernel(*operands: Any, out: Any = None) -> Any:
        shape = operands[0].shape if out is None else out.shape
        if any(array.shape != shape for array in operands):
            shape = np.broadcast_shapes(shape, *(array.shape for array in operands))
            operands = tuple(xp.broadcast_to(array, shape) for array in operands)
        if out is None:
            out = xp.empty(shape, operands[0].dtype)
        elementwise(xp, work, out, operands, scratch)
        return out

    return kernel


def rowwise(xp: Any, work: Work, scratch: int = 0) -> Callable[..., Any]:
    """Return the kernel `function(*operands, out=None)` of operands of one shape with an undivided last dimension."""

    def kernel(*operands: Any, out: Any = None) -> Any:
        if out is None:
            out = xp.empty(operands[0].shape, operands[0].dtype)
        columns = out.shape[-1]
        if out.size:
            rows = [array.reshape(-1, columns) for array in operands]
            in_rows(xp, work, (out.reshape(-1, columns),), rows, scratch)
        return out

    return kernel


def apply(function: Any, *operands: Any, out: Any) -> Any:
    """Return `function(*operands, out=out)` for an elementwise function of NumPy's, on several threads if that pays."""
    if out.size < SHARED or thread_count() == 1:
        return function(*operands, out=out)
    for array in operands:
        if array.shape != out.shape or not array.flags.c_contiguous:
            return function(*operands, out=out)

    def work(block: Any, _: Any, *parts: Any) -> None:
        function(*parts, out=block)

    elementwise(np, work, out, operands)
    return out


# Copies of large arrays are made on several threads: most of their time the system gives the copy its memory.


_LARGE = 1 << 22
"""Bytes from which a copy is shared out: about a millisecond's."""
_STEP = 1 << 20


def copied(array: Any) -> Any:
    """Return a copy of a NumPy array with its elements in the same order."""
    if array.nbytes < _LARGE or not array.flags.c_contiguous or array.dtype.hasobject:
        return np.array(array)
    found = np.empty(array.shape, array.dtype)
    source, target = array.reshape(-1), found.reshape(-1)

    def part(begin: int, end: int) -> None:
        target[begin:end] = source[begin:end]

    shared_out(np, source.size, _STEP, source.size, part)
    return found


# A kernel has scratch memory that it writes and reads again before it ends; its thread stores it, as fresh memory costs
# more than writing to it.


MAX_CACHED = 1 << 24
"""Most bytes of an array that is stored: larger ones come from the system."""


class _ScratchArrays(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}


_cached = _ScratchArrays()


def scratch(name: str, shape: Sequence[int], dtype: Any) -> Any:
    """Return a NumPy array with any content. The next call for the same name on the same thread may return its memory
    again."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size > MAX_CACHED:
        return np.empty(shape, dtype)
    found = _cached.arrays.get(name)
    if found is None or found.size < size:
        found = _cached.arrays[name] = np.empty(size, np.uint8)
    return found[:size].view(dtype).reshape(shape)
