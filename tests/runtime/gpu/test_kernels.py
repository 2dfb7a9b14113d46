"""Kernels of CUDA C++: each source is compiled once, beside the host and beside others, and loaded before it is due."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.runtime.device_choice import GpuMemory
from mspc.runtime.gpu import choices as choices_module
from mspc.runtime.gpu.choices import EQUAL_SHARE, Choices, StoredChoices
from mspc.runtime.gpu.kernels import KernelCache
from tests.gpu.emulated import EmulatedGpu


class Library:
    """In place of CuPy: modules whose compiler waits until two of them are at work, where `together` says so."""

    def __init__(self, together: bool = False) -> None:
        self.compiled: list[str] = []
        self.launched: list[tuple[Any, ...]] = []
        self.loaded: list[str] = []
        self.cuda = SimpleNamespace(Device=lambda index: SimpleNamespace(use=lambda: None))
        self._meeting = threading.Barrier(2, timeout=30) if together else None

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:  # CuPy's name
        source = code[code.rindex("//") :]

        def get_function(name: str) -> Any:
            if source not in self.compiled:
                if self._meeting is not None:
                    self._meeting.wait()
                self.compiled.append(source)
            if "wrong" in source:
                raise ValueError(f"{source} has no {name}")
            self.loaded.append(name)
            return Function(self, name)

        return SimpleNamespace(get_function=get_function)


class Function:
    max_dynamic_shared_size_bytes = 0

    def __init__(self, library: Library, name: str) -> None:
        self._library, self._name = library, name

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared_mem: int
    ) -> None:
        self._library.launched.append((self._name, grid, block, arguments, shared_mem))


def test_a_source_is_compiled_once_for_all_its_kernels() -> None:
    library = Library()
    kernels = KernelCache(library, 0)
    first, second = kernels.kernel("// one", "first"), kernels.kernel("// one", "second")
    assert kernels.kernel("// one", "first") is first
    first(3, 32, [np.int32(1)])
    second((2, 2), 64, [], shared=1 << 16)
    assert library.compiled == ["// one"]
    assert library.launched == [("first", (3,), (32,), (np.int32(1),), 0), ("second", (2, 2), (64,), (), 1 << 16)]


@pytest.mark.skipif(KernelCache(Library(), 0).threads < 2, reason="this process has one core")
def test_sources_are_compiled_beside_each_other() -> None:
    library = Library(together=True)
    kernels = KernelCache(library, 0)
    kernels.kernel("// one", "first")
    kernels.kernel("// two", "second")
    kernels.wait()
    assert sorted(library.compiled) == ["// one", "// two"]


def test_all_are_loaded_before_something_waits_for_them() -> None:
    library = Library()
    kernels = KernelCache(library, 0)
    hold, free = kernels.kernel("// one", "hold"), kernels.kernel("// one", "free")
    kernels.wait()
    loaded = list(library.loaded)
    hold(1, 1, ())
    free(1, 1, ())
    assert library.loaded == loaded


def test_what_the_compiler_says_comes_when_kernels_are_loaded_with_the_node_that_asked() -> None:
    kernels = KernelCache(Library(), 0)
    kernels.node = "the node"
    kernel = kernels.kernel("// wrong", "first")
    kernels.node = "another one"
    for load in (kernels.wait, lambda: kernel(1, 1, ())):
        with pytest.raises(ValueError, match="has no first") as caught:
            load()
        assert caught.value.node == "the node"  # type: ignore[attr-defined]  # it is put there


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


def test_what_the_host_holds_is_not_fetched_from_the_gpu() -> None:
    constant = np.arange(3)
    assert GpuMemory(SimpleNamespace()).fetch(constant) is constant  # the device would be asked to receive it
