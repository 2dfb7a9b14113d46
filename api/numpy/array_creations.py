"""Functions that make tensors."""

from __future__ import annotations

from typing import Any

import numpy

from mspc.api import ops
from mspc.api.numpy.promotion import as_type
from mspc.api.ops.arguments import element_type, sizes_of
from mspc.api.ops.numpy_arguments import (
    grid,
    line,
    made_line,
    made_of,
    number_kind,
    refuse,
    spaced,
    triangle,
    window,
)
from mspc.ir.types import FLOAT32, INT32


def array(obj: Any, dtype: Any = None, copy: bool = True, ndmin: int = 0) -> Any:
    """A tensor of numbers, of nested lists of them or of a tensor; numbers of Python are Int32, Float32 or Bool."""
    found = as_type(obj, dtype) if hasattr(obj, "shape") and hasattr(obj, "dtype") and _is_of_graph(obj) else made_of(
        "array", obj, dtype
    )  # fmt: skip
    missing = ndmin - len(found.shape)
    return ops.reshape(found, (1,) * missing + found.shape) if missing > 0 else found


def _is_of_graph(obj: Any) -> bool:
    return not isinstance(obj, numpy.ndarray)


def asarray(a: Any, dtype: Any = None) -> Any:
    """As `array`."""
    return array(a, dtype)


def asfarray(a: Any, dtype: Any = FLOAT32) -> Any:
    """As `array`, in a floating-point type."""
    return array(a, dtype)


def zeros(shape: Any, dtype: Any = FLOAT32) -> Any:
    """Zeros."""
    return ops.zeros(sizes_of([shape]), element_type(dtype))


def ones(shape: Any, dtype: Any = FLOAT32) -> Any:
    """Ones."""
    return ops.ones(sizes_of([shape]), element_type(dtype))


def empty(shape: Any, dtype: Any = FLOAT32) -> Any:
    """Zeros: no memory is left as it is."""
    return ops.zeros(sizes_of([shape]), element_type(dtype))


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    """One value; of a number in the element type that the number has in a tensor."""
    if hasattr(fill_value, "shape"):
        return ops.broadcast_to(as_type(fill_value, dtype), sizes_of([shape]))
    return ops.full(sizes_of([shape]), fill_value, dtype=number_kind(fill_value) if dtype is None else dtype)


def zeros_like(a: Any, dtype: Any = None, shape: Any = None) -> Any:
    """Zeros of the shape and element type of a."""
    return full_like(a, 0, dtype, shape)


def ones_like(a: Any, dtype: Any = None, shape: Any = None) -> Any:
    """Ones of the shape and element type of a."""
    return full_like(a, 1, dtype, shape)


def empty_like(prototype: Any, dtype: Any = None, shape: Any = None) -> Any:
    """Zeros of the shape and element type of a tensor."""
    return full_like(prototype, 0, dtype, shape)


def full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Any:
    """One value, of the shape and element type of a."""
    a = array(a)
    return full(a.shape if shape is None else shape, fill_value, a.dtype if dtype is None else dtype)


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Any:
    """Numbers from start, or from 0 to it where it stands alone, up to stop, without it, by step."""
    first, last, by = (0, start, 1) if stop is None else (start, stop, 1)
    by = by if step is None else step
    whole = isinstance(first, int) and isinstance(last, int) and isinstance(by, int)
    return ops.arange(first, last, by, dtype=(INT32 if whole else FLOAT32) if dtype is None else dtype)


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None, axis: int = 0
) -> Any:
    """`num` numbers from start to stop, Float32; and how far they are apart, with retstep. start and stop are numbers,
    so that axis has no choice."""
    count = spaced("linspace", (start, stop), num)
    found = made_line(line(start, stop, count, endpoint), dtype)
    if retstep:
        return found, made_of("linspace", (stop - start) / max(count - 1 if endpoint else count, 1))
    return found


def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Any:
    """Powers of base with exponents from start to stop, numbers, so that axis has no choice."""
    return made_line(base ** line(start, stop, spaced("logspace", (start, stop), num), endpoint), dtype)


def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Any:
    """Numbers from start to stop, each the same factor of the one before; axis has no choice."""
    exponents = line(0.0, 1.0, spaced("geomspace", (start, stop), num), endpoint)
    return made_line(start * (stop / start) ** exponents, dtype)


def eye(N: int, M: Any = None, k: int = 0, dtype: Any = FLOAT32) -> Any:
    """Ones on diagonal k of an N x M matrix."""
    return made_of("eye", numpy.eye(N, M, k), element_type(dtype))


def identity(n: int, dtype: Any = FLOAT32) -> Any:
    """Ones on the diagonal of an n x n matrix."""
    return eye(n, dtype=dtype)


def tri(N: int, M: Any = None, k: int = 0, dtype: Any = FLOAT32) -> Any:
    """Ones on and below diagonal k of an N x M matrix."""
    return made_of("tri", numpy.tri(N, M, k), element_type(dtype))


def tril(m: Any, k: int = 0) -> Any:
    """m on and below diagonal k, 0 above."""
    return ops.tril(m, k)


def triu(m: Any, k: int = 0) -> Any:
    """m on and above diagonal k, 0 below."""
    return ops.triu(m, k)


def tril_indices(n: int, k: int = 0, m: Any = None) -> Any:
    """Rows and columns of the elements on and below diagonal k of an n x m matrix."""
    return triangle("tril", n, k, m)


def triu_indices(n: int, k: int = 0, m: Any = None) -> Any:
    """Rows and columns of the elements on and above diagonal k of an n x m matrix."""
    return triangle("triu", n, k, m)


def tril_indices_from(arr: Any, k: int = 0) -> Any:
    """`tril_indices` of the shape of a matrix."""
    return triangle("tril", arr.shape[0], k, arr.shape[1])


def triu_indices_from(arr: Any, k: int = 0) -> Any:
    """`triu_indices` of the shape of a matrix."""
    return triangle("triu", arr.shape[0], k, arr.shape[1])


def diag_indices(n: int, ndim: int = 2) -> Any:
    """The places on the diagonal of a tensor with ndim dimensions of n elements."""
    return (arange(n),) * ndim


def indices(dimensions: Any, dtype: Any = INT32, sparse: bool = False) -> Any:
    """For every dimension the place of each element along it, a tuple."""
    if sparse:
        refuse("indices", "sparse=True")
    return tuple([as_type(part, element_type(dtype)) for part in grid(tuple(dimensions))])


def meshgrid(*xi: Any, sparse: bool = False, indexing: str = "xy") -> Any:
    """Coordinates of a grid from those along every dimension, a tuple."""
    if sparse:
        refuse("meshgrid", "sparse=True")
    return ops.meshgrid(*xi, indexing=indexing)


def diagflat(v: Any, k: int = 0) -> Any:
    """A matrix with the elements of v on diagonal k."""
    flat = ops.reshape(array(v), (-1,))
    if k == 0:
        return ops.diag(flat)
    return ops.diag_embed(flat, k)


def vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    """Powers of the elements of a vector, a row for each, the highest first unless `increasing`."""
    count = x.shape[0] if N is None else N
    powers = list(range(count)) if increasing else list(range(count))[::-1]
    columns = [ops.ones_like(x) if p == 0 else ops.pow(x, p) for p in powers]
    return ops.stack(columns, 1)


def bartlett(M: int) -> Any:
    """A triangle of M weights."""
    return window("bartlett", M)


def blackman(M: int) -> Any:
    """A Blackman window of M weights."""
    return window("blackman", M)


def hamming(M: int) -> Any:
    """A Hamming window of M weights."""
    return window("hamming", M)


def hanning(M: int) -> Any:
    """A Hann window of M weights."""
    return window("hanning", M)


def rand(*shape: Any, dtype: Any = FLOAT32) -> Any:
    """Random numbers in [0, 1)."""
    return ops.rand(*sizes_of(shape), dtype=dtype)


def randn(*shape: Any, dtype: Any = FLOAT32) -> Any:
    """Normally distributed random numbers."""
    return ops.randn(*sizes_of(shape), dtype=dtype)


def copy(a: Any) -> Any:
    """The same values."""
    return array(a)


