"""`mindspore.profiler`: takes what scripts ask of it, and says that `mspc run --profile` times their steps instead."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from mspc.api.errors import ApiTypeError
from mspc.api.setting import place_of_caller, say_once

__all__ = [
    "AicoreMetrics", "ExportType", "HostSystem", "Profiler", "ProfilerActivity", "ProfilerLevel", "profile", "schedule",
    "tensorboard_trace_handler",
]  # fmt: skip


class ProfilerLevel(enum.Enum):
    """How much MindSpore's profiler notes."""

    LevelNone = "LevelNone"
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"


class ProfilerActivity(enum.Enum):
    """What MindSpore's profiler looks at."""

    CPU = "CPU"
    GPU = "GPU"
    NPU = "NPU"


class AicoreMetrics(enum.Enum):
    """What MindSpore's profiler counts in an Ascend device."""

    AiCoreNone = "AiCoreNone"
    ArithmeticUtilization = "ArithmeticUtilization"
    PipeUtilization = "PipeUtilization"
    Memory = "Memory"
    MemoryL0 = "MemoryL0"
    ResourceConflictRatio = "ResourceConflictRatio"
    MemoryUB = "MemoryUB"
    L2Cache = "L2Cache"


class ExportType(enum.Enum):
    """Forms of the files that MindSpore's profiler writes."""

    Db = "db"
    Text = "text"


class HostSystem(enum.Enum):
    """What MindSpore's profiler looks at of the host."""

    CPU = "cpu"
    MEM = "mem"
    DISK = "disk"
    NETWORK = "network"
    OSRT = "osrt"


class Profiler:
    """MindSpore's timer of training. Takes its arguments, notes nothing, and says so: `mspc run --profile FILE` times
    the steps of a script as it stands."""

    def __init__(self, **_: Any) -> None:
        say_once(
            "Profiler",
            f"{place_of_caller()}{type(self).__name__} notes nothing here: `mspc run SCRIPT --profile FILE` times the "
            "steps of a script as it stands",
        )

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *_: object) -> None: ...

    def start(self) -> None:
        """Nothing begins."""

    def stop(self) -> None:
        """Nothing ends."""

    def step(self) -> None:
        """Nothing is counted."""

    def analyse(self, *_: Any, **__: Any) -> None:
        """There is nothing to look at."""

    def add_metadata(self, *_: Any, **__: Any) -> None:
        """Nothing is written."""

    def add_metadata_json(self, *_: Any, **__: Any) -> None:
        """Nothing is written."""


class profile(Profiler):
    """The Profiler under its newer name."""


def schedule(
    *, wait: int = 0, active: int, warmup: int = 0, repeat: int = 0, skip_first: int = 0
) -> Callable[[int], str]:
    """Which steps would be noted: a function of the step's number, "record" or "none".

    Raises:
        TypeError: a number is no integer from 0 on.
    """
    named = {"wait": wait, "active": active, "warmup": warmup, "repeat": repeat, "skip_first": skip_first}
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ApiTypeError(f"schedule: {name} must be an integer from 0 on, not {value!r}")
    turn = wait + warmup + active

    def action(step: int) -> str:
        place = step - skip_first
        if place < 0 or not turn or (repeat and place >= repeat * turn):
            return "none"
        return "record" if place % turn >= wait + warmup else "none"

    return action


def tensorboard_trace_handler(*_: Any, **__: Any) -> Callable[[Any], None]:
    """What would write a trace; writes none, as there is none."""

    def handler(_profiler: Any) -> None: ...

    return handler
