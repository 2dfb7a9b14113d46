"""Compiles operands of `and` and `or` behind one of which only the run knows whether it decides."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from mspc.compiler.frontend.branches import Ways, choose, is_cheap
from mspc.compiler.frontend.condition import condition_of
from mspc.compiler.frontend.program_state import Beginning, apart
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame
from mspc.ir.graph import Value

Evaluate = Callable[[Tracer, Frame, ast.expr], Any]


def under(
    tracer: Tracer, frame: Frame, operand: ast.expr, met: Value, stop: bool, evaluate: Evaluate
) -> tuple[Any, Value | None, bool]:
    """An operand that counts where those before it, together `met`, are not `stop`.

    Returns:
        its value, the same as a Bool of shape () where it is one that only the run knows, and whether that counts `met`
        in: where the operand costs more than deciding, it is computed only where it counts.
    """
    beginning = Beginning(tracer, frame)
    with apart(tracer) as nodes:
        value = evaluate(tracer, frame, operand)
        tracer.at(frame, operand)
        condition = condition_of(tracer, value, only_bool=True)
    if condition is None or all(map(is_cheap, nodes)):
        tracer.builder.nodes += nodes
        return value, condition, False
    beginning.restore()

    def trace(ways: Ways) -> list[Any]:
        values: list[Any] = [stop, stop]
        way = int(stop)
        with ways.along(1 - way):
            pass
        with ways.along(way):
            values[way] = condition_of(tracer, evaluate(tracer, frame, operand), only_bool=True)
        return values

    found = choose(tracer, frame, operand, operand, met, trace)
    return found, found, True
