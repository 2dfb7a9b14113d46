"""fuse_edges: edges have no rows in memory; random networks that pass messages are in tests/networks.py."""

from collections import Counter
from typing import Any

import numpy as np

from mspc.ops.control.structural import Gradient, TupleGetItem
from mspc.passes.base import parse_passes, run_passes
from tests.graphs import BFLOAT16, FLOAT32, FLOAT64, INT32, DType, Graph, Node, Value
from tests.interpret import run_global
from tests.passes.fusion.written import WrittenGraph

NODES, EDGES, HEADS, WIDTH = 7, 20, 2, 8
UNFUSED = "grad,simplify"


class Messages(WrittenGraph):
    """Rows of nodes that pass along edges, layer by layer."""

    def __init__(self, dtype: DType = FLOAT64) -> None:
        super().__init__(dtype)
        self.x = self.parameter("x", (NODES, HEADS, WIDTH), kind="parameter")
        self.w, self.wide = (self.parameter(f"w{n}", (EDGES, n), kind="parameter") for n in (1, HEADS))
        self.sources, self.targets = (self.parameter(name, (EDGES,), INT32) for name in ("sources", "targets"))

    def summed(self, rows: Value, ids: Value) -> Value:
        zero = self.emit("Fill", type=self.dtype, shape=(NODES, *rows.shape[1:]))
        return self.emit("TensorScatterAdd", zero, self.emit("Reshape", ids, shape=(EDGES, 1)), rows)

    def weighted(self, how: str, rows: Value) -> Value:
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


def feeds(graph: Graph, seed: int) -> dict[str, Any]:
    """Ids repeat; some count from the end."""
    generator = np.random.default_rng(seed)
    return {
        p.name: generator.integers(-NODES, NODES, p.shape).astype(np.int32) if p.tensor_type.dtype == INT32
        else generator.standard_normal(p.shape).astype(p.tensor_type.dtype.numpy)
        for p in graph.parameters
    }  # fmt: skip


def passed(graph: Graph, passes: str) -> Graph:
    made = run_passes(graph, parse_passes(passes))
    made.verify()
    return made


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


def test_no_tensor_has_a_row_of_elements_per_edge() -> None:
    """Neither forward nor backward, in halves with casts; the ends of edges are sorted once for all layers."""
    made = Messages(FLOAT32)
    x: Value = made.x
    for how in ("flat", "heads", "broadcast"):
        half = made.emit("Cast", x, dst_type=BFLOAT16)
        rows = made.emit("Cast", made.emit("Gather", half, made.sources), dst_type=FLOAT32)
        x = made.summed(made.weighted(how, rows), made.targets)
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
        rows = made.weighted("flat", made.emit("Gather", made.x, ids))
        made.graph.results.append(made.summed(rows, ids))
        made.graph.results.append(made.emit("AssignAdd", ids, made.sources))
    assert not operators(passed(made.graph, "fuse_edges"))["OrderRows"]


def test_tables_are_read_in_halves_if_these_are_all_of_their_numbers() -> None:
    made = Messages(FLOAT32)
    half = made.emit("Cast", made.emit("Cast", made.x, dst_type=BFLOAT16), dst_type=FLOAT32)
    masked = made.emit("ReluGrad", made.emit("Neg", half), made.x)
    sums = [
        made.summed(made.weighted("heads", made.emit("Gather", table, made.sources)), made.targets)
        for table in (half, masked, made.emit("Add", half, half))
    ]
    made.graph.results = list(sums)
    graph = passed(made.graph, "fuse_edges")
    tables = [node.inputs[0].tensor_type.dtype for node in graph.nodes if node.op.name == "EdgeSums"]
    assert tables == [BFLOAT16, BFLOAT16, FLOAT32]
    given = feeds(made.graph, 1)
    for wanted, found in zip(run_global(made.graph, given), run_global(graph, given), strict=True):
        np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)
