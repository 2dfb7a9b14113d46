"""Values of rows, random orders of them, and checks of counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api import state
from mspc.api.common import seed
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError

Row = tuple[np.ndarray, ...]
_WHAT = 0x53687566


def as_column(value: Any) -> np.ndarray:
    """A value of a row as an array. Raises TypeError for what is no number, string or array."""
    array = value.value if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype.kind == "O":
        raise ApiTypeError(f"a column must hold numbers or arrays, not {type(value).__name__}")
    return array


def next_shuffle() -> int:
    """A number for a data set that draws random orders; ranks that build the same data sets get
    the same numbers.
    """
    session = state.current()
    session.shuffles += 1
    return session.shuffles


def shuffled_order(size: int, key: int, epoch: int) -> Any:
    """A random order of `size` rows."""
    return seed.generator(_WHAT, key, epoch).permutation(size)


def whole(function: str, what: str, value: Any, least: int = 1) -> int:
    """`value` as a count. Raises TypeError for no integer, ValueError below `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ApiTypeError(f"{function}: {what} must be an integer, not {value!r}")
    if value < least:
        raise ApiValueError(f"{function}: {what} {value} must be at least {least}")
    return int(value)
