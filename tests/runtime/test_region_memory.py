"""Memory of nodes that run graphs: what is planned is what a walk over all turns holds at most."""

from __future__ import annotations

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Value
from mspc.ir.types import BOOL, TensorType
from mspc.ops.control.regions import Call, For, If, Scan
from mspc.ops.math.elementwise import Square
from mspc.ops.math.matmul import MatMul
from mspc.runtime.memory_plan import peak_of, plan_memory
from tests.runtime.region_graphs import COUNT, floats, graph, run_graphs

ROWS = floats(64, 64)
BYTES = ROWS.nbytes


def layer(b: Builder, x: Value, w: Value) -> list[Value]:
    """Its first product is alive beside its second one."""
    first = b.emit(MatMul(), x, w)
    second = b.emit(MatMul(), first, w)
    return [b.emit(MatMul(), first, second)]


def test_a_call_takes_what_its_nodes_take() -> None:
    shared = graph("layer", [ROWS, ROWS], layer)
    called = graph("main", [ROWS, ROWS], lambda b, *values: run_graphs(b, Call(), values, shared))
    flat = graph("main", [ROWS, ROWS], layer)
    assert plan_memory(called).arena == plan_memory(flat).arena == 3 * BYTES
    assert peak_of(called) == plan_memory(called).peak == 5 * BYTES
    assert plan_memory(called).temporary + plan_memory(called).activations >= 3 * BYTES


def test_calls_of_one_graph_take_turns() -> None:
    shared = graph("layer", [ROWS, ROWS], layer)

    def main(b: Builder, x: Value, w: Value) -> list[Value]:
        for _ in range(4):
            (x,) = run_graphs(b, Call(), [x, w], shared)
        return [x]

    assert plan_memory(graph("main", [ROWS, ROWS], main)).arena == 4 * BYTES  # what a call is given, and three inside


def test_a_choice_takes_what_its_larger_branch_takes() -> None:
    then = graph("then", [ROWS, ROWS], layer)
    otherwise = graph("else", [ROWS, ROWS], lambda b, x, w: [b.emit(MatMul(), x, w)])
    main = graph("main", [TensorType(BOOL, ()), ROWS, ROWS], lambda b, *v: run_graphs(b, If(), v, then, otherwise))
    assert plan_memory(main).arena == 3 * BYTES


def test_a_loop_takes_a_turn_and_what_the_turn_before_has_left() -> None:
    for turns, rooms in ((1, 3), (2, 4), (50, 4)):
        body = graph("body", [ROWS, ROWS], layer)
        main = graph("main", [ROWS, ROWS], lambda b, *v, t=turns, g=body: run_graphs(b, Scan(turns=t, carried=1), v, g))
        assert plan_memory(main).arena == rooms * BYTES


def test_what_every_turn_leaves_is_counted_for_all_of_them() -> None:
    body = graph("body", [COUNT, ROWS], lambda b, i, x: [b.emit(Square(), x), b.emit(MatMul(), x, x)])
    main = graph("main", [ROWS], lambda b, x: run_graphs(b, For(turns=9, carried=1, stacked=1), [x], body))
    assert plan_memory(main).arena == (1 + 9) * BYTES + BYTES + BYTES  # results, the turn before's, an entry


def test_constants_inside_are_counted_once() -> None:
    number = Constant(1.0, ROWS.dtype)
    body = graph("body", [ROWS], lambda b, x: [b.emit(Square(), x), number])
    plain = graph("main", [ROWS], lambda b, x: run_graphs(b, Scan(turns=2, carried=1, stacked=1), [x], body))
    assert plan_memory(plain).constants == 4
