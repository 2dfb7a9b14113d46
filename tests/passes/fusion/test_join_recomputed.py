"""What is made again for the gradients comes out of a kernel that reads the same, where its readers can wait for it."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ir.graph import Graph, Node, Value
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.fusion.join_recomputed import join_recomputed
from tests.passes.fusion.test_fuse_elementwise import new_graph, op, run
from tests.passes.fusion.test_keep_for_gradients import PASSES, most_alive

SHAPE = (64, 64)


def gated(layers: int) -> Graph:
    """Layers sigmoid(x w) * (x u), and their gradients: of a weight behind by the gated values, then of both parts."""
    graph, b, (x, w, u) = new_graph(x=("input", SHAPE), w=("parameter", SHAPE), u=("parameter", SHAPE))
    parts: list[tuple[Value, Value, Value]] = []
    value: Value = x
    for _ in range(layers):
        gate, up = b.emit(op("MatMul"), value, w), b.emit(op("MatMul"), value, u)
        made = b.emit(op("Mul"), b.emit(op("Sigmoid"), gate), up)
        parts.append((gate, up, made))
        value = b.emit(op("MatMul"), made, w)
    b.phase = "backward"
    results: list[Value] = []
    for gate, up, made in reversed(parts):
        results.append(b.emit(op("MatMul", transpose_a=True), made, value))
        grad = b.emit(op("MatMul", transpose_b=True), value, w)
        own = b.emit(op("Mul"), b.emit(op("Tanh"), gate), b.emit(op("Mul"), grad, up))
        value = b.emit(op("MatMul", transpose_b=True), own, w)
    graph.results = [*results, value]
    return graph


def test_a_kernel_makes_what_it_has_the_operands_of() -> None:
    before, after = (run_passes(gated(6), parse_passes(PASSES + more)) for more in ("", ",keep_for_gradients"))
    again = [node for node in after.nodes if node.attrs.get("recomputed")]
    assert len(again) >= 4
    for node in again:
        assert isinstance(node.op, TupleGetItem)
        kernel = node.inputs[0]
        assert isinstance(kernel, Node)
        assert isinstance(kernel.op, FusedElementwise)
        assert len(kernel.op.returns) == 2
    assert most_alive(after) < most_alive(before)
    for a, b in zip(run(before), run(after), strict=True):
        np.testing.assert_array_equal(a, b)


def beside(between: str) -> tuple[Graph, Node, Node]:
    """A value made again of a product, its reader, and a kernel behind both that reads the product, too."""
    graph, b, (x, w, c) = new_graph(x=("input", SHAPE), w=("parameter", SHAPE), c=("parameter", SHAPE))
    product = b.emit(op("MatMul"), x, w)
    b.phase = "backward"
    copy = b.emit(op("Tanh"), product)
    copy.attrs["recomputed"] = True
    value = reader = b.emit(op("MatMul"), copy, c if between == "update" else w)
    if between == "update":
        b.emit(op("Assign"), c, w)
    if between == "many":
        for _ in range(8):
            value = b.emit(op("MatMul"), value, w)
    kernel = b.emit(op("Mul"), product, value if between == "reader" else b.emit(op("MatMul"), x, product))
    graph.results = [value, kernel]
    return graph, copy, reader


def test_readers_move_behind_the_kernel() -> None:
    graph, copy, reader = beside("")
    expected = run(graph)
    assert join_recomputed(graph) == copy.tensor_type.nbytes
    assert [node.op.name for node in graph.nodes[2:]] == ["FusedElementwise", "TupleGetItem", "TupleGetItem", "MatMul"]
    assert graph.nodes[-1] is reader
    for a, b in zip(expected, run(graph), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("between", ["update", "many", "reader"])
def test_readers_that_cannot_wait_keep_their_pass(between: str) -> None:
    """One reads a parameter that is updated ahead of the kernel; too many would move; the kernel waits for them."""
    graph, _, _ = beside(between)
    nodes = list(graph.nodes)
    assert join_recomputed(graph) == 0
    assert graph.nodes == nodes


def test_several_results_that_are_made_again_keep_their_kernel() -> None:
    graph, b, (x, w) = new_graph(x=("input", SHAPE), w=("parameter", SHAPE))
    product = b.emit(op("MatMul"), x, w)
    b.phase = "backward"
    copy = b.emit(FusedElementwise(("Tanh(x0)", "Sigmoid(x0)"), (0, 1)), product)
    copy.attrs["recomputed"] = True
    parts = [b.emit(TupleGetItem(i), copy) for i in range(2)]
    graph.results = [*(b.emit(op("MatMul"), part, w) for part in parts), b.emit(op("Mul"), product, product)]
    nodes = list(graph.nodes)
    assert join_recomputed(graph) == 0
    assert graph.nodes == nodes
