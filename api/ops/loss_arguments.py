"""Arguments of losses and activations known at compile time are checked, and turned into what operators take.

Unlike them, these are called as they are when a network is compiled.
"""

from __future__ import annotations

import math
from typing import Any

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.ir.types import FLOAT32, DType
from mspc.ops.operator_arguments import describe

Shape = tuple[int, ...]
REDUCTIONS = ("mean", "sum", "none")


def check_reduction(name: str, reduction: Any, known: tuple[str, ...] = REDUCTIONS) -> None:
    """Raises ValueError for a way to reduce that is not among those `known`."""
    if reduction not in known:
        listed = ", ".join(map(repr, known[:-1]))
        raise ApiValueError(f"{name}(): reduction is {describe(reduction)}, not {listed} or {known[-1]!r}")


def check_number(name: str, what: str, value: Any, least: float = -math.inf, below: float = math.inf) -> None:
    """Raises TypeError for no number, ValueError for one that is not in [least, below)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ApiTypeError(f"{name}(): {what} must be a number, not {describe(value)}")
    if not least <= value < below:
        wanted = f"at least {least:g}" if below == math.inf else f"in [{least:g}, {below:g})"
        raise ApiValueError(f"{name}(): {what} is {value}, not {wanted}")


def check_form(name: str, approximate: Any) -> None:
    """Raises ValueError for a formula of GELU that there is not."""
    if approximate not in ("none", "tanh"):
        raise ApiValueError(f"{name}(): approximate is {describe(approximate)}, not 'none' or 'tanh'")


def check_classes(name: str, dtype: DType, ignore_index: Any) -> None:
    """Raises TypeError where classes are no integers."""
    if dtype.kind not in "iu":
        raise ApiTypeError(f"{name}(): the target is {dtype}, not integers that name classes")
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise ApiTypeError(f"{name}(): ignore_index must be an integer, not {describe(ignore_index)}")


def class_axis(name: str, shape: Shape) -> int:
    """The dimension of the classes: 1, or 0 of a vector. Raises ValueError for a scalar."""
    if not shape:
        raise ApiValueError(f"{name}(): the input is a scalar, it has no dimension of classes")
    return min(1, len(shape) - 1)


def check_target(name: str, shape: Shape, target: Shape, axis: int) -> None:
    """Raises ValueError where the target has not one class for each row of classes along `axis`."""
    wanted = (*shape[:axis], *shape[axis + 1 :])
    if target != wanted:
        raise ApiValueError(f"{name}(): the target has shape {target}, not {wanted} for an input of shape {shape}")


def class_shape(name: str, weight: Shape, shape: Shape, axis: int) -> Shape:
    """The shape in which one weight for each class stands along `axis`. Raises ValueError for another number of them.
    """
    if weight != (shape[axis],):
        raise ApiValueError(f"{name}(): weight has shape {weight}, not {(shape[axis],)}, one for each class")
    return (shape[axis],) + (1,) * (len(shape) - axis - 1)


def check_margins(shape: Shape, target: Shape, p: Any) -> None:
    """Raises ApiValueError where `multi_margin_loss` takes no such shapes or power."""
    if isinstance(p, bool) or p not in (1, 2):
        raise ApiValueError(f"multi_margin_loss(): p must be 1 or 2, not {describe(p)}")
    if len(shape) != 2 or target != shape[:1]:
        raise ApiValueError(
            f"multi_margin_loss(): input must be [rows, classes] and target [rows], not of shapes {shape} and {target}"
        )


def check_labels(shape: Shape, target: Shape) -> None:
    """Raises ApiValueError where `multilabel_margin_loss` takes no such shapes."""
    if len(shape) not in (1, 2) or target != shape:
        raise ApiValueError(
            f"multilabel_margin_loss(): input must be [rows, classes] or [classes] and target of its shape, not of "
            f"shapes {shape} and {target}"
        )


def wide(dtype: DType) -> DType:
    """The element type in which a long sum is taken: Float32 for narrower ones."""
    return FLOAT32 if dtype.is_float and dtype.itemsize < 4 else dtype
