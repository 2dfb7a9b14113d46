"""MindSpore's private `parallel._auto_parallel_context`: the settings of `set_auto_parallel_context` as single
methods."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mspc.mindspore_api import state
from mspc.mindspore_api.context import get_auto_parallel_context, reset_auto_parallel_context, set_auto_parallel_context
from mspc.mindspore_api.settings import BUCKET, PARALLEL

_set_auto_parallel_context = set_auto_parallel_context
_get_auto_parallel_context = get_auto_parallel_context
_reset_auto_parallel_context = reset_auto_parallel_context


_OTHER_NAMES = {
    "strategy_search_mode": ("search_mode", ""),
    "all_reduce_fusion_split_indices": ("all_reduce_fusion_config", ""),
    "enable_all_reduce_fusion": ("comm_fusion", "openstate"),
    "enable_all_gather_fusion": ("comm_fusion", "openstate"),
    "enable_reduce_scatter_fusion": ("comm_fusion", "openstate"),
    "pipeline_interleave": ("pipeline_config", "pipeline_interleave"),
    "pipeline_scheduler": ("pipeline_config", "pipeline_scheduler"),
}
"""Methods with another name than the setting, or for an entry of it."""
_ENTRIES = {"pipeline_interleave": False, "pipeline_scheduler": "1f1b"}


class AutoParallelContext:
    """Settings as methods: `set_device_num(8)`, `get_device_num()`, `get_device_num_is_set()`."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kind, _, asked = name.partition("_")
        key, entry = _OTHER_NAMES.get(asked, (asked, ""))
        if kind == "get" and key in PARALLEL:
            return lambda: _value(key, entry)
        if kind == "set" and key in PARALLEL:
            return lambda *args, **named: _set(key, entry, *args, *named.values())
        asked = asked.removesuffix("_is_set")
        if kind == "get" and f"get_{asked}" != name and asked in PARALLEL:
            return lambda: asked in state.current().parallel
        raise AttributeError(name)

    def __init__(self) -> None:
        for collective in ("allreduce", "allgather", "reducescatter"):  # gathers of `comm_fusion` change nothing here
            setattr(self, f"{collective}_fusion_threshold_mb", functools.partial(_threshold, collective))

    reset = staticmethod(reset_auto_parallel_context)


def _threshold(collective: str) -> int:
    """Return the MB that are communicated in one collective."""
    config = get_auto_parallel_context("comm_fusion").get(collective) or {}
    return int(config["config"]) if config.get("mode") == "size" and config.get("config") else BUCKET >> 20


def _value(key: str, entry: str) -> Any:
    value = get_auto_parallel_context(key)
    return value.get(entry, _ENTRIES.get(entry)) if entry else value


def _set(key: str, entry: str, value: Any) -> None:
    if not entry:
        set_auto_parallel_context(**{key: value})
    elif value != _value(key, entry):
        set_auto_parallel_context(**{key: get_auto_parallel_context(key) | {entry: value}})


auto_parallel_context = AutoParallelContext
