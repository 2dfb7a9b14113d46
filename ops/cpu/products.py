"""Matmuls on several threads, each with single-threaded BLAS on its part of the result.

BLAS's own threads spin while they wait for each other: on shared cores, a matmul of many small matrices then takes tens
of times as long. Here threads synchronise once per matmul, and sleep while they wait.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mspc.ops.cpu.blocks import in_parallel, thread_count
from mspc.ops.cpu.gemm import MIN_PACKED_ROWS, NodeMatmul, blas_threads, multiplied_in_parts, one_blas_thread
from mspc.ops.cpu.thread_pool import is_loaded

SHARED = 1 << 22
"""Multiplications from which threads are worth waking: some 0.1 ms of one core."""

WORTH = 1 << 22
"""Multiplications of a matmul from which the second that a compiler takes once pays off."""
ALONE = 1 << 13
"""Multiplications below which BLAS has one thread anyway. With more threads, these spin for long after the matmul, on
cores that the next kernels need."""

Share = tuple[Any, Any, Any]
"""(x, y, out) with out = x @ y."""


def product(x: Any, y: Any, out: Any) -> Any:
    """Write x @ y to `out`, all NumPy's; leading dimensions broadcast."""
    if _for_parts(out.size * x.shape[-1], y, is_loaded()) and multiplied_in_parts(x, y, out):
        return out
    if out.ndim > 2 and y.ndim == 2 and x.ndim == out.ndim and x.flags.c_contiguous and out.flags.c_contiguous:
        product(x.reshape(-1, x.shape[-1]), y, out.reshape(-1, out.shape[-1]))  # one matrix for all rows of a batch
        return out
    threads, multiplications = thread_count(), out.size * x.shape[-1]
    if threads == 1 or multiplications < ALONE or blas_threads() is None:
        return np.matmul(x, y, out=out)
    if multiplications < SHARED:
        with one_blas_thread():
            return np.matmul(x, y, out=out)
    with one_blas_thread():
        in_parallel([functools.partial(np.matmul, a, b, out=c) for a, b, c in _shares(x, y, out, threads)])
    return out


def product_kernel(transpose_a: bool, transpose_b: bool) -> Callable[..., Any]:
    """Return the kernel `function(x, y, out, addend=None, bias=None)` of x @ y + addend + bias, with x and y transposed
    according to the flags. addend has the result's shape and may be `out`; bias has its last dimension."""
    made, loaded = NodeMatmul(transpose_a, transpose_b).made, is_loaded()

    def kernel(x: Any, y: Any, out: Any, addend: Any = None, bias: Any = None) -> Any:
        if addend is not None and np.may_share_memory(addend, out):
            addend = addend.copy()
        multiplications = out.size * x.shape[-2 if transpose_a else -1]
        if _for_parts(multiplications, y, loaded) and made(x, y, out, addend, bias):
            return out
        product(x.swapaxes(-1, -2) if transpose_a else x, y.swapaxes(-1, -2) if transpose_b else y, out)
        for array in (addend, bias):
            if array is not None:
                np.add(out, array, out=out)
        return out

    return kernel


def _for_parts(multiplications: int, y: Any, loaded: bool) -> bool:
    """Return True if C++ is to multiply. loaded: it need not be compiled for this."""
    if loaded:
        return multiplications >= ALONE
    return max(multiplications, MIN_PACKED_ROWS * y.size) >= WORTH  # for few rows y is read, which takes as long


def multiplied(x: Any, y: Any) -> Any:
    """Return x @ y as a new array; both are NumPy's."""
    multiplications = x.size * y.shape[-1]
    if multiplications < ALONE or min(x.ndim, y.ndim) < 2:
        return np.matmul(x, y)
    shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
    return product(x, y, np.empty(shape, np.result_type(x, y)))


def share_out(calls: Sequence[Callable[[], object]], multiplications: int) -> None:
    """Run all calls, each with its own matmuls, on as many threads as are worthwhile for this number of
    multiplications."""
    threads = min(thread_count(), len(calls))
    if threads == 1 or multiplications < SHARED or blas_threads() is None:
        for call in calls:
            call()
        return

    def part(first: int) -> None:
        for call in calls[first::threads]:
            call()

    with one_blas_thread():
        in_parallel([functools.partial(part, first) for first in range(threads)])


def _shares(x: Any, y: Any, out: Any, threads: int) -> Iterator[Share]:
    """Split the matmul into one part for each thread: along the first batch dimension, the rows or the columns."""
    batch, rows, columns = out.shape[0] if out.ndim > 2 else 0, out.shape[-2], out.shape[-1]
    by_batch, by_rows = batch >= threads, rows >= columns
    length = batch if by_batch else rows if by_rows else columns
    step = -(-length // threads)
    for begin in range(0, length, step):
        part = slice(begin, begin + step)
        if by_batch:
            yield _batches(x, out.ndim, part), _batches(y, out.ndim, part), out[part]
        elif by_rows:
            yield x[..., part, :], y, out[..., part, :]
        else:
            yield x, y[..., part], out[..., part]


def _batches(operand: Any, rank: int, part: slice) -> Any:
    return operand[part] if operand.ndim == rank and operand.shape[0] != 1 else operand
