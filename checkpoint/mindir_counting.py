"""This module finds scalars of a `.mindir` file that are known before it runs; with them loops count their steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.checkpoint.mindir_operators import OTHER_NAMES, dtype_of_code

_RESULTS: dict[str, Callable[..., Any]] = {
    "Less": np.less, "LessEqual": np.less_equal, "Greater": np.greater, "GreaterEqual": np.greater_equal,
    "Equal": np.equal, "NotEqual": np.not_equal, "Add": np.add, "Sub": np.subtract, "Mul": np.multiply,
    "FloorDiv": np.floor_divide, "FloorMod": np.mod, "LogicalAnd": np.logical_and, "LogicalOr": np.logical_or,
    "LogicalNot": np.logical_not,
}  # fmt: skip


def is_scalar(value: Any) -> bool:
    """Whether a constant is one number."""
    return isinstance(value, bool | int | float) or (isinstance(value, np.ndarray) and value.ndim == 0)


def scalar_result(operator: str, operands: Sequence[Any]) -> np.ndarray | None:
    """What an operator gives of known scalars, or None where that is not known here."""
    if operator == "Cast" and len(operands) == 2:
        try:
            return np.asarray(operands[0]).astype(dtype_of_code(operands[1]).numpy)
        except KeyError:
            return None
    function = _RESULTS.get(OTHER_NAMES.get(operator, operator))
    if function is None or len(operands) != getattr(function, "nin", 0):
        return None
    try:
        with np.errstate(all="ignore"):
            return np.asarray(function(*operands))
    except (TypeError, OverflowError):
        return None
