"""fuse_edges: random message passing and its gradients give the same numbers, and edges have no rows in memory."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.pipeline import rank_passes
from mspc.compiler.rank_graphs import copied, rank_graphs
from mspc.ops.control.structural import Gradient, TupleGetItem
from mspc.passes.base import parse_passes, run_passes
from tests.compiled_scripts import Config, compile_call
from tests.graphs import BFLOAT16, FLOAT32, FLOAT64, INT32, DType, Graph, Node, TensorType, Value
from tests.interpret import run_global, run_on_ranks
from tests.passes.fusion.written import WrittenGraph
from tests.shares import share_of

NODES, EDGES, HEADS, WIDTH = 7, 20, 2, 8
UNFUSED = "grad,simplify"
DRAWN = 480
SUMS = ("UnsortedSegmentSum", "ScatterNd", "zeros", "x", "TensorScatterMax", "TensorScatterMin")


class Messages(WrittenGraph):
    """Rows of nodes that pass along edges, layer by layer."""

    def __init__(self, dtype: DType = FLOAT64) -> None:
        super().__init__(dtype)
        self.x = self.parameter("x", (NODES, HEADS, WIDTH), kind="parameter")
        self.w, self.wide = (self.parameter(f"w{n}", (EDGES, n), kind="parameter") for n in (1, HEADS))
        self.sources, self.targets = (self.parameter(name, (EDGES,), INT32) for name in ("sources", "targets"))

    def looked_up(self, how: str, rows: Value, ids: Value) -> Value:
        if how == "GatherNd":
            return self.emit(how, rows, self.emit("ExpandDims", ids, axis=-1))
        return self.emit(how, rows, ids)

    def summed(self, how: str, rows: Value, ids: Value) -> Value:
        shape = (NODES, *rows.shape[1:])
        if how == "UnsortedSegmentSum":
            return self.emit(how, rows, ids, num_segments=NODES)
        places = self.emit("Reshape", ids, shape=(EDGES, 1))
        if how == "ScatterNd":
            return self.emit(how, places, rows, shape=shape)
        zero = self.emit("Fill", type=self.dtype, shape=shape)
        base = zero if how == "zeros" else self.emit("Reshape", self.x, shape=shape)
        return self.emit(how if how.startswith("Tensor") else "TensorScatterAdd", base, places, rows)

    def weighted(self, how: str, rows: Value) -> Value:
        if how == "none":
            return rows
        if how == "heads":
            return self.emit("Mul", rows, self.emit("ExpandDims", self.wide, axis=-1))
        flat = self.emit("Reshape", rows, shape=(EDGES, HEADS * WIDTH))
        weights = self.emit("BroadcastTo", self.w, shape=flat.shape) if how == "broadcast" else self.w
        found = self.emit("Mul", weights, flat)
        return self.emit("Reshape", found, shape=(EDGES, HEADS, WIDTH)) if how == "broadcast" else found

    def finished(self, result: Value) -> Graph:
        wanted = [self.x, self.w, self.wide]
        found = self.b.emit(Gradient(1, True), result, *wanted, self.parameter("slope", result.shape))
        self.graph.results = [result, *(self.b.emit(TupleGetItem(i), found) for i in range(len(wanted)))]
        self.graph.returns_tuple = True
        return self.graph


def drawn(seed: int) -> Graph:
    draw, made = random.Random(seed), Messages()
    x: Value = made.x
    for _ in range(draw.randint(1, 3)):
        ends = (made.sources, made.targets)[:: draw.choice((1, -1))]
        rows = made.looked_up(draw.choice(("Gather", "EmbeddingLookup", "GatherNd")), x, ends[0])
        rows = made.weighted(draw.choice(("none", "heads", "flat", "broadcast")), rows)
        if draw.random() < 0.2:
            rows = made.emit("Tanh", rows)
        x = made.summed(draw.choice(SUMS), rows, ends[1])
        x = made.emit("Reshape", made.emit("Sin", x), shape=made.x.shape)
    return made.finished(x)


def feeds(graph: Graph, seed: int) -> dict[str, Any]:
    """Ids repeat; some count from the end."""
    generator = np.random.default_rng(seed)
    low = -NODES if "EmbeddingLookup" not in {node.op.name for node in graph.nodes} else 0
    return {
        p.name: generator.integers(low, NODES, p.shape).astype(np.int32) if p.tensor_type.dtype == INT32
        else generator.standard_normal(p.shape).astype(p.tensor_type.dtype.numpy)
        for p in graph.parameters
    }  # fmt: skip


def passed(graph: Graph, passes: str) -> Graph:
    made = run_passes(graph, parse_passes(passes))
    made.verify()
    return made


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


@pytest.mark.parametrize("part", range(4))
def test_random_messages_give_the_same_numbers(part: int) -> None:
    fused = 0
    for seed in range(part, share_of(DRAWN), 4):
        plain, made = passed(drawn(seed), UNFUSED), passed(drawn(seed), f"{UNFUSED},fuse_edges")
        given = feeds(plain, seed)
        for wanted, found in zip(run_global(plain, given), run_global(made, given), strict=True):
            np.testing.assert_allclose(found, wanted, 1e-11, 1e-11, err_msg=f"seed {seed}")
        fused += operators(made)["EdgeSums"]
    assert fused


def test_no_tensor_has_a_row_of_elements_per_edge() -> None:
    """Neither forward nor backward, in halves with casts; the ends of edges are sorted once for all layers."""
    made = Messages(FLOAT32)
    x: Value = made.x
    for how in ("flat", "heads", "broadcast"):
        half = made.emit("Cast", x, dst_type=BFLOAT16)
        rows = made.emit("Cast", made.looked_up("Gather", half, made.sources), dst_type=FLOAT32)
        x = made.summed("zeros", made.weighted(how, rows), made.targets)
        x = made.emit("Reshape", made.emit("Tanh", x), shape=made.x.shape)
    graph = passed(made.finished(x), f"{UNFUSED},fuse_edges")
    assert max(node.type.size for node in graph.nodes if isinstance(node, Node) and _is_of_edges(node)) == EDGES * HEADS
    assert operators(graph) >= Counter(OrderRows=2, EdgeSums=6, EdgeProducts=3)
    assert operators(graph)["OrderRows"] == 2


def _is_of_edges(node: Node) -> bool:
    return getattr(node.type, "shape", ())[:1] == (EDGES,)


def test_sums_of_tables_that_are_updated_stay() -> None:
    """update_rows makes updates of rows of them."""
    made = Messages()
    rows = [made.emit("GatherGrad", made.parameter(f"rows{n}", (EDGES, 3)), made.targets, size=NODES) for n in "ab"]
    for number, each in enumerate(rows):
        update = made.emit("AssignAdd", made.parameter(f"table{number}", (NODES, 3), kind="parameter"), each)
        update.phase = "update"
        made.graph.results.append(update)
    assert operators(passed(made.graph, "fuse_edges")) == Counter(GatherGrad=2, AssignAdd=2)


def test_ids_that_change_are_not_shared() -> None:
    made = Messages()
    ids = made.parameter("ids", (EDGES,), INT32, "parameter")
    for _ in range(2):
        rows = made.weighted("flat", made.looked_up("Gather", made.x, ids))
        made.graph.results.append(made.summed("zeros", rows, ids))
        made.graph.results.append(made.emit("AssignAdd", ids, made.sources))
    assert not operators(passed(made.graph, "fuse_edges"))["OrderRows"]


def test_tables_are_read_in_halves_if_these_are_all_of_their_numbers() -> None:
    made = Messages(FLOAT32)
    half = made.emit("Cast", made.emit("Cast", made.x, dst_type=BFLOAT16), dst_type=FLOAT32)
    masked = made.emit("ReluGrad", made.emit("Neg", half), made.x)
    sums = [
        made.summed("zeros", made.weighted("heads", made.looked_up("Gather", table, made.sources)), made.targets)
        for table in (half, masked, made.emit("Add", half, half))
    ]
    made.graph.results = list(sums)
    graph = passed(made.graph, "fuse_edges")
    tables = [node.inputs[0].tensor_type.dtype for node in graph.nodes if node.op.name == "EdgeSums"]
    assert tables == [BFLOAT16, BFLOAT16, FLOAT32]
    given = feeds(made.graph, 1)
    for wanted, found in zip(run_global(made.graph, given), run_global(graph, given), strict=True):
        np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


class Layers(nn.Cell):
    """Message passing with weights that are trained, whose edges, nodes or elements are sharded over ranks."""

    def __init__(self, draw: random.Random, ranks: int) -> None:
        super().__init__()
        values = np.random.default_rng(draw.randrange(99)).standard_normal
        self.x = Parameter(Tensor(values((NODES + 1, WIDTH))), name="x")
        self.weights = Parameter(Tensor(values((EDGES, 1))), name="weights")
        rows, ids = draw.choice((((1, 1), (ranks,)), ((ranks, 1), (1,)), ((1, ranks), (1,)), ((1, 1), (1,))))
        edges = (ids[0], rows[1])
        self.take, self.weigh = ops.Gather().shard((rows, ids)), ops.Mul().shard((edges, (ids[0], 1)))
        self.sums = [ops.UnsortedSegmentSum().shard((edges, ids)) for _ in range(draw.randint(1, 3))]

    def construct(self, sources: Any, targets: Any) -> Any:
        x = self.x
        for add in self.sums:
            x = ops.sin(add(self.weigh(self.take(x, sources, 0), self.weights), targets, NODES + 1))
        return ops.square(x).sum()


@pytest.mark.parametrize("ranks", [2, 4])
def test_sharded_edges_and_nodes(ranks: int) -> None:
    fused = 0
    for seed in range(share_of(48)):
        network = Layers(random.Random(seed), ranks)
        step = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))
        config = Config(ranks=ranks, mode="semi_auto_parallel", dataset_strategy="full_batch", device="GPU")
        graph = compile_call(step, [TensorType(INT32, (EDGES,))] * 2, config).graph
        given, passes = feeds(graph, seed), rank_passes("GPU")
        fused += operators(rank_graphs(graph, passes).executable(0))["EdgeProducts"]
        one = run_global(copied(graph), given)
        for wanted, found in zip(one, run_on_ranks(graph, given, passes[1:]), strict=True):
            np.testing.assert_allclose(found, wanted, 1e-11, 1e-11)
    assert fused
