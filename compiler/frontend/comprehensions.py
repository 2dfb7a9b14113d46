"""Evaluates comprehensions: of lists, sets, dicts, and generators, which are evaluated in full."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from mspc.compiler.frontend.index import unpacked
from mspc.compiler.frontend.operators import truth
from mspc.compiler.frontend.repeated_turns import FEWEST, SKIPPED, RepeatedTurns
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame

Evaluate = Callable[[Tracer, Frame, ast.expr], Any]
Assign = Callable[[Tracer, Frame, ast.expr, Any], None]


def comprehended(
    tracer: Tracer, frame: Frame, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp,
    evaluate: Evaluate, assign: Assign,
) -> Any:  # fmt: skip
    """The list, set or dict of a comprehension, which has a frame of its own."""
    inner = Frame(frame.source, {}, frame.globals, frame.lookup, frame, frame.call_frames)
    inner.depth = frame.depth
    inner._local_names = frozenset()

    def element() -> Any:
        if isinstance(node, ast.DictComp):
            key = evaluate(tracer, inner, node.key)
            return key, evaluate(tracer, inner, node.value)
        return evaluate(tracer, inner, node.elt)

    found: list[Any] = []
    _loop(tracer, inner, node, node.generators, element, found, evaluate, assign)
    if isinstance(node, ast.DictComp):
        return tracer.own(dict(found))
    return tracer.own(set(found) if isinstance(node, ast.SetComp) else found)


def _loop(
    tracer: Tracer, frame: Frame, node: ast.expr, generators: list[ast.comprehension], element: Callable[[], Any],
    found: list[Any], evaluate: Evaluate, assign: Assign,
) -> None:  # fmt: skip
    """Add an element for every combination of the loops."""
    if not generators:
        found.append(element())
        return
    first, rest = generators[0], generators[1:]
    if first.is_async:
        raise frame.error(first.target, "async is not supported inside a compiled function")
    items = evaluate(tracer, frame, first.iter)
    tracer.at(frame, first.iter)

    def passes(item: Any) -> bool:
        assign(tracer, frame, first.target, item)
        for condition in first.ifs:
            test = evaluate(tracer, frame, condition)
            tracer.at(frame, condition)
            if not truth(tracer, test, "the condition"):
                return False
        return True

    elements = unpacked(tracer, items, "the loop")
    if not rest and len(elements) >= FEWEST and isinstance(node, ast.ListComp | ast.GeneratorExp):
        turns = RepeatedTurns(tracer, frame, node)
        every = [turns.result(item, lambda item: element() if passes(item) else SKIPPED) for item in elements]
        found += [each for each in every if each is not SKIPPED]
        return
    for item in elements:
        if passes(item):
            _loop(tracer, frame, node, rest, element, found, evaluate, assign)
