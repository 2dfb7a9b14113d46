"""Runs the regions of nodes for tests, by what the operators' docstrings say and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node
from mspc.ops.control.loops import For, Loop, Scan, While
from mspc.ops.control.regions import Call, If, RegionOp

Run = Callable[[Graph, Sequence[Any]], list[Any]]
"""The results of a graph whose parameters have these values."""


def run_regions(node: Node, inputs: Sequence[Any], run: Run) -> tuple[Any, ...]:
    """The results of a node that runs graphs."""
    op = node.op
    assert isinstance(op, RegionOp)
    if isinstance(op, If):
        return tuple(run(node.regions[0 if inputs[0] else 1], inputs[1:]))
    if isinstance(op, Call):
        return tuple(run(node.regions[0], inputs))
    assert isinstance(op, Loop)
    return _loop(node, op, inputs, run)


def _loop(node: Node, op: Loop, inputs: Sequence[Any], run: Run) -> tuple[Any, ...]:
    first, behind = op.first, op.first + op.carried
    carried, scanned, captured = inputs[first:behind], inputs[behind:][: op.scanned], inputs[behind + op.scanned :]
    turns = int(inputs[0]) if isinstance(op, For) and op.turns < 0 else getattr(op, "turns", 0)
    kept: list[list[Any]] = [[] for _ in range(op.stacked)]
    numbers = iter(range(turns)[:: -1 if op.reverse else 1])
    count = 0
    while True:
        if isinstance(op, While):
            if not run(node.regions[0], [*carried, *captured])[0]:
                break
            leading: list[Any] = []
            number = count
        else:
            number = next(numbers, -1)
            if number < 0:
                break
            leading = [np.asarray(number, np.int64)] if isinstance(op, For) else []
        entries = [each[number] for each in scanned]
        found = run(node.regions[-1], [*leading, *carried, *entries, *captured])
        carried = found[: op.carried]
        for places, entry in zip(kept, found[op.carried :], strict=True):
            places.append(entry)
        count += 1
    stacks = [places[::-1] if op.reverse else places for places in kept]
    if isinstance(op, For | Scan) and op.known_turns([]) >= 0:
        stacks = [np.stack(places) for places in stacks]
    counted = [np.asarray(count, np.int64)] if isinstance(op, While) and op.stacked else []
    return (*carried, *counted, *stacks)
