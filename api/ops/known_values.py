"""What functions find in values that are known when a network is compiled: places, distinct elements, counts. They are
called as the functions are, whose names messages show."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.ops.function_arguments import Shape, axis_of, least
from mspc.ir.types import INT32
from mspc.ops.operator_arguments import describe


def _known(name: str, what: str, value: Any) -> np.ndarray:
    """The values. Raises TypeError where they are computed by the network."""
    if isinstance(value, Tensor):
        return value.array
    if isinstance(value, np.ndarray):
        return value
    reason = "the shape of the result depends on it, and it is not known at compile time"
    raise ApiTypeError(f"{name}(): {what} is {describe(value)}; {reason}", ["call it outside of the network"])


def masked_select(mask: Any, shape: Shape, name: str = "masked_select") -> tuple[Shape, Tensor]:
    """(the shape that a tensor and the mask have together, places of its elements in their order where that is true).

    Raises:
        TypeError: the mask is not Bool. ValueError: the shapes do not fit.
    """
    known = _known(name, "mask", mask)
    if known.dtype != bool:
        raise ApiTypeError(f"{name}(): mask must be Bool, not {mask.dtype}")
    try:
        result_shape = np.broadcast_shapes(known.shape, shape)
    except ValueError:
        raise ApiValueError(f"{name}(): a mask of shape {known.shape} does not fit a tensor of {shape}") from None
    return result_shape, Tensor.from_array(np.flatnonzero(np.broadcast_to(known, result_shape)).astype(np.int64))


def masked_scatter(mask: Any, shape: Shape) -> Tensor:
    """Places in their order where the mask is true."""
    return masked_select(mask, shape, "masked_scatter")[1]


def unique(x: Any) -> tuple[Tensor, Tensor]:
    """(elements in the order in which they come first, the place of each among them)."""
    array = _known("unique", "input", x)
    values, first, inverse = np.unique(array.reshape(-1), return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return Tensor.from_array(values[order]), Tensor.from_array(place[inverse].reshape(array.shape).astype(np.int32))


def unique_with_pad(x: Any, number: Any) -> tuple[Tensor, Tensor]:
    """`unique`, its elements followed by a number up to the length of x; places are Int32 for Int32, else Int64."""
    values, places = unique(x)
    found = np.full(places.size, number, values.array.dtype)
    found[: values.size] = values.array
    kind = np.int32 if values.dtype == INT32 else np.int64
    return Tensor.from_array(found), Tensor.from_array(places.array.astype(kind))


def unique_consecutive(x: Any, inverse: Any, counts: Any, dim: Any) -> Any:
    """The first of every run of equal elements, or of slices along a dimension, and what is asked of the runs."""
    array = _known("unique_consecutive", "input", x)
    rows = array.reshape(-1) if dim is None else np.moveaxis(array, axis_of("unique_consecutive", dim, array.ndim), 0)
    changes = rows[1:] != rows[:-1]
    starts = np.concatenate([[True] * min(1, len(rows)), changes.reshape(len(changes), -1).any(1)]).astype(bool)
    values = rows[starts] if dim is None else np.moveaxis(rows[starts], 0, dim)
    run = np.cumsum(starts) - 1
    found = [Tensor.from_array(np.ascontiguousarray(values))]
    if inverse:
        found.append(Tensor.from_array(run.reshape(array.shape if dim is None else -1).astype(np.int64)))
    if counts:
        found.append(Tensor.from_array(np.bincount(run, minlength=0).astype(np.int64)))
    return tuple(found) if len(found) > 1 else found[0]


def unique_sorted(x: Any, inverse: Any, counts: Any, dim: Any) -> Any:
    """Every element, or slice along a dimension, once and in order, and what is asked of them."""
    array = _known("unique", "input", x)
    axis = None if dim is None else axis_of("unique", dim, array.ndim)
    values, place, count = np.unique(array, return_inverse=True, return_counts=True, axis=axis)
    found = [Tensor.from_array(values)]
    if inverse:
        found.append(Tensor.from_array(place.reshape(array.shape if dim is None else -1).astype(np.int64)))
    if counts:
        found.append(Tensor.from_array(count.astype(np.int64)))
    return tuple(found) if len(found) > 1 else found[0]


def bincount(x: Any, minlength: Any) -> tuple[Tensor, int]:
    """(a vector of integers from 0 on, how many numbers are to be counted).

    Raises:
        ValueError: it is no vector, or holds other numbers.
    """
    array = _known("bincount", "input", x)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 0).any():
        raise ApiValueError(f"bincount(): input must be a vector of integers from 0 on, not {describe(x)}")
    return Tensor.from_array(array), max(least("bincount", "minlength", minlength, 0), int(array.max(initial=-1)) + 1)


def sequence_mask(lengths: Any) -> int:
    """The greatest of integers."""
    return int(_known("sequence_mask", "lengths", lengths).max(initial=0))
