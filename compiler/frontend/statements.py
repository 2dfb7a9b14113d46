"""Runs statements of the parsed program, and the body of a function.

A mistake in one statement is noted, what the statement would have assigned is poisoned, and the next
statement is read: so independent mistakes are reported together, and none is reported that only follows
from another.
"""

from __future__ import annotations

import ast
import contextlib
import types
from collections.abc import Callable
from typing import Any

from mspc.api.common.gradient import jit
from mspc.compiler.frontend.condition import branch, condition_of
from mspc.compiler.frontend.expressions import assign, closure, evaluate
from mspc.compiler.frontend.index import unpacked
from mspc.compiler.frontend.operators import binary, truth
from mspc.compiler.frontend.source import assigned_names
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import POISON, Frame, Poisoned, Returned, describe
from mspc.ir.diagnostics import MspcError, kind_of

MAX_TURNS = 100_000
"""Turns of one `while` loop; a condition that never fails reaches it."""


BOUNDED = "write a bound and choose in every turn: for _ in range(most): x = ops.select(condition(x), step(x), x)"

CONTEXT = ("__enter__", "__exit__")
OUTSIDE = "enter the context in the script, around the call of the network"

BREAK = object()
CONTINUE = object()


def run(tracer: Tracer, frame: Frame) -> Any:
    """The result of a function whose arguments are bound; `POISON` where a mistake, already noted,
    left it without."""
    tree = frame.source.tree
    if isinstance(tree, ast.Lambda):
        return evaluate(tracer, frame, tree.body)
    signal = _block(tracer, frame, tree.body)
    return signal.value if isinstance(signal, Returned) else None


def _block(tracer: Tracer, frame: Frame, statements: list[ast.stmt]) -> Any:
    """None where the end is reached, else `Returned`, `BREAK` or `CONTINUE`."""
    for i, statement in enumerate(statements):
        try:
            handler = STATEMENTS.get(type(statement))
            if isinstance(statement, ast.If):
                signal = _if(tracer, frame, statement, statements[i + 1 :])
            elif handler is None:
                raise _refusal(frame, statement)
            else:
                signal = handler(tracer, frame, statement)
        except MspcError as error:
            tracer.note(error)
            signal = _poison(frame, statement)
        except Poisoned:
            signal = _poison(frame, statement)
        if signal is not None:
            return signal
    return None


def _refusal(frame: Frame, statement: ast.stmt) -> MspcError:
    word, note = REFUSED.get(type(statement), (f"'{type(statement).__name__}'", ""))
    return frame.error(
        statement, f"{word} is not supported inside a compiled function", [note] if note else []
    )


def _poison(frame: Frame, statement: ast.stmt) -> Any:
    """Leave the names of a statement without value; where it might have left the function or loop, so
    does this."""
    for name in sorted(assigned_names(statement)):
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
    if not isinstance(node.value, ast.Constant):
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
    read: Any = type(target)(
        **{**{field: getattr(target, field) for field in target._fields}, "ctx": ast.Load()}
    )
    before = evaluate(tracer, frame, ast.copy_location(read, target))
    value = evaluate(tracer, frame, node.value)
    tracer.at(frame, node)
    if isinstance(before, list) and isinstance(node.op, ast.Add):
        if id(before) not in tracer.owned:
            raise tracer.error("this would change a list that lives outside of the compiled function")
        before.extend(unpacked(tracer, value, "+="))
        return
    assign(tracer, frame, target, binary(tracer, type(node.op), before, value))


def _return(tracer: Tracer, frame: Frame, node: ast.Return) -> Returned:
    return Returned(None if node.value is None else evaluate(tracer, frame, node.value))


def _if(tracer: Tracer, frame: Frame, node: ast.If, rest: list[ast.stmt]) -> Any:
    """An `if` with what follows it in its block."""
    test = evaluate(tracer, frame, node.test)
    tracer.at(frame, node.test)
    condition = condition_of(tracer, test)
    if condition is not None:
        return branch(tracer, frame, node, condition, rest, _block)
    taken = truth(tracer, test, "the condition of 'if'")
    with frame.followed_by(rest):
        return _block(tracer, frame, node.body if taken else node.orelse)


def _for(tracer: Tracer, frame: Frame, node: ast.For) -> Any:
    items = evaluate(tracer, frame, node.iter)
    tracer.at(frame, node.iter)
    for item in unpacked(tracer, items, "the loop"):
        assign(tracer, frame, node.target, item)
        with frame.followed_by(None):
            signal = _block(tracer, frame, node.body)
        if signal is BREAK:
            return None
        if isinstance(signal, Returned):
            return signal
    return _block(tracer, frame, node.orelse)


def _while(tracer: Tracer, frame: Frame, node: ast.While) -> Any:
    for _ in range(MAX_TURNS):
        test = evaluate(tracer, frame, node.test)
        tracer.at(frame, node.test)
        if condition_of(tracer, test) is not None:
            raise tracer.error("how often 'while' turns depends on the contents of a tensor", [BOUNDED])
        if not truth(tracer, test, "the condition of 'while'"):
            return _block(tracer, frame, node.orelse)
        with frame.followed_by(None):
            signal = _block(tracer, frame, node.body)
        if signal is BREAK:
            return None
        if isinstance(signal, Returned):
            return signal
    raise frame.error(node.test, f"the loop still runs after {MAX_TURNS} turns")


def _with(tracer: Tracer, frame: Frame, node: ast.With) -> Any:
    """A context whose class is the script's own is entered and left as its methods say; the null context does nothing.
    What another one does to the program that runs, it cannot do to a graph."""
    managers: list[Any] = []
    for item in node.items:
        manager = evaluate(tracer, frame, item.context_expr)
        tracer.at(frame, item.context_expr)
        if isinstance(manager, contextlib.nullcontext):
            entered = manager.enter_result
        elif _is_of_the_script(tracer, type(manager)):
            entered = tracer.call(frame, item.context_expr, manager.__enter__, [], {})
            managers.append(manager)
        else:
            message = f"'with' over {describe(manager)} is not supported inside a compiled function"
            raise tracer.error(message, [OUTSIDE])
        if item.optional_vars is not None:
            assign(tracer, frame, item.optional_vars, entered)
    with frame.followed_by(None):
        signal = _block(tracer, frame, node.body)
    for manager in reversed(managers):
        tracer.call(frame, node, manager.__exit__, [None, None, None], {})
    return signal


def _is_of_the_script(tracer: Tracer, cls: type) -> bool:
    methods = [getattr(cls, name, None) for name in CONTEXT]
    functions = [method for method in methods if isinstance(method, types.FunctionType)]
    read = [function for function in functions if tracer.sources.file(function.__code__.co_filename).is_traced]
    return len(read) == len(CONTEXT)


def _assert(tracer: Tracer, frame: Frame, node: ast.Assert) -> None:
    test = evaluate(tracer, frame, node.test)
    tracer.at(frame, node.test)
    if condition_of(tracer, test) is not None:
        tracer.warn("this check depends on the contents of a tensor, and is left out")
        return
    if truth(tracer, test, "the condition of 'assert'"):
        return
    text = "" if node.msg is None else f": {evaluate(tracer, frame, node.msg)}"
    raise frame.error(node.test, f"assertion failed{text}", kind=AssertionError)


def _raise(tracer: Tracer, frame: Frame, node: ast.Raise) -> None:
    error = None if node.exc is None else evaluate(tracer, frame, node.exc)
    if isinstance(error, BaseException):
        if isinstance(error, MspcError):  # raised by a cell of mspc, whose classes nobody knows by name
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
                decorator, f"the decorator of '{node.name}' is not supported inside a compiled function"
            )
    frame.locals[node.name] = closure(tracer, frame, node)


def _nothing(tracer: Tracer, frame: Frame, node: ast.stmt) -> None:
    return None


def _break(tracer: Tracer, frame: Frame, node: ast.Break) -> Any:
    return BREAK


def _continue(tracer: Tracer, frame: Frame, node: ast.Continue) -> Any:
    return CONTINUE


STATEMENTS: dict[type[ast.stmt], Callable[..., Any]] = {
    ast.Expr: _expression, ast.Assign: _assign, ast.AnnAssign: _annotated, ast.AugAssign: _augmented,
    ast.Return: _return, ast.For: _for, ast.While: _while, ast.Assert: _assert,
    ast.Raise: _raise, ast.With: _with,
    ast.FunctionDef: _function, ast.Pass: _nothing, ast.Break: _break, ast.Continue: _continue,
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
