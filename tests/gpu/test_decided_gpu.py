"""What a GPU decides itself within a step's CUDA graph, how often a loop turns and which way a branch goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import ops
from mspc.ir.graph import Constant, Graph
from mspc.ir.types import FLOAT32
from mspc.ops.control.regions import For, While
from mspc.ops.op import REGISTRY
from mspc.passes.autodiff.grad import Grad
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank
from mspc.runtime.executor import Executor
from mspc.runtime.gpu import loops
from mspc.runtime.gpu.executor import GpuExecutor
from mspc.runtime.gpu.launches import asks
from mspc.runtime.gpu.step import GpuStep
from tests.gpu import test_regions_gpu
from tests.gpu.emulated import EmulatedGpu, PlayedNodes
from tests.gpu.test_gpu_executor import device
from tests.gpu.test_regions_gpu import check, programs
from tests.ops.cuda.cuda_emulator import NEEDED
from tests.random_regions import RandomRegions
from tests.runtime.region_graphs import COUNT, SCALAR, run_graphs
from tests.runtime.region_graphs import graph as made_graph

needs_compiler = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
ONE = Constant(np.float32(1), FLOAT32)


def decider(folder: Path) -> Any:
    """A GPU that decides itself."""
    found = device(folder)
    if found.conditional is None or not found.conditional.has_choices:
        pytest.skip("the GPU's driver is older than 12.8")
    return found


@pytest.fixture
def one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is no single CUDA graph fails."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a step is several CUDA graphs")

    monkeypatch.setattr(GpuStep, "_in_parts", refuse)


def nested(x: Any, n: Any) -> Any:
    """Loops and branches in each other, some of them never entered."""
    i = ops.zeros((), ms.int32)
    while i < n:
        j = ops.zeros((), ms.int32)
        while j < i:
            if ops.sum(x) > 8.0:
                k = ops.zeros((), ms.int32)
                while k < 2:
                    x = x * 0.5
                    k += 1
            else:
                x = x + 1.0
            j += 1
        if i > 2:
            x = x - 0.25
        i += 1
    return x, i


@pytest.mark.usefixtures("one_graph")
def test_nested_loops_and_branches_are_part_of_one_graph(tmp_path: Path) -> None:
    x = np.ones((4,), np.float32)
    graph, values = programs(ms.jit(nested), x, np.array(3, np.int32))
    cpu, gpu = Executor(graph, NumPyBackend(OneRank()), values), GpuExecutor(graph, decider(tmp_path), values)
    for n in (0, 5, 0, 1, 7, 5):
        fed = [x, np.array(n, np.int32)]
        for wanted, found in zip(cpu.run(fed), gpu.run(fed), strict=True):
            np.testing.assert_array_equal(np.asarray(found), wanted)
    assert gpu.captured


@pytest.mark.usefixtures("one_graph")
def test_what_is_dropped_is_other_at_every_turn(tmp_path: Path) -> None:
    x, n = np.random.default_rng(5).random((8, 8), np.float32), np.array(3, np.int32)
    graph, values = programs(test_regions_gpu.Drawing().set_train(), x, n)
    cpu, gpu = Executor(graph, NumPyBackend(OneRank()), values), GpuExecutor(graph, decider(tmp_path), values)
    for _ in range(4):
        np.testing.assert_allclose(np.asarray(gpu.run([x, n])[0]), cpu.run([x, n])[0], rtol=1e-5)


@pytest.mark.parametrize("seed", range(200, 210))
def test_random_graphs_where_no_loop_is_unrolled(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MOST_UNROLLED", 0)
    check(RandomRegions(seed, "stand_alone"), seed, tmp_path)


@pytest.mark.parametrize("seed", range(300, 304))
def test_gradients_where_no_loop_is_unrolled(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MOST_UNROLLED", 0)
    made = RandomRegions(seed, "stand_alone", differentiated=True)
    Grad().run(made.graph)
    check(made, seed, tmp_path)


def counting(turns: int, reverse: bool) -> Graph:
    """Adds the numbers of the turns, each time to twice the sum; as many as an operand says where `turns` is -1."""

    def add(b: Any, turn: Any, x: Any) -> Any:
        return [b.emit(REGISTRY["Add"](), b.emit(REGISTRY["Add"](), x, x), turn)]

    body = made_graph("for_1_body", [COUNT, COUNT], add)
    op = For(turns=turns, carried=1, reverse=reverse)
    return made_graph("main", [COUNT, COUNT], lambda b, n, x: run_graphs(b, op, [n, x][turns >= 0 :], body))


@pytest.mark.usefixtures("one_graph")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("turns", [-1, 0, 7])
def test_counted_loops(turns: int, reverse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MOST_UNROLLED", -1)
    gpu = GpuExecutor(counting(turns, reverse), decider(tmp_path), {})
    for n in (3, 0, 5, -2, 4):
        wanted = 1
        numbers = range(turns if turns >= 0 else max(n, 0))
        for turn in reversed(numbers) if reverse else numbers:
            wanted = 2 * wanted + turn
        assert np.asarray(gpu.run([np.int64(n), np.int64(1)])[0]) == wanted


def with_regions(gpu: GpuExecutor) -> list[Any]:
    """The launches of a step's loops and branches."""
    return [work.launch for work in gpu._step.work if work.index >= 0 and gpu.graph.nodes[work.index].regions]


def endless() -> Graph:
    """Adds 1 until the sum is an operand, and tells the turns."""

    def goes_on(b: Any, x: Any, end: Any) -> Any:
        return [b.emit(REGISTRY["NotEqual"](), x, end)]

    condition = made_graph("while_1_condition", [SCALAR, SCALAR], goes_on)
    body = made_graph("while_1_body", [SCALAR, SCALAR], lambda b, x, _: [b.emit(REGISTRY["Add"](), x, ONE)])
    op = While(carried=1, counted=True)
    return made_graph("main", [SCALAR, SCALAR], lambda b, x, end: run_graphs(b, op, [x, end], condition, body))


# Where the host decides


class Without(EmulatedGpu):
    """A GPU whose driver has no conditional nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.conditional = None


class Refused(PlayedNodes):
    """Nodes that are not made."""

    def loop(self, decide: Any, turn: Any) -> None:
        raise RuntimeError("the driver makes none")

    choice = loop


class Refusing(EmulatedGpu):
    """A GPU that captures no conditional nodes; what is captured is looked at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.conditional = Refused()

    def capture(self, work: Any) -> Any:
        self.replaying = True
        try:
            work()
        finally:
            self.replaying = False
        return super().capture(work)


class OlderDriver(EmulatedGpu):
    """A GPU whose driver has loops, and no nodes of two ways."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.conditional.has_choices = False


@needs_compiler
@pytest.mark.parametrize("kind", [Without, Refusing, OlderDriver])
def test_elsewhere_the_host_decides(kind: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def network(x: Any, n: Any) -> Any:
        i = ops.zeros((), ms.int32)
        while i < n:
            x = x + 1.0
            i += 1
        if ops.sum(x) > 3.0:
            x = x * 2.0
            x = ops.exp(-x)
            x = x * 3.0
        return x

    graph, values = programs(ms.jit(network), np.float32(1), np.array(2, np.int32))
    cpu, gpu = Executor(graph, NumPyBackend(OneRank()), values), GpuExecutor(graph, kind(tmp_path), values)
    for n in (1, 4, 0, 3, 2):
        fed = [np.float32(0.5), np.array(n, np.int32)]
        np.testing.assert_allclose(np.asarray(gpu.run(fed)[0]), cpu.run(fed)[0], rtol=1e-6)
    assert gpu.captured
    assert capfd.readouterr().err == ""
    decided = [not asks(launch) for launch in with_regions(gpu)]
    assert decided == {Without: [False, False], Refusing: [True, True], OlderDriver: [True, False]}[kind]


@pytest.mark.parametrize("seed", range(400, 404))
def test_random_graphs_on_an_older_driver(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_regions_gpu, "device", lambda folder: without(device(folder)))
    check(RandomRegions(seed, "stand_alone"), seed, tmp_path)


def without(found: Any) -> Any:
    found.conditional = None
    return found


@needs_compiler
@pytest.mark.parametrize("limit", [0.0, 5.0])
def test_with_other_ranks_the_host_ends_what_takes_too_long(limit: float, tmp_path: Path) -> None:
    class Two(OneRank):
        size = 2

    gpu = GpuExecutor(endless(), EmulatedGpu(tmp_path), {}, host=Two(), loop_limit=limit)
    assert [asks(launch) for launch in with_regions(gpu)] == [limit > 0]
