"""This module tells which devices there are: of GPUs what their driver shows in files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from mspc.api import state
from mspc.api.errors import ApiValueError
from mspc.ops.operator_arguments import describe


class DeviceProperties(NamedTuple):
    """What is known of a device."""

    name: str
    total_memory: int


def _target(function: str, device_target: Any) -> str:
    found = state.current().general.get("device_target") or "CPU" if device_target is None else device_target
    if found not in ("CPU", "GPU", "Ascend"):
        raise ApiValueError(f"{function}(): device_target must be 'CPU', 'GPU' or 'Ascend', not {describe(found)}")
    return found


def device_count(device_target: str | None = None) -> int:
    """How many devices of a kind there are: 1 CPU, the GPUs that a rank may take, no Ascend."""
    target = _target("device_count", device_target)
    return _gpus() if target == "GPU" else int(target == "CPU")


def is_available(device_target: str) -> bool:
    """Whether there is a device of this kind."""
    return device_count(device_target) > 0


def is_initialized(device_target: str) -> bool:
    """Whether networks can run on this kind of device; nothing has to be done ahead."""
    return is_available(device_target)


def _check(function: str, device_id: int, device_target: str | None) -> str:
    target = _target(function, device_target)
    if not 0 <= device_id < device_count(target):
        raise ApiValueError(f"{function}(): there is no {target} {device_id}")
    return target


def get_device_name(device_id: int, device_target: str | None = None) -> str:
    """The name of a device; "CPU" of a CPU.

    Raises:
        ValueError: there is no such device.
    """
    if _check("get_device_name", device_id, device_target) == "CPU":
        return "CPU"
    known = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))[device_id : device_id + 1]
    lines = [line for path in known for line in path.read_text().splitlines() if line.startswith("Model:")]
    return lines[0].partition(":")[2].strip() if lines else "GPU"


def get_device_properties(device_id: int, device_target: str | None = None) -> DeviceProperties:
    """(name, bytes of memory) of a CPU.

    Raises:
        ValueError: there is no such device, or it is a GPU.
    """
    if _check("get_device_properties", device_id, device_target) == "GPU":
        raise ApiValueError("get_device_properties(): a GPU is not asked for them", ["nvidia-smi -q shows them"])
    return DeviceProperties("CPU", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def get_device_capability(device_id: int, device_target: str | None = None) -> tuple[int, int]:
    """(major, minor) of the capability, which is a GPU's: (0, 0) of a CPU.

    Raises:
        ValueError: there is no such device, or it is a GPU.
    """
    get_device_properties(device_id, device_target)
    return 0, 0


def get_arch_list(device_target: str | None = None) -> list[str]:
    """Capabilities that kernels are built for ahead: none, they are compiled for the GPU that runs them."""
    _target("get_arch_list", device_target)
    return []


def _gpus() -> int:
    return len([path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal()])
