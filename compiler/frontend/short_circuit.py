"""Compiles operands of `and` and `or` behind one of which only the run knows whether it decides."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from mspc.compiler.frontend.branches import Ways, choose, decides_cheaply
from mspc.compiler.frontend.condition import condition_of
from mspc.compiler.frontend.operators import truth
from mspc.compiler.frontend.program_state import TraceSnapshot, apart
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame
from mspc.ir.graph import Value

Evaluate = Callable[[Tracer, Frame, ast.expr], Any]


def all_of(
    tracer: Tracer, frame: Frame, node: ast.BoolOp, place: int, met: Value, evaluate: Evaluate, is_test: bool
) -> Any:
    """The operands from `place` on, which is the condition `met`, as one Bool; False or True where one that is known
    decides.

    evaluate: gives an operand's value. is_test: its truth alone counts, so that it may be a number.
    """
    word, stop, name = ("or", True, "LogicalOr") if isinstance(node.op, ast.Or) else ("and", False, "LogicalAnd")
    for operand in node.values[place + 1 :]:
        value, condition, is_whole = _under(tracer, frame, operand, met, stop, evaluate, is_test)
        if condition is not None:
            met = condition if is_whole else tracer.emit(tracer.op(name), met, condition)
        elif truth(tracer, value, f"an operand of '{word}'") is stop:
            return value
    return met


def _under(
    tracer: Tracer, frame: Frame, operand: ast.expr, met: Value, stop: bool, evaluate: Evaluate, is_test: bool
) -> tuple[Any, Value | None, bool]:
    """An operand that counts where those before it, together `met`, are not `stop`.

    Returns:
        its value, the same as a Bool of shape () where it is one that only the run knows, and whether that counts `met`
        in: where the operand costs more than deciding, it is computed only where it counts.
    """
    beginning = TraceSnapshot(tracer, frame)
    with apart(tracer) as nodes:
        value = evaluate(tracer, frame, operand)
        tracer.at(frame, operand)
        condition = condition_of(tracer, value, not is_test)
    if condition is None or all(map(decides_cheaply, nodes)):
        tracer.builder.nodes += nodes
        return value, condition, False
    beginning.restore()

    def trace(ways: Ways) -> list[Any]:
        values: list[Any] = [stop, stop]
        way = int(stop)
        with ways.along(1 - way):
            pass
        with ways.along(way):
            values[way] = condition_of(tracer, evaluate(tracer, frame, operand), not is_test)
        return values

    found = choose(tracer, frame, operand, operand, met, trace)
    return found, found, True


def one_of(tracer: Tracer, frame: Frame, node: ast.BoolOp, place: int, value: Any, evaluate: Evaluate) -> Any:
    """Operand `place` with this value, a number that only the run knows, or what the operands behind it give."""
    holds = condition_of(tracer, value)
    assert holds is not None
    behind = node.values[place + 1 :]
    rest = behind[0] if len(behind) == 1 else ast.copy_location(ast.BoolOp(node.op, behind), behind[0])
    way = int(isinstance(node.op, ast.Or))

    def trace(ways: Ways) -> list[Any]:
        values: list[Any] = [value, value]
        with ways.along(1 - way):
            pass
        with ways.along(way):
            values[way] = evaluate(tracer, frame, rest)
        return values

    return choose(tracer, frame, node.values[place], node.values[place], holds, trace)
