"""These functions make tensors."""

from __future__ import annotations

from typing import Any

import numpy

from mspc.api import ops
from mspc.api.numpy.promotion import as_type
from mspc.api.ops.function_arguments import element_type, sizes_of
from mspc.api.ops.numpy_arguments import (
    grid,
    line,
    made_line,
    made_of,
    number_kind,
    refuse,
    spaced,
)
from mspc.ir.types import FLOAT32, INT32

newaxis = None
"""A new dimension among the parts of an index."""


def array(obj: Any, dtype: Any = None, copy: bool = True, ndmin: int = 0) -> Any:
    """A tensor of numbers, of nested lists of them or of a tensor; numbers of Python are Int32, Float32 or Bool."""
    found = as_type(obj, dtype) if hasattr(obj, "shape") and hasattr(obj, "dtype") and _is_of_graph(obj) else made_of(
        "array", obj, dtype
    )  # fmt: skip
    missing = ndmin - len(found.shape)
    found = ops.reshape(found, (1,) * missing + found.shape) if missing > 0 else found
    return ops.deepcopy(found) if copy and found is obj else found


def _is_of_graph(obj: Any) -> bool:
    return not isinstance(obj, numpy.ndarray)


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    """One value; of a number in the element type that the number has in a tensor."""
    if hasattr(fill_value, "shape"):
        return ops.broadcast_to(as_type(fill_value, dtype), sizes_of([shape]))
    return ops.full(sizes_of([shape]), fill_value, dtype=number_kind(fill_value) if dtype is None else dtype)


def full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Any:
    """One value, of the shape and element type of a."""
    a = array(a)
    return full(a.shape if shape is None else shape, fill_value, a.dtype if dtype is None else dtype)


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Any:
    """Numbers from start, or from 0 to it where it is given alone, up to stop, without it, by step."""
    first, last, by = (0, start, 1) if stop is None else (start, stop, 1)
    by = by if step is None else step
    are_integers = isinstance(first, int) and isinstance(last, int) and isinstance(by, int)
    return ops.arange(first, last, by, dtype=(INT32 if are_integers else FLOAT32) if dtype is None else dtype)


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


def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Any:
    """Numbers from start to stop, each the same factor of the one before; axis has no choice."""
    exponents = line(0.0, 1.0, spaced("geomspace", (start, stop), num), endpoint)
    return made_line(start * (stop / start) ** exponents, dtype)


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
