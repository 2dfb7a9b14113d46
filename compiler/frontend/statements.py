"""Runs statements of the parsed program, and the body of a function.

An error in one statement is recorded, the names it would have assigned are poisoned, and the next statement is traced.
So independent errors are reported together, and errors that only follow from another are not reported.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from mspc.compiler.frontend.branches import TraceSnapshot, branch, condition_of, finished, remainder, unless_left
from mspc.compiler.frontend.expressions import assign, closure, evaluate, evaluate_test
from mspc.compiler.frontend.index import unpacked
from mspc.compiler.frontend.operators import binary, truth
from mspc.compiler.frontend.remembered_calls import forget, without_gradient
from mspc.compiler.frontend.source import assigned_names, names_of_filled
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import (
    BREAK,
    CONTINUE,
    END,
    KINDS,
    LEFT,
    NEVER_ENDS,
    POISON,
    RETURNED,
    Exit,
    Frame,
    Poisoned,
    Returned,
    TensorRange,
    describe,
)
from mspc.ir.diagnostics import MspcError, kind_of
from mspc.mindspore_api.common.gradient import jit
from mspc.mindspore_api.common.no_grad import _no_grad
from mspc.mindspore_api.nn.cell import Cell

MAX_TURNS = 100_000
"""Iterations of one `while` loop; a condition that never fails reaches this limit."""


SHORT, LONG = 16, 100
"""Longest loop over a range that is unrolled although it may be left at run time, and longest of any other."""
MAX_NODES = 100_000
"""Most nodes to which a longer loop may be unrolled. Beyond that its iterations are counted at run time."""
MAX_CELLS = 10_000

OUTSIDE = "enter the context in the script, around the call of the network"


def run(tracer: Tracer, frame: Frame) -> Any:
    """Return the result of a function whose arguments are bound; `POISON` if an error, already recorded, left it
    without one."""
    tree = frame.source.tree
    if isinstance(tree, ast.Lambda):
        return evaluate(tracer, frame, tree.body)
    signal = block(tracer, frame, tree.body)
    return signal.value if isinstance(signal, Returned) else None


def block(tracer: Tracer, frame: Frame, statements: list[ast.stmt]) -> Any:
    """Run statements. Return None if their end is reached, otherwise `Returned`, `BREAK`, `CONTINUE`, `END` or an
    `Exit`."""
    for i, statement in enumerate(statements):
        try:
            handler = STATEMENTS.get(type(statement))
            if isinstance(statement, ast.If):
                signal = _if(tracer, frame, statement, statements[i + 1 :])
            elif handler is None:
                word, note = REFUSED.get(type(statement), (f"'{type(statement).__name__}'", ""))
                message = f"{word} is not supported inside a compiled function"
                raise frame.error(statement, message, [note] if note else [])
            else:
                signal = handler(tracer, frame, statement)
                if isinstance(signal, Exit):
                    rest = partial(remainder, tracer, frame, statements[i + 1 :])
                    signal = unless_left(tracer, frame, statement, signal, KINDS, rest)
        except MspcError as error:
            tracer.note(error)
            signal = _poison(frame, statement)
        except Poisoned:
            signal = _poison(frame, statement)
        if signal is not None:
            return signal
    return None


def _poison(frame: Frame, statement: ast.stmt) -> Any:
    """Poison the names of a failed statement. If it might have left the function or loop, leave it."""
    for name in sorted(assigned_names(statement) | names_of_filled(statement, frame.locals)):
        frame.locals[name] = POISON
    leaves = _leaving(statement)
    if leaves & {ast.Return, ast.Raise}:
        return Returned(POISON)
    return BREAK if leaves else None


def _leaving(statement: ast.AST, in_loop: bool = False) -> set[type[ast.AST]]:
    if isinstance(statement, ast.Return | ast.Raise):
        return {type(statement)}
    if isinstance(statement, ast.Break | ast.Continue):
        return set() if in_loop else {ast.Break}
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.expr):
        return set()
    in_loop = in_loop or isinstance(statement, ast.For | ast.While)
    return {kind for child in ast.iter_child_nodes(statement) for kind in _leaving(child, in_loop)}


def _expression(tracer: Tracer, frame: Frame, node: ast.Expr) -> None:
    evaluate(tracer, frame, node.value)


def _assign(tracer: Tracer, frame: Frame, node: ast.Assign) -> None:
    value = evaluate(tracer, frame, node.value)
    for target in node.targets:
        assign(tracer, frame, target, value)


def _annotated(tracer: Tracer, frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign(tracer, frame, node.target, evaluate(tracer, frame, node.value))


def _augmented(tracer: Tracer, frame: Frame, node: ast.AugAssign) -> None:
    target = node.target
    read: Any = type(target)(**{**dict(ast.iter_fields(target)), "ctx": ast.Load()})
    before = evaluate(tracer, frame, ast.copy_location(read, target))
    value = evaluate(tracer, frame, node.value)
    tracer.at(frame, node)
    if isinstance(before, list) and isinstance(node.op, ast.Add):
        if id(before) not in tracer.owned:
            raise tracer.error("this would change a list that lives outside of the compiled function", code="E0207")
        before.extend(unpacked(tracer, value, "+="))
        return
    assign(tracer, frame, target, binary(tracer, type(node.op), before, value))


def _if(tracer: Tracer, frame: Frame, node: ast.If, rest: list[ast.stmt]) -> Any:
    """Run an `if`. `rest` is the statements that follow it in its block."""
    test = evaluate_test(tracer, frame, node.test)
    tracer.at(frame, node.test)
    condition = condition_of(tracer, test)
    if condition is not None:
        return branch(tracer, frame, node, condition, rest)
    taken = truth(tracer, test, "the condition of 'if'")
    with frame.followed_by(rest):
        return block(tracer, frame, node.body if taken else node.orelse)


def _for(tracer: Tracer, frame: Frame, node: ast.For) -> Any:
    items = evaluate(tracer, frame, node.iter)
    tracer.at(frame, node.iter)
    is_counted = getattr(type(items), "counts_in_the_run", False)
    items = items.numbers if is_counted else items
    if is_counted or isinstance(items, TensorRange):
        from mspc.compiler.frontend.loops import compile_for

        return compile_for(tracer, frame, node, items)
    fits = isinstance(items, range) and not items[sys.maxsize :]
    objects = items if fits else unpacked(tracer, items, "the loop")
    is_of_cells = 2 <= len(objects) <= MAX_CELLS and isinstance(objects[0], Cell | int | tuple) and not node.orelse
    if tracer.folds and is_of_cells and not _may_be_left(node):
        from mspc.compiler.frontend.layers import folded

        found = folded(tracer, frame, node, objects)
        if found is not None:
            return found[0]
    if isinstance(items, range) and len(items) > (SHORT if _may_be_left(node) else LONG):
        found = _unrolled_first(tracer, frame, node, items)
        if found is not None:
            return found[0]
    return _iterations(tracer, frame, node, list(objects))


def _iterations(tracer: Tracer, frame: Frame, node: ast.For, items: list[Any]) -> Any:
    """Run the iterations over these items."""
    for i, item in enumerate(items):
        assign(tracer, frame, node.target, item)
        with frame.followed_by(None):
            signal = block(tracer, frame, node.body)
        if signal is BREAK:
            return None
        if isinstance(signal, Returned):
            return signal
        if _may_leave(signal):
            return _unless_left(tracer, frame, node, signal, partial(_iterations, tracer, frame, node, items[i + 1 :]))
    return block(tracer, frame, node.orelse)


def _unrolled_first(tracer: Tracer, frame: Frame, node: ast.For, items: range) -> tuple[Any] | None:
    """Compile a long loop with iterations counted at run time if its first iteration may leave it, or all iterations
    have too many nodes. Return how it ends. Return None, with nothing traced, if the loop must be unrolled."""
    from mspc.compiler.frontend.loops import UNROLLED, compile_for, tried

    beginning = TraceSnapshot(tracer, frame)
    first = len(tracer.builder.nodes)
    assign(tracer, frame, node.target, items[0])
    with frame.followed_by(None):
        signal = block(tracer, frame, node.body)
    made = len(tracer.builder.nodes) - first
    beginning.restore()
    if not _may_leave(signal) and len(items) * made <= MAX_NODES:
        return None
    found = tried(tracer, beginning, lambda: compile_for(tracer, frame, node, items))
    return None if found is UNROLLED else (found,)


def _may_be_left(loop: ast.For | ast.While) -> bool:
    """Return whether a statement in the loop's body may leave the loop early."""
    return any(_leaving(statement) for statement in loop.body)


def _may_leave(signal: Any) -> bool:
    return isinstance(signal, Exit) and (signal.may(LEFT) or signal.may(RETURNED))


def _unless_left(
    tracer: Tracer, frame: Frame, node: ast.For | ast.While, signal: Exit, remaining: Callable[[], Any]
) -> Any:
    """Return how a loop ends. The remaining iterations run if the one that ended by `signal` has not left the loop."""
    end = Exit({**signal.flags, "continued": False}, signal.value)
    return finished(unless_left(tracer, frame, node, end, (LEFT, RETURNED), remaining))


def _while(tracer: Tracer, frame: Frame, node: ast.While, nested: int = 0) -> Any:
    """Run a `while`. nested: number of enclosing iterations of this loop that may leave it at run time."""
    if isinstance(node.test, ast.Constant) and node.test.value and not _may_be_left(node):
        raise frame.error(node.test, NEVER_ENDS, code="E0206")
    beginning = None
    for turn in range(MAX_TURNS):
        if turn == LONG:
            from mspc.compiler.frontend.loops import require_end

            require_end(tracer, frame, node)
        if _may_be_left(node):
            beginning = TraceSnapshot(tracer, frame)
        first, draws = len(tracer.builder.nodes), tracer.draws.copy()
        named = {name: frame.locals[name] for name in assigned_names(node.test) if name in frame.locals}
        test = evaluate_test(tracer, frame, node.test)
        tracer.at(frame, node.test)
        if condition_of(tracer, test) is not None:
            from mspc.compiler.frontend.loops import compile_while

            del tracer.builder.nodes[first:]
            tracer.draws = draws
            for name in assigned_names(node.test):
                del frame.locals[name]
            frame.locals.update(named)
            forget(tracer, first)
            return compile_while(tracer, frame, node)
        if not truth(tracer, test, "the condition of 'while'"):
            return block(tracer, frame, node.orelse)
        with frame.followed_by(None):
            signal = block(tracer, frame, node.body)
        if signal is BREAK:
            return None
        if isinstance(signal, Returned):
            return signal
        if _may_leave(signal):
            return _while_left(tracer, frame, node, beginning, nested)
    raise frame.error(node.test, f"the loop still runs after {MAX_TURNS} turns", code="E0206")


def _while_left(tracer: Tracer, frame: Frame, node: ast.While, beginning: Any, nested: int) -> Any:
    """Compile the rest of a loop from the first iteration that may leave it at run time: as a loop counted at run time,
    or, if its body needs numbers known at compile time, as a few nested iterations."""
    from mspc.compiler.frontend.loops import UNROLLED, compile_while, tried

    if nested < SHORT:
        found = tried(tracer, beginning, lambda: compile_while(tracer, frame, node))
        if found is not UNROLLED:
            return found
        with frame.followed_by(None):
            signal = block(tracer, frame, node.body)
        if _may_leave(signal):
            return _unless_left(tracer, frame, node, signal, lambda: _while(tracer, frame, node, nested + 1))
    beginning.restore()
    return compile_while(tracer, frame, node)


def _with(tracer: Tracer, frame: Frame, node: ast.With) -> Any:
    """Run a `with` statement.

    A context whose class is defined in the script is entered and left by its methods; the null context does nothing.
    `_no_grad` stops gradients of everything computed inside. Other contexts are refused: they cannot act on a graph.
    """
    managers, first = list[Any](), None
    for item in node.items:
        manager = evaluate(tracer, frame, item.context_expr)
        tracer.at(frame, item.context_expr)
        if isinstance(manager, contextlib.nullcontext):
            entered = manager.enter_result
        elif isinstance(manager, _no_grad):
            entered, first = None, len(tracer.builder.nodes) if first is None else first
        elif all(
            isinstance(method := getattr(type(manager), name, None), types.FunctionType)
            and tracer.sources.file(method.__code__.co_filename).is_traced
            for name in ("__enter__", "__exit__")
        ):
            entered = tracer.call(frame, item.context_expr, manager.__enter__, [], {})
            managers.append(manager)
        else:
            message = f"'with' over {describe(manager)} is not supported inside a compiled function"
            raise tracer.error(message, [OUTSIDE])
        if item.optional_vars is not None:
            assign(tracer, frame, item.optional_vars, entered)
    with frame.followed_by(None), contextlib.nullcontext() if first is None else without_gradient(tracer, first):
        signal = block(tracer, frame, node.body)
    for manager in reversed(managers):
        tracer.call(frame, node, manager.__exit__, [None, None, None], {})
    return None if signal is END else signal


def _assert(tracer: Tracer, frame: Frame, node: ast.Assert) -> None:
    test = evaluate_test(tracer, frame, node.test)
    tracer.at(frame, node.test)
    if condition_of(tracer, test) is not None:
        tracer.warn("this check depends on the contents of a tensor, and is left out")
        return
    if truth(tracer, test, "the condition of 'assert'"):
        return
    text = "" if node.msg is None else f": {evaluate(tracer, frame, node.msg)}"
    raise frame.error(node.test, f"assertion failed{text}", kind=AssertionError, code="E0210")


def _raise(tracer: Tracer, frame: Frame, node: ast.Raise) -> None:
    error = None if node.exc is None else evaluate(tracer, frame, node.exc)
    if isinstance(error, BaseException):
        if isinstance(error, MspcError):  # raised by a cell of mspc, whose error classes are internal
            raise frame.error(node, error.message, error.notes, kind=kind_of(error))
        text = str(error)
        raise frame.error(node, f"{type(error).__name__}{f': {text}' if text else ''}", kind=kind_of(error))
    if isinstance(error, type) and issubclass(error, BaseException):
        raise frame.error(node, error.__name__, kind=kind_of(error))
    raise frame.error(node, f"'raise' takes an exception, not {describe(error)}", kind=TypeError)


def _function(tracer: Tracer, frame: Frame, node: ast.FunctionDef) -> None:
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if evaluate(tracer, frame, target) is not jit:
            raise frame.error(
                decorator, f"the decorator of '{node.name}' is not supported inside a compiled function", code="E0203"
            )
    frame.locals[node.name] = closure(tracer, frame, node)


STATEMENTS: dict[type[ast.stmt], Callable[..., Any]] = {
    ast.Expr: _expression, ast.Assign: _assign, ast.AnnAssign: _annotated, ast.AugAssign: _augmented,
    ast.Return: lambda t, frame, node: Returned(None if node.value is None else evaluate(t, frame, node.value)),
    ast.For: _for, ast.While: _while, ast.Assert: _assert,
    ast.Raise: _raise, ast.With: _with,
    ast.FunctionDef: _function, ast.Pass: lambda *_: None, ast.Break: lambda *_: BREAK,
    ast.Continue: lambda *_: CONTINUE,
}  # fmt: skip


REFUSED: dict[type[ast.stmt], tuple[str, str]] = {
    ast.Try: ("'try'", "errors that are known at compile time stop the compile; others cannot be caught"),
    ast.Global: ("'global'", "return the value instead"),
    ast.Nonlocal: ("'nonlocal'", "return the value instead"),
    ast.Delete: ("'del'", "values are freed after their last use without it"),
    ast.ClassDef: ("'class'", "define classes at the top of the file"),
    ast.Import: ("'import'", "import at the top of the file"),
    ast.ImportFrom: ("'import'", "import at the top of the file"),
    ast.Match: ("'match'", "use if, elif and else"),
    ast.AsyncFunctionDef: ("'async'", ""),
    ast.AsyncFor: ("'async'", ""),
    ast.AsyncWith: ("'async'", ""),
}
