"""`set_algo_parameters` sets options of the search for strategies in automatic mode."""

from __future__ import annotations

from typing import Any

from mspc.api import state
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.setting_kind import checked
from mspc.api.settings import ALGORITHM

DEFAULTS: dict[str, Any] = {name: setting.default for name, setting in ALGORITHM.items()}
_KEY = "algo_parameters"


def set_algo_parameters(**values: Any) -> None:
    """Set options of the search for strategies. They are checked and stored; sharding propagation has no use for them,
    as a warning says.

    Raises:
        ValueError: an option is not known, or a number lies outside its range. TypeError: a value of the wrong type.
    """
    for key, value in values.items():
        _check(key, value)
    _stored().update(checked("set_algo_parameters", ALGORITHM, values))


def get_algo_parameters(attr_key: str) -> Any:
    """The value of an option. Raises ValueError for an unknown one."""
    if attr_key not in DEFAULTS:
        raise _unknown("get_algo_parameters", attr_key)
    return _stored().get(attr_key, DEFAULTS[attr_key])


def reset_algo_parameters() -> None:
    """Give every option its default."""
    _stored().clear()


def _stored() -> dict[str, Any]:
    return state.current().general.setdefault(_KEY, {})


def _check(key: str, value: Any) -> None:
    if key not in DEFAULTS:
        raise _unknown("set_algo_parameters", key)
    kind = type(DEFAULTS[key])
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
        raise ApiTypeError(f"set_algo_parameters: {key} must be of type {kind.__name__}, not {value!r}")
    if key == "algo_approxi_epsilon" and not 0 < value <= 1:
        raise ApiValueError(f"set_algo_parameters: algo_approxi_epsilon {value} must be in (0, 1]")
    if key == "tensor_slice_align_size" and not 1 <= value <= 1024:
        raise ApiValueError(f"set_algo_parameters: tensor_slice_align_size {value} must be from 1 to 1024")


def _unknown(function: str, key: str) -> ApiValueError:
    return ApiValueError(f"{function} has no option {key!r}", [f"it takes {', '.join(DEFAULTS)}"])
