"""Memory of nodes that run graphs: what is planned is what a walk over all turns holds at most.

Ranks that meet inside of nodes that run graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Builder, Constant, Graph, Value
from mspc.ir.types import BOOL, TensorType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.regions import Call, For, If, Scan, While
from mspc.ops.math.arithmetic import Add, Less
from mspc.ops.math.elementwise import Square
from mspc.ops.math.matmul import MatMul
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import World
from mspc.runtime.executor import Executor
from mspc.runtime.memory_plan import peak_of, plan_memory
from tests.runtime.region_graphs import COUNT, SCALAR, floats, graph, run_graphs

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


BOTH = AllReduce(rank_list=(0, 1))
ONE = Constant(np.float32(1))


def on_ranks(main: Graph, inputs: Callable[[int], Sequence[Any]], ranks: int = 2) -> list[list[Any]]:
    """The results of two steps on every rank."""

    def body(comm: Any) -> list[Any]:
        executor = Executor(main, NumPyBackend(comm), {})
        found: list[Any] = []
        for _ in range(2):
            found += executor.run(inputs(comm.rank))
        return found

    return World(ranks).run(body)


def counting_up(behind: bool) -> Graph:
    """x grows by the sum of ones of all ranks while it is below a limit; behind the loop ranks meet once more."""
    types = [SCALAR, SCALAR]
    condition = graph("while_1_condition", types, lambda b, x, limit: [b.emit(Less(), x, limit)])
    body = graph("while_1_body", types, lambda b, x, limit: [b.emit(Add(), x, b.emit(BOTH, ONE))])

    def main(b: Builder, x: Value, limit: Value) -> list[Value]:
        (found,) = run_graphs(b, While(carried=1), [x, limit], condition, body)
        return [b.emit(BOTH, found)] if behind else [found]

    return graph("main", types, main)


def test_collectives_inside_of_a_loop() -> None:
    found = on_ranks(counting_up(behind=True), lambda rank: [np.float32(1), np.float32(8)])
    assert found == [[18, 18], [18, 18]]  # 1, 3, 5, 7, 9 on both


@pytest.mark.parametrize("behind", [False, True])
def test_a_loop_whose_turns_differ_between_ranks_is_named(behind: bool) -> None:
    with pytest.raises(ExecutionError) as caught:
        on_ranks(counting_up(behind), lambda rank: [np.float32(1), np.float32(6 - 4 * rank)])
    assert caught.value.message == (
        "While failed on rank 1 in step 1: "
        "rank 1 has left While after 1 turn, but rank 0 waits in AllReduce(sum) with ranks 1"
    )
    assert caught.value.notes[0] == (
        "ranks 0, 1 meet inside: there a condition or a number of turns must be the same on all of them"
    )


def test_a_count_that_differs_between_ranks_is_refused_ahead_of_the_loop() -> None:
    body = graph("for_1_body", [COUNT, SCALAR], lambda b, i, x: [b.emit(Add(), x, b.emit(BOTH, ONE))])
    main = graph("main", [COUNT, SCALAR], lambda b, *values: run_graphs(b, For(carried=1), values, body))
    assert on_ranks(main, lambda rank: [np.int64(2), np.float32(0)]) == [[4, 4], [4, 4]]
    with pytest.raises(ExecutionError) as caught:
        on_ranks(main, lambda rank: [np.int64(rank + 1), np.float32(0)])
    assert "rank 0 has 1 turn of For, but rank 1 has 2 turns of For" in caught.value.message


def test_a_condition_that_differs_between_ranks_is_refused_ahead_of_the_branch() -> None:
    then = graph("if_1_then", [SCALAR], lambda b, x: [b.emit(BOTH, x)])
    otherwise = graph("if_1_else", [SCALAR], lambda b, x: [b.emit(Add(), x, x)])

    def main(b: Builder, x: Value, limit: Value) -> list[Value]:
        return run_graphs(b, If(), [b.emit(Less(), x, limit), x], then, otherwise)

    choice = graph("main", [SCALAR, SCALAR], main)
    assert on_ranks(choice, lambda rank: [np.float32(rank), np.float32(2)]) == [[1, 1], [1, 1]]
    assert on_ranks(choice, lambda rank: [np.float32(rank), np.float32(0)]) == [[0, 0], [2, 2]]
    with pytest.raises(ExecutionError) as caught:
        on_ranks(choice, lambda rank: [np.float32(rank), np.float32(1)])
    told = "rank 0 has true as the condition of If, but rank 1 has false as the condition of If"
    assert caught.value.message == f"If failed on rank 0 in step 1: {told}"


def test_ranks_that_meet_nobody_inside_may_differ() -> None:
    types = [SCALAR, SCALAR]
    condition = graph("while_1_condition", types, lambda b, x, limit: [b.emit(Less(), x, limit)])
    body = graph("while_1_body", types, lambda b, x, limit: [b.emit(Add(), x, ONE)])

    def main(b: Builder, x: Value, limit: Value) -> list[Value]:
        return [b.emit(BOTH, *run_graphs(b, While(carried=1), [x, limit], condition, body))]

    found = on_ranks(graph("main", types, main), lambda rank: [np.float32(0), np.float32(3 + 4 * rank)])
    assert found == [[10, 10], [10, 10]]


def test_a_loop_in_one_rank_and_a_branch_in_another_are_told_apart() -> None:
    """Rank 1 leaves the outer loop while rank 0 comes to the branch inside of it once more."""
    types = [SCALAR, SCALAR]
    then = graph("if_1_then", [SCALAR], lambda b, x: [b.emit(BOTH, x)])
    otherwise = graph("if_1_else", [SCALAR], lambda b, x: [x])

    def turn(b: Builder, x: Value, limit: Value) -> list[Value]:
        (found,) = run_graphs(b, If(), [b.emit(Less(), x, Constant(np.float32(9))), ONE], then, otherwise)
        return [b.emit(Add(), x, found)]

    condition = graph("while_2_condition", types, lambda b, x, limit: [b.emit(Less(), x, limit)])
    body = graph("while_2_body", types, turn)
    main = graph("main", types, lambda b, *values: run_graphs(b, While(carried=1), values, condition, body))
    with pytest.raises(ExecutionError) as caught:
        on_ranks(main, lambda rank: [np.float32(0), np.float32(8 - 4 * rank)])
    told = "rank 0 has true as the condition of If, but rank 1 has left While after 2 turns"
    assert caught.value.message == f"If failed on rank 0 in step 1 in turn 2 of While: {told}"
