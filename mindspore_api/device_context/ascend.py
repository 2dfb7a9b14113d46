"""`device_context.ascend`: settings of a device that mspc does not support; each of them warns."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import runtime
from mspc.mindspore_api.setting_kind import place_of_caller, say_once

__all__ = [
    "aclinit_config", "aclnn_cache", "aoe_job_type", "aoe_tune_mode", "conv_allow_hf32", "debug_option", "device_count",
    "execute_timeout", "is_available", "matmul_allow_hf32", "op_compile", "op_precision_mode", "precision_mode",
]  # fmt: skip


def device_count() -> int:
    """Return 0."""
    return runtime.device_count("Ascend")


def is_available() -> bool:
    """Return False."""
    return runtime.is_available("Ascend")


def _ignored(name: str) -> None:
    text = f"device_context.ascend.{name}() changes nothing here: there is no Ascend"
    say_once(f"ascend.{name}", f"{place_of_caller()}{text}")


def execute_timeout(op_timeout: int) -> None:
    """Warn that it changes nothing, whatever op_timeout is."""
    _ignored("op_debug.execute_timeout")


def debug_option(option_value: str) -> None:
    """Warn that it changes nothing, whatever option_value is."""
    _ignored("op_debug.debug_option")


def aclinit_config(config: dict[str, Any]) -> None:
    """Warn that it changes nothing, whatever config is."""
    _ignored("op_debug.aclinit_config")


def precision_mode(mode: str) -> None:
    """Warn that it changes nothing, whatever mode is: element types are those of the graph."""
    _ignored("op_precision.precision_mode")


def op_precision_mode(path: str) -> None:
    """Warn that it changes nothing, whatever path is."""
    _ignored("op_precision.op_precision_mode")


def matmul_allow_hf32(value: bool) -> None:
    """Warn that it changes nothing, whatever value is."""
    _ignored("op_precision.matmul_allow_hf32")


def conv_allow_hf32(value: bool) -> None:
    """Warn that it changes nothing, whatever value is."""
    _ignored("op_precision.conv_allow_hf32")


def op_compile(value: bool) -> None:
    """Warn that it changes nothing, whatever value is."""
    _ignored("op_tuning.op_compile")


def aoe_tune_mode(tune_mode: str) -> None:
    """Warn that it changes nothing, whatever tune_mode is."""
    _ignored("op_tuning.aoe_tune_mode")


def aoe_job_type(config: str) -> None:
    """Warn that it changes nothing, whatever config is."""
    _ignored("op_tuning.aoe_job_type")


def aclnn_cache(enable_global_cache: bool = False, cache_queue_length: int = 10000) -> None:
    """Warn that it changes nothing, whatever enable_global_cache and cache_queue_length are."""
    _ignored("op_tuning.aclnn_cache")
