"""A search states what its program sends, and no usual plan of the same network sends less.

Networks are sampled: products, convolutions, rows of tables, attention, with losses of several kinds, every second one
with an operator that is sharded by hand.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.analysis.cost.machine import H200
from mspc.analysis.cost.nodes import sent_bytes
from mspc.commands.compile import CompileOptions, find_call
from mspc.common.initializer import initializer
from mspc.compiler.program_figures import sent_by_ranks
from mspc.engine.capture import CapturedCall
from mspc.ir.graph import Parameter as GraphParameter
from mspc.mindspore_api.context import freeze
from mspc.plans.files.plan_file import PlanFile
from mspc.search.plans import table
from mspc.search.plans.alternatives import WAYS, PlannedNetwork, PlanRequest, shard_in_pairs
from mspc.search.plans.limited import HostCopyBudget, HostMemoryUse
from mspc.search.plans.row import SEARCH, PlanResult, UsualPlans, adopt_faster
from mspc.search.plans.table import FittedWay
from tests.analysis.test_counted_bytes import Counting, some
from tests.compiled_scripts import Compiled, Config, compile_call
from tests.executors import Executor, LocalComm, NumPyBackend, World
from tests.graphs import FLOAT32, Builder, Graph, Layout, MspcError, Node, TensorType, Value
from tests.operators import Add, BatchMatMul, MatMul, Mul
from tests.search.blocks_network import blocks
from tests.shares import share_of

RANKS = (4, 6, 8, 8, 16)
WIDTHS = (4, 6, 8, 16, 24, 32, 48, 64, 96)


class Drawn(nn.Cell):
    """A network of one kind; `shape` is what it takes."""

    def __init__(self, seed: int, ranks: int) -> None:
        super().__init__()
        self.rng, self.ranks = random.Random(seed), ranks
        self.kind = self.rng.choice(["products", "products", "images", "images", "rows", "attention"])
        self.loss = self.rng.choice(["mean", "square", "root", "largest"])
        self.steps: list[Any] = []
        self.rows = self.rng.choice([4, 8, 12, 16, 32, 64])
        self.sharded = seed % 2 == 1
        getattr(self, f"_{self.kind}")()

    def _one(self, cell: Any, *sizes: int) -> Any:
        """A cell or an operator, with a parameter of these sizes beside it where there are any."""
        self.steps.append((cell, len(self.steps) if sizes else None))
        setattr(self, f"step{len(self.steps)}", cell)
        if sizes:
            setattr(self, f"weight{len(self.steps) - 1}", Parameter(Tensor(np.full(sizes, 0.1, np.float32))))
        return cell

    def _shard(self, operator: Any, first: int, second: int) -> None:
        """Shard a product by hand, once: rows and columns by divisors of the number of ranks."""
        if not self.sharded:
            return
        self.sharded = False
        rows = self.rng.choice([n for n in range(1, self.ranks + 1) if self.ranks % n == 0 and first % n == 0])
        left = self.ranks // rows
        columns = self.rng.choice([n for n in range(1, left + 1) if left % n == 0 and second % n == 0])
        windows = (1, 1) if isinstance(operator, ops.Conv2D) else ()
        operator.shard(((rows, 1, *windows), (columns, 1, *windows) if windows else (1, columns)))

    def _products(self) -> None:
        width = self.rng.choice(WIDTHS)
        self.shape = (self.rows, width)
        for _ in range(self.rng.randint(1, 3)):
            wider = self.rng.choice(WIDTHS)
            self._shard(self._one(ops.MatMul(), width, wider), self.rows, wider)
            width = wider
            self._one(self.rng.choice([ops.ReLU(), ops.Softmax(), nn.LayerNorm((width,)), ops.Tanh()]))

    def _images(self) -> None:
        channels, length = self.rng.choice([1, 3, 4, 8]), self.rng.choice([8, 10, 12, 16])
        self.shape = (self.rows, channels, length, length)
        for _ in range(self.rng.randint(1, 2)):
            more, window, stride = (self.rng.choice(sizes) for sizes in ([4, 6, 8, 16], [1, 3], [1, 1, 2]))
            convolution = ops.Conv2D(more, window, pad_mode="same", stride=stride)
            self._shard(self._one(convolution, more, channels, window, window), self.rows, more)
            self._one(self.rng.choice([nn.BatchNorm2d(more), ops.ReLU(), nn.MaxPool2d(2, 2)]))
            channels = more

    def _rows(self) -> None:
        width = self.rng.choice(WIDTHS)
        self.shape = (self.rows, 4)
        self._one(ops.Gather(), self.rng.choice([32, 64, 100]), width)
        self._one(nn.LayerNorm((width,)))

    def _attention(self) -> None:
        self.shape = (self.rows, 8, 16)
        for _ in range(3):
            self._one(ops.MatMul(), 16, 16)
        self.scores, self.mix = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()

    def construct(self, x: Tensor) -> Tensor:
        if self.kind == "attention":
            x = self._attended(x)
        else:
            for cell, number in self.steps:
                if number is None:
                    x = cell(x)
                elif self.kind == "rows":
                    x = cell(getattr(self, f"weight{number}"), x, 0)
                else:
                    x = cell(x, getattr(self, f"weight{number}"))
        if self.loss == "mean":
            return ops.reduce_mean(x)
        if self.loss == "largest":
            return ops.reduce_sum(ops.reduce_max(x, -1))
        found = ops.reduce_sum(ops.square(x))
        return ops.sqrt(found) if self.loss == "root" else found

    def _attended(self, x: Tensor) -> Tensor:
        rows = ops.reshape(x, (-1, 16))
        query, key, value = (
            ops.transpose(ops.reshape(cell(rows, getattr(self, f"weight{number}")), (self.rows, 8, 2, 8)), (0, 2, 1, 3))
            for cell, number in self.steps
        )
        mixed = self.mix(ops.softmax(self.scores(query, key), -1), value)
        return x + ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (self.rows, 8, 16))


def compiled(seed: int, mode: str = "auto_parallel", search_mode: str = "dynamic_programming") -> Compiled:
    ranks = RANKS[seed % len(RANKS)]
    net = Drawn(seed, ranks)
    step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    step.set_train(seed % 3 > 0)
    config = Config(ranks=ranks, mode=mode, dataset_strategy="full_batch", search_mode=search_mode)
    return compile_call(step, [TensorType(ms.int32 if net.kind == "rows" else ms.float32, net.shape)], config)


def sent(found: Compiled) -> list[float]:
    return [sum(map(sent_bytes, found.rank_graph(rank).nodes)) for rank in range(found.config.ranks)]


@pytest.mark.parametrize("seed", range(share_of(96)))
def test_no_usual_plan_sends_less(seed: int) -> None:
    found = compiled(seed)
    attrs, each = found.graph.attrs, sent(found)
    mean = sum(each) / len(each)
    assert attrs["search_cost"] == round(mean)
    assert attrs.get("search_bound", 0) <= attrs["search_cost"]
    told = sent_by_ranks(found)
    assert (told.most, told.rank, told.mean) == (max(each), each.index(max(each)), pytest.approx(mean))
    usual = [compiled(seed, search_mode="")]
    if seed % 2 == 0:
        usual.append(compiled(seed, "semi_auto_parallel", ""))
    assert all(mean <= sent_by_ranks(other).mean + 0.5 for other in usual)


@pytest.mark.parametrize("seed", [1, 2, 3, 8])
def test_the_header_says_what_ranks_hand_to_their_communicators(seed: int) -> None:
    found = compiled(seed)
    ranks = found.config.ranks
    graphs = [found.rank_graph(rank) for rank in range(ranks)]

    def main(comm: LocalComm) -> float:
        counting = Counting(comm)
        held = {p.name: some(p) for p in graphs[comm.rank].parameters if p.kind != "input"}
        executor = Executor(graphs[comm.rank], NumPyBackend(counting), held)
        executor.run([some(p) for p in executor.inputs])
        return counting.sent

    assert found.graph.attrs["search_cost"] == round(sum(World(ranks).run(main)) / ranks)


FITTED_RANKS = 4


def outcomes(network: PlannedNetwork, memories: Sequence[int]) -> tuple[list[tuple[float, str] | None], int]:
    """(what every usual way comes to within limits, None where nothing fits; how many variants were tried)"""
    found: list[tuple[float, str] | None] = []
    tried = 0
    for memory in memories:
        for way in WAYS[1:]:
            fitting = FittedWay(network, PlanRequest(FITTED_RANKS, H200, memory=memory), way)
            try:
                _, plan = fitting.quickest()
                found.append((plan.step, plan.made_to_fit))
            except MspcError:
                found.append(None)
            tried += len(fitting.tried)
    return found, tried


@pytest.mark.share(2)
@pytest.mark.parametrize(("rows", "shares"), [(16, (5, 11)), (512, (2, 8, 14))])
def test_bounds_leave_out_what_does_not_fit_alone(
    rows: int, shares: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "net.py"
    file.write_text(blocks(rows))
    captured = find_call(str(file), CompileOptions(FITTED_RANKS)).captured
    asked = PlanRequest(FITTED_RANKS, H200)
    network = PlannedNetwork.read(captured, asked.config(captured), limited=True)
    _, plan = FittedWay(network, asked, WAYS[2]).quickest()
    memories = [plan.memory * share // 20 for share in shares]
    found, tried = outcomes(network, memories)
    monkeypatch.setattr(table, "_memory_bound", lambda *_: 0)
    wanted, all_tried = outcomes(network, memories)
    assert found == wanted
    assert tried < all_tried


def test_a_large_network_far_from_any_good_plan_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "net.py"
    file.write_text(blocks(512))
    captured = find_call(str(file), CompileOptions(FITTED_RANKS)).captured
    asked = PlanRequest(FITTED_RANKS, H200, memory=1000)
    network = PlannedNetwork.read(captured, asked.config(captured), limited=True)
    monkeypatch.setattr(table, "LARGE_GRAPH", 1)
    monkeypatch.setattr(table, "FAR", 1)
    with pytest.raises(MspcError, match="its step is far from any good one, and nothing was tried"):
        FittedWay(network, asked, WAYS[2]).quickest()


NBYTES = 4 * 64 * 1024


def network(layers: int) -> Graph:
    """A network that keeps a value of its own, and one of each of its layers."""
    graph = Graph("step")
    x = GraphParameter("x", TensorType(FLOAT32, (64, 1024)), "input", False)
    graph.parameters = [x]
    b, kept, value = Builder(graph), list[Node](), x
    for name in ("network-Net", *(f"network-Net/layers-CellList/{i}-Layer" for i in range(layers))):
        value = b.emit(Mul(), value, value)
        value.scope, value.phase = f"Default/{name}", "forward"
        kept.append(value)
    back: Value = value
    for each in reversed(kept):
        back = b.emit(Add(), back, each)
        assert isinstance(back, Node)
        back.scope, back.phase = each.scope, "backward"
    graph.results = [back]
    return graph


def test_cells_that_run_first_leave_first() -> None:
    room = HostCopyBudget.of(network(16), H200)
    layers = [f"Default/network-Net/layers-CellList/{i}-Layer" for i in range(16)]
    assert [cell for cell, _ in room.cells] == layers, "the network itself holds them all"
    assert {nbytes for _, nbytes in room.cells} == {NBYTES}
    room = replace(room, forward=1.0)
    assert room.hidden == 16 * NBYTES
    assert room.first_cells(0) == room.first_cells(-5.0) == ()
    assert room.first_cells(NBYTES) == tuple(layers[:1])
    assert room.first_cells(2.5 * NBYTES) == tuple(layers[:3])
    assert room.first_cells(100 * NBYTES) == tuple(layers)
    slow = replace(room, forward=H200.moving_seconds(4 * NBYTES, "host_copies"))
    assert slow.hidden == pytest.approx(4 * NBYTES)
    assert len(slow.first_cells(100 * NBYTES)) in (4, 5)


def test_states_are_late_by_what_the_gradients_do_not_hide() -> None:
    room = replace(HostCopyBudget.of(network(2), H200), states=55e9, backward=0.4)
    assert room.late(True) == pytest.approx(0.6)
    assert room.late(False) == 0.0
    assert replace(room, backward=2.0).late(True) == 0.0


def test_what_is_on_the_host_is_told() -> None:
    assert HostMemoryUse(("a",)).words == "values of 1 cell on the host"
    assert HostMemoryUse(("a", "b"), True).words == "optimizer states and values of 2 cells on the host"


class Pair(nn.Cell):
    """Two matmuls. prepare: computes each weight from a parameter."""

    def __init__(self, prepare: Callable[[Any], Any], shapes: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        self.up, self.down = (Parameter(initializer("normal", shape)) for shape in shapes)
        self.prepare, self.scale = prepare, Parameter(initializer("ones", [1]), name="scale")

    def construct(self, x: Any) -> Any:
        x = x.astype(ms.float16)
        x = ops.gelu(ops.matmul(x, self.prepare(self.up, self).astype(ms.float16)))
        return ops.matmul(x, self.prepare(self.down, self).astype(ms.float16)).sum()


SQUARE = ((64, 64), (64, 64))
PREPARED: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "cast": (lambda w, net: w, SQUARE),
    "scaled": (lambda w, net: w * 2.0, SQUARE),
    "scaled by a parameter": (lambda w, net: w * net.scale, SQUARE),
    "reshaped": (lambda w, net: w.reshape(64, 64), ((8, 8, 64), (64, 8, 8))),
    "transposed": (lambda w, net: w.T, SQUARE),
    "dropped": (lambda w, net: ops.dropout(w, 0.5), SQUARE),
    "normalized": (lambda w, net: w / ops.sqrt(ops.square(w).mean()), SQUARE),
}


def matmuls_in_pairs(network: nn.Cell) -> list[Any]:
    """The strategies of the matmuls, in pairs over 4 of 8 ranks."""
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
    captured = CapturedCall(step, (TensorType(FLOAT32, (16, 64)),), freeze(step), Path("net.py"), global_types=True)
    asked = PlanRequest(8, H200, free=True)
    graph = PlannedNetwork.read(captured, asked.config(captured), True).call.traced.graph
    shard_in_pairs(graph, 8, 4)
    return [node.in_strategy for node in graph.nodes if isinstance(node.op, MatMul | BatchMatMul)]


@pytest.mark.parametrize("kind", PREPARED)
def test_operators_on_a_weight_do_not_hide_a_pair(kind: str) -> None:
    assert matmuls_in_pairs(Pair(*PREPARED[kind])) == [((2, 1), (1, 4)), ((2, 4), (4, 1))]


class Scores(nn.Cell):
    """A matmul of two activations, which has no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(initializer("normal", (64, 64)))

    def construct(self, x: Any) -> Any:
        y = ops.matmul(x, self.weight)
        return ops.matmul(y, (y * self.weight.sum()).T).sum()


def test_a_matmul_of_activations_is_not_sharded() -> None:
    with pytest.raises(MspcError, match="no product of a weight follows on another"):
        matmuls_in_pairs(Scores())


def plan(name: str, step: float, mesh: str = "") -> PlanResult:
    return PlanResult(name, 8, mesh, step, step, 0.0, 0.0, 0.0, 0, 0.0, None, 0, 0)


def sharded(*mesh: int) -> PlanFile:
    """A file in which one operator is sharded over every axis of a mesh."""
    return PlanFile(8, {"MatMul-op0": (Layout.of(mesh, [[axis] for axis in range(len(mesh))]),)})


def taken_on(mesh: str) -> tuple[str, float]:
    """The plan that a search for a mesh takes, and its step."""
    usual = UsualPlans([plan("crossed", 1.0), plan("along", 2.0)], {"crossed": sharded(2, 4), "along": sharded(8)})
    plans, files = [plan(SEARCH, 3.0, mesh)], {SEARCH: sharded(8)}
    adopt_faster(plans, files, usual, mesh)
    (found,) = plans
    assert (found.name, found.mesh) == (SEARCH, mesh)
    assert files[SEARCH] == usual.files[found.taken_from]
    return found.taken_from, found.step


def test_the_fastest_that_lies_on_the_mesh_is_taken() -> None:
    assert taken_on("") == taken_on("2x4") == taken_on("2x2x2") == ("crossed", 1.0)
    assert taken_on("4x2") == taken_on("8") == ("along", 2.0)


def test_a_search_that_is_as_fast_keeps_its_own() -> None:
    plans, files = [plan(SEARCH, 2.0)], {SEARCH: sharded(8)}
    adopt_faster(plans, files, UsualPlans([plan("along", 2.0)], {"along": sharded(8)}), "")
    assert plans == [plan(SEARCH, 2.0)]
