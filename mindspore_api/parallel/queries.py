"""MindSpore's private `parallel._utils`: queries of training steps about the parallel settings of a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.mindspore_api import context, state
from mspc.mindspore_api.context import _reset_auto_parallel_context  # noqa: F401  # scripts import it from here
from mspc.mindspore_api.errors import ApiRuntimeError, ApiValueError

_SHARDED = ("semi_auto_parallel", "auto_parallel")


def _setting(key: str, value: Any = None) -> Callable[[], Any]:
    """Return a function that returns a setting of `set_auto_parallel_context`, or whether it is `value`."""
    if value is None:
        return lambda: context.get_auto_parallel_context(key)
    return lambda: context.get_auto_parallel_context(key) == value


_get_parallel_mode, _get_pipeline_stages = _setting("parallel_mode"), _setting("pipeline_stages")
_get_global_rank, _get_full_batch = _setting("global_rank"), _setting("full_batch")
_get_gradients_mean, _get_parameter_broadcast = _setting("gradients_mean"), _setting("parameter_broadcast")
_get_enable_parallel_optimizer = _setting("enable_parallel_optimizer")
_is_in_data_parallel_mode = _setting("parallel_mode", "data_parallel")
_is_in_hybrid_parallel_mode = _setting("parallel_mode", "hybrid_parallel")
_is_sharding_propagation = _setting("search_mode", "sharding_propagation")


def _get_device_num() -> int:
    """Return the number of ranks."""
    return context.get_auto_parallel_context("device_num") or state.current().size


_get_stage_device_num = _get_device_num  # there is one stage


def _get_grad_accumulation_shard() -> bool:
    """Return whether accumulated gradients are sharded by a setting: always False, because they are sharded like their
    parameters."""
    return False


def _is_parallel_mode() -> bool:
    """Return whether one graph is sharded for all ranks, or ranks add up gradients."""
    return _get_parallel_mode() != "stand_alone" and _get_device_num() > 1


def _is_in_auto_parallel_mode() -> bool:
    """Return whether one graph is sharded for all ranks."""
    return _get_parallel_mode() in _SHARDED


def _is_pynative_parallel() -> bool:
    """Return whether operators of a sharded network run one by one; networks are one graph always."""
    return False


def _need_to_full() -> bool:
    return _is_in_auto_parallel_mode() and not _get_full_batch()


def _to_full_shapes(shapes: Any, device_num: int) -> list[tuple[int, ...]]:
    return [(shape[0] * device_num, *shape[1:]) if len(shape) else () for shape in map(tuple, shapes)]


def _grads_divided_by_device_num_if_recomputation(grads: Any) -> Any:
    """Return the gradients unchanged: those of a graph count the global batch once."""
    return grads


def _check_full_batch() -> None:
    """Raise RuntimeError if the global batch is requested in a mode without one."""
    if _get_full_batch() and not _is_in_auto_parallel_mode():
        raise ApiRuntimeError(f"full_batch counts in {' and '.join(_SHARDED)} mode, not in {_get_parallel_mode()} mode")


def _device_number_check(parallel_mode: str, device_number: int) -> None:
    """Raise ValueError if `parallel_mode` is "stand_alone" and there are several ranks."""
    if parallel_mode == "stand_alone" and device_number != 1:
        raise ApiValueError(f"stand_alone mode runs on one rank, not on {device_number}")


def _parameter_broadcast_check(parallel_mode: str, parameter_broadcast: Any) -> None:
    """Raise ValueError if parameters should be broadcast in stand_alone mode."""
    if parameter_broadcast and parallel_mode == "stand_alone":
        raise ApiValueError("parameter_broadcast counts in parallel modes, not in stand_alone mode")


def _parallel_predict_check() -> None:
    """Do nothing: every mode supports prediction."""


def _reset_op_id() -> None:
    """Do nothing: every compile numbers operators from 0."""


def _is_initialized() -> bool:
    """Return whether `init()` was called."""
    return state.current().initialized
