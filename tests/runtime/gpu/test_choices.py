"""The time of a launch is the GPU's, however long the host takes to launch it."""

from __future__ import annotations

from typing import Any

import pytest

from mspc.runtime.gpu import choices as choices_module
from mspc.runtime.gpu.choices import Choices
from mspc.runtime.gpu.kept_choices import KeptChoices


class Clocks:
    """A device of one stream that remembers when it will be done. host, done: seconds."""

    deterministic = False

    def __init__(self) -> None:
        self.host = self.done = 0.0

    def perf_counter(self) -> float:
        return self.host

    def work(self, host: float, seconds: float) -> None:
        self.host += host
        self.done = max(self.done, self.host) + seconds

    def kernel(self, source: str, name: str) -> Any:
        assert name == "pause"
        return lambda grid, block, arguments: self.work(5e-6, 1e-9 * float(arguments[0]))

    def signal(self, timed: bool = False) -> Any:
        self.work(2e-6, 0)
        return Event(self.done)

    def milliseconds(self, first: Any, second: Any) -> float:
        return 1000 * (second.came - first.came)


class Event:
    def __init__(self, came: float) -> None:
        self.came = came

    def synchronize(self) -> None: ...


@pytest.mark.parametrize("host", [1e-6, 100e-6, 400e-6])
def test_launches_that_take_the_host_long_are_told_apart(monkeypatch: pytest.MonkeyPatch, host: float) -> None:
    device = Clocks()
    monkeypatch.setattr(choices_module, "time", device)
    found = Choices(device, KeptChoices(None))
    for wanted in (30e-6, 50e-6, 31e-6):
        assert found.seconds(lambda: device.work(host, wanted)) == pytest.approx(wanted)  # noqa: B023


def test_a_host_that_waits_for_the_gpu_does_not_pause_it_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Clocks()
    monkeypatch.setattr(choices_module, "time", device)

    def launch() -> None:
        device.work(0, 0.05)
        device.host = device.done

    began = device.host
    assert Choices(device, KeptChoices(None)).seconds(launch) == pytest.approx(0.05, rel=0.01)
    assert device.host - began < 9 * 0.05
