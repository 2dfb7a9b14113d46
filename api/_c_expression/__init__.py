"""This package has what scripts import from MindSpore's private library in C++, `_c_expression`."""

from __future__ import annotations

from typing import Any

from mspc.api._c_expression import typing
from mspc.api._c_expression.caches import swap_cache
from mspc.api.common.executor import CellGraphExecutor as GraphExecutor_
from mspc.api.common.tensor import Tensor
from mspc.api.context import get_context
from mspc.api.setting_kind import place_of_caller, say_once

__all__ = ["GraphExecutor_", "MSContext", "Tensor", "ms_ctx_param", "security", "swap_cache", "typing"]


class MSContext:
    """What this build can do and is told to do, as `MSContext.get_instance()`."""

    _only: Any = None

    @classmethod
    def get_instance(cls) -> MSContext:
        if cls._only is None:
            cls._only = cls()
        return cls._only

    def get_ascend_soc_version(self) -> str:
        """The kind of Ascend device: there is none."""
        return ""

    def is_pkg_support_device(self, device: str) -> bool:
        """Whether graphs run on a device of this kind."""
        return device in ("CPU", "GPU")

    def is_ascend_plugin_loaded(self) -> bool:
        return False

    def get_param(self, key: Any) -> Any:
        """The value of an option of `set_context`, by its name."""
        return get_context(key)


    def set_param(self, key: Any, value: Any) -> None:
        """Accepted: an option of one device. A warning says that it changes nothing."""
        why = "it is an option of the Ascend backend, and there is none"
        shown = f"MSContext.set_param({key}, {value!r})"
        say_once(f"ms_ctx_param.{key}", f"{place_of_caller()}{shown} changes nothing here: {why}")


class _Options:
    """The names of options, each of which is its own value: `ms_ctx_param.max_device_memory`."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


ms_ctx_param = _Options()


class _Security:
    """Whether this build hides what is in its graphs."""

    @staticmethod
    def enable_security() -> bool:
        return False


security = _Security()
