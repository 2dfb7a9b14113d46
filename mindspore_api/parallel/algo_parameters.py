"""Options of the search for strategies and of its cost model in automatic mode."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mspc.mindspore_api import state
from mspc.mindspore_api.context import set_auto_parallel_context
from mspc.mindspore_api.errors import ApiKeyError, ApiTypeError, ApiValueError
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


def get_cost_model_context(attr_key: str) -> Any:
    """Return the weight that was set, or its default. Raise ValueError for an unknown one."""
    if attr_key not in _DEFAULTS:
        raise ApiValueError(f"get_cost_model_context has no option {attr_key!r}")
    return _stored(_COST_KEY).get(attr_key, _DEFAULTS[attr_key])


def reset_cost_model_context() -> None:
    """Reset every weight to its default."""
    _stored(_COST_KEY).clear()


class CostModelContext:
    """The weights as methods, `set_costmodel_alpha(1.0)` and `get_costmodel_alpha()`."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kind, _, key = name.partition("_")
        if kind not in ("get", "set") or key not in _DEFAULTS:
            raise AttributeError(name)
        if kind == "get":
            return lambda: get_cost_model_context(key)
        return lambda value: set_cost_model_context(**{key: value})

    reset_cost_model = staticmethod(reset_cost_model_context)


cost_model_context = CostModelContext


def _pair(key: str) -> tuple[Callable[..., None], Callable[[], Any]]:
    """Return the functions that set a weight, by default to True, and return it."""
    return lambda value=True: set_cost_model_context(**{key: value}), lambda: get_cost_model_context(key)


_set_multi_subgraphs, _get_multi_subgraphs = _pair("multi_subgraphs")
_set_algo_single_loop, _get_algo_single_loop = _pair("dp_algo_single_loop")
_set_rp_matmul_mem_coef, _get_rp_matmul_mem_coef = _pair("rp_matmul_mem_coef")


def set_op_strategy_config(mode: str = "SAVE", path: Any = "") -> None:
    """Set the file to which a compile saves the strategies of operators, or from which it loads them, like the entries
    operator_save_file and operator_load_file of `strategy_ckpt_config`.

    Args:
        mode: "SAVE" or "LOAD". path: an absolute path that ends in ".json".

    Raises KeyError for another mode, or a path that is not absolute or has another suffix; ValueError if there is no
    such file to load.
    """
    if not isinstance(path, str | os.PathLike) or not os.path.isabs(path):
        raise ApiKeyError(f"set_op_strategy_config: path {path!r} is not absolute")
    if os.path.splitext(path)[1] != ".json":
        raise ApiKeyError(f"set_op_strategy_config: path {path!r} does not end in '.json'")
    if mode not in ("SAVE", "LOAD"):
        raise ApiKeyError(f"set_op_strategy_config: mode {mode!r} is neither 'SAVE' nor 'LOAD'")
    entry = "operator_save_file" if mode == "SAVE" else "operator_load_file"
    set_auto_parallel_context(strategy_ckpt_config={entry: os.fspath(path)})
