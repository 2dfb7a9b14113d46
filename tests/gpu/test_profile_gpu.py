"""A profile of steps on a GPU: the same numbers, times of all launches, memory beside the plan."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.commands.report.profile import show_profile
from mspc.engine.job import Job
from mspc.engine.profile import StepProfiler
from mspc.engine.profile_options import ProfileOptions
from mspc.runtime.comm.interface import OneRank
from tests.gpu import test_gpu_executor
from tests.gpu.emulated import EmulatedGpu, Event


class TimedGpu(EmulatedGpu):
    """An emulated GPU with a clock, which is a microsecond further at every look, and a pool that counts."""

    def __init__(self, folder: Path) -> None:
        self.used = 0
        self.looks = 0
        self.pool = SimpleNamespace(used_bytes=lambda: self.used)
        super().__init__(folder)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        array = super().empty(shape, dtype)
        self.used += array.nbytes
        return array

    def signal(self, timed: bool = False) -> Any:
        event: Any = Event()
        self.looks += 1
        event.time = self.looks * 1e-6
        return event

    def milliseconds(self, first: Any, second: Any) -> float:
        return 1000 * (second.time - first.time)

    def kernel(self, source: str, name: str) -> Any:
        return (lambda *_: None) if name == "delay" else super().kernel(source, name)


def test_timed_steps_equal_numpys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(test_gpu_executor, "EmulatedGpu", TimedGpu)
    cpu, gpu, feeds = test_gpu_executor.both("feed_forward", tmp_path)
    job = Job(OneRank(), OneRank())
    job.profile = StepProfiler(ProfileOptions(tmp_path / "trace.json", 3), sys.stdout, show_profile)
    for _ in range(8):
        (loss,) = job.run(gpu, feeds)
        job.step_done()
        np.testing.assert_allclose(np.asarray(loss), cpu.run(feeds)[0], rtol=2e-5)
    assert gpu.captured
    spans = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["args"]["step"] for e in spans} == {3, 4, 5}
    assert all(0 <= e["dur"] < 1e5 for e in spans)
    out = capsys.readouterr().out
    assert "rank 0, median of steps 3 to 5\n" in out
    planned, used = (_bytes_of(name, out) for name in ("planned together", "in use on GPU"))
    assert planned <= used < planned + (64 << 20)


def _bytes_of(name: str, out: str) -> float:
    """Return the size in the row of a table that begins with `name`, in bytes."""
    found = re.search(rf"{name}.*?  ([\d.,]+) ([KMG]iB|B)\n", out)
    assert found is not None, out
    return float(found[1].replace(",", "")) * 1024 ** ("B", "KiB", "MiB", "GiB").index(found[2])
