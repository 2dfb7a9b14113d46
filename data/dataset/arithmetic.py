"""Arithmetic on columns of numbers is joined here: operations that follow each other go over memory once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.data.dataset.operation import Operation
from mspc.data.dataset.pipeline_random import PipelineDraws

AT_ONCE = 1 << 20
"""Numbers that go through all steps before the next ones; see `enlarging.AT_ONCE`."""
Step = tuple[Callable[..., Any], Any]
"""A function of NumPy and its second operand: a number, or an array of as many dimensions as the values."""
Room = Callable[[tuple[int, ...], np.dtype], np.ndarray | None]
"""Gives the memory for a result of a shape and type; None where there is none of the kind."""


class Arithmetic(Operation):
    """An operation that moves axes, computes in Float32 with one number after another, and converts, in this order.

    in_floats: whether it computes. output_type: element type of its result, None for that of the values.
    """

    in_floats: ClassVar[bool] = False
    output_type: np.dtype | None = None

    def ordered(self, values: np.ndarray) -> np.ndarray:
        """The values with their axes as the result has them, or an operand of earlier steps; a view."""
        return values

    def steps(self, values: np.ndarray) -> Sequence[Step]:
        """What is computed for values, whose axes are not moved yet. Raises ValueError for shapes that do not fit."""
        return ()

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return in_one_pass([self], values)


class Chain:
    """Operations of a map with the place of each; arithmetic that can go over memory once stands together."""

    def __init__(self, operations: Sequence[Any]) -> None:
        self.links: list[tuple[int, Any]] = []
        for place, operation in enumerate(operations):
            before = self.links[-1][1] if self.links else None
            if isinstance(before, list) and _follows(before[-1], operation):
                before.append(operation)
            else:
                self.links.append((place, [operation] if _is_plain(operation) else operation))


def _is_plain(operation: Any) -> bool:
    """Whether an operation is what its steps say: a subclass may do more."""
    return isinstance(operation, Arithmetic) and type(operation).many is Arithmetic.many


def _follows(before: Arithmetic, operation: Any) -> bool:
    return _is_plain(operation) and before.output_type in (None, np.float32)


def in_one_pass(operations: Sequence[Arithmetic], values: np.ndarray, room: Room | None = None) -> np.ndarray:
    """The values behind all operations, of which only the last converts to another type than Float32. The memory of
    the result is as `room` gives it; else in the order of its axes if they were moved, and as that of the values."""
    source = values
    steps: list[Step] = []
    for operation in operations:
        found = [*steps, *operation.steps(source)]
        source = operation.ordered(source)
        steps = [(function, operation.ordered(operand) if np.ndim(operand) else operand) for function, operand in found]
    floats = any(operation.in_floats or operation.output_type == np.float32 for operation in operations)
    kinds = [operation.output_type for operation in operations if operation.output_type is not None]
    kind = np.dtype(kinds[-1] if kinds else source.dtype)
    result = None if room is None else room(source.shape, kind)
    if result is None:
        result = np.empty_like(source, kind, order="K" if source is values else "C", subok=False)
    steps = [(function, _lines(operand, result)) for function, operand in steps]
    if not floats:
        np.copyto(result, source, casting="unsafe")
        return result
    _compute(source, steps, result)
    return result


def _compute(source: np.ndarray, steps: Sequence[Step], result: np.ndarray) -> None:
    """Result = the source behind steps in Float32, some rows after others."""
    rows = len(result)
    together = max(1, AT_ONCE // max(1, result[:1].size))
    in_place = result.dtype == np.float32
    scratch = result if in_place else np.empty_like(result[:together], np.float32)
    # NumPy moves axes faster where it does not convert.
    moves = source.dtype.itemsize < 4 and not _lies_as(source, result)
    for begin in range(0, rows, together):
        some = slice(begin, begin + together)
        numbers = result[some] if in_place else scratch[: min(together, rows - begin)]
        np.copyto(numbers, np.array(source[some], order="C") if moves else source[some], casting="unsafe")
        for function, operand in steps:
            function(numbers, operand, out=numbers)
        if not in_place:
            np.copyto(result[some], numbers, casting="unsafe")


def _lies_as(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether elements of two arrays of one shape lie in memory in the same order."""
    sizes = one.dtype.itemsize, other.dtype.itemsize
    return all(a * sizes[1] == b * sizes[0] for a, b in zip(one.strides, other.strides, strict=True))


def _lines(operand: Any, result: np.ndarray) -> Any:
    """An operand with numbers for channels in a last dimension, spread over whole lines: NumPy is slow over three."""
    if not np.ndim(operand) or operand.shape[-1] == 1 or result.strides[-1] != result.dtype.itemsize:
        return operand
    return np.ascontiguousarray(np.broadcast_to(operand, (*operand.shape[:-2], *result.shape[-2:])))
