"""The time of a launch is the GPU's, however long the host takes to launch it, and how the fastest way is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.runtime.gpu import choices as choices_module
from mspc.runtime.gpu.choices import EQUAL_SHARE, Choices, StoredChoices
from tests.gpu.emulated import EmulatedGpu


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
    found = Choices(device, StoredChoices(None))
    for wanted in (30e-6, 50e-6, 31e-6):
        assert found.seconds(lambda: device.work(host, wanted)) == pytest.approx(wanted)  # noqa: B023


def test_a_host_that_waits_for_the_gpu_does_not_pause_it_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Clocks()
    monkeypatch.setattr(choices_module, "time", device)

    def launch() -> None:
        device.work(0, 0.05)
        device.host = device.done

    began = device.host
    assert Choices(device, StoredChoices(None)).seconds(launch) == pytest.approx(0.05, rel=0.01)
    assert device.host - began < 9 * 0.05


@pytest.fixture
def gpu(tmp_path: Path) -> EmulatedGpu:
    return EmulatedGpu(tmp_path)


def chosen(gpu: EmulatedGpu, times: list[float]) -> int:
    gpu.choices.choose("ways", len(times), lambda i: times[i])
    return gpu.choices["ways"]


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([1.0, 1.0 - EQUAL_SHARE / 2], 0),  # as good, and expected to be better
        ([1.0, 1.0 - 2 * EQUAL_SHARE], 1),
        ([float("inf"), 1.0, 0.99], 1),
        ([1.5, 1.2, 1.0, 1.01], 2),
    ],
)
def test_first_of_those_that_are_as_fast(gpu: EmulatedGpu, times: list[float], wanted: int) -> None:
    assert chosen(gpu, times) == wanted


def test_memory_has_numbers_of_every_type_before_ways_are_timed(gpu: EmulatedGpu) -> None:
    memory = gpu.zeros((1 << 16,), "uint8")
    with gpu.choices.within(memory):
        assert not memory.any()
        chosen(gpu, [2.0, 1.0])
    kinds: tuple[Any, ...] = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
    for kind in kinds:
        values = memory.view(kind).astype(np.float64)
        assert np.abs(values).max() <= 2
        assert np.abs(values).min() > 0
        assert 0.4 < (values > 0).mean() < 0.6
        assert np.unique(values).size > min(1000, values.size // 2)


def test_memory_keeps_what_it_has_behind_the_context(gpu: EmulatedGpu) -> None:
    memory = gpu.zeros((1 << 10,), "uint8")
    with gpu.choices.within(memory):
        pass
    chosen(gpu, [2.0, 1.0])
    assert not memory.any()


def test_memory_gets_numbers_once(gpu: EmulatedGpu) -> None:
    memory = gpu.zeros((1 << 10,), "uint8")
    with gpu.choices.within(memory):
        chosen(gpu, [2.0, 1.0])
        memory[...] = 0
        gpu.choices.choose("others", 2, lambda i: float(i))
    assert not memory.any()


def test_where_one_way_is_there_nothing_is_timed(gpu: EmulatedGpu) -> None:
    memory = gpu.zeros((1 << 10,), "uint8")
    with gpu.choices.within(memory):
        chosen(gpu, [1.0])
    assert not memory.any()
