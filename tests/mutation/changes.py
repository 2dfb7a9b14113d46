"""Places of a file's functions, what can be changed in them, and functions that are loaded and get changed code.

Changes keep lines and names, so that a function's new code is found by the name and the line of its old code.
"""

import ast
import contextlib
import gc
import itertools
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Block = list[ast.stmt]
Change = tuple[str, Callable[[], None]]
SWAPPED: dict[type[Any], type[Any]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.USub: ast.UAdd,
}  # fmt: skip
RENAMED = {"any": "all", "all": "any", "min": "max", "max": "min"}


def blocks(node: ast.AST, inside: bool = False) -> Iterator[Block]:
    """The lists of statements in the functions below a node."""
    inside = inside or isinstance(node, ast.FunctionDef)
    for _, field in ast.iter_fields(node):
        if isinstance(field, list) and field and isinstance(field[0], ast.AST):
            if inside and isinstance(field[0], ast.stmt):
                yield field
            for child in field:
                yield from blocks(child, inside)


def places(tree: ast.Module) -> list[tuple[Block, int]]:
    """Every statement in a function, as its block and its index there; texts that explain are none."""
    return [
        (block, index) for block in blocks(tree) for index, statement in enumerate(block)
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    ]  # fmt: skip


def expressions(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that its line evaluates: no statements inside of it, no messages, no types."""
    for child in [node.value] if isinstance(node, ast.AnnAssign) else ast.iter_child_nodes(node):
        if child is None or isinstance(child, ast.stmt | ast.JoinedStr | ast.ExceptHandler | ast.match_case):
            continue
        if not (isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == "isinstance"):
            yield child
            yield from expressions(child)


def changes(block: Block, index: int) -> Iterator[Change]:
    """Yield the possible changes of one statement: the kind of change, and the call that makes it."""
    statement = block[index]
    if isinstance(statement, ast.Raise | ast.Assert | ast.FunctionDef | ast.Import | ast.ImportFrom):
        return
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    called = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    changed = isinstance(target, ast.Attribute | ast.Subscript)
    if called or changed or isinstance(statement, ast.AugAssign | ast.Continue):
        yield "left out", lambda: block.__setitem__(index, ast.Pass())
    for node in (statement, *expressions(statement)):
        yield from _of_node(node)


def _of_node(node: ast.AST) -> Iterator[Change]:
    def put(field: str, value: Any) -> Callable[[], None]:
        return lambda: setattr(node, field, value)

    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield "comparison", put("ops", [*node.ops[:i], SWAPPED[type(op)](), *node.ops[i + 1 :]])
    if isinstance(node, ast.BoolOp | ast.BinOp | ast.UnaryOp | ast.AugAssign) and type(node.op) in SWAPPED:
        yield "operator", put("op", SWAPPED[type(node.op)]())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", put("operand", ast.UnaryOp(ast.Not(), node.operand))
    if isinstance(node, ast.If | ast.IfExp | ast.While) and isinstance(node.test, ast.Name | ast.Call | ast.Attribute):
        yield "condition", put("test", ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.comprehension) and node.ifs:
        yield "condition", put("ifs", [])
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        yield "constant", put("value", not node.value if isinstance(node.value, bool) else node.value + 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RENAMED:
        yield "function", put("func", ast.Name(RENAMED[node.func.id], ast.Load()))


def listed(file: str, text: str) -> list[dict[str, Any]]:
    """Every change that can be made to a file: its line and kind, the number of the statement, the change's number."""
    return [
        {"file": file, "line": block[index].lineno, "kind": kind, "place": place, "which": which}
        for place, (block, index) in enumerate(places(ast.parse(text)))
        for which, (kind, _) in enumerate(changes(block, index))
    ]


def shown(text: str, place: int, which: int) -> dict[str, str]:
    """The line that a change changes, before and after; nothing where there is no such change."""
    all_places = places(ast.parse(text))
    block, index = all_places[place] if place < len(all_places) else ([ast.Pass()], 0)
    made = list(changes(block, index))
    if which >= len(made):
        return {"before": "", "after": ""}
    before = ast.unparse(block[index]).splitlines()
    made[which][1]()
    after = ast.unparse(ast.fix_missing_locations(block[index])).splitlines()
    return next({"before": a, "after": b} for a, b in zip(before, after, strict=False) if a != b)


def compiled(path: Path, tree: ast.Module) -> dict[tuple[str, int], types.CodeType]:
    """The code of every function of a file, by name and line."""
    found: dict[tuple[str, int], types.CodeType] = {}
    waiting: list[types.CodeType] = [compile(ast.fix_missing_locations(tree), str(path), "exec")]
    for code in waiting:
        found[code.co_name, code.co_firstlineno] = code
        waiting += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return found


_loaded: dict[str, list[types.FunctionType]] = {}
"""The functions of files by their paths, while `remembered` lasts."""


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Find the loaded functions once for all processes that are forked meanwhile: it takes half a second, and in a
    forked process copies the memory of all objects."""
    _loaded.update(_functions())
    try:
        yield
    finally:
        _loaded.clear()


def _functions() -> dict[str, list[types.FunctionType]]:
    """Return the functions of all files by their paths, as the garbage collector knows them."""
    found: dict[str, list[types.FunctionType]] = {}
    gc.unfreeze()
    for function in gc.get_objects():
        if isinstance(function, types.FunctionType):
            found.setdefault(function.__code__.co_filename, []).append(function)
    gc.freeze()
    return found


def put_in(codes: dict[str, dict[tuple[str, int], types.CodeType]]) -> None:
    """Give the functions of files, by the files' paths, other code."""
    functions = _loaded if codes.keys() <= _loaded.keys() else _functions()
    for function in itertools.chain(*(functions.get(file, ()) for file in codes)):
        old = function.__code__
        new = codes[old.co_filename].get((old.co_name, old.co_firstlineno), old)
        if new.co_freevars == old.co_freevars:
            function.__code__ = new
