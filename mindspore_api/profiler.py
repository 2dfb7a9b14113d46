"""`mindspore.profiler`: accepts the calls of scripts, and refers to `mspc run --profile`, which times their steps."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from mspc.mindspore_api.errors import ApiTypeError
from mspc.mindspore_api.setting_kind import place_of_caller, say_once

__all__ = [
    "Profiler", "ProfilerActivity",
    "ProfilerLevel", "_ExperimentalConfig", "mstx", "profile", "schedule", "tensorboard_trace_handler",
]  # fmt: skip


class ProfilerLevel(enum.Enum):
    """How much MindSpore's profiler notes."""

    LevelNone, Level0, Level1, Level2 = "LevelNone", "Level0", "Level1", "Level2"


class ProfilerActivity(enum.Enum):
    """Activities that MindSpore's profiler records."""

    CPU, GPU, NPU = "CPU", "GPU", "NPU"


class Profiler:
    """MindSpore's profiler of training. It accepts its arguments, records nothing, and warns: `mspc run --profile FILE`
    times the steps of an unchanged script."""

    def __init__(self, **_: Any) -> None:
        self.say_nothing_is_noted(type(self).__name__)

    @staticmethod
    def say_nothing_is_noted(name: str) -> None:
        """Warn once, with the name of the class, that nothing is recorded."""
        how = "`mspc run SCRIPT --profile FILE` times the steps of an unchanged script"
        say_once("Profiler", f"{place_of_caller()}{name} notes nothing here: {how}")

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *_: object) -> None: ...

    def start(self) -> None:
        """Do nothing."""

    stop = step = start

    def analyse(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    add_metadata = add_metadata_json = analyse


class profile(Profiler):
    """The Profiler under its newer name."""


def schedule(
    *, wait: int = 0, active: int, warmup: int = 0, repeat: int = 0, skip_first: int = 0
) -> Callable[[int], str]:
    """Return the function that maps the number of a step to "record" or "none". Raise TypeError if a number is no
    integer from 0 on."""
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
    """Return a writer of traces that writes nothing, because there is no trace."""

    def handler(_profiler: Any) -> None: ...

    return handler


class _ExperimentalConfig:
    """Further options of MindSpore's profiler, stored as attributes; the profiler records nothing, and warns. Raise
    TypeError for an unknown option."""

    def __init__(self, **options: Any) -> None:
        unknown = sorted(options.keys() - _OPTIONS.keys())
        if unknown:
            raise ApiTypeError(f"_ExperimentalConfig has no option {unknown[0]!r}", [f"it takes {', '.join(_OPTIONS)}"])
        self.__dict__.update({**_OPTIONS, **options})


_OPTIONS: dict[str, Any] = {
    "profiler_level": ProfilerLevel.Level0, "aic_metrics": None, "l2_cache": False, "mstx": False,
    "data_simplification": True, "export_type": None, "mstx_domain_include": None, "mstx_domain_exclude": None,
    "sys_io": False, "sys_interconnection": False, "host_sys": None,
}  # fmt: skip


class mstx:
    """Marks in the trace of an Ascend device. No trace is made, as a warning says; `mspc run SCRIPT --profile FILE`
    times the steps of an unchanged script."""

    @staticmethod
    def mark(message: str, stream: Any = None, domain: str = "default") -> None:
        """Check the arguments and warn; no mark is made, in any `stream`. Raise TypeError if message or domain is no
        string."""
        _say_no_marks("mark")

    @staticmethod
    def range_start(message: str, stream: Any = None, domain: str = "default") -> int:
        """Check the arguments and warn; no range begins, in any `stream`. Return 0. Raise TypeError as `mark`."""
        _say_no_marks("range_start")
        return 0

    @staticmethod
    def range_end(range_id: int, domain: str = "default") -> None:
        """Check the arguments and warn. Raise TypeError if range_id is no integer or domain no string."""
        _say_no_marks("range_end")


def _say_no_marks(function: str) -> None:
    say_once("mstx", f"{place_of_caller()}mstx.{function}() notes nothing here: no trace of a device is written")
