"""Compiles functions that call themselves last, as often as the contents of a tensor say: their bodies become loops.

`return f(a, b)` inside of `f(x, y)` is `x, y = a, b` and another turn of `while True`. A recursion that numbers and
shapes end is inlined, level by level.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from mspc.api.common.gradient import JitFunction
from mspc.compiler.frontend.program_state import TraceSnapshot
from mspc.compiler.frontend.source import FunctionSource
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Closure, Frame, Poisoned, TooManyErrors
from mspc.ir.diagnostics import MspcError

LEVELS = 16
"""Levels, each under a condition that only the run knows, from which on a recursion may be one that the run ends."""


class EndsInTheRun(Exception):
    """A function that calls itself under ever more conditions."""

    def __init__(self, tree: ast.AST) -> None:
        self.tree = tree


def run_again(tracer: Tracer, frame: Frame, run: Callable[[Frame], Any]) -> Any:
    """The result of a function that is running already, with its arguments bound in a frame.

    Raises:
        EndsInTheRun: it is to be a loop.
    """
    tree = frame.source.tree
    begun = tracer.recursions.get(tree)
    if begun is not None:
        if tracer.ways - begun >= LEVELS:
            raise EndsInTheRun(tree)
        return run(frame)
    loop = as_loop(tree) if isinstance(tree, ast.FunctionDef) else None
    if loop is None or not _calls_itself(tracer, frame, tree):
        return run(frame)
    beginning, names = TraceSnapshot(tracer, frame), dict(frame.locals)
    tracer.recursions[tree] = tracer.ways
    try:
        return run(frame)
    except EndsInTheRun as found:
        if found.tree is not tree:
            raise
    finally:
        del tracer.recursions[tree]
    beginning.restore()
    noted = len(tracer.errors)
    again = _with_source(frame, FunctionSource(frame.source.file, loop, frame.source.offset), names)
    raised: list[MspcError] = []
    try:
        result = run(again)
        if len(tracer.errors) == noted:
            return result
    except MspcError as error:
        raised = [error]
    except (Poisoned, TooManyErrors):
        pass
    of_loop = [*tracer.errors[noted:], *raised]
    beginning.restore()
    try:
        return run(_with_source(frame, frame.source, names))
    except TooManyErrors:  # it does not end level by level: what keeps it from being a loop is the mistake
        tracer.errors[noted:] = of_loop or tracer.errors[noted:]
        raise


def _with_source(frame: Frame, source: FunctionSource, names: dict[str, Any]) -> Frame:
    """The frame of another function with the same names, as it begins."""
    made = Frame(source, dict(names), frame.globals, frame.enclosing, None, frame.call_frames)
    for field in ("scope", "phase", "precision", "to_float", "depth"):
        setattr(made, field, getattr(frame, field))
    return made


@lru_cache(maxsize=64)
def as_loop(tree: ast.FunctionDef) -> ast.FunctionDef | None:
    """The function with a loop for its body; None where it does not call itself, or not last everywhere."""
    arguments = tree.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return None
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    replaced: list[ast.Call] = []
    body = _turn(tree.body, tree.name, names, replaced)
    if not replaced or sum(_names_itself(node, tree.name, names) for node in ast.walk(tree)) != len(replaced):
        return None
    if not _ends(body):
        body.append(ast.copy_location(ast.Return(None), body[-1]))
    place = tree.body[0]
    loop = ast.copy_location(ast.While(ast.copy_location(ast.Constant(True), place), body, []), place)
    made = ast.FunctionDef(tree.name, arguments, [loop], [], tree.returns, tree.type_comment)
    return ast.copy_location(made, tree)


def _turn(statements: list[ast.stmt], name: str, names: list[str], replaced: list[ast.Call]) -> list[ast.stmt]:
    """The statements with assignments and `continue` in the place of calls of itself that are returned."""
    found: list[ast.stmt] = []
    for statement in statements:
        if isinstance(statement, ast.If):
            ways = [_turn(way, name, names, replaced) for way in (statement.body, statement.orelse)]
            found.append(ast.copy_location(ast.If(statement.test, *ways), statement))
            continue
        call = statement.value if isinstance(statement, ast.Return) else None
        own = names[1:] if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else names
        if isinstance(call, ast.Call) and _names_itself(call.func, name, names) and _fits(call, own):
            replaced.append(call)
            stores = [ast.copy_location(ast.Name(each, ast.Store()), call) for each in own]
            target = ast.copy_location(ast.Tuple(list[ast.expr](stores), ast.Store()), call)
            value = ast.copy_location(ast.Tuple(call.args, ast.Load()), call)
            found.append(ast.copy_location(ast.Assign([target], value), statement))
            found.append(ast.copy_location(ast.Continue(), statement))
            continue
        found.append(statement)
    return found


def _names_itself(node: ast.AST, name: str, names: list[str]) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name and isinstance(node.value, ast.Name) and node.value.id == names[0] if names else False
    return isinstance(node, ast.Name) and node.id == name


def _fits(call: ast.Call, names: list[str]) -> bool:
    starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    return len(call.args) == len(names) > 0 and not call.keywords and not starred


def _ends(statements: list[ast.stmt]) -> bool:
    """Whether no program comes behind these statements."""
    last = statements[-1] if statements else None
    if isinstance(last, ast.If):
        return _ends(last.body) and _ends(last.orelse)
    return isinstance(last, ast.Return | ast.Continue | ast.Raise)


def _calls_itself(tracer: Tracer, frame: Frame, tree: ast.FunctionDef) -> bool:
    """Whether what the function calls by its own name is the function."""
    found = frame.lookup(tree.name)
    if not isinstance(found, Closure | JitFunction | types.FunctionType):
        names = [argument.arg for argument in (*tree.args.posonlyargs, *tree.args.args)]
        found = getattr(type(frame.locals.get(names[0])), tree.name, None) if names else None
    found = found.fn if isinstance(found, JitFunction) else found
    if isinstance(found, Closure):
        return found.source.tree is tree
    return isinstance(found, types.FunctionType) and tracer.sources.function(found).tree is tree
