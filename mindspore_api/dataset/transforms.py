"""Operations on columns of any content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.types import dtype_of
from mspc.mindspore_api.dataset.operation import (
    Arithmetic,
    Operation,
    PyTensorOperation,  # noqa: F401  # for scripts
    Step,
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
                raise ApiValueError(f"TypeCast: cannot make {self.output_type} of {values.dtype}: {error}") from None
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


def _listed(name: str, transforms: Any) -> list[Any]:
    if not isinstance(transforms, (list, tuple)) or not transforms:
        raise ApiTypeError(f"{name}: transforms must be a list of operations, not {transforms!r}")
    for transform in transforms:
        if not callable(transform) or isinstance(transform, type):
            raise ApiTypeError(f"{name}: {transform!r} is no operation")
    return list(transforms)
