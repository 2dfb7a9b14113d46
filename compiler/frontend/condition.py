"""`if` on the contents of a tensor around updates: the graph computes both branches, and updates of the branch that is
not taken change nothing.

This is how a training step leaves out its update when gradients have overflowed. Other uses of such a condition stay
errors: the front end knows shapes, not contents.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from mspc.compiler.frontend.operators import reshape
from mspc.compiler.frontend.source import assigned_names
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import MISSING, POISON, Frame, Undecided
from mspc.ir.graph import Node, Value
from mspc.ir.types import BOOL, TensorType
from mspc.ops.control.structural import Depend
from mspc.ops.op import Op

Block = Callable[[Tracer, Frame, list[ast.stmt]], Any]


def is_condition(value: Any) -> bool:
    """Whether `value` is a truth that only the run knows: a Bool of one element."""
    return (
        isinstance(value, Value)
        and isinstance(value.type, TensorType)
        and value.type.dtype == BOOL
        and value.type.size == 1
    )


def changes_parameters(nodes: list[Node]) -> bool:
    """Whether a branch updates anything."""
    return any(isinstance(node.op, Op) and node.op.mutates for node in nodes)


def branch(tracer: Tracer, frame: Frame, node: ast.If, test: Value, negated: bool, block: Block) -> bool:
    """Run both branches of an `if` with updates; False where there are none, and nothing was done.

    Raises:
        MspcError: a branch returns or leaves a loop.
    """
    nodes = tracer.builder.nodes
    start, runs = len(nodes), dict(tracer.runs)
    before = dict(frame.locals)
    tracer.at(frame, node.test)
    holds = reshape(tracer, test, ())
    fails = tracer.emit(tracer.op("LogicalNot"), holds)
    if negated:
        holds, fails = fails, holds
    ends: list[dict[str, Any]] = []
    for condition, statements in ((holds, node.body), (fails, node.orelse)):
        frame.locals.clear()
        frame.locals.update(before)
        outer, tracer.guard = tracer.guard, condition
        if outer is not None:
            tracer.at(frame, node.test)
            tracer.guard = tracer.emit(tracer.op("LogicalAnd"), outer, condition)
        try:
            signal = block(tracer, frame, statements)
        finally:
            tracer.guard = outer
        if signal is not None and changes_parameters(nodes[start:]):
            raise frame.error(node, "'return', 'break' and 'continue' cannot depend on the contents of a tensor")
        ends.append(dict(frame.locals))
        tracer.runs = dict(runs)
    frame.locals.clear()
    frame.locals.update(before)
    if not changes_parameters(nodes[start:]):
        del nodes[start:]
        return False
    tracer.at(frame, node)
    # A name whose tensor got new elements is not bound anew by the text.
    changed = {name for end in ends for name in end if end[name] is not before.get(name, MISSING)}
    for name in sorted(assigned_names(node) | changed):
        merged = _merged(tracer, holds, *(end.get(name, MISSING) for end in ends))
        if merged is MISSING:
            frame.locals.pop(name, None)
        else:
            frame.locals[name] = merged
    return True


def _merged(tracer: Tracer, holds: Value, left: Any, right: Any) -> Any:
    """What a name stands for behind the branches."""
    if left is MISSING or right is MISSING:
        return MISSING
    if left is POISON or right is POISON:
        return POISON
    if left is not right and (isinstance(left, Undecided) or isinstance(right, Undecided)):
        return Undecided(left, right)
    if left is right or _ordered(left) is _ordered(right):
        return left
    if isinstance(left, tuple | list) and isinstance(right, tuple | list) and len(left) == len(right):
        return tuple(_merged(tracer, holds, a, b) for a, b in zip(left, right, strict=True))
    if not isinstance(left, Value) and not isinstance(right, Value):
        if type(left) is type(right) and left == right:
            return left
    elif tracer.is_tensor(left) and tracer.is_tensor(right):
        one, other = tracer.value(left), tracer.value(right)
        if one.type == other.type:
            return tracer.emit(tracer.op("Select"), holds, one, other)
    return Undecided(left, right)


def _ordered(value: Any) -> Any:
    """A value behind orderings: an update of one branch does not make it another."""
    while isinstance(value, Node) and isinstance(value.op, Depend):
        value = value.inputs[0]
    return value
