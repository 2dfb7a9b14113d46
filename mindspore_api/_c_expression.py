"""Names that scripts import from MindSpore's private library in C++, `_c_expression`."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api.common import dtype as typing
from mspc.mindspore_api.common.api import CellGraphExecutor as GraphExecutor_
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.context import get_context
from mspc.mindspore_api.setting_kind import place_of_caller, say_once

__all__ = [
    "GraphExecutor_", "MSContext", "Tensor",
    "ms_ctx_param", "typing",
]  # fmt: skip


class MSContext:
    """Capabilities and options of this build, as `MSContext.get_instance()`."""

    _only: Any = None

    @classmethod
    def get_instance(cls) -> MSContext:
        if cls._only is None:
            cls._only = cls()
        return cls._only

    def get_ascend_soc_version(self) -> str:
        """Return "": there is no Ascend device."""
        return ""

    def is_pkg_support_device(self, device: str) -> bool:
        """Return whether graphs run on a device of this kind."""
        return device in ("CPU", "GPU")

    def is_ascend_plugin_loaded(self) -> bool:
        return False

    def get_param(self, key: Any) -> Any:
        """Return the value of an option of `set_context`, by name."""
        return get_context(key)

    def set_param(self, key: Any, value: Any) -> None:
        """Accept an option of the Ascend device; a warning says that it changes nothing."""
        why = "it is an option of the Ascend backend, and there is none"
        shown = f"MSContext.set_param({key}, {value!r})"
        say_once(f"ms_ctx_param.{key}", f"{place_of_caller()}{shown} changes nothing here: {why}")


class _Options:
    """Names of options; the value of each is its name: `ms_ctx_param.max_device_memory`."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


ms_ctx_param = _Options()
