"""Graphs that run graphs on the GPU executor give what the NumPy executor gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.ir.graph import MICRO_BATCH, Builder, Constant, Graph, Parameter, Value
from mspc.ops.control.regions import Call, For, Scan, While, emit_regions
from mspc.runtime.gpu.progress import HostQuery
from mspc.runtime.gpu.regions import MAX_UNROLLED
from tests.compiled_scripts import Config, compile_call
from tests.executors import Executor, GpuExecutor, Grad, NumPyBackend, OneRank
from tests.gpu.emulated import EmulatedGpu
from tests.gpu.test_gpu_executor import device
from tests.graphs import FLOAT32, INT64, REGISTRY, ExecutionError, TensorType
from tests.operators import Dropout, Reshape, Send, Stack, StridedSlice, TupleGetItem
from tests.ops.cuda.cuda_emulator import NEEDED
from tests.random_regions import RandomRegions
from tests.runtime.region_graphs import COUNT, SCALAR, calls_with_tuples, run_graphs
from tests.runtime.region_graphs import graph as made_graph
from tests.shares import share_of

STEPS = 3
"""The first makes launches one by one, the second captures them, the third replays them."""


def check(made: RandomRegions, seed: int, folder: Path) -> None:
    """Steps with other inputs each, on parameters that go from one to the next."""
    graph = made.graph
    generator = np.random.default_rng(seed)
    stored = {p.name: generator.random(p.shape) - 0.5 for p in graph.parameters if p.kind == "parameter"}
    cpu = Executor(graph, NumPyBackend(OneRank()), {name: array.copy() for name, array in stored.items()})
    gpu = GpuExecutor(graph, device(folder), stored)
    for _ in range(STEPS):
        x, n, k = generator.random(cpu.inputs[0].shape), *generator.integers(0, 4, 2)
        fed = [x, np.asarray(n), np.asarray(k)]
        for one, other in zip(cpu.run(fed), gpu.run(fed), strict=True):
            np.testing.assert_allclose(np.asarray(other), one, rtol=1e-10, atol=1e-12)
    for name in stored:
        np.testing.assert_allclose(gpu.parameter(name), cpu.parameter(name), rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("seed", range(share_of(48)))
def test_values(seed: int, tmp_path: Path) -> None:
    check(RandomRegions(seed, "stand_alone"), seed, tmp_path)


@pytest.mark.parametrize("seed", range(100, 100 + share_of(48)))
def test_gradients(seed: int, tmp_path: Path) -> None:
    made = RandomRegions(seed, "stand_alone", differentiated=True)
    Grad().run(made.graph)
    check(made, seed, tmp_path)


# Draws, captures, ends


class Drawing(nn.Cell):
    """Dropout in loops, in a choice, and in a graph that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p=0.5)

    def construct(self, x: Any, n: Any) -> Any:
        i = ops.zeros((), ms.int32)
        while i < n:
            x = self.dropout(x) + 1.0
            if ops.sum(x) > 0:
                x = self.dropout(ops.matmul(x, x)) / 100.0
            j = ops.zeros((), ms.int32)
            while j < n:
                x = self.dropout(x) + 1.0
                j += 1
            i += 1
        return x


def programs(network: Any, *inputs: Any) -> tuple[Any, dict[str, Any]]:
    """The graph that a GPU runs, and the values of its parameters and constants."""
    compiled = compile_call(network, [Tensor(value) for value in inputs], Config(device="GPU"))
    values = {name: np.asarray(value.array) for name, value in compiled.traced.parameters.items()}
    values |= {name: np.asarray(value) for name, value in compiled.traced.constants.items()}
    return compiled.rank_graph(0), values


def test_masks_are_those_of_the_cpu(tmp_path: Path) -> None:
    x, n = np.random.default_rng(5).random((8, 8), np.float32), np.array(3, np.int32)
    network = Drawing().set_train()
    graph, values = programs(network, x, n)
    cpu, gpu = Executor(graph, NumPyBackend(OneRank()), values), GpuExecutor(graph, device(tmp_path), values)
    last = None
    for _ in range(STEPS):
        (wanted,), (found,) = cpu.run([x, n]), gpu.run([x, n])
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5)
        assert last is None or not np.allclose(last, wanted)
        last = wanted


def repeated(x: Any, n: Any) -> Any:
    """The dropped elements depend on nothing that a turn changes."""
    drop, total = ops.Dropout(keep_prob=0.5), ops.zeros_like(x)
    for _ in range(n):
        total = total * 2.0 + drop(x)[0]
    return total


def test_what_a_turn_draws_stays_in_the_loop(tmp_path: Path) -> None:
    x, n = np.ones((8, 8), np.float32), np.array(3, np.int32)
    call = [Tensor(x), Tensor(n)]
    plain = compile_call(ms.jit(repeated), call, Config()).rank_graph(0)
    graph, values = programs(ms.jit(repeated), x, n)
    cpu, gpu = Executor(plain, NumPyBackend(OneRank()), values), GpuExecutor(graph, device(tmp_path), values)
    for _ in range(STEPS):
        np.testing.assert_allclose(np.asarray(gpu.run([x, n])[0]), cpu.run([x, n])[0], rtol=1e-6)


def test_a_counted_loop_is_part_of_the_steps_own_graph(tmp_path: Path) -> None:
    gpu = GpuExecutor(run_for(5), device(tmp_path), {})
    assert not any(isinstance(work.launch, HostQuery) for work in gpu._step.work)
    long = GpuExecutor(run_for(MAX_UNROLLED), device(tmp_path), {})
    assert any(isinstance(work.launch, HostQuery) for work in long._step.work)
    for _ in range(STEPS):
        assert np.asarray(long.run([np.float32(0)])[0]) == MAX_UNROLLED
        assert np.asarray(gpu.run([np.float32(0)])[0]) == 5


def run_for(turns: int) -> Graph:
    """Adds 1 so many times."""
    one = Constant(np.float32(1), FLOAT32)
    body = made_graph("for_1_body", [COUNT, SCALAR], lambda b, _, x: [b.emit(REGISTRY["Add"](), x, one)])
    return made_graph("main", [SCALAR], lambda b, x: run_graphs(b, For(turns=turns, carried=1), [x], body))


class LateGpu(EmulatedGpu):
    """Work that is begun aside is over no sooner than it has to be."""

    def __init__(self, folder: Path, comm: Any) -> None:
        super().__init__(folder, comm)
        self._begun: list[Callable[[], None]] = []

    def on_side_stream(self, name: str, launch: Callable[[], None]) -> None:
        self._begun.append(launch)

    def rejoin(self) -> None:
        while self._begun:
            self._begun.pop(0)()
        super().rejoin()


class Sending(OneRank):
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[float] = []

    def send(self, array: Any, rank: int, tag: int = 0) -> None:
        self.sent.append(float(array))


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_a_turn_changes_nothing_that_the_one_before_it_sends(tmp_path: Path) -> None:
    one, send = Constant(np.float32(1), FLOAT32), Send(sr_tag=1, dest_rank=1)
    body = made_graph("for_1_body", [COUNT, SCALAR], lambda b, _, x: [b.emit(REGISTRY["Add"](), b.emit(send, x), one)])
    main = made_graph("main", [SCALAR], lambda b, x: run_graphs(b, For(turns=3, carried=1), [x], body))
    comm = Sending()
    gpu = GpuExecutor(main, LateGpu(tmp_path, comm), {}, host=OneRank())
    for step in range(STEPS):
        assert np.asarray(gpu.run([np.float32(10 * step)])[0]) == 10 * step + 3
    assert comm.sent == [10.0 * step + turn for step in range(STEPS) for turn in range(3)]


def test_a_loop_without_end_is_stopped(tmp_path: Path) -> None:
    always = made_graph("while_1_condition", [SCALAR], lambda b, x: [b.emit(REGISTRY["Equal"](), x, x)])
    body = made_graph("while_1_body", [SCALAR], lambda b, x: [b.emit(REGISTRY["Neg"](), x)])
    main = made_graph("main", [SCALAR], lambda b, x: run_graphs(b, While(carried=1), [x], always, body))
    gpu = GpuExecutor(main, device(tmp_path), {}, loop_limit=0.05)
    with pytest.raises(ExecutionError, match=r"While failed on rank 0 .*: it has run for more than 0.05 s, \d+ turns"):
        gpu.run([np.float32(1)])


def test_what_a_turn_overwrites_stays_in_its_place(tmp_path: Path) -> None:
    def network(cache: Any, x: Any) -> Any:
        i = ops.zeros((), ms.int32)
        while i < 5:
            cache[:, i] = x * i
            i += 1
        return cache

    cache, x = np.zeros((3, 8, 4), np.float32), np.ones((3, 4), np.float32)
    graph, values = programs(ms.jit(network), cache, x)
    gpu = GpuExecutor(graph, device(tmp_path), values)
    body = next(node for node in graph.nodes if node.regions).regions[-1]
    plan = next(plan for (region, *_), plan in gpu._step._around.plans.items() if region is body)
    written = next(node for node in body.nodes if node.op.name == "TensorScatterUpdate")
    assert [place.kind for place in plan.places[written]] == ["kept"]
    wanted = np.zeros_like(cache)
    wanted[:, :5] = np.arange(5, dtype=np.float32)[:, None]
    for _ in range(STEPS):
        np.testing.assert_array_equal(np.asarray(gpu.run([cache, x])[0]), wanted)


def test_a_decoder_generates_the_cpus_tokens(tmp_path: Path) -> None:
    from benchmarks.gpu.generation import SMALL, Generator, prompt_of

    ms.set_seed(3)
    network = Generator(SMALL, ms.float32)
    prompt = prompt_of(SMALL, 3)
    graph, values = programs(network.set_train(False), prompt)
    bodies = [region for node in graph.nodes for region in node.regions]
    assert not [node for body in bodies for node in body.nodes if node.op.name in ("Concat", "Transpose", "ReduceAll")]
    (wanted,) = Executor(graph, NumPyBackend(OneRank()), values).run([prompt])
    gpu = GpuExecutor(graph, device(tmp_path), values)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(gpu.run([prompt])[0]), wanted)


def test_what_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def network(x: Any) -> Any:
        i = ops.zeros((), ms.int32)
        while i < 2:
            print("turn", i, x)
            x = ops.matmul(x, x) + 1.0
            i += 1
        return x

    x = np.ones((2, 2), np.float32)
    graph, values = programs(ms.jit(network), x)
    gpu = GpuExecutor(graph, device(tmp_path), values)
    said = []
    for _ in range(STEPS):
        gpu.run([x])
        said.append(capfd.readouterr().out)
    assert said[0].splitlines()[:2] == ["turn", "0"]
    assert "value=[[3., 3.],\n [3., 3.]]" in said[0]
    assert said == [said[0]] * STEPS


def test_calls_hand_on_tuples(tmp_path: Path) -> None:
    graph = calls_with_tuples()
    generator = np.random.default_rng(0)
    stored = {p.name: generator.random(p.shape, np.float32) for p in graph.parameters if p.kind == "parameter"}
    cpu = Executor(graph, NumPyBackend(OneRank()), {name: array.copy() for name, array in stored.items()})
    gpu = GpuExecutor(graph, device(tmp_path), stored)
    for _ in range(STEPS):
        fed = [generator.random(4, np.float32) for _ in range(2)]
        for one, other in zip(cpu.run(fed), gpu.run(fed), strict=True):
            np.testing.assert_allclose(np.asarray(other), one, rtol=1e-5)


def test_work_on_a_micro_batch_draws_as_a_turn(tmp_path: Path) -> None:
    """A stage's calls draw the numbers of the loop over micro-batches, in a loop within, too."""

    def body(name: str) -> Graph:
        row = Parameter("row", TensorType(FLOAT32, (16,)))
        made = Graph(name)
        made.parameters, made.returns_tuple = [row], True
        builder = Builder(made)
        inner = Graph(f"{name}_inner")
        turn, kept = Parameter("turn", TensorType(INT64, ())), Parameter("kept", row.type)
        inner.parameters, inner.returns_tuple = [turn, kept], True
        inside = Builder(inner)
        inner.results = [inside.emit(TupleGetItem(0), inside.emit(Dropout(0.5, 3), kept))]
        value = builder.emit(TupleGetItem(0), emit_regions(builder, For(carried=1, turns=2), [row], [inner]))
        made.results = [builder.emit(TupleGetItem(0), builder.emit(Dropout(0.5, 4), value))]
        return made

    rows = Parameter("rows", TensorType(FLOAT32, (2, 16)))
    scanned, staged = Graph("scanned"), Graph("staged")
    for graph in (scanned, staged):
        graph.parameters, graph.attrs = [rows], {"mode": "stand_alone", "ranks": 1}
    b = Builder(scanned)
    loop = emit_regions(b, Scan(scanned=1, stacked=1, turns=2, micro_batches=True), [rows], [body("turn_body")])
    scanned.results = [b.emit(TupleGetItem(0), loop)]
    b, shared = Builder(staged), body("work_body")
    parts: list[Value] = []
    for number in range(2):
        taken = StridedSlice(begin=(number, 0), end=(number + 1, 16), strides=(1, 1))
        part = b.emit(Reshape((16,)), b.emit(taken, rows))
        call = emit_regions(b, Call(), [part], [shared])
        call.attrs[MICRO_BATCH] = number
        parts.append(b.emit(TupleGetItem(0), call))
    staged.results = [b.emit(Stack(axis=0), *parts)]
    executors = [Executor(graph, NumPyBackend(OneRank()), {}) for graph in (scanned, staged)]
    executors += [GpuExecutor(graph, device(tmp_path), {}) for graph in (scanned, staged)]
    x = np.ones((2, 16), np.float32)
    seen: set[bytes] = set()
    for _ in range(STEPS):
        wanted, *others = (np.array(executor.run([x])[0]) for executor in executors)
        seen.add(wanted.tobytes())
        for found in others:
            np.testing.assert_array_equal(found, wanted)
    assert len(seen) == STEPS
