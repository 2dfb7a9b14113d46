"""Operations on any column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.api.errors import ApiValueError
from mspc.ir.types import dtype_of


class TypeCast:
    """Another element type."""

    def __init__(self, output_type: Any) -> None:
        self.output_type = dtype_of(output_type).numpy

    def __call__(self, value: Any) -> np.ndarray:
        return np.asarray(value).astype(self.output_type)


class OneHot:
    """A class number as a vector of zeros with a one."""

    def __init__(self, num_classes: int, smoothing_rate: float = 0.0) -> None:
        self.num_classes = num_classes
        self.smoothing_rate = smoothing_rate

    def __call__(self, label: Any) -> np.ndarray:
        index = np.asarray(label)
        if index.min() < 0 or index.max() >= self.num_classes:
            raise ApiValueError(f"OneHot: label {label} is not below {self.num_classes}")
        hot = np.eye(self.num_classes, dtype=np.float32)[index]
        return hot * (1 - self.smoothing_rate) + self.smoothing_rate / self.num_classes


class Compose:
    """One operation after another."""

    def __init__(self, transforms: Sequence[Callable[..., Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, *values: Any) -> Any:
        result: Any = values
        for transform in self.transforms:
            result = transform(*result)
            result = result if isinstance(result, tuple) else (result,)
        return result if len(result) > 1 else result[0]


class Fill:
    """Every element replaced by a number."""

    def __init__(self, fill_value: Any) -> None:
        self.fill_value = fill_value

    def __call__(self, value: Any) -> np.ndarray:
        return np.full_like(np.asarray(value), self.fill_value)
