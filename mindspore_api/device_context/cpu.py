"""`device_context.cpu` has the settings of the CPU."""

from __future__ import annotations

from mspc.mindspore_api import runtime
from mspc.mindspore_api.context import set_context

__all__ = ["device_count", "is_available", "threads_num"]


def device_count() -> int:
    """1."""
    return runtime.device_count("CPU")


def is_available() -> bool:
    """True."""
    return runtime.is_available("CPU")


def threads_num(num: int) -> None:
    """`set_context(runtime_num_threads=num)`, which says that it changes nothing. Raises TypeError, ValueError for no
    positive integer."""
    set_context(runtime_num_threads=num)
