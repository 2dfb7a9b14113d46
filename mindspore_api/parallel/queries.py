"""MindSpore's private `parallel._utils`: queries of training steps about the parallel settings of a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.mindspore_api import context, state
from mspc.mindspore_api.context import _reset_auto_parallel_context  # noqa: F401  # scripts import it from here

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
_is_in_hybrid_parallel_mode = _setting("parallel_mode", "hybrid_parallel")
_is_sharding_propagation = _setting("search_mode", "sharding_propagation")


def _get_device_num() -> int:
    """Return the number of ranks."""
    return context.get_auto_parallel_context("device_num") or state.current().size


def _is_in_auto_parallel_mode() -> bool:
    """Return whether one graph is sharded for all ranks."""
    return _get_parallel_mode() in _SHARDED


def _is_initialized() -> bool:
    """Return whether `init()` was called."""
    return state.current().initialized
