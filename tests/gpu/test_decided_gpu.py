"""Decisions of a GPU within a step's CUDA graph: how often a loop turns and which way a branch goes."""

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
from mspc.ops.control.regions import For, While
from mspc.runtime.gpu import regions
from mspc.runtime.gpu.launches import needs_host
from mspc.runtime.gpu.step import GpuStep
from tests.executors import Executor, GpuExecutor, Grad, NumPyBackend, OneRank
from tests.gpu import test_regions_gpu
from tests.gpu.emulated import EmulatedGpu, PlayedNodes
from tests.gpu.test_gpu_executor import device
from tests.gpu.test_regions_gpu import STEPS, check, programs
from tests.graphs import FLOAT32, REGISTRY, Constant, ExecutionError, Graph
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


@pytest.mark.parametrize("seed", range(200, 203))
def test_random_graphs_where_no_loop_is_unrolled(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "MAX_UNROLLED", 0)
    check(RandomRegions(seed, "stand_alone"), seed, tmp_path)


@pytest.mark.parametrize("seed", range(300, 302))
def test_gradients_where_no_loop_is_unrolled(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "MAX_UNROLLED", 0)
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
    monkeypatch.setattr(regions, "MAX_UNROLLED", -1)
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
    decided = [not needs_host(launch) for launch in with_regions(gpu)]
    assert decided == {Without: [False, False], Refusing: [True, True], OlderDriver: [True, False]}[kind]


@pytest.mark.parametrize("seed", range(400, 402))
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
    assert [needs_host(launch) for launch in with_regions(gpu)] == [limit > 0]


# Loops within a step's CUDA graph that the GPU ends too early: one took too long, or nobody waits for them.


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
