"""The library of the pool of threads for the parts of compiled functions, and of matmuls; see thread_pool.cpp and
gemm.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
from collections.abc import Callable
from typing import Any

from mspc.ir.files.atomic_writing import cache_folder
from mspc.ops.cpu.blocks import in_parallel, thread_count
from mspc.ops.cpu.loops.library import CompilerFailed, compiler, library_of, warn_compiler_failed
from mspc.ops.device import source_text

# Compiled functions share their parts out to a pool of threads in C++, which neither Python's lock nor a queue of its
# objects holds up: a share-out costs a microsecond or two while workers are awake, and some 10 us if they sleep.


_FUNCTIONS = ("pool_run", "blas_alone", "blas_as_before", "product_float", "product_double")
_SHARES = 4
"""Parts per thread: if another process delays a thread, the others take over its parts."""


def on_all_threads(function: Any, first: int, last: int) -> Callable[[Any], None]:
    """Return `run(table)`: a compiled function over parts [first, last), on as many threads as a kernel may use."""
    threads = min(thread_count(), last - first)
    if threads < 2:
        return lambda table: function(table, first, last)
    run = pool()
    if run is None:
        bounds = [first + (last - first) * i // threads for i in range(threads + 1)]
        pairs = list(itertools.pairwise(bounds))
        return lambda table: in_parallel([functools.partial(function, table, *pair) for pair in pairs])
    place = ctypes.cast(function, ctypes.c_void_p).value
    return lambda table: run(place, table, first, last, _SHARES * threads, threads - 1)


@functools.cache
def pool() -> Callable[..., None] | None:
    """Return `run(address of a function, table, first, last, shares, workers)`; None without a compiler, or if it
    fails."""
    compiled = library()
    if compiled is None:
        return None
    compiled.pool_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_longlong] * 4]
    compiled.pool_run.restype = None
    return compiled.pool_run


def is_loaded() -> bool:
    """Return True if the library is loaded: small work is not worth loading it, but then uses it."""
    return library.cache_info().currsize > 0 and library() is not None


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled pool with its matmuls; None without a compiler, or if it fails."""
    command = compiler()
    if not command:
        return None
    try:
        return library_of(command, source_text("ops/cpu/thread_pool.cpp"), _FUNCTIONS)
    except CompilerFailed as error:
        warn_compiler_failed(command, str(error))
        return None


def put_on_disk() -> None:
    """Compile the library if no start before has; nothing is loaded for small graphs, and `library` reports a compiler
    that fails."""
    command = compiler()
    if command and cache_folder("loops") is not None:
        with contextlib.suppress(CompilerFailed):
            library_of(command, source_text("ops/cpu/thread_pool.cpp"), _FUNCTIONS)
