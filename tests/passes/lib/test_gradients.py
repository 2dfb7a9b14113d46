"""Gradients: numbers of calls that draw, gradients that a script gives, and operators that have none."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Graph, Parameter, Value
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ir.types import BOOL, FLOAT32, TensorType
from mspc.ops.control.custom import GradientPlaceholder, OwnGradient
from mspc.ops.control.regions import Call, For, If
from mspc.ops.control.structural import CALL, Gradient, TupleGetItem
from mspc.ops.math.arithmetic import Mul, Neg
from mspc.ops.nn.activation import SiLUGrad
from mspc.ops.op import REGISTRY, NotDifferentiable
from mspc.ops.random.dropout import Dropout
from mspc.ops.tensor.reshape import ReduceSum
from mspc.passes.autodiff.grad import Grad
from mspc.passes.base import PassManager
from mspc.passes.cleanup.simplify import Simplify
from mspc.passes.lib.gradients import drop_own_gradients, number_calls
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
    numbers = [node.attrs.get(CALL) for each in made.graphs() for node in each.nodes if node.regions]
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
    assert sum(isinstance(node.op, Dropout) for each in made.graphs() for node in each.nodes) == 1 + marked
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
