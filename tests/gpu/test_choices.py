"""How the fastest of several ways is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.runtime.gpu.choices import ALIKE
from tests.gpu.emulated import EmulatedGpu


@pytest.fixture
def device(tmp_path: Path) -> EmulatedGpu:
    return EmulatedGpu(tmp_path)


def chosen(device: EmulatedGpu, times: list[float]) -> int:
    device.choices.choose("ways", len(times), lambda i: times[i])
    return device.choices["ways"]


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([1.0, 1.0 - ALIKE / 2], 0),  # as good, and expected to be better
        ([1.0, 1.0 - 2 * ALIKE], 1),
        ([float("inf"), 1.0, 0.99], 1),
        ([1.5, 1.2, 1.0, 1.01], 2),
    ],
)
def test_first_of_those_that_are_as_fast(device: EmulatedGpu, times: list[float], wanted: int) -> None:
    assert chosen(device, times) == wanted


def test_memory_has_numbers_of_every_type_before_ways_are_timed(device: EmulatedGpu) -> None:
    memory = device.zeros((1 << 16,), "uint8")
    with device.choices.within(memory):
        assert not memory.any()
        chosen(device, [2.0, 1.0])
    kinds: tuple[Any, ...] = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
    for kind in kinds:
        values = memory.view(kind).astype(np.float64)
        assert np.abs(values).max() <= 2
        assert np.abs(values).min() > 0
        assert 0.4 < (values > 0).mean() < 0.6
        assert np.unique(values).size > min(1000, values.size // 2)


def test_memory_keeps_what_it_has_behind_the_context(device: EmulatedGpu) -> None:
    memory = device.zeros((1 << 10,), "uint8")
    with device.choices.within(memory):
        pass
    chosen(device, [2.0, 1.0])
    assert not memory.any()


def test_memory_gets_numbers_once(device: EmulatedGpu) -> None:
    memory = device.zeros((1 << 10,), "uint8")
    with device.choices.within(memory):
        chosen(device, [2.0, 1.0])
        memory[...] = 0
        device.choices.choose("others", 2, lambda i: float(i))
    assert not memory.any()


def test_where_one_way_is_there_nothing_is_timed(device: EmulatedGpu) -> None:
    memory = device.zeros((1 << 10,), "uint8")
    with device.choices.within(memory):
        chosen(device, [1.0])
    assert not memory.any()
