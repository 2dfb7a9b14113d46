"""Stages on several emulated GPUs beside NumPy: planned memory, real kernels, messages that go straight from one to the
other, or through a communicator.
"""

import gc
import sys
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from queue import Queue
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, nn, ops
from mspc.ir.graph import WORK, Graph, Node
from mspc.mindspore_api import context
from mspc.runtime.device_choice import Probe
from mspc.runtime.gpu.peers import Mapping, PeerAddresses
from mspc.runtime.gpu.step import Overlap
from mspc.runtime.memory_plan import device_bytes_inside, plan_memory
from tests.compiled_scripts import Compiled, Config, compile_call
from tests.errors import failure_of
from tests.executors import Executor, GpuExecutor, LocalComm, NumPyBackend, World
from tests.gpu.emulated import EmulatedGpu
from tests.operators import AllReduce, MatMul, ReceiveFromStage, SendToStage
from tests.ops.cuda.cuda_emulator import NEEDED
from tests.runtime.graphs import GraphMaker
from tests.serving import HANG, succeed

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")

MICRO_BATCHES, ROWS, WIDTH = 4, 4, 8
PLACES = {"interleaved": (0, 1, 0, 1), "zero_bubble_v": (0, 1, 1, 0)}


class Layer(nn.Cell):
    """Rows (ROWS, WIDTH) and what stands beside them (ROWS, 2), of which stages hand both on."""

    def __init__(self, rng: Any, shared: Parameter, stage: int, half: bool) -> None:
        super().__init__()
        self.kind = mspc.bfloat16 if half else mspc.float32
        self.own = Parameter(Tensor(rng.standard_normal((WIDTH, WIDTH), np.float32) / 3), name="own")
        self.norm, self.shared = nn.LayerNorm([WIDTH]), shared
        self.pipeline_stage = stage

    def construct(self, x: Any, beside: Any) -> Any:
        y = self.norm(x)
        product = ops.matmul(ops.cast(y, self.kind), ops.cast(self.own, self.kind))
        mixed = ops.tanh(ops.cast(product, mspc.float32)) + ops.matmul(ops.sin(y), self.shared)
        return x + mixed * ops.reduce_sum(beside, -1, True), beside + mixed[:, :2] * 0.1


class Net(nn.Cell):
    """Four layers and a loss. apart: no parameter is read by several stages."""

    def __init__(self, places: Sequence[int], half: bool, apart: bool) -> None:
        super().__init__()
        rng = np.random.default_rng(5)
        value = Tensor(rng.standard_normal((WIDTH, WIDTH), np.float32) / 3)
        several = [Parameter(value, name="shared") for _ in range(len(places) if apart else 1)]
        self.layers = nn.CellList(
            [Layer(rng, several[k % len(several)], stage, half) for k, stage in enumerate(places)]
        )

    def construct(self, x: Any, y: Any) -> Any:
        beside = x[:, :2]
        for layer in self.layers:
            x, beside = layer(x, beside)
        return ops.reduce_mean(ops.square(x - y)) + ops.reduce_mean(ops.square(beside))


@cache
def compiled(
    schedule: str, half: bool = False, states: bool = False, apart: bool = False
) -> tuple[Compiled, list[Any]]:
    places = PLACES.get(schedule, (0, 0, 1, 1))
    scheduler = "1f1b" if schedule == "interleaved" else schedule
    mspc.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2,
        pipeline_config={"pipeline_interleave": places != (0, 0, 1, 1), "pipeline_scheduler": scheduler},
    )  # fmt: skip
    try:
        cell = nn.PipelineCell(Net(places, half, apart), MICRO_BATCHES)
        optimizer = nn.Momentum(cell.trainable_params(), 0.005, 0.9)
        if states:
            optimizer.offload()
        step = nn.TrainOneStepCell(cell, optimizer)
        rng = np.random.default_rng(6)
        feeds = [rng.standard_normal((MICRO_BATCHES * ROWS, WIDTH), np.float32) for _ in range(2)]
        config = replace(Config.from_context(context.freeze(step), 2), device="GPU")
        return compile_call(step, tuple(map(Tensor, feeds)), config), feeds
    finally:
        mspc.reset_auto_parallel_context()


class Between:
    """State that two ranks share, each of which is a thread: a kernel waits for the other one's value."""

    def __init__(self) -> None:
        self.barrier, self.given = Barrier(2, timeout=HANG), [None, None]
        self._messages: dict[tuple[int, int], Queue[Any]] = {}

    def messages(self, *key: int) -> Queue[Any]:
        """Return the queue of a rank and a tag: the same one if both threads ask at once."""
        return self._messages.setdefault(key, Queue())

    def run(self, work: Any) -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(work, range(2)))


class ReachingNccl:
    """Communicators on host and device between GPUs that reach each other's memory; `refused`: or do not."""

    size = 2

    def __init__(self, rank: int, between: Between, refused: bool) -> None:
        self.rank, self.between, self.refused, self.sent = rank, between, refused, 0
        self.host = self.peer_memory = self
        self.mapped: list[weakref.ref[Mapping]] = []

    def all_gather(self, array: Any, ranks: Any, axis: int = 0) -> Any:
        assert tuple(ranks) == (0, 1)
        self.between.given[self.rank] = array
        self.between.barrier.wait()
        found = np.concatenate(self.between.given, axis)
        self.between.barrier.wait()
        return found

    def all_reduce(self, array: Any, op: str, ranks: Any) -> Any:
        return getattr(np, {"min": "minimum", "max": "maximum", "sum": "add"}[op]).reduce(
            self.all_gather(array[None], ranks)
        )

    def addresses(self, arrays: Sequence[Any], ranks: Any, good: bool = True) -> Any:
        found = self.all_gather(np.array([[array.ctypes.data for array in arrays]], np.int64), ranks)
        if self.refused or not good:
            return None
        reached = PeerAddresses(found.T.tolist())
        reached.mappings.append(Mapping(0))
        self.mapped.append(weakref.ref(reached.mappings[0]))
        return reached

    def prepare(self, groups: Any, together: bool) -> None:
        assert self.refused
        assert groups

    def direct(self, *arguments: Any) -> Any:
        return None

    def send(self, array: Any, rank: int, tag: int = 0) -> None:
        self.sent += 1
        self.between.messages(self.rank, tag).put(np.array(array))

    def receive_into(self, out: Any, rank: int, tag: int = 0) -> None:
        out[...] = self.between.messages(rank, tag).get(timeout=HANG)


class WaitingGpu(EmulatedGpu):
    """Emulated kernels keep all threads from running: Python waits for a sign."""

    def kernel(self, source: str, name: str) -> Any:
        if name != "await_sign":
            return super().kernel(source, name)

        def wait(grid: int, block: int, arguments: Any) -> None:
            sign, steps, waited = arguments
            begun = time.monotonic_ns()
            while sign[0] < steps[0]:
                assert time.monotonic_ns() < begun + 60e9, "no sign comes"
                time.sleep(0.001)
            waited[0] += time.monotonic_ns() - begun

        return wait


def values_of(found: Compiled, graph: Graph) -> dict[str, Any]:
    """Copies of the parameters of a rank's graph, and its constants."""
    traced = found.traced
    own = {p.name: np.array(traced.parameters[p.name].array) for p in graph.parameters if p.kind == "parameter"}
    return own | {p.name: np.asarray(traced.constants[p.name]) for p in graph.parameters if p.kind == "constant"}


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "zero_bubble_h1", "zero_bubble_v"])
def test_steps_equal_numpys(schedule: str, tmp_path: Path) -> None:
    """1F1B sends through a communicator below."""
    compare(schedule, tmp_path, False)


def test_through_a_communicator(tmp_path: Path) -> None:
    compare("1f1b", tmp_path, True)


def test_states_are_copied_beside_stages(tmp_path: Path) -> None:
    compare("1f1b", tmp_path, False, True)


def compare(schedule: str, tmp_path: Path, refused: bool, states: bool = False) -> None:
    found, feeds = compiled(schedule, states=states)
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()

    def trained(executor: Any, own: dict[str, Any]) -> tuple[list[float], dict[str, Any]]:
        losses = [float(np.asarray(executor.run(feeds)[0])) for _ in range(4)]
        return losses, {name: np.array(executor.parameter(name)) for name in own}

    def on_cpu(comm: LocalComm) -> Any:
        own = values_of(found, found.rank_graph(comm.rank))
        return trained(Executor(found.rank_graph(comm.rank), NumPyBackend(comm), own), own)

    between = Between()
    gc.freeze()  # both ranks look for garbage, among what is made from now on

    def on_gpu(rank: int) -> Any:
        graph, comm = found.rank_graph(rank), ReachingNccl(rank, between, refused)
        own = values_of(found, graph)
        gpu = WaitingGpu(tmp_path / str(rank), comm)
        executor = GpuExecutor(graph, gpu, own, host=comm)
        gc.collect()
        assert all(mapping() is not None for mapping in comm.mapped), "what steps write to stays mapped"
        streams = {work.stream for work in executor._step.work}
        assert streams.issuperset({"to_host", "from_host"}) == states
        results = trained(executor, own)
        assert (executor.waited > 0) == (not refused)
        return *results, comm.sent

    wanted, got = World(2).run(on_cpu), between.run(on_gpu)
    for rank, ((losses, parameters), (also, others, sent)) in enumerate(zip(wanted, got, strict=True)):
        messages = [node for node in found.rank_graph(rank).nodes if isinstance(node.op, SendToStage)]
        assert sent == (4 * len(messages) if refused else 0)
        np.testing.assert_allclose(also, losses, rtol=1e-5)
        for name, value in parameters.items():
            np.testing.assert_allclose(others[name], value, rtol=1e-4, atol=2e-5, err_msg=name)


def test_a_stage_goes_on_while_another_computes_its_last_gradients(tmp_path: Path) -> None:
    """Stage 1 ends a step, its updates too, and begins the next one: the loss has been sent when it was known."""
    found, feeds = compiled("zero_bubble_v", apart=True)
    between, ended = Between(), Event()

    def on_gpu(rank: int) -> list[float]:
        (tmp_path / str(rank)).mkdir()
        graph, comm = found.rank_graph(rank), ReachingNccl(rank, between, False)
        executor = GpuExecutor(graph, WaitingGpu(tmp_path / str(rank), comm), values_of(found, graph), host=comm)
        works = executor._step.work
        last = max(
            place for place, work in enumerate(works) if work.index >= 0 and WORK in graph.nodes[work.index].attrs
        )

        def late() -> None:
            assert ended.wait(30), "stage 1 waits for the last gradients of stage 0"
            launch()

        launch = works[last].launch
        works[last] = replace(works[last], launch=late) if rank == 0 else works[last]
        losses = [float(np.asarray(executor.run(feeds)[0]))]
        if rank == 1:
            assert not ended.is_set()
            ended.set()
        return [*losses, float(np.asarray(executor.run(feeds)[0]))]

    first, second = between.run(on_gpu)
    assert first == second


def test_messages_are_sent_again_where_a_loss_is_not_finite(tmp_path: Path) -> None:
    """A value that has come is not stored: the search for its origin gets it once more."""
    found, feeds = compiled("1f1b")
    bad = [feeds[0], np.full_like(feeds[1], 1e30)]
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()

    def said(executor: Any) -> str:
        executor.run(feeds)
        return failure_of(lambda: np.asarray(executor.run(bad)[0])).message

    def on_cpu(comm: LocalComm) -> str:
        graph = found.rank_graph(comm.rank)
        return said(Executor(graph, NumPyBackend(comm), values_of(found, graph)))

    between = Between()

    def on_gpu(rank: int) -> str:
        graph, comm = found.rank_graph(rank), ReachingNccl(rank, between, False)
        gpu = GpuExecutor(graph, WaitingGpu(tmp_path / str(rank), comm), values_of(found, graph), host=comm)
        search = gpu.search

        def late() -> Any:
            for node in graph.nodes:
                if isinstance(node.op, ReceiveFromStage):
                    gpu._step.arrays(node)[0][...] = np.nan  # as if other values had come to lie there
            between.barrier.wait()
            time.sleep(0.5 * (rank == 0))
            return search()

        gpu.search = late  # type: ignore[method-assign]
        return said(gpu)

    wanted, got = World(2).run(on_cpu), between.run(on_gpu)
    # The CPU names a node within the call.
    assert got == [wanted[0], f"{wanted[1].partition(' comes from ')[0]} comes from Call"]
    assert "Receive" not in "".join(wanted)


def test_what_is_received_has_its_place_from_the_begin() -> None:
    """Nothing of a step lies where a message may come at any time before it is read."""
    graph = compiled("1f1b")[0].rank_graph(0)
    plan = plan_memory(graph, inside=device_bytes_inside, early=True)
    for index, node in enumerate(graph.nodes):
        if not isinstance(node.op, ReceiveFromStage):
            continue
        (place,) = plan.places[node]
        begin, end = place.offset, place.offset + place.nbytes
        for earlier in graph.nodes[:index]:
            if isinstance(earlier.op, ReceiveFromStage) or earlier.op.is_view:
                continue
            written = [p for p in plan.places[earlier] if p.kind == "arena"]
            written += [plan.inside[earlier]] if earlier in plan.inside else []
            assert all(p.offset >= end or p.offset + p.nbytes <= begin for p in written), earlier.label


def test_sums_over_micro_batches_are_made_in_place() -> None:
    """All four calls for gradients add to the totals where they lie, by the kernels that cast them."""
    graph = compiled("1f1b", True)[0].rank_graph(0)
    plan = plan_memory(graph, inside=device_bytes_inside, early=True)
    calls = [n for n in graph.nodes if n.regions and "backward" in n.regions[0].name]
    again: list[int] = []
    for node in calls:
        given = {p.offset for value in node.inputs for p in plan.places.get(value, ()) if p.kind == "arena"}
        again.append(sum(place.offset in given for place in plan.places[node]))
    assert again == [2, 6, 6, 6]  # the weights of two layers, and from the second call their biases


# Stages of a pipeline on real GPUs give the losses of the CPU by every schedule.


COUNT, WHY = Probe().gpus()
RANKS = 4 if COUNT >= 4 else 2
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "gpu" / "stages_program.py"


def losses(schedule: str, device: str, *options: str) -> list[float]:
    command = [sys.executable, "-m", "mspc", "run", str(PROGRAM), "--ranks", str(RANKS), "--device", device, *options]
    done = succeed(*command, "--", schedule)
    return [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loss ")]


@pytest.mark.skipif(COUNT < 2, reason=f"needs two GPUs: {WHY or 'there is one'}")
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble_h1", "zero_bubble_v"])
def test_losses_are_those_of_the_cpu(schedule: str) -> None:
    found, wanted = losses(schedule, "gpu"), losses(schedule, "cpu", "--simulate")
    assert len(found) == 6
    assert found == pytest.approx(wanted, rel=2e-5)


# Which products are told that a collective holds multiprocessors beside them.


PAIR = (0, 1)


def collective_and_products() -> list[Node]:
    """67 MB at 340 GB/s and 12 us: 209 us. A product of 103 GFLOP takes 345 us, a third of its rows 116 us."""
    make = GraphMaker()
    x, w = make.parameter("x", (4096, 4096)), make.parameter("w", (4096, 4096))
    reduced = make.node(AllReduce(rank_list=PAIR), x, shape=(4096, 4096))
    return [reduced, *(
        make.node(MatMul(), make.parameter(f"y{rows}", (rows, 4096)), w, shape=(rows, 4096)) for rows in (3072, 1024)
    )]  # fmt: skip


def test_products_count_until_the_collective_is_over() -> None:
    reduced, large, small = collective_and_products()
    overlap = Overlap(rounds=True)
    assert overlap.occupied(small) == 0
    assert overlap.idle
    overlap.begins(3, reduced, 8)
    assert not overlap.idle
    assert overlap.occupied(small) == 8
    assert overlap.occupied(small) == 8
    assert overlap.occupied(small) == 0, "it is over"
    overlap.ends(3)
    overlap.begins(7, reduced, 8)
    assert overlap.occupied(large) == 8, "half of the time"
    assert overlap.occupied(large) == 0
    overlap.ends(7)
    overlap.begins(9, reduced, 8)
    overlap.ends(9)
    assert overlap.occupied(small) == 0, "it was waited for"


def test_collectives_of_one_stream_follow_each_other() -> None:
    reduced, _, small = collective_and_products()
    overlap = Overlap(rounds=True)
    overlap.begins(1, reduced, 0)  # NCCL does not say what it takes
    overlap.begins(2, reduced, 8)
    assert not overlap.idle
    assert [overlap.occupied(small) for _ in range(5)] == [8, 8, 8, 0, 0]


def test_products_that_are_not_rounded_take_longer_than_the_collective() -> None:
    reduced, _, small = collective_and_products()
    for rounds, blocks in ((True, 8), (False, 0)):
        overlap = Overlap(rounds)
        overlap.begins(1, reduced, 8)
        assert overlap.occupied(small) == blocks, "687 us in the place of 116"
