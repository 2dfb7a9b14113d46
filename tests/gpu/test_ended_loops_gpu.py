"""Loops within a step's CUDA graph that the GPU ends too early: one took too long, or nobody waits for them."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.ir.diagnostics import ExecutionError
from mspc.runtime.gpu.executor import GpuExecutor
from tests.gpu.emulated import EmulatedGpu
from tests.gpu.test_decided_gpu import decider, endless, needs_compiler, one_graph  # noqa: F401  # a fixture
from tests.gpu.test_regions_gpu import STEPS, programs


def steps(gpu: GpuExecutor, x: float, end: float) -> list[float]:
    return [float(np.asarray(each)) for each in gpu.run([np.float32(x), np.float32(end)])]


@pytest.mark.usefixtures("one_graph")
def test_a_loop_that_takes_too_long_is_ended_by_the_gpu(tmp_path: Path) -> None:
    gpu = GpuExecutor(endless(), decider(tmp_path), {}, loop_limit=0.05)
    for turns in (2, 0, 3):
        assert steps(gpu, 0, turns) == [turns, turns]
    late = gpu.run([np.float32(0.5), np.float32(1)])
    after = gpu.run([np.float32(0), np.float32(1)])
    message = r"While failed on rank 0 .*: it has run for more than 0.05 s, \d+ turns so far, and its condition still"
    for result in (*late, *after, *late):
        with pytest.raises(ExecutionError, match=message):
            np.asarray(result)
    assert [steps(gpu, 0, turns) for turns in (3, 0, 2)] == [[3, 3], [0, 0], [2, 2]]


def stuck(x: Any) -> Any:
    """A loop that never ends in the fourth turn of another, which makes turns for as long as that is so."""
    i = ops.zeros((), ms.float32)
    while i < 5.0:
        end = ops.select(i < 3.0, i, i + 0.5)
        j = x
        while j != end:
            j = j + 1.0
        i = ops.select(j == end, i + 1.0, i)
    return i


def test_the_loop_that_the_gpu_ended_is_named_where_the_host_decides_on_another(tmp_path: Path) -> None:
    zero = np.float32(0)
    graph, values = programs(ms.jit(stuck), zero)
    gpu = GpuExecutor(graph, decider(tmp_path), values, loop_limit=0.3)  # the loop that ends must not take so long
    for _ in range(2):
        with pytest.raises(ExecutionError, match="it has run for more than") as e:
            np.asarray(gpu.run([zero])[0])
        assert "while j != end" in e.value.render()


class Counter(nn.Cell):
    """Adds to a parameter the turns after which a number is another."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.zeros((), np.int32)), name="w")

    def construct(self, i: Any, n: Any) -> Any:
        while i != n:
            i += 2
        return ops.assign(self.w, self.w + i)


def test_what_is_behind_a_loop_that_took_too_long_changes_nothing(tmp_path: Path) -> None:
    zero = np.array(0, np.int32)
    graph, values = programs(Counter(), zero, zero)
    gpu = GpuExecutor(graph, decider(tmp_path), values, loop_limit=0.05)
    for _ in range(STEPS):
        gpu.run([zero, np.array(4, np.int32)])
    gpu.run([zero, np.array(5, np.int32)])
    gpu.run([zero, np.array(2, np.int32)])
    with pytest.raises(ExecutionError, match="it has run for more than"):
        gpu.finish()
    gpu.finish()
    assert gpu.parameter("w") == STEPS * 4
    gpu.run([zero, np.array(2, np.int32)])
    assert gpu.parameter("w") == STEPS * 4 + 2


@contextlib.contextmanager
def interrupted(seconds: float) -> Generator[None]:
    """This process gets the signal of Ctrl-C."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_who_waits_for_an_endless_loop_may_be_interrupted(tmp_path: Path) -> None:
    gpu_device = decider(tmp_path)
    if isinstance(gpu_device, EmulatedGpu):
        pytest.skip("an emulated GPU works while nobody waits")
    gpu = GpuExecutor(endless(), gpu_device, {})
    for turns in (2, 0, 3):
        assert steps(gpu, 0, turns) == [turns, turns]
    begun = time.monotonic()
    (result, _) = gpu.run([np.float32(0.5), np.float32(1)])
    with interrupted(0.3), pytest.raises(KeyboardInterrupt):
        np.asarray(result)
    with pytest.raises(ExecutionError, match="the step was interrupted"):
        np.asarray(result)
    assert [steps(gpu, 0, turns) for turns in (3, 0, 2)] == [[3, 3], [0, 0], [2, 2]]
    assert time.monotonic() - begun < 5


@needs_compiler
def test_a_wait_that_is_interrupted_ends_all_loops_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    gpu = GpuExecutor(endless(), EmulatedGpu(tmp_path), {})
    for turns in (2, 0, 3):
        assert steps(gpu, 0, turns) == [turns, turns]
    result, _ = gpu.run([np.float32(0), np.float32(4)])

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mspc.runtime.gpu.executor.wait_for", interrupt)
        with pytest.raises(KeyboardInterrupt):
            np.asarray(result)
    assert gpu._step.ended.array[0] == -1
    with pytest.raises(ExecutionError, match="the step was interrupted"):
        np.asarray(result)
    assert [steps(gpu, 0, turns) for turns in (3, 0)] == [[3, 3], [0, 0]]


@pytest.mark.parametrize("reader", ["loop", "network"])
def test_loops_that_are_left_end_the_steps_of_other_graphs_too(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    zero = np.array(0, np.int32)
    gpu_device = decider(tmp_path)
    graph, values = programs(Counter(), zero, zero)
    network = GpuExecutor(graph, gpu_device, values)
    loop = GpuExecutor(endless(), gpu_device, {})
    for _ in range(STEPS):
        steps(loop, 0, 2)
        network.run([zero, np.array(4, np.int32)])
    network.finish()
    # Without a GPU work is done when it is asked for: there the loop ends, and what it would have left is played.
    emulated = isinstance(gpu_device, EmulatedGpu)
    late = loop.run([np.float32(0 if emulated else 0.5), np.float32(1)])
    if emulated:
        gpu_device.stop[0] = 1
    behind = network.run([zero, np.array(2, np.int32)])

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mspc.runtime.gpu.executor.wait_for", interrupt)
        with pytest.raises(KeyboardInterrupt):
            np.asarray({"loop": late, "network": behind}[reader][0])
    for result in (*late, *behind):
        with pytest.raises(ExecutionError, match="the step was interrupted"):
            np.asarray(result)
    assert np.asarray(network.run([zero, np.array(2, np.int32)])[0]) == STEPS * 4 + 2
    assert network.parameter("w") == STEPS * 4 + 2
    assert steps(loop, 0, 3) == [3, 3]
