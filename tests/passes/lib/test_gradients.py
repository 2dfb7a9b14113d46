"""Gradients: numbers of calls that draw, gradients that a script gives, and operators that have none."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value
from mspc.ops.control.structural import CALL, Gradient, TupleGetItem
from mspc.passes.base import PassManager, parse_passes, run_passes
from mspc.passes.lib.batch_rows import FIRST, ROWS, FedRows
from mspc.passes.lib.gradients import drop_own_gradients, number_calls
from tests.executors import Grad, Simplify
from tests.graphs import BOOL, FLOAT32, REGISTRY, Layout, MspcError, NotDifferentiable, TensorType, parse, print_graph
from tests.operators import Call, Dropout, For, GradientPlaceholder, If, Mul, Neg, OwnGradient, ReduceSum, SiLUGrad
from tests.passes.autodiff.differentiated import (
    COUNT,
    assert_gradients,
    checked,
    floats,
    graph,
    region,
    run,
    with_gradients,
)

# Nodes that run one graph draw numbers of their own, and their gradients read what they drew.


WIDE = floats(64)


def drawing(marked: bool = False) -> Graph:
    def body(b: Builder, x: Value, w: Value) -> list[Value]:
        drawn = b.emit(TupleGetItem(0), b.emit(Dropout(0.5, 3, 4), b.emit(Mul(), x, w)))
        for node in b.nodes if marked else ():
            node.attrs["recompute"] = "call"
        return [drawn]

    return graph("drawing", [WIDE, WIDE], body)


def nested() -> Graph:
    """Nine draws: of calls, of calls in calls, of branches that calls and a loop run."""
    inner = drawing()
    outer = graph("outer", [WIDE, WIDE], lambda b, x, w: region(b, Call(), [x, w], inner))
    branch = graph("branch", [WIDE, WIDE], lambda b, x, w: region(b, Call(), [x, w], inner))
    turn = graph("turn", [COUNT, WIDE, WIDE], lambda b, _, x, w: region(b, Call(), [x, w], inner))

    def main(b: Builder, x: Value, w: Value) -> list[Value]:
        found = [region(b, Call(), [x, w], each)[0] for each in (inner, inner, outer, outer)]
        for way in (True, False):
            found += region(b, If(), [Constant(way, BOOL), x, w], branch, outer)
        loop = graph("loop", [COUNT, WIDE, WIDE], lambda b, i, x, w: region(b, Call(), [i, x, w], turn))
        found += region(b, For(turns=2, stacked=1), [x, w], loop)
        found += region(b, Call(), [Constant(0, COUNT.dtype), x, w], turn)
        return found

    return graph("main", [WIDE, WIDE], main)


def test_each_draws_numbers_of_its_own() -> None:
    made = nested()
    PassManager().run(made, [Grad(), Simplify()])
    ones = [np.ones(64), np.ones(64)]
    *single, stacked, last = run(checked(made), ones)
    drawn = [*single, *stacked, last]
    assert len(drawn) == 9
    assert all((one != other).any() for one, other in combinations(drawn, 2))
    assert [found.tolist() for found in run(made, ones)[:2]] == [found.tolist() for found in drawn[:2]]


def test_numbers_are_given_once_and_stand_in_the_text() -> None:
    made = nested()
    assert number_calls(made)
    numbers = [node.attrs.get(CALL) for node in made.all_nodes() if node.regions]
    given = [number for number in numbers if number]
    assert sorted(given) == list(range(1, len(given) + 1))
    assert not number_calls(made)
    read = parse(print_graph(made), REGISTRY).main
    assert not number_calls(read)
    assert print_graph(read) == print_graph(made)


def test_what_one_node_runs_or_what_draws_nothing_has_no_number() -> None:
    inner = drawing()
    plain = graph("plain", [WIDE, WIDE], lambda b, x, w: [b.emit(Mul(), x, w)])

    def main(b: Builder, x: Value, w: Value) -> list[Value]:
        return [region(b, Call(), [x, w], each)[0] for each in (inner, plain, plain)]

    made = graph("main", [WIDE, WIDE], main)
    assert not number_calls(made)
    np.testing.assert_array_equal(
        run(made, [np.ones(64)] * 2)[0], run(graph("alone", [WIDE, WIDE], lambda b, x, w: [
            b.emit(TupleGetItem(0), b.emit(Dropout(0.5, 3, 4), b.emit(Mul(), x, w)))]), [np.ones(64)] * 2)[0]
    )  # fmt: skip


@pytest.mark.parametrize("marked", [False, True])
def test_gradients_read_what_each_drew(marked: bool) -> None:
    def make() -> Graph:
        inner = drawing(marked)

        def main(b: Builder, x: Value, w: Value) -> list[Value]:
            for _ in range(2):
                x = region(b, Call(), [x, w], inner)[0]
            return [b.emit(ReduceSum(), x)]

        made = graph("main", [WIDE, WIDE], main, 1)
        number_calls(made)
        return made

    made = assert_gradients(make, [0, 1])
    assert sum(isinstance(node.op, Dropout) for node in made.all_nodes()) == 1 + marked
    made = with_gradients(make, [0])
    PassManager().run(made, [Grad()])
    calls = [node for node in made.nodes if node.regions]
    assert [(node.phase, node.attrs[CALL]) for node in calls] == [
        ("forward", 1), ("forward", 2), ("backward", 2), ("backward", 1)
    ]  # fmt: skip


# The node that stands for gradients that the script gives goes as a whole.


def test_no_placeholder_and_nothing_computed_of_one_is_left() -> None:
    graph = Graph("g")
    x = Parameter("x", TensorType(FLOAT32, (3,)))
    graph.parameters.append(x)
    b = Builder(graph)
    result = b.emit(Mul(), x, x)
    placeholder = b.emit(GradientPlaceholder(type=result.type))
    own = b.emit(OwnGradient(), result, x, placeholder, b.emit(Neg(), placeholder))
    read = b.emit(Neg(), b.emit(TupleGetItem(0), own))
    graph.results = [read]
    assert drop_own_gradients(graph)
    assert graph.nodes == [result, read]
    assert read.inputs == [result]
    assert not drop_own_gradients(graph)


# Gradients through operators that have none.


def gradient_of(operands: str) -> Graph:
    """The gradient for x of an operator without one, of two of x, y and z = 2 x."""
    graph = Graph("net")
    graph.attrs = {"mode": "stand_alone", "ranks": 1}
    x, y = (Parameter(name, TensorType(FLOAT32, (4, 4))) for name in "xy")
    graph.parameters = [x, y]
    b = Builder(graph)
    of = {"x": x, "y": y, "z": b.emit(Mul(), x, b.constant(2.0, FLOAT32))}
    shared = b.emit(SiLUGrad(), *(of[name] for name in operands))
    graph.results = [b.emit(TupleGetItem(0), b.emit(Gradient(outputs=1), shared, x))]
    return graph


@pytest.mark.parametrize("operands", ["xx", "xy", "yx", "zz", "zy", "xz"])
def test_it_is_an_error_whichever_operand_asks(operands: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SiLUGrad, "bprop", NotDifferentiable("the operator states no gradient"))
    with pytest.raises(MspcError, match="SiLUGrad has no gradient"):
        Grad().run(gradient_of(operands))


def test_operands_that_nobody_asks_for_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SiLUGrad, "bprop", NotDifferentiable("the operator states no gradient"))
    graph = gradient_of("yy")
    Grad().run(graph)
    assert [node.op.name for node in graph.nodes if node.phase == "backward"].count("SiLUGrad") == 0


# The note of a gradient's rows in a text: read by passes, dropped on a rank, refused where it fits nothing.


SHARED = "grad,simplify,propagate_sharding,insert_redistribution,lower_redistribution"


def _graph() -> Graph:
    """The gradient of a sum of rows: ones, which no rule leads back to the rows."""
    graph = Graph("g")
    graph.attrs = {"mode": "semi_auto_parallel", "ranks": 2, "outputs": "batch"}
    x = Parameter("x", TensorType(FLOAT32, (4, 2)), layout=Layout.of((2,), [(0,), ()]))
    graph.parameters.append(x)
    b = Builder(graph)
    total = b.emit(ReduceSum(axis=(0, 1)), x)
    graph.results = [b.emit(TupleGetItem(0), b.emit(Gradient(), total, x))]
    return graph


def test_the_note_counts_until_a_rank_has_its_slice() -> None:
    shared = run_passes(_graph(), parse_passes(SHARED))
    assert [node.attrs[ROWS] for node in shared.nodes if ROWS in node.attrs] == ["(2) [0, -]"]
    local = run_passes(shared, parse_passes("slice_to_rank{rank=1}"))
    assert local.results[0].shape == (2, 2)
    assert not any(ROWS in node.attrs for node in local.nodes)


@pytest.mark.parametrize(
    "note", ["", "rows", 3, "(2) [0]", "(3) [0, -]", "(4) [0, -]", "(2) [0, -]; (2) [0, -]", "(2) [5, -]", None]
)
def test_a_note_that_fits_nothing_is_refused(note: object) -> None:
    graph = run_passes(_graph(), parse_passes("grad,simplify"))
    for node in graph.nodes:
        if ROWS in node.attrs:
            node.attrs[ROWS] = note
    with pytest.raises(MspcError, match=r"BroadcastTo: rows is .* which is no layout of"):
        run_passes(graph, parse_passes("propagate_sharding"))


# Where rows of the batch are: what operands tell of a drawn value, and what they do not.


class Drawing:
    """x [4, 3] is fed in rows, w [4, 3] is a parameter, and numbers are drawn."""

    def __init__(self) -> None:
        self.graph = Graph("g")
        self.b = Builder(self.graph)
        self.x, self.w = (
            Parameter(n, TensorType(FLOAT32, (4, 3)), kind=k) for n, k in (("x", "input"), ("w", "parameter"))
        )

    def emit(self, name: str, *inputs: Value, **attributes: Any) -> Node:
        return self.b.emit(REGISTRY[name](**attributes), *inputs)

    def drawn(self) -> Node:
        return self.emit("UniformReal", shape=(4, 3), seed=1)

    def rows(self, **given: Value) -> FedRows:
        return FedRows(self.graph, dict.fromkeys([self.x, *given.values()], FIRST))


def test_what_is_added_to_fed_rows_has_rows() -> None:
    d = Drawing()
    drawn = d.drawn()
    d.emit("Add", d.x, drawn)
    assert d.rows().of(drawn) == FIRST


def test_what_is_multiplied_with_fed_rows_over_these_has_rows() -> None:
    """The product has none."""
    d = Drawing()
    drawn = d.drawn()
    product = d.emit("MatMul", d.x, drawn, transpose_a=True)
    rows = d.rows()
    assert (rows.of(product), rows.of(drawn)) == (None, FIRST)


def test_rows_of_a_result_alone_are_those_of_what_was_drawn() -> None:
    d = Drawing()
    drawn = d.drawn()
    assert d.rows(pinned=d.emit("Neg", drawn)).of(drawn) == FIRST


def test_a_reader_without_rows_tells_nothing() -> None:
    d = Drawing()
    drawn = d.drawn()
    d.emit("Add", d.x, drawn)
    d.emit("Depend", drawn, d.w)
    assert d.rows().of(drawn) == FIRST


def test_an_element_tells_nothing_of_the_other_ones() -> None:
    d = Drawing()
    pair = d.emit("MakeTuple", d.x, d.w)
    d.emit("TupleGetItem", pair, index=0)
    assert d.rows().places[pair] == (FIRST, None)


def test_a_collective_has_no_rows() -> None:
    d = Drawing()
    total = d.emit("AllReduce", d.x)
    assert d.rows().of(total) is None


def test_a_dimension_of_a_parameter_is_not_the_batch() -> None:
    """The rows of a value that is computed on the way, too."""
    for other in ("w", "negative"):
        d = Drawing()
        drawn = d.drawn()
        d.emit("Add", drawn, d.w if other == "w" else d.emit("Neg", d.w))
        assert not d.rows().may_be_rows(drawn)
    d = Drawing()
    drawn = d.drawn()
    d.emit("Neg", drawn)
    assert d.rows().may_be_rows(drawn)
