"""Operations on columns of any content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.types import dtype_of
from mspc.mindspore_api.dataset.operation import (
    Arithmetic,
    EachOperation,
    Operation,
    PyTensorOperation,  # noqa: F401  # for scripts
    Step,
    as_array,
)
from mspc.mindspore_api.dataset.pipeline_random import PipelineDraws
from mspc.mindspore_api.dataset.row_values import integer
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError


class TypeCast(Arithmetic):
    """Conversion to another element type, of mspc or NumPy. data_type: the older name of the argument."""

    def __init__(self, output_type: Any = None, data_type: Any = None) -> None:
        if (output_type is None) == (data_type is None):
            raise ApiTypeError(f"{type(self).__name__}: output_type is missing")
        self.output_type = np.dtype(dtype_of(data_type if output_type is None else output_type).numpy)

    def steps(self, values: np.ndarray) -> Sequence[Step]:
        if values.dtype.kind in "US":
            try:
                values.astype(self.output_type)
            except ValueError as error:
                raise ApiValueError(
                    f"TypeCast: cannot make {self.output_type} of {values.dtype}: {error}"
                ) from None
        return ()


class OneHot(Operation):
    """One-hot vector of a class number, in the number's type. With `smoothing_rate`, Float32 with that fraction of the
    one spread over all classes."""

    def __init__(self, num_classes: int, smoothing_rate: float = 0.0) -> None:
        self.num_classes = integer("OneHot", "num_classes", num_classes)
        if not 0 <= smoothing_rate <= 1:
            raise ApiValueError(f"OneHot: smoothing_rate {smoothing_rate} must be from 0 to 1")
        self.smoothing_rate = smoothing_rate

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if values.dtype.kind not in "iu":
            raise ApiTypeError(f"OneHot: a label is an integer, not {values.dtype}")
        if values.size and (values.min() < 0 or values.max() >= self.num_classes):
            wrong = values[(values < 0) | (values >= self.num_classes)].flat[0]
            raise ApiValueError(f"OneHot: label {wrong} is not from 0 to {self.num_classes - 1}")
        if not self.smoothing_rate:
            return np.eye(self.num_classes, dtype=values.dtype)[values]
        hot = np.eye(self.num_classes, dtype=np.float32)[values]
        return hot * np.float32(1 - self.smoothing_rate) + np.float32(self.smoothing_rate / self.num_classes)


class Fill(Operation):
    """Every element replaced by one number."""

    def __init__(self, fill_value: Any) -> None:
        self.fill_value = fill_value

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return np.full_like(values, self.fill_value)


class Compose:
    """Several operations in sequence."""

    def __init__(self, transforms: Sequence[Callable[..., Any]]) -> None:
        self.in_sequence = _listed("Compose", transforms)

    def __call__(self, *values: Any) -> Any:
        for transform in self.in_sequence:
            made = transform(*values)
            values = made if isinstance(made, tuple) else (made,)
        return values if len(values) > 1 else values[0]


class RandomApply:
    """Several operations in sequence, applied with probability `prob`, sampled from NumPy's global generator."""


    def __init__(self, transforms: Sequence[Callable[..., Any]], prob: float = 0.5) -> None:
        self.transform = Compose(_listed("RandomApply", transforms))
        if not 0 <= prob <= 1:
            raise ApiValueError(f"RandomApply: prob {prob} must be from 0 to 1")
        self.prob = prob

    def __call__(self, *values: Any) -> Any:
        if np.random.random() < self.prob:
            return self.transform(*values)
        return values if len(values) > 1 else values[0]


class RandomChoice:
    """One of some operations, sampled from NumPy's global generator."""

    def __init__(self, transforms: Sequence[Callable[..., Any]]) -> None:
        self.transforms = _listed("RandomChoice", transforms)

    def __call__(self, *values: Any) -> Any:
        return self.transforms[np.random.randint(len(self.transforms))](*values)


def _listed(name: str, transforms: Any) -> list[Any]:
    if not isinstance(transforms, (list, tuple)) or not transforms:
        raise ApiTypeError(f"{name}: transforms must be a list of operations, not {transforms!r}")
    for transform in transforms:
        if not callable(transform) or isinstance(transform, type):
            raise ApiTypeError(f"{name}: {transform!r} is no operation")
    return list(transforms)


class PadEnd(EachOperation):
    """Truncates or pads values at the end of every dimension to a shape; None keeps a size. pad_value: the fill value,
    by default 0 or an empty string."""

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


class Concatenate:
    """Concatenates one-dimensional values of one column or of several: `prepend`, the values, `append`. axis: 0 or
    -1."""

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
