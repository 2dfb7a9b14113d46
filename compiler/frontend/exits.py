"""Compiles `if` on the contents of a tensor, and blocks that are left by `return`, `break` or `continue` under one.

Where one way of an `if` leaves its block, what follows there belongs to the other way: up to the end of the innermost
loop or `with`, or of the function. Where the ways then end otherwise, the block ends with an `Exit`, whose flags only
the run knows: what surrounds the loop or `with` asks them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from mspc.compiler.frontend.branches import Ways, choose
from mspc.compiler.frontend.merging import Join, merged, merged_flag, zeros
from mspc.compiler.frontend.program_state import emitting_to
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import END, KINDS, LEFT, MISSING, Exit, Frame, Returned, exit_of, simplest
from mspc.ir.graph import Value
from mspc.ir.types import TensorType

Block = Callable[[Tracer, Frame, list[ast.stmt]], Any]


def branch(tracer: Tracer, frame: Frame, node: ast.If, holds: Value, rest: list[ast.stmt], block: Block) -> Any:
    """Run both branches of an `if`; what follows it in its block is `rest`.

    A branch that ends in `raise` is a check of contents, which no compile can make: it is left out, with a warning.

    Returns:
        None, or how the block ends where a branch leaves it; `rest` and what follows behind it have then been run, too.
    """
    bodies = (node.body, node.orelse)
    for body, other in (bodies, bodies[::-1]):
        if body and isinstance(body[-1], ast.Raise):
            tracer.at(frame, node.test)
            tracer.warn("this check depends on the contents of a tensor, and is left out")
            with frame.followed_by(rest):
                return block(tracer, frame, other)

    def trace(ways: Ways) -> list[Any]:
        signals: list[Any] = [None, None]
        for way in (0, 1):
            with frame.followed_by(rest), ways.along(way):
                signals[way] = block(tracer, frame, bodies[way])
        if signals != [None, None]:
            for way in (0, 1):
                if signals[way] is None:
                    with ways.along(way):
                        signals[way] = remainder(tracer, frame, rest, block)
        return signals

    return choose(tracer, frame, node.test, node, holds, trace, joined_signals)


def remainder(tracer: Tracer, frame: Frame, rest: list[ast.stmt], block: Block) -> Any:
    """How what follows in this block, and then in those around it, ends: up to the end of the innermost loop or `with`,
    or else of the function."""
    outer = frame.following
    signal = block(tracer, frame, rest)
    try:
        for depth in range(len(outer) - 1, -1, -1):
            following = outer[depth]
            if signal is not None:
                break
            if following is None:
                return END
            frame.following = outer[:depth]
            signal = block(tracer, frame, following)
    finally:
        frame.following = outer
    return Returned(None) if signal is None else signal


def resumed(tracer: Tracer, frame: Frame, node: ast.stmt, left: Exit, rest: list[ast.stmt], block: Block) -> Any:
    """How a block ends, one statement of which, `node`, may have left it; `rest` follows that statement."""
    return unless_left(tracer, frame, node, left, KINDS, lambda: remainder(tracer, frame, rest, block))


def unless_left(
    tracer: Tracer, frame: Frame, node: ast.stmt, left: Exit, kinds: tuple[str, ...], run: Callable[[], Any]
) -> Any:
    """How it ends: by `left` where that is an end of one of these kinds, elsewhere by what `run` does."""
    tracer.at(frame, node)
    holds = any_flag(tracer, left, kinds)
    if holds is False:
        return run()
    others = {kind: flag for kind, flag in left.flags.items() if kind not in kinds}
    assert not any(others.values()), "what ends a turn has been taken out"
    possible = [kind for kind in kinds if left.may(kind)]
    as_left = left
    if len(possible) == 1:
        as_left = simplest(Exit({kind: kind == possible[0] for kind in KINDS}, left.value))
    if holds is True:
        return as_left

    def trace(ways: Ways) -> list[Any]:
        with ways.along(0):
            pass
        with ways.along(1):
            found = run()
        return [as_left, found]

    return choose(tracer, frame, node, node, holds, trace, joined_signals)


def any_flag(tracer: Tracer, left: Exit, kinds: tuple[str, ...]) -> Any:
    """Whether the end is of one of these kinds: True, False, or a Bool of shape ()."""
    flags = [left.flags[kind] for kind in kinds if left.may(kind)]
    if not flags or any(flag is True for flag in flags):
        return bool(flags)
    found = flags[0]
    for flag in flags[1:]:
        found = tracer.emit(tracer.op("LogicalOr"), found, flag)
    return found


def joined_signals(join: Join, left: Any, right: Any) -> Any:
    """How a block ends that ends in one of two ways."""
    if isinstance(left, Returned) and isinstance(right, Returned):
        return Returned(merged(join, left.value, right.value))
    if left is right:
        return left
    one, other = exit_of(left), exit_of(right)
    flags = {kind: merged_flag(join, one.flags[kind], other.flags[kind]) for kind in KINDS}
    values = [one.value, other.value]
    for way in (0, 1):
        if values[way] is MISSING and values[1 - way] is not MISSING:
            with emitting_to(join.tracer, join.nodes[way] if join.within else join.tracer.builder.nodes):
                values[way] = zeros_like(join.tracer, values[1 - way])
    return Exit(flags, merged(join, *values))


def zeros_like(tracer: Tracer, value: Any) -> Any:
    """Zeros for all tensors in a value; the rest as it is."""
    if isinstance(value, tuple | list):
        items = [zeros_like(tracer, item) for item in value]
        if isinstance(value, list):
            return tracer.own(items)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return tracer.own({key: zeros_like(tracer, item) for key, item in value.items()})
    if not tracer.is_tensor(value):
        return value
    type_ = tracer.value(value).type
    return zeros(tracer, type_) if isinstance(type_, TensorType) else value


def finished(signal: Any) -> Any:
    """How a loop ends whose last turn ended so: by `return`, or None."""
    if isinstance(signal, Exit):
        signal = simplest(Exit({**signal.flags, "continued": False, LEFT: False}, signal.value))
    return signal if isinstance(signal, Exit | Returned) else None


def conditional(
    tracer: Tracer, frame: Frame, node: ast.IfExp, holds: Value, evaluate: Callable[[Tracer, Frame, ast.expr], Any]
) -> Any:
    """`body if holds else orelse`."""

    def trace(ways: Ways) -> list[Any]:
        values: list[Any] = []
        for way, operand in enumerate((node.body, node.orelse)):
            with ways.along(way):
                values.append(evaluate(tracer, frame, operand))
        return values

    return choose(tracer, frame, node.test, node, holds, trace)
