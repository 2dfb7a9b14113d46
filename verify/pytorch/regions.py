"""Runs loops, branches and calls value by value, once as mspc has the values and once as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.graph import Graph, Node
from mspc.ir.types import StackType
from mspc.ops.control.regions import If, Loop, While, spread
from mspc.ops.control.structural import CALL
from mspc.runtime.backend import NumPyBackend

Array = Any


class Pair(NamedTuple):
    """A value. own: an array, or a list with an entry for every iteration. theirs: the same of PyTorch's tensors; None
    if only mspc's values are wanted."""

    own: Any
    theirs: Any = None

    def entry(self, iteration: int) -> Pair:
        return Pair(self.own[iteration], None if self.theirs is None else self.theirs[iteration])


Run = Callable[[Graph, Sequence[Pair]], list[Pair]]


def region_results(node: Node, operands: Sequence[Pair], run: Run, backend: NumPyBackend, torch: Any) -> list[Pair]:
    """The results of a node that runs regions.

    Args:
        run: gives the results of a region. backend: gets the iterations and calls that random numbers depend on.
    """
    turns, calls = backend.turns, backend.calls
    if CALL in node.attrs:
        backend.calls = (*calls, int(node.attrs[CALL]))
    try:
        if isinstance(node.op, Loop):
            return _iterations(node, node.op, operands, run, backend, torch)
        if isinstance(node.op, If):
            return run(node.regions[0 if operands[0].own else 1], operands[1:])
        return run(node.regions[0], spread(node, operands))
    finally:
        backend.turns, backend.calls = turns, calls


def _iterations(
    node: Node, op: Loop, operands: Sequence[Pair], run: Run, backend: NumPyBackend, torch: Any
) -> list[Pair]:
    first, body, around = op.first, node.regions[-1], backend.turns
    begin, end = first + op.carried, first + op.carried + op.scanned
    carried = [Pair(_copied(pair.own), pair.theirs) for pair in operands[first:begin]]
    known = op.known_turns([value.type for value in node.inputs])
    count = known if known >= 0 else int(operands[0].own) if first else -1
    stacks: list[dict[int, Pair]] = [{} for _ in range(op.stacked)]
    done = 0
    while done < count or count < 0:
        number = count - 1 - done if op.reverse else done
        backend.turns = (*around, number)
        read = [*carried, *(pair.entry(number) for pair in operands[begin:end]), *operands[end:]]
        if isinstance(op, While) and not run(node.regions[0], read)[0].own:
            break
        results = run(body, [*[Pair(np.int64(number), torch.tensor(number))] * op.leading, *read])
        carried = [Pair(_copied(pair.own), pair.theirs) for pair in results[: op.carried]]
        for stack, entry in zip(stacks, results[op.carried :], strict=True):
            stack[number] = Pair(_copied(entry.own), entry.theirs)
        done += 1
    told = [Pair(np.array(done), torch.tensor(done))] if isinstance(op, While) and op.tells_turns else []
    entries = [[stack[number] for number in range(done)] for stack in stacks]
    types = [value.type for value in body.results[op.carried :]]
    return [*carried, *told, *(
        _stacked(each, known >= 0 and not isinstance(type, StackType), torch)
        for each, type in zip(entries, types, strict=True)
    )]  # fmt: skip


def _stacked(entries: Sequence[Pair], is_tensor: bool, torch: Any) -> Pair:
    own, theirs = [pair.own for pair in entries], [pair.theirs for pair in entries]
    if any(each is None for each in theirs):
        return Pair(np.stack(own) if is_tensor and own else own)
    return Pair(np.stack(own), torch.stack(theirs)) if is_tensor and own else Pair(own, theirs)


def _copied(own: Any) -> Any:
    return list(map(_copied, own)) if isinstance(own, list) else np.array(own)
