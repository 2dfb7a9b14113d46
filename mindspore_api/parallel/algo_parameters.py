"""Options of the search for strategies and of its cost model in automatic mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mspc.mindspore_api import state
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.setting_kind import checked, place_of_caller, say_once
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


_DEFAULTS: dict[str, Any] = {
    "device_memory_capacity": 16 * 1024.0**3, "costmodel_alpha": 1.0, "costmodel_beta": 400.0, "costmodel_gamma": 0.001,
    "costmodel_communi_threshold": 2048.0, "costmodel_communi_const": 3072.0, "costmodel_communi_bias": 1024.0,
    "multi_subgraphs": False, "run_phase": 0, "costmodel_allreduce_fusion_algorithm": 0,
    "costmodel_allreduce_fusion_times": 0, "costmodel_allreduce_fusion_tail_percent": 0.1,
    "costmodel_allreduce_fusion_tail_time": 0.1, "costmodel_allreduce_fusion_allreduce_inherent_time": 0.1,
    "costmodel_allreduce_fusion_allreduce_bandwidth": 0.1, "costmodel_allreduce_fusion_computation_time_parameter": 0.1,
    "dp_algo_single_loop": True, "rp_matmul_mem_coef": 0.1,
}  # fmt: skip
_COST_KEY = "cost_model"


def set_cost_model_context(**kwargs: Any) -> None:
    """Store weights; a warning says that they change nothing. Raise ValueError for an unknown weight."""
    for name, value in kwargs.items():
        if name not in _DEFAULTS:
            raise ApiValueError(f"set_cost_model_context has no option {name!r}", [f"it takes {', '.join(_DEFAULTS)}"])
        if value != _DEFAULTS[name]:
            say_once(
                f"cost model {name}",
                f"{place_of_caller()}{name}={value!r} of the cost model changes nothing here: mspc estimates costs "
                "from the links and machines that it knows",
            )
        _stored(_COST_KEY)[name] = value


def _set_multi_subgraphs(value: bool = True) -> None:
    """Store whether a network has several subgraphs, as `set_cost_model_context(multi_subgraphs=...)`."""
    set_cost_model_context(multi_subgraphs=value)
