"""`mindspore.hal`, older names of `mindspore.runtime`: devices, their memory, and streams of work on them."""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "mspc.api.hal.device": """device_count get_arch_list get_device_capability get_device_name get_device_properties
        is_available is_initialized""",
    "mspc.api.runtime": """Event Stream StreamCtx communication_stream current_stream default_stream empty_cache
        max_memory_allocated max_memory_reserved memory_allocated memory_reserved memory_stats memory_summary
        reset_max_memory_allocated reset_max_memory_reserved reset_peak_memory_stats set_cur_stream synchronize""",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
