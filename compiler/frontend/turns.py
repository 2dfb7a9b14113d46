"""Loops for `for` and `while` statements whose iterations are counted at run time."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from mspc.compiler.frontend.branches import TraceSnapshot
from mspc.compiler.frontend.expressions import assign, evaluate_test
from mspc.compiler.frontend.loops import LoopPlan, count_of, number_at, run_loop
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import NEVER_ENDS, Frame, Poisoned, TensorRange, TooManyErrors
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value

Block = Callable[[Tracer, Frame, list[ast.stmt]], Any]

UNROLLED = object()
"""A loop must be unrolled, because its body needs numbers known at compile time."""


def for_turns(
    tracer: Tracer, frame: Frame, node: ast.For, numbers: TensorRange | range, block: Block
) -> Any:
    """Compile a `for` over numbers. Return None, or how it ends if it is left by `return`."""
    tracer.at(frame, node.iter)
    count = count_of(tracer, numbers)

    def body(turn: Value | None) -> Any:
        assert turn is not None
        tracer.at(frame, node.target)
        assign(tracer, frame, node.target, number_at(tracer, numbers, turn))
        return block(tracer, frame, node.body)

    behind = (lambda: block(tracer, frame, node.orelse)) if node.orelse else None
    return run_loop(tracer, frame, LoopPlan(node, node.iter, None, body, count, behind))


def while_turns(tracer: Tracer, frame: Frame, node: ast.While, block: Block) -> Any:
    """Compile a `while`. Return None, or how it ends if it is left by `return`."""
    statements, test = node.body, node.test
    if any(isinstance(part, ast.NamedExpr) for part in ast.walk(test)):
        statements, test = [_left_unless(test), *statements], _true(test)

    def body(turn: Value | None) -> Any:
        return block(tracer, frame, statements)

    def holds() -> Any:
        return evaluate_test(tracer, frame, test)

    behind = (lambda: block(tracer, frame, node.orelse)) if node.orelse else None
    return run_loop(tracer, frame, LoopPlan(node, node.test, holds, body, None, behind))


def require_end(tracer: Tracer, frame: Frame, node: ast.While, block: Block) -> None:
    """Raise MspcError if a `while` with a known condition never ends, because no iteration changes the condition."""
    beginning = TraceSnapshot(tracer, frame)
    try:
        while_turns(tracer, frame, node, block)
    except (MspcError, Poisoned, TooManyErrors) as error:
        if isinstance(error, MspcError) and error.message == NEVER_ENDS:
            raise
    finally:
        beginning.restore()


def _left_unless(test: ast.expr) -> ast.stmt:
    """Return `if not test: break`: a condition that assigns names is part of the iteration."""
    negated = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
    return ast.copy_location(ast.If(negated, [ast.copy_location(ast.Break(), test)], []), test)


def _true(test: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Constant(True), test)


def tried(tracer: Tracer, beginning: TraceSnapshot, run: Callable[[], Any]) -> Any:
    """Return the result of `run` from `beginning` on; `UNROLLED`, with nothing traced, if it has errors."""
    beginning.restore()
    noted = len(tracer.errors)
    try:
        found = run()
    except (MspcError, Poisoned, TooManyErrors) as error:
        if isinstance(error, MspcError) and error.message == NEVER_ENDS:
            raise
        found = UNROLLED
    if found is UNROLLED or len(tracer.errors) > noted:
        beginning.restore()
        return UNROLLED
    return found
