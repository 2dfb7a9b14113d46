"""These kernels pass over memory once: they apply several array functions to one cache-sized block after the other.

An array function over 16 MB reads and writes main memory; ten of them in a row do so ten times. Applied block by
block they meet their operands in the cache. Large arrays are shared out to as many threads as BLAS may use; every
row is worked by itself, so the number of threads changes no bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ops.cpu.threads import in_parallel, thread_count

BLOCK = 1 << 18
"""Elements of a block: 1 MiB of Float32. Smaller ones would stay in a core's own cache, but the threads of several
cores would take turns at making calls: on two, BatchNorm takes a quarter less than with blocks of a quarter."""
SHARED = 1 << 18
"""Elements from which a second thread is worth waking (some 20 us)."""

Work = Callable[..., None]
"""`work(out, scratch, *operands)`: fills `out`, a block of rows, from the operands' same rows. It may read `out`
only after writing it, and must read every operand before its first write to `out`, which may be an operand."""


def in_rows(xp: Any, work: Work, out: Sequence[Any], operands: Sequence[Any], scratch: int = 0) -> None:
    """Fill the arrays `out` block by block.

    Args:
        xp: NumPy, or another array module, for which all rows are one block.
        out: arrays of the same number of rows, their first dimension, contiguous; the first one gives the size.
        operands: arrays of as many rows.
        scratch: number of arrays like a block of `out[0]` that `work` needs.
    """
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
    """Call `part(begin, end)` so that all `rows` are covered: once, or on several threads where `size` elements make
    that pay. Parts begin at multiples of `step`."""
    threads = min(thread_count(), -(-rows // step)) if xp is np and size >= SHARED else 1
    if threads == 1:
        part(0, rows)
        return
    share = -(-rows // threads // step) * step
    in_parallel([functools.partial(part, begin, min(begin + share, rows)) for begin in range(0, rows, share)])


def elementwise(xp: Any, work: Work, out: Any, operands: Sequence[Any], scratch: int = 0) -> None:
    """Fill `out` where every operand has its shape."""
    in_rows(xp, work, (out.reshape(-1),), [array.reshape(-1) for array in operands], scratch)


def blockwise(xp: Any, work: Work, scratch: int = 0) -> Callable[..., Any]:
    """The kernel `function(*operands, out=None)` of operands that are broadcast to one shape: a fused operator hands on
    numbers as they are."""

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
    """The kernel `function(*operands, out=None)` of operands of one shape whose last dimension is not split."""

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
    """`function(*operands, out=out)` for a function of NumPy's that works element by element, on several threads
    where that pays."""
    if out.size < SHARED or thread_count() == 1:
        return function(*operands, out=out)
    for array in operands:
        if array.shape != out.shape or not array.flags.c_contiguous:
            return function(*operands, out=out)

    def work(block: Any, _: Any, *parts: Any) -> None:
        function(*parts, out=block)

    elementwise(np, work, out, operands)
    return out
