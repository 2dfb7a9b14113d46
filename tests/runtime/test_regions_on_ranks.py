"""Ranks that meet inside of nodes that run graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Constant, Graph, Value
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.regions import For, If, While
from mspc.ops.math.arithmetic import Add, Less
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import World
from mspc.runtime.executor import Executor
from tests.runtime.region_graphs import COUNT, SCALAR, graph, run_graphs

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
