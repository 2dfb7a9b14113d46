"""Options of the search for strategies in automatic mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mspc.mindspore_api import state
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.setting_kind import checked
from mspc.mindspore_api.settings import ALGORITHM

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    class AlgoParameters(TypedDict, total=False):
        """Keywords of `set_algo_parameters`, described in `settings.ALGORITHM`."""

        fully_use_devices: bool
        elementwise_op_strategy_follow: bool
        enable_algo_approxi: bool
        algo_approxi_epsilon: float
        tensor_slice_align_enable: bool
        tensor_slice_align_size: int


DEFAULTS: dict[str, Any] = {name: setting.default for name, setting in ALGORITHM.items()}
_KEY = "algo_parameters"


def set_algo_parameters(**values: Unpack[AlgoParameters]) -> None:
    """Set options of the search for strategies. They are checked and stored; sharding propagation does not use them, as
    a warning says. Raise ValueError for an unknown option, or a number out of range; TypeError for a value of the wrong
    type."""
    for key, value in values.items():
        _check(key, value)
    _stored(_KEY).update(checked("set_algo_parameters", ALGORITHM, values))


def get_algo_parameters(attr_key: str) -> Any:
    """Return the value of an option. Raise ValueError for an unknown one."""
    if attr_key not in DEFAULTS:
        raise _unknown("get_algo_parameters", attr_key)
    return _stored(_KEY).get(attr_key, DEFAULTS[attr_key])


def reset_algo_parameters() -> None:
    """Reset every option to its default."""
    _stored(_KEY).clear()


def _stored(key: str) -> dict[str, Any]:
    return state.current().general.setdefault(key, {})


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
