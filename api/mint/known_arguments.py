"""This module checks arguments of functions of `mint` that are known at compile time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.ops.function_arguments import Shape, ints, shape_of_sizes
from mspc.api.setting_kind import place_of_caller, say_once
from mspc.ops.operator_arguments import describe


def on_device(name: str, device: Any) -> None:
    """Says once that no device is chosen by an argument."""
    if device is not None:
        say_once(
            f"mint {name} device",
            f"{place_of_caller()}mint.{name}(device={device!r}) changes nothing: tensors are where the run is, "
            "see set_context(device_target=...)",
        )


def limits(name: str, given: Sequence[Any]) -> tuple[int, int, Any]:
    """(low, high, size) of a call (high, size) or (low, high, size). Raises TypeError for another call."""
    if len(given) not in (2, 3) or any(isinstance(n, bool) or not isinstance(n, int) for n in given[:-1]):
        raise ApiTypeError(f"{name}(): it takes (high, size) or (low, high, size), not {describe(tuple(given))}")
    return (0, *given) if len(given) == 2 else tuple(given)  # type: ignore[return-value]  # three


def sample_shape(name: str, mean: Any, std: Any, size: Any) -> Shape:
    """The shape of what is sampled: `size`, or that of mean and deviation together. Raises ValueError where all are
    numbers and no size is given."""
    if size is not None:
        return shape_of_sizes(name, ints(name, "size", size))
    shapes = [x.shape for x in (mean, std) if hasattr(x, "shape")]
    if not shapes:
        raise ApiValueError(f"{name}(): size must be given where mean and std are numbers")
    return np.broadcast_shapes(*shapes)


def not_in_place(name: str, inplace: Any) -> None:
    """Says once that a function leaves its input as it is."""
    if inplace:
        say_once(
            f"mint {name} inplace",
            f"{place_of_caller()}{name}(inplace=True) leaves its input as it is: what counts is its result",
        )


def implicit_dim(rank: int) -> int:
    """The dimension of a softmax that is given none: 0 of 0, 1 or 3 dimensions, else 1, as PyTorch has it."""
    return 0 if rank in (0, 1, 3) else 1
