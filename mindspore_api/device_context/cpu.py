"""`device_context.cpu`: settings of the CPU."""

from __future__ import annotations

from mspc.mindspore_api import runtime
from mspc.mindspore_api.context import set_context

__all__ = ["device_count", "is_available", "threads_num"]


def device_count() -> int:
    """Return 1."""
    return runtime.device_count("CPU")


def is_available() -> bool:
    """Return True."""
    return runtime.is_available("CPU")


def threads_num(num: int) -> None:
    """Call `set_context(runtime_num_threads=num)`, which warns that it changes nothing. Raise TypeError or ValueError
    unless it is a positive integer."""
    set_context(runtime_num_threads=num)
