"""Arguments of products, norms and splits of tensors are checked when a network is compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mspc.api.errors import ApiValueError
from mspc.api.ops.function_arguments import Shape, axis_of, ints, least
from mspc.ops.operator_arguments import describe


def contracted(name: str, axes: Any, left: Shape, right: Shape) -> tuple[Shape, Shape]:
    """Dimensions of two tensors over which their products are added up: the last `axes` of the left one and the first
    of the right one, or those that a pair of numbers or lists names.

    Raises:
        ValueError: dimensions are missing, or sizes differ.
    """
    if isinstance(axes, int):
        if not 0 <= axes <= min(len(left), len(right)):
            raise ApiValueError(f"{name}(): axes {axes} is not from 0 to {min(len(left), len(right))}")
        mine, theirs = range(len(left) - axes, len(left)), range(axes)
    elif isinstance(axes, (tuple, list)) and len(axes) == 2:
        first, second = (ints(name, "axes", [entry] if isinstance(entry, int) else entry) for entry in axes)
        mine = [axis_of(name, axis, len(left)) for axis in first]
        theirs = [axis_of(name, axis, len(right)) for axis in second]
    else:
        raise ApiValueError(f"{name}(): axes must be a number or a pair of lists, not {describe(axes)}")
    if [left[d] for d in mine] != [right[d] for d in theirs]:
        raise ApiValueError(
            f"{name}(): dimensions {tuple(mine)} of {tuple(left)} do not fit dimensions {tuple(theirs)} of "
            f"{tuple(right)}"
        )
    return tuple(mine), tuple(theirs)


def size_over(shape: Shape, dims: Sequence[int]) -> int:
    """The number of elements over some dimensions."""
    return math.prod(shape[d] for d in dims)


def refuse_check(name: str, error_if_nonfinite: Any) -> None:
    """Raises ValueError where a function is to look at what a tensor holds."""
    if error_if_nonfinite:
        raise ApiValueError(f"{name}(): error_if_nonfinite=True: contents are not known when a network is compiled")


def split_sizes(name: str, wanted: Any, size: int) -> tuple[Any, ...]:
    """The sizes of so many parts, of which the first ones are longer by one; of places between them (place, size).

    Raises:
        ValueError: there are less than one part, or what is listed are no integers.
    """
    if isinstance(wanted, int):
        count = least(name, "indices_or_sections", wanted, 1)
        return tuple(size // count + (i < size % count) for i in range(count))
    if not isinstance(wanted, tuple | list):
        raise ApiValueError(f"{name}(): indices_or_sections must be an integer, a tuple or a list, not {wanted!r}")
    places = [slice(None, place).indices(size)[1] for place in ints(name, "indices_or_sections", wanted)]
    return tuple((first, max(0, last - first)) for first, last in zip([0, *places], [*places, size], strict=True))
