"""Callbacks that record a training run: losses, summaries, utilization."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api.setting_kind import place_of_caller, say_once
from mspc.mindspore_api.train.callback import Callback


class SummaryCollector(Callback):
    """MindSpore's records for its viewer; none are written, as a warning says."""

    def __init__(self, summary_dir: str = "", *_: Any, **__: Any) -> None:
        say_once(
            "SummaryCollector",
            f"SummaryCollector({summary_dir!r}) writes nothing here; LossMonitor and TimeMonitor say how "
            "training goes",
        )


class SummaryRecord:
    """MindSpore's writer of values for its viewer; accepts values and writes none, as a warning says."""

    def __init__(self, log_dir: str, *_: Any, **__: Any) -> None:
        say_once(
            "SummaryRecord",
            f"{place_of_caller()}SummaryRecord({log_dir!r}) writes nothing here; LossMonitor and TimeMonitor "
            "say how training goes",
        )
        self.log_dir = str(log_dir)

    def __enter__(self) -> SummaryRecord:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_value(self, *_: Any, **__: Any) -> None:
        """Accept a value of the next record."""

    def set_mode(self, *_: Any, **__: Any) -> None:
        """Return whether values are of training or of an evaluation."""

    def record(self, *_: Any, **__: Any) -> bool:
        """Return whether the values of a step were written: False."""
        return False

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
