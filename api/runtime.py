"""What `mindspore.runtime` offers: settings of device memory, checked and said to have no effect; waiting for a GPU and
the memory taken there; and which device a script asks for.
"""

from __future__ import annotations

from typing import Any

from mspc.api import launch, state
from mspc.api.context import set_context
from mspc.api.setting import checked, say_once
from mspc.api.settings import DEVICE_MEMORY

__all__ = ["launch_blocking", "max_memory_allocated", "set_device", "set_memory", "synchronize"]


def __dir__() -> list[str]:
    return __all__

def asked_device() -> dict[str, Any]:
    """What the script has said of its device: `device` ("cpu", "gpu", "" where it says nothing), `how` it said that,
    `index` of the device or None, and whether runs must be `deterministic`.

    "Ascend" says nothing here: such a script runs on what there is.
    """
    session = state.current()
    target = session.general.get("device_target", "")
    found: dict[str, Any] = {"device": "", "how": "", "index": session.general.get("device_id")}
    found["deterministic"] = session.general.get("deterministic") == "ON"
    if target in ("CPU", "GPU"):
        return {**found, "device": target.lower(), "how": f'device_target="{target}"'}
    if not target and session.backend == "nccl":
        return {**found, "device": "gpu", "how": 'init("nccl")'}
    return found


def set_memory(
    init_size: str = "2GB", increase_size: str = "2GB", max_size: str = "1024GB", optimize_level: str = "O0",
    huge_page_reserve_size: str = "0GB",
) -> None:  # fmt: skip
    """Limits of device memory, each as "28GB"; says that they change nothing.

    Raises:
        TypeError, ValueError: a size is not written like that.
    """
    sizes = {"init_size": init_size, "increase_size": increase_size, "max_size": max_size}
    levels = {"optimize_level": optimize_level, "huge_page_reserve_size": huge_page_reserve_size}
    checked("runtime.set_memory", DEVICE_MEMORY, sizes | levels)


def set_device(device_target: str, device_id: int = 0) -> None:
    """Choose a device, as `set_context(device_target=..., device_id=...)`. Raises ValueError for
    an unknown one.
    """
    set_context(device_target=device_target, device_id=device_id)


def launch_blocking() -> None:
    """Says that it changes nothing: errors name their operator also where steps are replayed."""
    name = "runtime.launch_blocking()"
    say_once(name, f"{name} changes nothing here: errors name their operator also where steps are replayed")


def synchronize() -> None:
    """Wait for all steps under way on a GPU; raises what they raise. On the CPU results are complete when a call
    returns."""
    found = launch.installed()
    if found is not None:
        found.synchronize()


def max_memory_allocated(*_: Any) -> int:
    """Bytes of the GPU that this rank's networks have taken at most; 0 on the CPU."""
    found = launch.installed()
    return 0 if found is None else found.most_memory()
