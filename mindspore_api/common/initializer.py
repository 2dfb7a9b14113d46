"""`mindspore.common.initializer`: the function `initializer` and the classes of its names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mspc.ir.types import FLOAT32
from mspc.mindspore_api.common.initializers import (
    NAMED,
    Constant,
    HeNormal,
    HeUniform,
    Identity,
    Initializer,
    Normal,
    One,
    TruncatedNormal,
    Uniform,
    XavierNormal,
    XavierUniform,
    Zero,
    fan_of,
    fans,
    gain,
    initial_value,
)
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiValueError

__all__ = [
    "Constant", "HeNormal", "HeUniform", "Identity", "Initializer", "Normal", "One",
    "TruncatedNormal", "Uniform", "XavierNormal", "XavierUniform", "Zero", "initializer",
]  # fmt: skip

_calculate_fan_in_and_fan_out = _calculate_in_and_out = fans
_calculate_correct_fan = fan_of
_calculate_gain = gain
"""Their names in scripts with initializers of their own."""


def _assignment(arr: Any, num: Any) -> Any:
    """Fill an array, as scripts' own initializers do; the array."""
    arr[...] = np.asarray(num)
    return arr


def _register(*aliases: str) -> Callable[[type[Initializer]], type[Initializer]]:
    """Return a decorator that registers a script's own Initializer for `initializer` under its class name, in lower
    case, and aliases. Existing names are not replaced."""

    def register(kind: type[Initializer]) -> type[Initializer]:
        for name in (kind.__name__, *aliases):
            NAMED.setdefault(name.lower(), kind)
        return kind

    return register


def initializer(init: Any, shape: Any = None, dtype: Any = FLOAT32) -> Tensor:
    """Return a Tensor with values that are sampled when they are needed.

    Args:
        init: a name ("normal", "zeros", ...), a number, an Initializer, its class, or a Tensor of that shape.

    Raises TypeError or ValueError if `init` or `shape` is of the wrong kind.
    """
    if isinstance(init, Tensor):
        if shape is not None and tuple(shape) != init.shape:
            raise ApiValueError(f"initializer: the tensor has shape {init.shape}, not {tuple(shape)}")
        return init
    if shape is None:
        raise ApiValueError("initializer: shape is missing")
    return Tensor(initial_value(init, shape, dtype))
