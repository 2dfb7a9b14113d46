"""What `mindspore.runtime` offers: settings of device memory. Taken, checked, and without effect
on the CPU.
"""

from __future__ import annotations

import re
from typing import Any

from mspc.session.errors import ApiTypeError, ApiValueError


def set_memory(
    init_size: str = "2GB", increase_size: str = "2GB", max_size: str = "1024GB", optimize_level: str = "O0",
    huge_page_reserve_size: str = "0GB",
) -> None:  # fmt: skip
    """Limits of device memory, each as "28GB".

    Raises:
        TypeError, ValueError: a size is not written like that.
    """
    sizes = {"init_size": init_size, "increase_size": increase_size, "max_size": max_size}
    for name, size in sizes.items():
        if not isinstance(size, str):
            raise ApiTypeError(f"set_memory: {name} must be a string, not {size!r}")
        if not re.fullmatch(r"\d+(\.\d+)?\s*GB", size):
            raise ApiValueError(f"set_memory: {name} {size!r} is not written like '28GB'")


def set_device(device_target: str, device_id: int = 0) -> None:
    """Choose a device, as `set_context(device_target=..., device_id=...)`. Raises ValueError for
    an unknown one.
    """
    from mspc.session.context import set_context

    set_context(device_target=device_target, device_id=device_id)


def launch_blocking() -> None:
    """Accepted; the executor waits for every operator anyway."""


def synchronize() -> None:
    """Returns at once: results are complete when a call returns."""


def max_memory_allocated(*_: Any) -> int:
    """0: device memory is not used."""
    return 0
