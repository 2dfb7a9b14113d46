"""Finds the one row of a tensor whose rows are all alike: a mask that is the same for all queries, repeated for them.

Input:  `%1 = BroadcastTo(%mask) {shape: (16, 1, 512, 512)}`, `%2 = Sub(1, %1)`, `%3 = Mul(%2, -1e9)`
Output: `%2 = Sub(1, %mask)`, `%3 = Mul(%2, -1e9)` of (16, 1, 1, 512)
"""

from __future__ import annotations

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Node, Value
from mspc.ir.types import TensorType
from mspc.ops.bases import Elementwise
from mspc.ops.tensor.broadcast import BroadcastTo
from mspc.ops.tensor.reshape import ExpandDims, Reshape

DEPTH = 8
"""How many operators between what is repeated and its reader are looked at."""


def narrow(b: Builder, value: Value, visited: list[Node]) -> Value | None:
    """`value` with one element in its last dimension but one, aligned with it at the right: itself, or what `b` emits;
    None where rows may differ, or it has no dimensions. visited: gets what is gone through."""
    begin, seen = len(b.nodes), len(visited)
    found = _narrowed(b, value, visited, DEPTH) if value.shape else None
    if found is None:
        del b.nodes[begin:]
        del visited[seen:]
    return found


def _narrowed(b: Builder, value: Value, visited: list[Node], depth: int) -> Value | None:
    if not isinstance(value.type, TensorType):
        return None
    shape = value.shape
    if len(shape) < 2 or shape[-2] == 1:
        return value
    if not isinstance(value, Node) or not depth:
        return None
    op = value.op
    inputs: list[Value] = []
    for operand in value.inputs:
        inner = _narrowed(b, operand, visited, depth - 1)
        if inner is None:
            return None
        inputs.append(inner)
    visited.append(value)
    if isinstance(op, BroadcastTo):
        return inputs[0]
    if isinstance(op, Reshape | ExpandDims):
        moved = _with_ones(inputs[0], value.inputs[0].shape, shape)
        return None if moved is None else b.emit(Reshape(moved), inputs[0])
    if not isinstance(op, Elementwise) or not op.broadcasts or op.has_side_effect or isinstance(value, Constant):
        return None
    return b.emit(op, *inputs)


def _with_ones(narrowed: Value, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of a narrowed operand of what takes it from one shape to another by ones ahead of the last two
    dimensions; None where it does something else."""
    if len(before) < 2 or before[-2:] != after[-2:]:
        return None
    own = (1,) * (len(before) - len(narrowed.shape)) + narrowed.shape
    sizes = [(n, mine) for n, mine in zip(before[:-2], own[:-2], strict=True) if n != 1]
    if [n for n, _ in sizes] != [n for n in after[:-2] if n != 1]:
        return None
    rest = iter(mine for _, mine in sizes)
    return (*(1 if n == 1 else next(rest) for n in after[:-2]), *own[-2:])
