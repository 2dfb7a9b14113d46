"""MindSpore's private `parallel._cost_model_context` has weights of the model by which it searches for strategies. mspc
has a model of its own, so that they change nothing, as a warning says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.api import state
from mspc.api.errors import ApiValueError
from mspc.api.setting_kind import place_of_caller, say_once

_DEFAULTS: dict[str, Any] = {
    "device_memory_capacity": 16 * 1024.0**3, "costmodel_alpha": 1.0, "costmodel_beta": 400.0, "costmodel_gamma": 0.001,
    "costmodel_communi_threshold": 2048.0, "costmodel_communi_const": 3072.0, "costmodel_communi_bias": 1024.0,
    "multi_subgraphs": False, "run_phase": 0, "costmodel_allreduce_fusion_algorithm": 0,
    "costmodel_allreduce_fusion_times": 0, "costmodel_allreduce_fusion_tail_percent": 0.1,
    "costmodel_allreduce_fusion_tail_time": 0.1, "costmodel_allreduce_fusion_allreduce_inherent_time": 0.1,
    "costmodel_allreduce_fusion_allreduce_bandwidth": 0.1, "costmodel_allreduce_fusion_computation_time_parameter": 0.1,
    "dp_algo_single_loop": True, "rp_matmul_mem_coef": 0.1,
}  # fmt: skip
_KEY = "cost_model"


def set_cost_model_context(**kwargs: Any) -> None:
    """Store weights, and say that they change nothing.

    Raises:
        ValueError: there is no such weight.
    """
    for name, value in kwargs.items():
        if name not in _DEFAULTS:
            raise ApiValueError(f"set_cost_model_context has no option {name!r}", [f"it takes {', '.join(_DEFAULTS)}"])
        if value != _DEFAULTS[name]:
            say_once(
                f"cost model {name}",
                f"{place_of_caller()}{name}={value!r} of the cost model changes nothing here: mspc estimates costs "
                "from the links and machines that it knows",
            )
        _stored()[name] = value


def get_cost_model_context(attr_key: str) -> Any:
    """The weight that was set, or its default. Raises ValueError for an unknown one."""
    if attr_key not in _DEFAULTS:
        raise ApiValueError(f"get_cost_model_context has no option {attr_key!r}")
    return _stored().get(attr_key, _DEFAULTS[attr_key])


def reset_cost_model_context() -> None:
    """Give every weight its default."""
    _stored().clear()


def _stored() -> dict[str, Any]:
    return state.current().general.setdefault(_KEY, {})


class CostModelContext:
    """The weights as methods, `set_costmodel_alpha(1.0)` and `get_costmodel_alpha()`."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kind, _, key = name.partition("_")
        if kind not in ("get", "set") or key not in _DEFAULTS:
            raise AttributeError(name)
        if kind == "get":
            return lambda: get_cost_model_context(key)
        return lambda value: set_cost_model_context(**{key: value})

    def reset_cost_model(self) -> None:
        """Give every weight its default."""
        reset_cost_model_context()


def cost_model_context() -> CostModelContext:
    """The weights as methods."""
    return CostModelContext()


def _set_multi_subgraphs(multi_subgraph: bool = True) -> None:
    set_cost_model_context(multi_subgraphs=multi_subgraph)


def _get_multi_subgraphs() -> bool:
    return get_cost_model_context("multi_subgraphs")


def _set_algo_single_loop(single_loop: bool = True) -> None:
    set_cost_model_context(dp_algo_single_loop=single_loop)


def _get_algo_single_loop() -> bool:
    return get_cost_model_context("dp_algo_single_loop")


def _set_rp_matmul_mem_coef(coef: float) -> None:
    set_cost_model_context(rp_matmul_mem_coef=coef)


def _get_rp_matmul_mem_coef() -> float:
    return get_cost_model_context("rp_matmul_mem_coef")
