"""Base classes of mspc's own row operations. They work on one value, or on a block of equal-shaped values in one NumPy
pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.dataset.nodes.block import Column, column_of
from mspc.mindspore_api.dataset.pipeline_random import EagerDraws, PipelineDraws
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.setting_kind import place_of_caller, say_once


class Operation:
    """Operation on the values of a column. With several columns it applies to each.

    `many` is the only definition; a call on one value uses it too, so that both give the same numbers.
    """

    def many(self, values: np.ndarray, draws: PipelineDraws) -> Column:
        """Return the results for values [rows, ...]. The given array must not be changed."""
        raise NotImplementedError

    def column(self, values: Column, draws: PipelineDraws) -> Column:
        """Return the results for a column."""
        if isinstance(values, np.ndarray):
            return self.many(values, draws)
        results = [self.one(value, draws.at(i)) for i, value in enumerate(values)]
        return column_of(results) if all(isinstance(result, np.ndarray) for result in results) else results

    def one(self, value: Any, draws: PipelineDraws) -> Any:
        """Return the result for one value: an array, or an image of Pillow."""
        if hasattr(value, "getbands"):
            return self.of_image(value, draws)
        (result,) = self.many(as_array(type(self).__name__, value)[None], draws)
        return np.asarray(result, order="C")  # callers may use its memory

    def of_image(self, image: Any, draws: PipelineDraws) -> Any:
        """Return the result for an image of Pillow; by default that of its array."""
        return self.one(np.asarray(image), draws)

    def __call__(self, *values: Any) -> Any:
        """Return the results for one row. Raise TypeError or ValueError for values that the operation does not
        support."""
        draws = EagerDraws()
        results = tuple(self.one(value, draws) for value in values)
        return results[0] if len(results) == 1 else results

    def device(self, device_target: str = "CPU") -> Operation:
        """Choose the device of the operation. It always runs on the CPU; "Ascend" changes nothing, as a warning says.
        Raise ValueError for another device."""
        name = type(self).__name__
        if device_target not in ("CPU", "Ascend"):
            raise ApiValueError(f"{name}.device: {device_target!r} is neither 'CPU' nor 'Ascend'")
        if device_target == "Ascend":
            text = "device('Ascend') of an operation of a pipeline changes nothing here: it runs on the CPU"
            say_once("operation.device", f"{place_of_caller()}{text}")
        return self


class EachOperation(Operation):
    """Operation that works on one value after another."""

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        """Return the result for one value."""
        raise NotImplementedError

    def many(self, values: np.ndarray, draws: PipelineDraws) -> Column:
        return column_of([self.single(value, draws.at(i)) for i, value in enumerate(values)])


def as_array(operation: str, value: Any) -> np.ndarray:
    """Return a value as an array. Raise TypeError for a value that holds no numbers."""
    try:
        array = value.asnumpy() if isinstance(value, Tensor) else np.asarray(value)
    except ValueError:
        raise ApiTypeError(f"{operation}: takes an array or an image, not lists of different lengths") from None
    if array.dtype.kind == "O":
        raise ApiTypeError(f"{operation}: takes an array or an image, not {type(value).__name__}")
    return array


def require_numbers(operation: str, values: np.ndarray) -> None:
    """Raise TypeError for an array of strings."""
    if values.dtype.kind in "US":
        raise ApiTypeError(f"{operation}: takes numbers, not texts such as {values.reshape(-1)[0].item()!r}")


def flattened(operations: Sequence[Any]) -> list[Any]:
    """Return the operations with every Compose replaced by its members."""
    found: list[Any] = []
    for operation in operations:
        inner = getattr(operation, "in_sequence", None)
        found += flattened(inner) if inner is not None else [operation]
    return found


Step = tuple[Callable[..., Any], Any]
"""A function of NumPy and its second operand: a number, or an array of as many dimensions as the values."""


class Arithmetic(Operation):
    """Operation that moves axes, then computes in Float32 step by step, then converts, in this order.

    in_floats: whether it computes. output_type: element type of its result, or None for that of the values.
    """

    in_floats: ClassVar[bool] = False
    output_type: np.dtype | None = None

    def ordered(self, values: np.ndarray) -> np.ndarray:
        """Return the values, or an operand of earlier steps, as a view with the axes of the result."""
        return values

    def steps(self, values: np.ndarray) -> Sequence[Step]:
        """Return the computation for values with axes that are not moved yet. Raise ValueError for shapes that do not
        fit."""
        return ()

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        steps = self.steps(values)
        source = self.ordered(values)
        kind = np.dtype(source.dtype if self.output_type is None else self.output_type)
        computes = self.in_floats or kind == np.float32
        result = np.array(source, np.float32 if computes else kind, order="K" if source is values else "C")
        for function, operand in steps:
            ordered = self.ordered(operand) if np.ndim(operand) else operand
            function(result, _lines(ordered, result), out=result)
        return result.astype(kind, copy=False)


def _lines(operand: Any, result: np.ndarray) -> Any:
    """Spread an operand with one number per channel in the last dimension over whole lines: NumPy is slow for a last
    dimension of three."""
    if not np.ndim(operand) or operand.shape[-1] == 1 or result.strides[-1] != result.dtype.itemsize:
        return operand
    return np.ascontiguousarray(np.broadcast_to(operand, (*operand.shape[:-2], *result.shape[-2:])))


class PyTensorOperation:
    """Python operation on one value: scripts define `_execute_py(self, value)`, or `__call__` itself."""

    def __call__(self, *values: Any) -> Any:
        return self._execute_py(*values)

    def _execute_py(self, *values: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define _execute_py or __call__")
