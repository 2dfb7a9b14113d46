"""Matmuls of Float32 and Float64 by C++ that calls BLAS, part by part on the pool's threads.

Operands are not copied: BLAS takes steps between rows or between columns, so that a transpose or heads of
an attention cost no copy.
"""

from __future__ import annotations

import ctypes
import functools
import math
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from mspc.ops.cpu.blocks import thread_count
from mspc.ops.cpu.loops.kernel import address
from mspc.ops.cpu.thread_pool import is_loaded, library

# The OpenBLAS inside NumPy's wheels: its number of threads, and the addresses of its matmuls for C++.


FEW_ROWS = 16
"""The largest number of rows of a matmul of few rows; gemm.h has it, too."""
_GEMM = {np.dtype(np.float32): "scipy_cblas_sgemm64_", np.dtype(np.float64): "scipy_cblas_dgemm64_"}

Threads = tuple[Callable[[], int], Callable[[int], None]]
"""Functions that read and set the number of threads that BLAS uses."""


def limit_blas() -> None:
    """Limit BLAS to as many threads as a kernel may use: ranks that share cores must not spin on them."""
    found = blas_threads()
    if found is not None and found[0]() > thread_count():
        found[1](thread_count())


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Run every matmul inside on the thread that calls for it."""
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
    compiled.blas_alone(get, set_to)  # compiled matmuls do the same, perhaps at the same time
    try:
        yield
    finally:
        compiled.blas_as_before(set_to)


@functools.cache
def blas_threads() -> Threads | None:
    """Return functions that get and set BLAS's number of threads; None if NumPy has another BLAS."""
    library = _library()
    if library is None:
        return None
    try:
        return library.scipy_openblas_get_num_threads64_, library.scipy_openblas_set_num_threads64_
    except AttributeError:
        return None


@functools.cache
def gemm_address(dtype: np.dtype) -> int | None:
    """Return the address of `cblas_sgemm` or `cblas_dgemm`, with 64-bit sizes and 32-bit enumerations; None for other
    element types, or if NumPy has another BLAS."""
    library, name = _library(), _GEMM.get(dtype)
    if library is None or name is None:
        return None
    function = getattr(library, name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the OpenBLAS that NumPy has loaded from its wheel, or None."""
    root = Path(np.__file__).parent
    for path in sorted([*root.parent.glob("numpy.libs/*openblas*"), *root.glob(".dylibs/*openblas*")]):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return None


SHARED = 1 << 20
"""Multiplications from which a second thread is worth its share: some 20 us of one core."""
PACKS_NOTHING = 1 << 20
"""Multiplications of a matrix up to which BLAS packs nothing and is faster, as for matrices that are little more than
vectors."""
STREAMED = 1 << 18
"""Elements of y from which reading it from memory takes the time of a matmul of few rows."""
MIN_PACKED_ROWS = 8
"""Number of rows whose multiplications take as long as reading y."""
_UNIT = 16
"""Multiple of rows or columns at which parts start: the vector registers of BLAS's kernels."""
_MAX_DIMS = 4
"""Dimensions of a batch, when those are one that may be."""

Shape = tuple[int, ...]


class Batch(NamedTuple):
    """A dimension of the batch: its size, and the steps of x, y and the result, 0 if an operand has it once."""

    size: int
    x: int
    y: int
    out: int


class Matrix(NamedTuple):
    """A matrix as BLAS sees it: the step between its rows, or between its columns if it is transposed."""

    step: int
    turned: bool


class Plan(NamedTuple):
    """How a matmul is divided. swapped: it is the transposed one, y first."""

    swapped: bool
    parts: int
    shares: int
    workers: int
    run: Any
    numbers: Any
    gemm: int
    threads: tuple[int, int]


class NodeMatmul:
    """The matmuls of one node, step after step: plans are reused if arrays are those of the step before."""

    def __init__(self, transpose_a: bool = False, transpose_b: bool = False) -> None:
        self._transposes = transpose_a, transpose_b
        self._known: tuple[Any, ...] = (_nothing,) * 5
        self._run: Callable[[], object] = _nothing

    def made(self, x: Any, y: Any, out: Any, addend: Any = None, bias: Any = None) -> bool:
        """Write x @ y + addend + bias to `out`, all NumPy's, x and y transposed as in this matmul.

        False, with nothing done, if that needs other types than Float32 and Float64, another memory layout, or a
        compiler.
        """
        a, b, c, d, e = self._known
        if a() is not x or b() is not y or c() is not out or d() is not addend or e() is not bias:
            run = _prepared(*self._turned(x, y), out, addend, bias)
            if run is None:
                return False
            self._run = run
            self._known = tuple(
                _nothing if array is None else weakref.ref(array) for array in (x, y, out, addend, bias)
            )  # fmt: skip
        self._run()
        return True

    def _turned(self, x: Any, y: Any) -> tuple[Any, Any]:
        left, right = self._transposes
        return x.swapaxes(-1, -2) if left else x, y.swapaxes(-1, -2) if right else y


def multiplied_in_parts(x: Any, y: Any, out: Any) -> bool:
    """Write x @ y to `out`, all NumPy's; False, with nothing done, if this is not for C++."""
    run = _prepared(x, y, out, None, None)
    if run is None:
        return False
    run()
    return True


def _prepared(x: Any, y: Any, out: Any, addend: Any, bias: Any) -> Callable[[], object] | None:
    """Return the call that makes x @ y + addend + bias, while these arrays live."""
    dtype = out.dtype
    if x.dtype != dtype or y.dtype != dtype:
        return None
    plan = plan_of(x.shape, x.strides, y.shape, y.strides, out.shape, out.strides, dtype, thread_count())
    if plan is None:
        return None
    more: list[int | None] = [None, None]
    if addend is not None or bias is not None:
        if plan.swapped:
            return None
        if addend is not None and (addend.dtype, addend.shape, addend.strides) != (dtype, out.shape, out.strides):
            return None
        if bias is not None and not ((bias.dtype, bias.shape) == (dtype, out.shape[-1:]) and bias.flags.c_contiguous):
            return None
        more = [None if array is None else address(array) for array in (addend, bias)]
    first, second = (y, x) if plan.swapped else (x, y)
    table = (ctypes.c_void_p * 9)(
        address(first), address(second), address(out), address(plan.numbers), plan.gemm, *more, *plan.threads
    )  # fmt: skip
    return functools.partial(_run, plan, table)


def _run(plan: Plan, table: Any) -> None:
    plan.run(table, plan.parts, plan.shares, plan.workers)  # the plan keeps the numbers alive


def _nothing() -> None:
    """Return None for a place with no known array."""


@functools.lru_cache(1 << 12)
def plan_of(x: Shape, x_strides: Shape, y: Shape, y_strides: Shape, out: Shape, out_strides: Shape, dtype: np.dtype,
            threads: int) -> Plan | None:  # fmt: skip
    """Return the plan of a matmul of such arrays; None if BLAS does not support them or cannot be called."""
    rank = len(out)
    if min(len(x), len(y)) < 2 or x[-1] != y[-2] or not math.prod(out) or not x[-1]:
        return None
    if any(stride < 0 or stride % dtype.itemsize for stride in (*x_strides, *y_strides, *out_strides)):
        return None
    if np.broadcast_shapes(x[:-2], y[:-2]) != out[:-2] or (x[-2], y[-1]) != out[-2:]:
        return None
    blas = _blas(dtype)
    if blas is None:
        return None
    steps = [
        _broadcast(shape, [stride // dtype.itemsize for stride in strides], rank)
        for shape, strides in ((x, x_strides), (y, y_strides), (out, out_strides))
    ]
    batch = [Batch(size, *(each[d] for each in steps)) for d, size in enumerate(out[:-2]) if size > 1]
    rows, columns, depth = out[-2], out[-1], x[-1]
    (x_row, x_column), (y_row, y_column), (row, column) = (each[-2:] for each in steps)
    swapped = columns > 1 and column != 1
    if swapped:  # the transposed matmul
        batch = [Batch(size, second, first, third) for size, first, second, third in batch]
        rows, columns = columns, rows
        (x_row, x_column), (y_row, y_column), (row, column) = (
            (y_column, y_row), (x_column, x_row), (column, row)
        )  # fmt: skip
    batch, rows, x_row, row = _merged(batch, rows, x_row, row)
    left, right = _matrix(rows, depth, x_row, x_column), _matrix(depth, columns, y_row, y_column)
    made = _matrix(rows, columns, row, column)
    if left is None or right is None or made is None or made.turned or len(batch) > _MAX_DIMS:
        return None
    matrices, by_columns = math.prod(each.size for each in batch), columns > rows
    pieces, shares = _shares(matrices, max(rows, columns), matrices * work(rows, columns, depth), threads)
    dims = [[*(each[i] for each in batch), *[1] * (_MAX_DIMS - len(batch))] for i in range(4)]
    numbers = np.array([
        rows, columns, depth, left.step, right.step, made.step, left.turned, right.turned,
        by_loops(rows, columns, depth, left.turned, right.turned), by_columns, pieces, _UNIT,
        len(batch), *dims[0], *dims[1], *dims[2], *dims[3],
    ], np.int64)  # fmt: skip
    workers = min(threads, shares) - 1
    return Plan(swapped, matrices * pieces, shares, workers, blas.run, numbers, blas.gemm, blas.threads)


def _broadcast(shape: Shape, steps: Sequence[int], rank: int) -> Shape:
    """Return steps along `rank` dimensions, 0 if an operand has one element for all."""
    return (*[0] * (rank - len(shape)), *(0 if n == 1 else step for n, step in zip(shape, steps, strict=True)))


def _merged(batch: Sequence[Batch], rows: int, x_row: int, row: int) -> tuple[list[Batch], int, int, int]:
    """Return the batch with dimensions that continue the rows made rows, if y is the same for them, and adjacent ones
    merged."""
    left: list[Batch] = list(batch)
    while left and not left[-1].y and (rows == 1 or (left[-1].x, left[-1].out) == (rows * x_row, rows * row)):
        size, x_step, _, step = left.pop()
        if rows == 1:
            x_row, row = x_step, step
        rows *= size
    merged: list[Batch] = []
    for each in reversed(left):
        inner = merged[-1] if merged else None
        if inner is not None and each[1:] == tuple(inner.size * step for step in inner[1:]):
            merged[-1] = Batch(each.size * inner.size, *inner[1:])
        else:
            merged.append(each)
    return merged[::-1], rows, x_row, row


def _matrix(rows: int, columns: int, row: int, column: int) -> Matrix | None:
    """Return the matrix as BLAS sees it with these steps between rows and columns, or None."""
    if (columns == 1 or column == 1) and (rows == 1 or row >= columns):
        return Matrix(row if rows > 1 else columns, False)
    if (rows == 1 or row == 1) and (columns == 1 or column >= rows):
        return Matrix(column if columns > 1 else rows, True)
    return None


def by_loops(rows: int, columns: int, depth: int, left: bool, right: bool) -> int:
    """Return the kind of loops for a matmul: 0 for none; 1 for those that pack operands; 2 for those for few rows,
    which read y once. left, right: operands are transposed."""
    packs = rows * columns * depth > PACKS_NOTHING
    if rows <= FEW_ROWS and columns >= _UNIT and (packs or columns * depth > STREAMED):
        if not right or depth >= _UNIT * rows:  # vectors of partial sums are worth to be added up
            return 2
    return int(packs and columns >= (2 * _UNIT if left else _UNIT) and rows >= (2 if right else 4))


def work(rows: int, columns: int, depth: int) -> int:
    """Return the multiplications that take as long as the matmul; a matmul of few rows is limited by memory."""
    return max(rows, MIN_PACKED_ROWS) * columns * depth


def _shares(matrices: int, length: int, multiplications: int, threads: int) -> tuple[int, int]:
    """Return (pieces of a matrix, shares of all). Rows or columns are split, the longer side: every thread copies the
    other operand."""
    if threads == 1 or multiplications < SHARED:
        return 1, 1
    if matrices >= 4 * threads:
        return 1, 4 * threads
    pieces = min(threads // math.gcd(matrices, threads), -(-length // _UNIT))
    return pieces, min(threads, matrices * pieces)


class _Blas(NamedTuple):
    """run: the compiled function. gemm, threads: addresses of BLAS's functions."""

    run: Any
    gemm: int
    threads: tuple[int, int]


@functools.cache
def _blas(dtype: np.dtype) -> _Blas | None:
    """Return the functions for matmuls of this type; None without a compiler, or if NumPy has another BLAS."""
    gemm, threads = gemm_address(dtype), blas_threads()
    if gemm is None or threads is None:
        return None
    compiled = library()
    if compiled is None:
        return None
    run = compiled.product_float if dtype == np.float32 else compiled.product_double
    run.argtypes = [ctypes.c_void_p, *[ctypes.c_longlong] * 3]
    run.restype = None
    get, set_to = (ctypes.cast(cast("Any", function), ctypes.c_void_p).value or 0 for function in threads)
    return _Blas(run, gemm, (get, set_to))
