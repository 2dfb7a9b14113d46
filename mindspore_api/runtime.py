"""`mindspore.runtime`: devices, their memory, and streams, which do not order any work here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from mspc.mindspore_api import call_handler, state
from mspc.mindspore_api.context import set_context
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.setting_kind import checked, say_once
from mspc.mindspore_api.settings import DEVICE_MEMORY
from mspc.ops.operator_arguments import describe

__all__ = [
    "device_count", "empty_cache", "get_current_device",
    "is_available",
    "launch_blocking", "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved",
    "memory_stats", "reset_max_memory_allocated", "reset_max_memory_reserved",
    "reset_peak_memory_stats", "set_cpu_affinity", "set_deterministic", "set_device",
    "set_kernel_launch_group", "set_memory", "synchronize",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


def asked_device() -> dict[str, Any]:
    """Return the script's settings of its device: `device` ("cpu", "gpu", "" if none is set), `how` it was set, `index`
    of the device or None, whether runs must be `deterministic`, and the lines of these settings: `place`,
    `index_place`.

    "Ascend" is ignored: such a script runs on any device.
    """
    session = state.current()
    target = session.general.get("device_target", "")
    places = session.set_at
    found: dict[str, Any] = {"device": "", "how": "", "index": session.general.get("device_id")}
    found["index_place"] = places.get("device_id")
    found["deterministic"] = session.general.get("deterministic") == "ON"
    if target in ("CPU", "GPU"):
        return {
            **found, "device": target.lower(), "how": f'device_target="{target}"', "place": places.get("device_target")
        }  # fmt: skip
    if not target and session.backend == "nccl":
        return {**found, "device": "gpu", "how": 'init("nccl")', "place": places.get("init")}
    return found


def set_memory(
    init_size: str = "2GB", increase_size: str = "2GB", max_size: str = "1024GB", optimize_level: str = "O0",
    huge_page_reserve_size: str = "0GB",
) -> None:  # fmt: skip
    """Check limits of device memory, each as "28GB"; a warning says that they change nothing. Raise TypeError or
    ValueError if a size has another format."""
    sizes = {"init_size": init_size, "increase_size": increase_size, "max_size": max_size}
    levels = {"optimize_level": optimize_level, "huge_page_reserve_size": huge_page_reserve_size}
    checked("runtime.set_memory", DEVICE_MEMORY, sizes | levels)


def set_device(device_target: str, device_id: int = 0) -> None:
    """Choose a device, as `set_context(device_target=..., device_id=...)`. Raise ValueError for an unknown one."""
    set_context(device_target=device_target, device_id=device_id)


class CurrentDevice(NamedTuple):
    """Kind and number of a device."""

    device_target: str
    device_id: int


def get_current_device() -> CurrentDevice:
    """Return the device that the script requests, or the CPU."""
    asked = asked_device()
    return CurrentDevice((asked["device"] or "cpu").upper(), asked["index"] or 0)


def set_deterministic(deterministic: bool) -> None:
    """Choose whether every run must give the same numbers, as `set_context(deterministic="ON")`. Raise TypeError unless
    it is True or False."""
    set_context(deterministic="ON" if deterministic else "OFF")


def _changes_nothing(name: str, why: str) -> None:
    say_once(f"runtime.{name}", f"runtime.{name}() changes nothing here: {why}")


def launch_blocking() -> None:
    """Warn that it changes nothing: errors name their operator even if steps are replayed."""
    _changes_nothing("launch_blocking", "errors name their operator also in replayed steps")


def empty_cache() -> None:
    """Warn that it changes nothing: networks allocate their memory once."""
    _changes_nothing("empty_cache", "the memory of a network is planned when it is compiled, and taken once")


def set_cpu_affinity(
    enable_affinity: bool, affinity_cpu_list: Any = None, module_to_cpu_dict: Any = None, bind_file: Any = None
) -> None:
    """Warn that it changes nothing, whatever enable_affinity, affinity_cpu_list, module_to_cpu_dict and bind_file are:
    the launcher binds ranks to cores."""
    _changes_nothing("set_cpu_affinity", "mpirun and `mspc launch` bind ranks to cores")


def set_kernel_launch_group(thread_num: int = 2, kernel_group_num: int = 8) -> None:
    """Warn that it changes nothing, whatever thread_num and kernel_group_num are: one thread starts kernels."""
    _changes_nothing("set_kernel_launch_group", "one thread starts the kernels of a rank")


def synchronize() -> None:
    """Wait for all steps under way on a GPU; raises their errors. On the CPU results are complete when a call
    returns."""
    found = call_handler.installed()
    if found is not None:
        found.synchronize()


def max_memory_allocated(*_: Any) -> int:
    """Return the peak bytes of GPU memory of this rank's networks; 0 on the CPU."""
    found = call_handler.installed()
    return 0 if found is None else found.peak_memory()


def memory_reserved() -> int:
    """Return the result of `max_memory_allocated`: all memory of networks is in use until the script ends."""
    return max_memory_allocated()


max_memory_reserved = memory_allocated = memory_reserved


def memory_stats() -> dict[str, int]:
    """Return the bytes of this rank's networks on a GPU; an empty dict on the CPU, as in MindSpore."""
    most = max_memory_allocated()
    return {"total_reserved_memory": most, "total_allocated_memory": most, "max_allocated_memory": most} if most else {}


def reset_peak_memory_stats() -> None:
    """Warn that it changes nothing: the memory of networks only grows."""
    _changes_nothing("reset_peak_memory_stats", "networks hold their memory, and that is counted")


reset_max_memory_allocated = reset_max_memory_reserved = reset_peak_memory_stats


def _target(function: str, device_target: Any) -> str:
    found = state.current().general.get("device_target") or "CPU" if device_target is None else device_target
    if found not in ("CPU", "GPU", "Ascend"):
        raise ApiValueError(f"{function}(): device_target must be 'CPU', 'GPU' or 'Ascend', not {describe(found)}")
    return found


def device_count(device_target: str | None = None) -> int:
    """Return the number of devices of a kind: 1 CPU, the GPUs that a rank may use, no Ascend."""
    target = _target("device_count", device_target)
    return _gpus() if target == "GPU" else int(target == "CPU")


def is_available(device_target: str) -> bool:
    """Return whether there is a device of this kind."""
    return device_count(device_target) > 0


def _gpus() -> int:
    return len([path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal()])
