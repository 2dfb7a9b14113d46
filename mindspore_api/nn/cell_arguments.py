"""Checks of cells' arguments, and parameters made from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir.types import FLOAT32
from mspc.mindspore_api.common.initializers import initial_value
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.ops.operator_arguments import describe

__all__: tuple[str, ...] = ()


MAX_CELLS = 1 << 16
"""The most layers or parts of a batch that a cell makes."""


def positive(name: str, what: str, value: Any, most: int | None = None) -> int:
    """Return `value` as a size. Raise TypeError for no integer, ValueError below 1 or above `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiTypeError(f"{name}: {what} must be an integer, not {describe(value)}")
    if value < 1 or (most is not None and value > most):
        limit = "at least 1" if value < 1 else f"at most {most}"
        raise ApiValueError(f"{name}: {what} {describe(value)} must be {limit}")
    return value


def channel_groups(name: str, in_channels: Any, out_channels: Any, what: str, groups: Any) -> tuple[int, int, int]:
    """Return (in_channels, out_channels, groups), checked; `what` is the name of the groups.

    Raises TypeError for no integers, ValueError below 1, or if groups do not divide the channels.
    """
    ins, outs = positive(name, "in_channels", in_channels), positive(name, "out_channels", out_channels)
    if ins % positive(name, what, groups) or outs % groups:
        raise ApiValueError(f"{name}: in_channels {ins} and out_channels {outs} must be multiples of {what} {groups}")
    return ins, outs, groups


def check_format(name: str, data_format: Any, form: str) -> None:
    """Raise ValueError unless the order of an image's dimensions is `form`, the only one."""
    if data_format != form:
        raise ApiValueError(f"{name}: data_format must be {form!r}, not {data_format!r}")


def number(name: str, what: str, value: Any, least: float = 0.0, above: float | None = None) -> float:
    """Return `value` as a float. Raise TypeError for no number, ValueError if it is below `least`, or not above
    `above`."""
    if isinstance(value, Tensor) and value.size == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise ApiTypeError(f"{name}: {what} must be a number, not {value!r}")
    if above is not None and not value > above:
        raise ApiValueError(f"{name}: {what} {value} must be above {above:g}")
    if above is None and not value >= least:
        raise ApiValueError(f"{name}: {what} {value} must be at least {least:g}")
    return float(value)


def flag(name: str, what: str, value: Any) -> bool:
    """Return `value`, True or False. Raise TypeError for anything else."""
    if not isinstance(value, bool):
        raise ApiTypeError(f"{name}: {what} must be True or False, not {value!r}")
    return value


def check_beta(name: str, what: str, value: Any) -> float:
    """Return `value` as the decay of a moment. Raise TypeError for no number, ValueError if it is not in (0, 1)."""
    value = number(name, what, value)
    if not 0.0 < value < 1.0:
        raise ApiValueError(f"{name}: {what} {value} must be between 0 and 1")
    return value


def tensor_or_none(name: str, what: str, value: Any) -> Tensor | None:
    """Return `value`, a Tensor or None. Raise TypeError for anything else."""
    if value is not None and not isinstance(value, Tensor):
        raise ApiTypeError(f"{name}: {what} must be a Tensor or None, not {value!r}")
    return value


def class_weight(name: str, weight: Any) -> Tensor | None:
    """Return weights of classes, a vector, or None. Raise TypeError for no Tensor, ValueError for another rank."""
    weight = tensor_or_none(name, "weight", weight)
    if weight is not None and weight.ndim != 1:
        raise ApiValueError(f"{name}: weight has shape {weight.shape}, not one dimension, that of the classes")
    return weight


def parameter(init: Any, shape: tuple[int, ...], dtype: Any, name: str) -> Parameter:
    """Return a parameter from an initializer or from a Tensor of that shape. Raise ValueError for another shape."""
    if not isinstance(init, Tensor):
        return Parameter(initial_value(init, shape, dtype), name)
    if init.shape != shape:
        raise ApiValueError(f"{name}: the initial tensor has shape {init.shape}, not {shape}")
    return Parameter(init, name)


def scalar(value: float, name: str) -> Parameter:
    """Return a Float32 scalar that the graph reads and that is not trained."""
    return Parameter(Tensor(value, FLOAT32), name, requires_grad=False)
