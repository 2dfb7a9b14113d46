"""The OpenBLAS inside NumPy's wheels: how many threads it uses, and where its products of matrices are for C++."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mspc.ops.cpu.pool import is_loaded, library
from mspc.ops.cpu.threads import thread_count

_GEMM = {np.dtype(np.float32): "scipy_cblas_sgemm64_", np.dtype(np.float64): "scipy_cblas_dgemm64_"}

Threads = tuple[Callable[[], int], Callable[[int], None]]
"""Functions that read and set the number of threads that BLAS uses."""


def limit_blas() -> None:
    """From now on BLAS uses at most as many threads as a kernel may: ranks that share cores must not spin on them."""
    found = blas_threads()
    if found is not None and found[0]() > thread_count():
        found[1](thread_count())


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Inside, every product runs on the thread that calls for it."""
    found = blas_threads()
    assert found is not None
    get, set_to = found
    compiled = library() if is_loaded() else None
    if compiled is None:
        before = get()
        set_to(1)
        try:
            yield
        finally:
            set_to(before)
        return
    compiled.blas_alone(get, set_to)  # compiled products do so, too, at the same time perhaps
    try:
        yield
    finally:
        compiled.blas_as_before(set_to)


@functools.cache
def blas_threads() -> Threads | None:
    """Functions that read and set the number of BLAS's threads; None where NumPy has another BLAS."""
    library = _library()
    if library is None:
        return None
    try:
        return library.scipy_openblas_get_num_threads64_, library.scipy_openblas_set_num_threads64_
    except AttributeError:
        return None


@functools.cache
def gemm_address(dtype: np.dtype) -> int | None:
    """Where `cblas_sgemm` or `cblas_dgemm` is, whose numbers of elements have 64 bits and whose enumerations 32; None
    for other element types, and where NumPy has another BLAS."""
    library, name = _library(), _GEMM.get(dtype)
    if library is None or name is None:
        return None
    function = getattr(library, name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The OpenBLAS that NumPy has loaded from its wheel; None without it."""
    root = Path(np.__file__).parent
    for path in sorted([*root.parent.glob("numpy.libs/*openblas*"), *root.glob(".dylibs/*openblas*")]):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return None
