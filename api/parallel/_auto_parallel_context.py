"""MindSpore's private `parallel._auto_parallel_context`: the settings of `set_auto_parallel_context` one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.api.context import (
    get_auto_parallel_context,
    reset_auto_parallel_context,
    set_auto_parallel_context,
)
from mspc.api.settings import PARALLEL

_set_auto_parallel_context = set_auto_parallel_context
_get_auto_parallel_context = get_auto_parallel_context
_reset_auto_parallel_context = reset_auto_parallel_context


class AutoParallelContext:
    """Settings as methods: `set_device_num(8)`, `get_device_num()`, `get_device_num_is_set()`."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kind, _, key = name.partition("_")
        key = {"strategy_search_mode": "search_mode"}.get(key, key)
        if kind == "get" and key in PARALLEL:
            return lambda: get_auto_parallel_context(key)
        if kind == "set" and key in PARALLEL:
            return lambda value: set_auto_parallel_context(**{key: value})
        asked = key.removesuffix("_is_set")
        if kind == "get" and asked != key and asked in PARALLEL:
            return lambda: get_auto_parallel_context(asked) != PARALLEL[asked].default
        raise AttributeError(name)

    def reset(self) -> None:
        """Give every setting its default."""
        reset_auto_parallel_context()


def auto_parallel_context() -> AutoParallelContext:
    """The settings as methods."""
    return AutoParallelContext()
