"""fuse_rows and split_dropout: random graphs compute the same numbers, and what may be in one kernel."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mspc.ops.fused.kernel import ALONE
from mspc.passes.base import find_pass
from mspc.passes.fusion.fusion_groups import LITTLE, MIN_ROWS
from tests.graphs import BFLOAT16, FLOAT32, Builder, Graph, Node, TensorType, Value
from tests.operators import FusedElementwise, Mul, Scan, Softmax
from tests.passes.fusion.test_fuse_elementwise import fused, names, new_graph, op, run
from tests.runtime.region_graphs import graph, run_graphs
from tests.shares import share_of

PASSES = "split_norm,split_dropout,fuse_rows,fuse_elementwise,recompute_elementwise"
ROWS, LENGTH = 4, 6


def random_graph(seed: int) -> Graph:
    """Operators along rows, reductions of them that are broadcast again, views, masks and products with a parameter
    that changes on the way."""
    draw = random.Random(seed)
    full, split = (ROWS, LENGTH), (2, ROWS // 2, LENGTH)
    graph, b, (x, w, column) = new_graph(x=("input", full), w=("parameter", full), column=("parameter", (LENGTH,)))
    fulls: list[Value] = [x, w]
    by_row: list[Value] = [b.emit(op("ReduceMean", keep_dims=True, axis=(1,)), x)]
    results: list[Value] = []
    for number in range(draw.randint(4, 20)):
        b.phase = "backward" if b.phase == "backward" or draw.random() < 0.1 else "forward"
        recent, kind = draw.choice(fulls[-3:]), draw.randrange(16)
        if kind < 2:
            fulls.append(b.emit(op(draw.choice(("Softmax", "LogSoftmax"))), recent))
        elif kind == 2:
            fulls.append(b.emit(op("SoftmaxBackward"), recent, draw.choice(fulls)))
        elif kind == 3:
            name = draw.choice(("ReduceSum", "ReduceMean", "ReduceMax"))
            by_row.append(b.emit(op(name, keep_dims=True, axis=(1,)), recent))
        elif kind == 4:
            by_row.append(b.emit(op(draw.choice(("Tanh", "Neg"))), draw.choice(by_row)))
        elif kind == 5:
            flat = b.emit(op("Reshape", shape=(ROWS,)), draw.choice(by_row))
            by_row.append(b.emit(op("Reshape", shape=(ROWS, 1)), b.emit(op("Abs"), flat)))
        elif kind == 6:
            fulls.append(b.emit(op("BroadcastTo", shape=full), draw.choice((*by_row, column))))
        elif kind == 7:
            apart = b.emit(op("Tanh"), b.emit(op("Reshape", shape=split), recent))
            fulls.append(b.emit(op("Reshape", shape=full), apart))
        elif kind == 8:
            whole = b.emit(op("Dropout", keep_prob=0.5, Seed0=1, Seed1=number), recent)
            fulls.append(b.emit(op("TupleGetItem", 0), whole))
        elif kind == 9:
            results.append(b.emit(op("ReduceSum", axis=draw.choice(((0,), ()))), recent))
        elif kind == 10 and draw.random() < 0.3:
            b.emit(op("Assign"), w, recent)
        elif kind == 11:
            axes = {"begin_norm_axis": -1, "begin_params_axis": -1, "epsilon": 1e-3}
            whole = b.emit(op("LayerNorm", **axes), recent, column, column)
            fulls.append(b.emit(op("TupleGetItem", 0), whole))
            by_row.append(b.emit(op("TupleGetItem", 2), whole))
        elif kind == 12:
            whole = b.emit(op("RmsNorm", epsilon=1e-3), recent, column)
            fulls.append(b.emit(op("TupleGetItem", 0), whole))
            by_row.append(b.emit(op("TupleGetItem", 1), whole))
        elif kind == 13:
            shown = b.emit(op("Reshape", shape=(1, LENGTH)), b.emit(op("Abs"), column))
            fulls.append(b.emit(op("AddN"), recent, b.emit(op("BroadcastTo", shape=full), shown)))
        else:
            other = draw.choice((draw.choice(fulls), draw.choice(by_row), column))
            fulls.append(b.emit(op(draw.choice(("Add", "Sub", "Mul", "Maximum"))), recent, other))
    graph.results = [draw.choice(fulls), fulls[-1], by_row[-1], *results]
    return graph


@settings(max_examples=share_of(300, 6), deadline=None)
@example(5039625874)  # what is computed again has a row's value, and no reduction of one
@given(st.integers(0, 1 << 40))
def test_random_graphs_compute_the_same(seed: int) -> None:
    expected = run(fused(random_graph(seed), "execute"))
    found = run(fused(random_graph(seed), PASSES))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_most_random_graphs_have_rows_in_one_kernel() -> None:
    bodies = [
        " ".join(node.op.attributes()["body"])
        for seed in range(40)
        for node in fused(random_graph(seed), PASSES).nodes
        if node.op.name == "FusedElementwise"
    ]
    assert sum("Softmax" in body for body in bodies) > 20
    assert sum("DropoutMask" in body for body in bodies) > 10


def lines(graph: Graph) -> list[tuple[str, ...]]:
    return [node.op.attributes()["body"] for node in graph.nodes if node.op.name == "FusedElementwise"]


def norm(shape: tuple[int, ...], axis: int, b: Any, x: Value) -> Node:
    """x less its mean along an axis."""
    return b.emit(op("Sub"), b.emit(op("Neg"), x), b.emit(op("ReduceMean", keep_dims=True, axis=(axis,)), x))


@pytest.mark.parametrize(
    ("shape", "axis", "found"), [((4, 6), 1, 1), ((4, 6), 0, 0), ((1, 6), 1, 1), ((1, ALONE + 2), 1, 0)]
)  # fmt: skip
def test_rows_lie_along_the_last_dimensions(shape: tuple[int, ...], axis: int, found: int) -> None:
    graph, b, (x,) = new_graph(x=("input", shape))
    graph.results = [norm(shape, axis, b, x)]
    bodies = [" ".join(body) for body in lines(fused(graph, PASSES))]
    assert len([body for body in bodies if "Reduce" in body and "Sub" in body]) == found


@pytest.mark.parametrize("rows", [MIN_ROWS - 1, MIN_ROWS])
def test_few_long_rows_are_not_one_kernel(rows: int) -> None:
    length = LITTLE // (MIN_ROWS - 1) + 1
    graph, b, (x,) = new_graph(x=("input", (rows, length)))
    graph.results = [b.emit(op("Neg"), b.emit(op("Softmax"), x))]
    assert names(fused(graph, PASSES)) == (["FusedElementwise"] if rows == MIN_ROWS else ["Softmax", "Neg"])


def test_a_value_of_a_row_is_not_read_along_a_row() -> None:
    """In a square a row's values may stand where a column's do."""
    graph, b, (x,) = new_graph(x=("input", (6, 6)))
    sums = b.emit(op("ReduceSum", axis=(1,)), b.emit(op("Neg"), x))
    graph.results = [b.emit(op("Mul"), x, sums)]
    assert names(fused(graph, PASSES)) == ["FusedElementwise", "Mul"]


def test_sums_of_what_needs_a_row_are_not_in_its_kernel() -> None:
    graph, b, (x,) = new_graph(x=("input", (4, 6)))
    shares = b.emit(op("Softmax"), b.emit(op("Neg"), x))
    graph.results = [b.emit(op("ReduceSum", axis=(0,)), shares), b.emit(op("ReduceMax", axis=(1,)), shares)]
    assert names(fused(graph, PASSES)) == ["FusedElementwise", "ReduceSum"]


def test_what_reads_the_same_is_one_kernel() -> None:
    """A gradient is converted for the products, and summed for a bias, while it is read once."""
    graph, b, (x, w) = new_graph(x=("input", (4, 6)), w=("parameter", (6, 4)))
    made = b.emit(op("MatMul"), x, w)
    half = b.emit(op("Cast", dst_type=BFLOAT16), made)
    graph.results = [half, b.emit(op("MatMul"), made, x), b.emit(op("ReduceSum", axis=(0,)), made)]
    assert names(fused(graph, PASSES)) == ["MatMul", "FusedElementwise", "MatMul"]


def test_members_that_compute_the_same_are_one_line() -> None:
    graph, b, (x,) = new_graph(x=("input", (4, 6)))
    made = b.emit(op("Tanh"), x)
    halves = [b.emit(op("Cast", dst_type=BFLOAT16), b.emit(op("Reshape", shape=(2, 12)), made)) for _ in range(2)]
    graph.results = [*halves, b.emit(op("ReduceSum", axis=(0,)), made)]
    result = fused(graph, "fuse_elementwise")
    assert [len(body) for body in lines(result)] == [4]
    assert result.results[0] is result.results[1]


def test_members_that_are_all_one_line_stay_that_operator() -> None:
    graph, b, (x,) = new_graph(x=("input", (4, 6)))
    made = b.emit(op("MatMul"), x, b.emit(op("Reshape", shape=(6, 4)), x))
    graph.results = [b.emit(op("Cast", dst_type=BFLOAT16), made) for _ in range(2)]
    assert names(fused(graph, PASSES)) == ["Reshape", "MatMul", "Cast"]


def test_a_broadcast_that_an_operator_does_itself_goes() -> None:
    graph, b, (x, row) = new_graph(x=("input", (4, 6)), row=("input", (4, 1)))
    graph.results = [b.emit(op("Mul"), x, b.emit(op("BroadcastTo", shape=(4, 6)), row))]
    assert names(fused(graph, PASSES)) == ["Mul"]


@pytest.mark.parametrize(("rows", "kept"), [(MIN_ROWS - 1, True), (MIN_ROWS, False)])
def test_a_norm_of_few_long_rows_stays(rows: int, kept: bool) -> None:
    length = LITTLE // (MIN_ROWS - 1) + 1
    graph, b, (x, gamma) = new_graph(x=("input", (rows, length)), gamma=("parameter", (length,)))
    whole = b.emit(op("LayerNorm", begin_norm_axis=-1, begin_params_axis=-1), x, gamma, gamma)
    graph.results = [b.emit(op("TupleGetItem", 0), whole)]
    assert names(fused(graph, PASSES)) == (["LayerNorm"] if kept else ["FusedElementwise"])


def test_a_mask_of_channels_stays() -> None:
    graph, b, (x,) = new_graph(x=("input", (2, 3, 4, 4)))
    graph.results = [b.emit(op("TupleGetItem", 0), b.emit(op("Dropout2D", keep_prob=0.5, Seed0=1), x))]
    assert names(fused(graph, "split_dropout")) == ["Dropout2D"]


def test_halves_are_read_again_in_place_of_what_is_made_of_them() -> None:
    """The gradient of a softmax reads the halves that the softmax is of, where nobody else needs its result."""
    graph, b, (x,) = new_graph(x=("input", (4, 6)))
    half = b.emit(op("Cast", dst_type=BFLOAT16), b.emit(op("MatMul"), x, b.emit(op("Reshape", shape=(6, 4)), x)))
    shares = b.emit(op("Softmax"), b.emit(op("Cast", dst_type=FLOAT32), half))
    dropped = b.emit(op("Mul"), shares, b.constant(2.0, FLOAT32))
    b.phase = "backward"
    graph.results = [dropped, b.emit(op("SoftmaxBackward"), b.emit(op("Neg"), dropped), shares)]
    backward = lines(fused(graph, PASSES))[-1]
    assert [line.partition("(")[0] for line in backward][-1] == "SoftmaxBackward"
    assert any(line.startswith("Softmax(") for line in backward)


@pytest.mark.parametrize("updated", [False, True])
def test_gradients_of_log_softmax_reduce_no_rows_again(updated: bool) -> None:
    """They read two numbers of a row, but not where rows of a parameter have changed since."""
    graph, b, (w, dout) = new_graph(w=("parameter", (MIN_ROWS, 8)), dout=("input", (MIN_ROWS, 8)))
    made = b.emit(op("LogSoftmax"), w)
    b.phase = "backward"
    if updated:
        b.emit(op("Assign"), w, dout)
    graph.results = [b.emit(op("ReduceSum", axis=(1,)), made), b.emit(op("LogSoftmaxGrad"), made, dout)]
    expected = run(graph)
    done = fused(graph, PASSES)
    (gradient,) = [node for node in done.nodes if "LogSoftmaxGrad" in str(node.op)]
    assert gradient.phase == "backward"
    lines = getattr(gradient.op, "body", (gradient.op.name,))
    assert not any(line.startswith("Reduce") and "keep_dims=true" in line for line in lines)
    assert any(line.startswith("Sub(x0, x1)") for line in lines) is not updated
    for a, b_ in zip(expected, run(done), strict=True):
        np.testing.assert_allclose(a, b_, rtol=1e-6, atol=1e-6)


# On CPUs operators along rows are fused where a step has many elements, those of loops' turns counted; else not.


def rows(b: Builder, x: Value) -> list[Value]:
    """Three nodes as large as x."""
    return [b.emit(Mul(), b.emit(Softmax(-1), b.emit(Mul(), x, x)), x)]


def network(size: int, turns: int) -> Graph:
    """A loop of so many turns, of three nodes of `size` elements each."""
    type = TensorType(FLOAT32, (size // 256, 256))
    body = graph("scan_1_body", [type], rows)
    return graph("net", [type], lambda b, x: run_graphs(b, Scan(turns=turns, carried=1), [x], body))


@pytest.mark.parametrize(("size", "turns", "fused"), [(1 << 20, 2, False), (1 << 20, 6, True), (1 << 23, 1, True)])
def test_a_step_of_many_elements_is_fused(size: int, turns: int, fused: bool) -> None:
    found = network(size, turns)
    assert find_pass("fuse_large_rows").run(found) is fused
    assert any(isinstance(node.op, FusedElementwise) for node in found.all_nodes()) is fused
