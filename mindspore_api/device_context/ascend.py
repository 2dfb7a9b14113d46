"""`device_context.ascend`: settings of a device that mspc does not support; each of them warns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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


def _ignored(room: str, name: str, **taken: Any) -> Callable[..., None]:
    """Return a function that warns that it changes nothing. taken: the types of its arguments, or their defaults."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(each, kind, annotation=value)
        if isinstance(value, str)
        else inspect.Parameter(each, kind, annotation=type(value).__name__, default=value)
        for each, value in taken.items()
    ]
    signature = inspect.Signature(parameters, return_annotation="None")

    def ignored(*args: Any, **kwargs: Any) -> None:
        signature.bind(*args, **kwargs)
        text = f"device_context.ascend.{room}.{name}() changes nothing here: there is no Ascend"
        say_once(f"ascend.{room}.{name}", f"{place_of_caller()}{text}")

    ignored.__name__ = ignored.__qualname__ = name
    ignored.__doc__ = f"Warn that it changes nothing, whatever {' and '.join(signature.parameters)} may be."
    ignored.__signature__ = signature  # type: ignore[attr-defined]  # as `help` and messages read it
    return ignored


execute_timeout = _ignored("op_debug", "execute_timeout", op_timeout="int")
debug_option = _ignored("op_debug", "debug_option", option_value="str")
aclinit_config = _ignored("op_debug", "aclinit_config", config="dict[str, Any]")
precision_mode = _ignored("op_precision", "precision_mode", mode="str")
op_precision_mode = _ignored("op_precision", "op_precision_mode", path="str")
matmul_allow_hf32 = _ignored("op_precision", "matmul_allow_hf32", value="bool")
conv_allow_hf32 = _ignored("op_precision", "conv_allow_hf32", value="bool")
op_compile = _ignored("op_tuning", "op_compile", value="bool")
aoe_tune_mode = _ignored("op_tuning", "aoe_tune_mode", tune_mode="str")
aoe_job_type = _ignored("op_tuning", "aoe_job_type", config="str")
aclnn_cache = _ignored("op_tuning", "aclnn_cache", enable_global_cache=False, cache_queue_length=10000)
