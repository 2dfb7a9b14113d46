"""Nodes that run graphs, for tests that interpret graphs of any stage: as plain as what they mean."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node
from mspc.ir.types import StackType
from mspc.ops.control.regions import If, Loop, While

Run = Callable[[Graph, Sequence[Any]], list[Any]]
"""The results of a graph for what its parameters hold; these are overwritten in place."""


def region_results(node: Node, inputs: Sequence[Any], run: Run) -> tuple[Any, ...]:
    """The results of a node."""
    if isinstance(node.op, Loop):
        return _turns(node, node.op, inputs, run)
    if isinstance(node.op, If):
        return tuple(run(node.regions[0 if inputs[0] else 1], inputs[1:]))
    return tuple(run(node.regions[0], inputs))


def _turns(node: Node, op: Loop, inputs: Sequence[Any], run: Run) -> tuple[Any, ...]:
    first, body = op.first, node.regions[-1]
    behind = first + op.carried + op.scanned
    carried = [np.array(value) for value in inputs[first : first + op.carried]]
    scanned = inputs[first + op.carried : behind]
    known = op.known_iterations([value.type for value in node.inputs])
    count = known if known >= 0 else int(inputs[0]) if first else -1
    stacks: list[dict[int, Any]] = [{} for _ in range(op.stacked)]
    turns = 0
    while turns < count or count < 0:
        turn = count - 1 - turns if op.reverse else turns
        read = [*carried, *(entries[turn] for entries in scanned), *inputs[behind:]]
        if isinstance(op, While) and not run(node.regions[0], read)[0]:
            break
        results = run(body, [*[np.int64(turn)] * op.leading, *read])
        carried = [np.array(value) for value in results[: op.carried]]
        for stack, entry in zip(stacks, results[op.carried :], strict=True):
            stack[turn] = entry if isinstance(entry, list) else np.array(entry)
        turns += 1
    kept: list[Any] = [[stack[turn] for turn in range(turns)] for stack in stacks]
    for i, value in enumerate(body.results[op.carried :]):
        if known >= 0 and not isinstance(value.type, StackType):
            kept[i] = np.reshape(kept[i], (turns, *value.shape)).astype(value.tensor_type.dtype.numpy)
    return (*carried, *([np.array(turns)] if isinstance(op, While) and op.returns_count else []), *kept)
