"""Control operators that run graphs again and again: while a condition holds, or for every row of some tensors.

`while_loop` has graphs of the condition and of a turn, what is carried from turn to turn, and what every turn reads.
`scan` has a graph of a turn, what is carried, tensors whose rows turns read one after the other, and what every turn
reads; its results are what the last turn carries on, and the rows that all turns have made. `map` is that without
anything that is carried. Few turns are nodes of their own; of many the graph has one, and so has that of mspc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiRuntimeError
from mspc.api.nn.cell import Cell
from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.control import MAP, WHILE
from mspc.readers.pytorch.program import ExportedGraph

FEW = 16
"""Rows up to which every turn is nodes of its own."""

Turned = Callable[[Any, ExportedGraph, Sequence[Any]], list[Any]]
"""What a graph gives for operands, by an evaluator."""


class InnerGraph(Cell):
    """A graph of a program as what a loop calls. compute: what it gives, of an evaluator and operands."""

    is_imported = True
    plan = None

    def __init__(self, compute: Callable[[Any, Sequence[Any]], Any]) -> None:
        super().__init__(auto_prefix=False)
        object.__setattr__(self, "compute", compute)

    def construct(self, *inputs: Any) -> Any:
        """Never read: the front end calls `evaluate`."""
        raise ApiRuntimeError("a graph of a program is computed where it is compiled")

    def evaluate(self, evaluator: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The graph's results."""
        return self.compute(evaluator, args)


def looped(target: str, given: Sequence[Any], call: Call, turned: Turned) -> list[Any]:
    """The results of a loop. Raises MspcError where its operands are none of it."""
    graphs = [each for each in given if isinstance(each, ExportedGraph)]
    operands: list[Any] = [each for each in given if not isinstance(each, ExportedGraph)]
    lists = all(isinstance(each, (tuple, list)) for each in operands)
    if not lists or (len(graphs), len(operands)) != ((2, 2) if target == WHILE else (1, 2 + (target != MAP))):
        raise MspcError("it has not the graphs and the operands of a loop")
    if target == WHILE:
        return _while(graphs[0], graphs[1], operands[0], operands[1], call, turned)
    carried, rows, shared = ((), *operands) if target == MAP else operands
    return _scanned(graphs[0], carried, rows, shared, call, turned)


def _while(
    condition: ExportedGraph, body: ExportedGraph, carried: Sequence[Any], shared: Sequence[Any], call: Call,
    turned: Turned,
) -> list[Any]:  # fmt: skip
    def holds(evaluator: Any, args: Sequence[Any]) -> Any:
        return turned(evaluator, condition, [*args[0], *shared])[0]

    def turn(evaluator: Any, args: Sequence[Any]) -> Any:
        return tuple(turned(evaluator, body, [*args[0], *shared]))

    return list(call(ops.WhileLoop(), [InnerGraph(holds), InnerGraph(turn), tuple(carried)]))


def _scanned(
    body: ExportedGraph, carried: Sequence[Any], rows: Sequence[Any], shared: Sequence[Any], call: Call,
    turned: Turned,
) -> list[Any]:  # fmt: skip
    count, kept = rows[0].shape[0], len(carried)

    def turn(evaluator: Any, args: Sequence[Any]) -> Any:
        state, place = args
        own = [place] if len(rows) == 1 else [evaluator.call(ops.Gather(), [table, place, 0]) for table in rows]
        found = turned(evaluator, body, [*state[:kept], *own, *shared])
        return (*found[:kept], *state[kept:]), tuple(found[kept:])

    state = tuple(carried) or (call(ops.arange, [0, 1, 1]),)  # a loop carries something
    table = rows[0] if len(rows) == 1 else call(ops.arange, [0, count, 1])
    state, made = call(ops.Scan(), [InnerGraph(turn), state, table, None, count <= FEW])
    ahead = list(state[:kept])
    return ahead + [call(ops.stack, [tuple([each[k] for each in made]), 0]) for k in range(len(made[0]))]
