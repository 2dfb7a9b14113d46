"""These operations slice, fill up, join, repeat and compare values of columns."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.operation import EachOperation, Operation, as_array
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.row_values import integer
from mspc.ir.types import dtype_of


class Relational(enum.Enum):
    """How `Mask` compares."""

    EQ = "eq"
    NE = "ne"
    GT = "gt"
    GE = "ge"
    LT = "lt"
    LE = "le"


class Mask(Operation):
    """Whether every element stands in a relation to a constant; Bool, or 0 and 1 in another type. operator: one of
    `Relational`."""

    def __init__(self, operator: Relational, constant: Any, dtype: Any = None) -> None:
        if not isinstance(operator, Relational):
            raise ApiTypeError(f"Mask: operator must be one of Relational, not {operator!r}")
        if not isinstance(constant, bool | int | float | str):
            raise ApiTypeError(f"Mask: constant must be a number or a string, not {constant!r}")
        self._operator, self._constant = operator, constant
        self._dtype = np.dtype(bool if dtype is None else dtype_of(dtype).numpy)

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if (values.dtype.kind in "US") != isinstance(self._constant, str):
            raise ApiTypeError(f"Mask: constant {self._constant!r} is not compared with {values.dtype}")
        compare: Callable[[Any, Any], Any] = getattr(operator, self._operator.value)
        return np.asarray(compare(values, self._constant)).astype(self._dtype)


class PadEnd(EachOperation):
    """Values truncated or filled up at the end of every dimension to a shape, None for a size that stays. pad_value:
    what they are filled up with, 0 or an empty string unless given."""

    def __init__(self, pad_shape: Sequence[int | None], pad_value: Any = None) -> None:
        if not isinstance(pad_shape, list | tuple) or not pad_shape:
            raise ApiTypeError(f"PadEnd: pad_shape must be a list of sizes, not {pad_shape!r}")
        self.shape = [None if size is None else integer("PadEnd", "a size", size) for size in pad_shape]
        self.value = pad_value

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if value.ndim != len(self.shape):
            raise ApiValueError(f"PadEnd: pad_shape {self.shape} does not fit a value of shape {value.shape}")
        texts = value.dtype.kind in "US"
        filling = ("" if texts else 0) if self.value is None else self.value
        if isinstance(filling, str) != texts:
            raise ApiTypeError(f"PadEnd: pad_value {filling!r} does not fit {value.dtype}")
        sizes = [have if wanted is None else wanted for have, wanted in zip(value.shape, self.shape, strict=True)]
        made = np.full(sizes, filling, np.result_type(value.dtype, np.array(filling).dtype) if texts else value.dtype)
        common = tuple(slice(0, min(pair)) for pair in zip(value.shape, sizes, strict=True))
        made[common] = value[common]
        return made


class Slice(Operation):
    """Parts of values along the first dimensions: an integer or a list of them takes places (the dimension stays), a
    slice a range, True or None all, and `...` all of the dimensions between."""

    def __init__(self, *slices: Any) -> None:
        for part in slices:
            places = part if isinstance(part, list) else [part]
            known = part is None or part is Ellipsis or isinstance(part, slice | bool)
            if not known and not all(isinstance(place, int) and not isinstance(place, bool) for place in places):
                raise ApiTypeError(f"Slice: {part!r} is no integer, list of integers, slice, bool, None or ...")
        if sum(part is Ellipsis for part in slices) > 1:
            raise ApiValueError("Slice: '...' stands more than once")
        self.slices = slices

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if len(self.slices) - (Ellipsis in self.slices) > values.ndim - 1:
            raise ApiValueError(f"Slice: {len(self.slices)} parts for a value of shape {values.shape[1:]}")
        first, last = self.slices, ()
        if Ellipsis in self.slices:
            place = self.slices.index(Ellipsis)
            first, last = self.slices[:place], self.slices[place + 1 :]
        for axis, part in [*enumerate(first, 1), *enumerate(last, values.ndim - len(last))]:
            values = self._taken(values, axis, part)
        return values

    def _taken(self, values: np.ndarray, axis: int, part: Any) -> np.ndarray:
        if part is None or part is True:
            return values
        if isinstance(part, slice):
            return values[(slice(None),) * axis + (part,)]
        places = part if isinstance(part, list) else [int(part)]
        size = values.shape[axis]
        for place in places:
            if not -size <= place < size:
                raise ApiValueError(f"Slice: place {place} is outside of a dimension of {size}")
        return np.take(values, places, axis)


class Concatenate:
    """Values of one dimension, of one column or of several, behind one another: `prepend`, the values, `append`.
    axis: 0 or -1."""

    def __init__(self, axis: int = 0, prepend: Any = None, append: Any = None) -> None:
        if axis not in (0, -1):
            raise ApiValueError(f"Concatenate: axis {axis!r} must be 0 or -1: values have one dimension")
        self.before = self._given("prepend", prepend)
        self.after = self._given("append", append)

    def _given(self, what: str, value: Any) -> list[np.ndarray]:
        if value is None:
            return []
        array = as_array("Concatenate", value)
        if array.ndim != 1:
            raise ApiValueError(f"Concatenate: {what} must have one dimension, not shape {array.shape}")
        return [array]

    def __call__(self, *values: Any) -> np.ndarray:
        parts = [*self.before, *(as_array("Concatenate", value) for value in values), *self.after]
        kinds = {part.dtype.kind if part.dtype.kind in "US" else part.dtype for part in parts}
        if len(kinds) > 1:
            raise ApiTypeError(f"Concatenate: values of {', '.join(sorted(map(str, kinds)))} are not of one type")
        if any(part.ndim != 1 for part in parts):
            raise ApiValueError(f"Concatenate: values must have one dimension, not {[part.ndim for part in parts]}")
        return np.concatenate(parts)


class Duplicate:
    """The value of one column twice."""

    def __call__(self, *values: Any) -> tuple[Any, Any]:
        (value,) = _single("Duplicate", values)
        return value, value


class Unique:
    """(every element once in the order in which they come first, where each element is among them, how often each
    comes), the places and counts Int32."""

    def __call__(self, *values: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        (value,) = _single("Unique", values)
        array = as_array("Unique", value).reshape(-1)
        found, first, places, counts = np.unique(array, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return found[order], rank[places.reshape(-1)].astype(np.int32), counts[order].astype(np.int32)


def _single(name: str, values: tuple[Any, ...]) -> tuple[Any]:
    if len(values) != 1:
        raise ApiTypeError(f"{name}: takes one column, not {len(values)}")
    return values
