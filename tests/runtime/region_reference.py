"""Nodes that run graphs, computed plainly: every value is an array of its own, but for what is overwritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.types import StackType
from mspc.ops.control.loops import Loop, While
from mspc.ops.control.regions import If
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank

Values = dict[Value, Any]


def evaluated(graph: Graph, operands: Mapping[Value, Any]) -> list[Any]:
    """The results of a graph for arrays of its parameters, of which those that it updates are overwritten."""
    values: Values = {**operands}

    def of(value: Value) -> Any:
        return value.value if isinstance(value, Constant) else values[value]

    for node in graph.nodes:
        given = [of(value) for value in node.inputs]
        if node.regions:
            values[node] = _of_regions(node, given)
        else:
            op: Any = node.op
            values[node] = _own(op.kernel(NumPyBackend(OneRank()))(*given))
    return [_own(of(value)) for value in graph.results]


def _own(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_own, value))
    return value if isinstance(value, list) else np.array(value)


def _inside(region: Graph, given: Sequence[Any]) -> list[Any]:
    return evaluated(region, dict(zip(region.parameters, given, strict=True)))


def _of_regions(node: Node, given: list[Any]) -> tuple[Any, ...]:
    op = node.op
    if isinstance(op, If):
        return tuple(_inside(node.regions[0 if given[0] else 1], given[1:]))
    if not isinstance(op, Loop):
        return tuple(_inside(node.regions[0], given))
    begin, behind = op.first + op.carried, op.first + op.carried + op.scanned
    carried, scanned, captured = list(map(_own, given[op.first : begin])), given[begin:behind], given[behind:]
    scanned = list(map(_own, scanned))
    known = op.known_turns([value.type for value in node.inputs])
    numbers: list[int] = []
    entries: list[list[Any]] = []
    while True:
        turn = len(numbers)
        if isinstance(op, While):
            if not _inside(node.regions[0], [*carried, *captured])[0]:
                break
        elif turn == (known if known >= 0 else int(given[0])):
            break
        else:
            turns = known if known >= 0 else int(given[0])
            turn = turns - 1 - turn if op.reverse else turn
        number = [np.asarray(turn, np.int64)] if op.leading else []
        found = _inside(node.regions[-1], [*number, *carried, *[x[turn] for x in scanned], *captured])
        carried = found[: op.carried]
        numbers.append(turn)
        entries.append(found[op.carried :])
    counted = [np.asarray(len(numbers), np.int64)] if isinstance(op, While) and op.tells_turns else []
    stacks: list[Any] = []
    for i, value in enumerate(node.regions[-1].results[op.carried :]):
        rows = [row[i] for _, row in sorted(zip(numbers, entries, strict=True), key=lambda pair: pair[0])]
        if known >= 0 and not isinstance(value.type, StackType):
            stacks.append(np.array(rows).reshape(known, *value.shape))
        else:
            stacks.append(rows)
    return (*carried, *counted, *stacks)
