"""mspc's own operations on rows work on one value, or on a block of equal ones in one pass of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.setting_kind import place_of_caller, say_once
from mspc.data.dataset.nodes.block import Column, column_of
from mspc.data.dataset.pillow import image_of
from mspc.data.dataset.pipeline_random import EagerDraws, PipelineDraws


class Operation:
    """An operation of mspc on values of a column; with several columns it does the same to each.

    `many` is the one definition; a call on one value takes the same way, so that both give the same numbers.
    """

    keeps_images: ClassVar[bool] = False
    """Whether it gives a Pillow image for a Pillow image."""

    def many(self, values: np.ndarray, draws: PipelineDraws) -> Column:
        """The results for values [rows, ...]; the array given may be changed nowhere."""
        raise NotImplementedError

    def many_images(self, values: np.ndarray, draws: PipelineDraws) -> Column:
        """The results for images of Pillow, as arrays; those for arrays, unless their numbers differ."""
        return self.many(values, draws)

    def column(self, values: Column, draws: PipelineDraws) -> Column:
        """The results for a column."""
        if isinstance(values, np.ndarray):
            return self.many(values, draws)
        results = [self.one(value, draws.at(i)) for i, value in enumerate(values)]
        return column_of(results) if all(isinstance(result, np.ndarray) for result in results) else results

    def one(self, value: Any, draws: PipelineDraws) -> Any:
        """The result for one value: an array, or a Pillow image."""
        array = as_array(type(self).__name__, value)
        work = self.many_images if is_image(value) else self.many
        (result,) = work(array[None], draws)
        result = np.asarray(result, order="C")  # whoever gets it may look at its memory
        return image_of(result) if self.keeps_images and is_image(value) else result

    def __call__(self, *values: Any) -> Any:
        """The results of one row. Raises TypeError or ValueError for what the operation cannot work on."""
        draws = EagerDraws()
        results = tuple(self.one(value, draws) for value in values)
        return results[0] if len(results) == 1 else results

    def device(self, device_target: str = "CPU") -> Operation:
        """Where the operation runs: on the CPU; "Ascend" changes nothing, as a warning says. Raises ValueError for
        another device."""
        name = type(self).__name__
        if device_target not in ("CPU", "Ascend"):
            raise ApiValueError(f"{name}.device: {device_target!r} is neither 'CPU' nor 'Ascend'")
        if device_target == "Ascend":
            text = "device('Ascend') of an operation of a pipeline changes nothing here: it runs on the CPU"
            say_once("operation.device", f"{place_of_caller()}{text}")
        return self


class EachOperation(Operation):
    """An operation that works on one value after another."""

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        """The result for one value."""
        raise NotImplementedError

    def single_image(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        """As `single` for an image of Pillow, as an array."""
        return self.single(value, draws)

    def many(self, values: np.ndarray, draws: PipelineDraws) -> Column:
        return column_of([self.single(value, draws.at(i)) for i, value in enumerate(values)])

    def many_images(self, values: np.ndarray, draws: PipelineDraws) -> Column:
        return column_of([self.single_image(value, draws.at(i)) for i, value in enumerate(values)])


def is_image(value: Any) -> bool:
    """Whether a value is an image of Pillow, which need not be installed to say so."""
    return hasattr(value, "getbands") and hasattr(value, "tobytes")


def as_array(operation: str, value: Any) -> np.ndarray:
    """Array of a value. Raises TypeError for what holds no numbers."""
    try:
        array = value.asnumpy() if isinstance(value, Tensor) else np.asarray(value)
    except ValueError:
        raise ApiTypeError(f"{operation}: takes an array or an image, not lists of different lengths") from None
    if array.dtype.kind == "O":
        raise ApiTypeError(f"{operation}: takes an array or an image, not {type(value).__name__}")
    return array


def require_numbers(operation: str, values: np.ndarray) -> None:
    """Raises TypeError for an array of texts."""
    if values.dtype.kind in "US":
        raise ApiTypeError(f"{operation}: takes numbers, not texts such as {values.reshape(-1)[0].item()!r}")


def flattened(operations: Sequence[Any]) -> list[Any]:
    """Operations one by one, those of every Compose in its place."""
    found: list[Any] = []
    for operation in operations:
        inner = getattr(operation, "in_sequence", None)
        found += flattened(inner) if inner is not None else [operation]
    return found
