"""Errors within graphs that run graphs on a GPU are named as on CPUs, and work that cannot be captured runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.runtime.gpu.progress import HostQuery
from tests.executors import Executor, GpuExecutor, NumPyBackend, OneRank
from tests.gpu.emulated import EmulatedGpu
from tests.gpu.test_gpu_executor import TimedGpu, device
from tests.gpu.test_regions_gpu import STEPS, programs
from tests.graphs import FLOAT32, REGISTRY, Constant, ExecutionError, Graph, Op
from tests.operators import For, UniformReal, While
from tests.ops.cuda.cuda_emulator import NEEDED
from tests.runtime.region_graphs import COUNT, SCALAR, run_graphs
from tests.runtime.region_graphs import graph as made_graph

needs_compiler = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
ONE = Constant(np.float32(1), FLOAT32)


def asks(gpu: GpuExecutor) -> bool:
    """Whether a step asks the host."""
    return any(isinstance(work.launch, HostQuery) for work in gpu._step.work)


def both(graph: Graph, values: Any, folder: Path) -> tuple[Executor, GpuExecutor]:
    own = {name: np.array(value) for name, value in values.items()}
    return Executor(graph, NumPyBackend(OneRank()), own), GpuExecutor(graph, device(folder), values)


def test_a_stack_of_another_length_is_no_stack_for_the_turns(tmp_path: Path) -> None:
    def make(b: Any, n: Any, k: Any, x: Any) -> Any:
        kept = made_graph("for_1_body", [COUNT, SCALAR], lambda b, _, x: [b.emit(REGISTRY["Add"](), x, ONE), x])
        _, stack = run_graphs(b, For(carried=1, stacked=1), [n, x], kept)
        read = made_graph("for_2_body", [COUNT, SCALAR, SCALAR], lambda b, _, s, x: [b.emit(REGISTRY["Add"](), s, x)])
        return run_graphs(b, For(carried=1, scanned=1), [k, x, stack], read)

    gpu = GpuExecutor(made_graph("main", [COUNT, COUNT, SCALAR], make), device(tmp_path), {})
    for n in (3, 0, 2, 3):
        (found,) = gpu.run([np.int64(n), np.int64(n), np.float32(1)])
        assert np.asarray(found) == 1 + n * (n + 1) / 2
    with pytest.raises(ExecutionError, match="For has 2 turns and scans a stack of 3 entries"):
        gpu.run([np.int64(3), np.int64(2), np.float32(1)])
    assert np.asarray(gpu.run([np.int64(2), np.int64(2), np.float32(1)])[0]) == 4


def test_a_condition_of_nan_holds_not(tmp_path: Path) -> None:
    def network(x: Any, n: Any) -> Any:
        i = ops.zeros((), ms.int32)
        while ops.sum(x) < 10.0:
            x = x + 1.0
        while i < n:
            if ops.sum(x) > 0.0:
                x = x * 2.0
            else:
                x = x - 1.0
            i += 1
        return x, i

    inputs = np.ones((2,), np.float32), np.array(2, np.int32)
    cpu, gpu = both(*programs(ms.jit(network), *inputs), tmp_path)
    for x in (1.0, np.nan, 1.0, np.nan, 30.0):
        fed = [np.full((2,), x, np.float32), inputs[1]]
        for one, other in zip(cpu.run(fed), gpu.run(fed), strict=True):
            np.testing.assert_array_equal(np.asarray(other), one)


def test_what_fails_inside_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def network(x: Any, n: Any) -> Any:
        i = ops.zeros((), ms.int32)
        while i < n:
            x = ops.lgamma(x)  # here
            i += 1
        return x

    graph, values = programs(ms.jit(network), np.ones((4,), np.float32), np.array(2, np.int32))

    def run(*_: Any) -> Any:
        raise ValueError("it is broken")

    monkeypatch.setattr(REGISTRY["Lgamma"], "run", run)
    gpu = GpuExecutor(graph, device(tmp_path), values)
    with pytest.raises(ExecutionError, match=r"Lgamma failed .*: ValueError: it is broken") as e:
        gpu.run([np.ones((4,), np.float32), np.array(2, np.int32)])
    assert "# here" in e.value.render()


class Frozen(EmulatedGpu):
    """The host's record of step and turns while launches are captured stays so when they are replayed."""

    backend: Any = None

    def capture(self, work: Any) -> Any:
        replay, then = super().capture(work), vars(self.backend).copy()

        def run() -> None:
            now = vars(self.backend).copy()
            vars(self.backend).update(then)
            replay()
            vars(self.backend).update(now)

        return run


def chosen(x: Any) -> Any:
    return (ops.UniformReal(1)((8,)) * x).sum().astype(ms.int32)


def counted(x: Any, n: Any) -> Any:
    found = ops.zeros((), ms.int32)
    for _ in range(n):
        found = found * 3 + chosen(x)
    return found


def asked(x: Any, n: Any) -> Any:
    found = i = ops.zeros((), ms.int32)
    while i < n and chosen(x) % 5 > 0:
        found = found * 3 + chosen(x)
        i += 1
    return found


def drawn_once(x: Any, n: Any) -> Any:
    return chosen(x) * 3 + n


@needs_compiler
@pytest.mark.parametrize("network", [counted, asked, drawn_once])
def test_what_cupy_draws_is_another_number_in_every_turn_and_step(
    network: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UniformReal, "launch", Op.launch)
    x, n = np.full((8,), 64, np.float32), np.array(9, np.int32)
    graph, values = programs(ms.jit(network), x, n)
    gpu_device = Frozen(tmp_path)
    cpu, gpu = Executor(graph, NumPyBackend(OneRank()), values), GpuExecutor(graph, gpu_device, values)
    gpu_device.backend = gpu._step.backend
    steps = [(int(np.asarray(gpu.run([x, n])[0])), int(cpu.run([x, n])[0])) for _ in range(5)]
    assert all(found == wanted for found, wanted in steps)
    assert len({found for found, _ in steps}) > 2


class Training(nn.Cell):
    """A loop whose turns are counted when it runs, and gradient descent. inside: whether the logarithm is in it."""

    def __init__(self, inside: bool = True) -> None:
        super().__init__()
        self.inside = inside
        self.w = Parameter(Tensor(np.full((2,), 0.5, np.float32)), name="w")
        self.value_and_grad = ms.value_and_grad(self.loss, None, [self.w])

    def loss(self, x: Any, n: Any) -> Any:
        i = ops.zeros((), ms.int32)
        while i < n:
            x = (ops.log(x) if self.inside else ops.tanh(x)) * self.w
            i += 1
        return ops.sum(x if self.inside else ops.log(x))

    def construct(self, x: Any, n: Any) -> Any:
        loss, (gradient,) = self.value_and_grad(x, n)
        return ops.depend(loss, ops.assign(self.w, self.w - 0.1 * gradient))


@pytest.mark.parametrize(("inside", "source"), [(True, "While"), (False, "Log")])
def test_a_loss_that_is_not_finite_comes_from_the_loop_or_not(inside: bool, source: str, tmp_path: Path) -> None:
    x, n = np.full((2,), 9.0, np.float32), np.array(2, np.int32)
    cpu, gpu = both(*programs(Training(inside), x, n), tmp_path)
    for _ in range(STEPS):
        np.testing.assert_allclose(np.asarray(gpu.run([x, n])[0]), cpu.run([x, n])[0], rtol=1e-5)
    before = gpu.parameter("w")
    with pytest.raises(ExecutionError, match=f"NaN on rank 0; the first such value comes from .*{source}"):
        np.asarray(gpu.run([-x, n])[0])
    np.testing.assert_array_equal(gpu.parameter("w"), before)


@needs_compiler
def test_steps_that_run_graphs_are_timed(tmp_path: Path) -> None:
    x, n = np.full((2,), 9.0, np.float32), np.array(2, np.int32)
    graph, values = programs(Training(), x, n)
    cpu = Executor(graph, NumPyBackend(OneRank()), {name: np.array(value) for name, value in values.items()})
    gpu = GpuExecutor(graph, TimedGpu(tmp_path), values)
    loops = {index for index, node in enumerate(graph.nodes) if node.regions}
    for step in range(5):
        wanted = cpu.run([x, n])[0]
        (found,), times = gpu.run_timed([x, n]) if step % 2 else (gpu.run([x, n]), [])
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5)
        assert not step % 2 or loops < {each.index for each in times}


# Captured values


def nested(turns: int, inner: int) -> Graph:
    """Adds 1 so many times."""
    add = made_graph("for_2_body", [COUNT, SCALAR], lambda b, _, x: [b.emit(REGISTRY["Add"](), x, ONE)])
    body = made_graph(
        "for_1_body", [COUNT, SCALAR], lambda b, _, x: run_graphs(b, For(turns=inner, carried=1), [x], add)
    )
    return made_graph("main", [SCALAR], lambda b, x: run_graphs(b, For(turns=turns, carried=1), [x], body))


@pytest.mark.parametrize(("turns", "inner", "captured"), [(3, 4, True), (50, 50, False), (3, 1000, False)])
def test_launches_of_nested_loops_are_counted_together(
    turns: int, inner: int, captured: bool, tmp_path: Path
) -> None:  # fmt: skip
    gpu = GpuExecutor(nested(turns, inner), device(tmp_path), {})
    assert asks(gpu) != captured
    assert np.asarray(gpu.run([np.float32(0)])[0]) == turns * inner


class Uncaptured(EmulatedGpu):
    """A GPU where nothing can be captured."""

    def capture(self, work: Any) -> Any:
        raise ValueError("it synchronizes")


@needs_compiler
def test_what_cannot_be_captured_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    less = made_graph("while_1_condition", [SCALAR], lambda b, x: [b.emit(REGISTRY["Less"](), x, ONE)])
    body = made_graph("while_1_body", [SCALAR], lambda b, x: [b.emit(REGISTRY["Add"](), x, ONE)])
    main = made_graph("main", [SCALAR], lambda b, x: run_graphs(b, While(carried=1), [x], less, body))
    gpu = GpuExecutor(main, Uncaptured(tmp_path), {})
    for _ in range(STEPS):
        assert np.asarray(gpu.run([np.float32(-5)])[0]) == 1
    assert "rank 0 makes launches one by one" in capsys.readouterr().err
