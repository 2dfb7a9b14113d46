"""A callback says how much of a device's arithmetic a training step uses."""

from __future__ import annotations

import os
import time
from math import floor
from pathlib import Path

from mspc.api import call_handler, context
from mspc.api.communication.group import get_group_size, get_rank
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.train.callback_base import Callback, RunContext, write_line

__all__ = ["FlopsUtilizationCollector"]
CLOUD_FOLDER = "MA_LOG_DIR"
"""The environment's name of the folder in which a cloud looks for figures of a run."""


class FlopsUtilizationCollector(Callback):
    """Prints the floating-point operations of a step, and at every `data_size`-th step how long it took and which share
    of `computility` that was: by what the network asks for (mfu), and with what is recomputed (hfu).

    Operations are those of matrix products, convolutions and attention, forward and backward. A step is waited for,
    so that its time is that of its work.

    Args:
        data_size: from one line to the next it is so many steps.
        computility: operations that a device does in a second at most.
        full_flops: take the operations of all ranks, and so many devices; else those of this rank.
        enable_ma_collector: write the figures into `flops_rank_R.txt` and `time_step_rank_R.txt` too, in the folder
            `MA_LOG_DIR` of the environment; where `computility` is not given nothing is printed then.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind.
    """

    def __init__(
        self, data_size: int, computility: float = 1, full_flops: bool = True, enable_ma_collector: bool = False
    ) -> None:
        for name, flag in (("full_flops", full_flops), ("enable_ma_collector", enable_ma_collector)):
            if not isinstance(flag, bool):
                raise ApiTypeError(f"FlopsUtilizationCollector: {name} must be True or False, not {flag!r}")
        if isinstance(data_size, bool) or not isinstance(data_size, int):
            raise ApiTypeError(f"FlopsUtilizationCollector: data_size must be an integer, not {data_size!r}")
        if data_size < 1:
            raise ApiValueError(f"FlopsUtilizationCollector: data_size must be at least 1, not {data_size}")
        self.data_size = data_size
        self.computility = computility
        self.full_flops = full_flops
        self.verbose = not (computility == 1 and enable_ma_collector)
        self._writes = enable_ma_collector
        self._shares: tuple[float, float] | None = None
        """Seconds that a device needs at least for a step's operations, without and with what is recomputed."""
        self._start = 0.0
        self._last = 0

    def step_begin(self, run_context: RunContext) -> None:
        self._start = time.perf_counter()

    def step_end(self, run_context: RunContext) -> None:
        call_handler.current().synchronize()
        param = run_context.original_args()
        milliseconds = (time.perf_counter() - self._start) * 1000
        if param.get("dataset_sink_mode"):
            milliseconds /= param.batch_num  # all steps of an epoch are told of as one
        if self._shares is None:
            self._shares = self._counted()
        if self._writes:
            line = f'time_monitor{{type="per_step_time", rank_id="{_rank()}"}} {milliseconds} {_now()}\n'
            _file("time_step").write_text(line, "utf-8")
        if param.cur_step_num < self._last:
            self._last = 0
        if self.verbose and param.cur_step_num - self._last >= self.data_size:
            self._last = param.cur_step_num
            mode = param.get("mode", "train").title()
            mfu, hfu = (_percent(1000 * share / milliseconds) for share in self._shares)
            write_line(f"{mode} per step time: {milliseconds:5.3f} ms mfu:{mfu} hfu:{hfu}")

    def _counted(self) -> tuple[float, float]:
        """What `_shares` are; says and writes how many operations a step has."""
        full_model, full_hardware, model, hardware = call_handler.current().operations()
        if self._writes:
            figures = (("model_flops", model), ("hardware_flops", hardware))
            lines = [f'flops{{type="{name}", rank_id="{_rank()}"}} {count} {_now()}\n' for name, count in figures]
            _file("flops").write_text("".join(lines), "utf-8")
        if self.verbose:
            full = f"Full model flops is {full_model}, Full hardware flops is {full_hardware}, "
            own = f"Shard model flops is {model}, Shard hardware flops is {hardware}."
            write_line(full * self.full_flops + own)
        if not self.full_flops:
            return model / self.computility, hardware / self.computility
        devices = self.computility * (get_group_size() if _is_parallel() else 1)
        return full_model / devices, full_hardware / devices


def _is_parallel() -> bool:
    return context.get_auto_parallel_context("parallel_mode") != "stand_alone"


def _rank() -> int:
    return get_rank() if _is_parallel() else 0


def _file(kind: str) -> Path:
    return Path(os.environ.get(CLOUD_FOLDER) or ".") / f"{kind}_rank_{_rank()}.txt"


def _now() -> int:
    """Milliseconds since 1970."""
    return round(time.time() * 1000)


def _percent(share: float) -> str:
    return f"{floor(share * 10000) / 100:.2f}%"
