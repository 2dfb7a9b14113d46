"""No public argument does nothing without a word: what a function does not read, its docstring names, or a reason in
tests/omissions.toml says why it cannot matter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import mspc
from mspc.mindspore_api.index.functions import is_expression, tree_of
from mspc.mindspore_api.index.table import IndexRow, module_of, rows_of
from mspc.mindspore_api.rooms import ROOMS
from tests.test_omissions import excepted

(API,) = (Path(mspc.__file__).parent / room for room in ROOMS)
Owner = ast.ClassDef | None


def functions(tree: ast.AST, owner: Owner = None) -> Iterator[tuple[Owner, ast.FunctionDef]]:
    """Public functions and methods, constructors and calls."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, node)
        elif isinstance(node, ast.FunctionDef) and (node.name[0] != "_" or node.name in ("__init__", "__call__")):
            yield owner, node


def unread(owner: Owner, function: ast.FunctionDef) -> Iterator[str]:
    """Arguments that the body does not read, and that no docstring names."""
    given = function.args
    names = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if arg]
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if not body or isinstance(body[0], ast.Raise):
        return
    read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    about = f"{ast.get_docstring(function) or ''} {ast.get_docstring(owner) or '' if owner else ''}"
    for name in names:
        if name not in ("self", "cls") and name[0] != "_" and name not in read | {"locals", "vars"}:
            if not re.search(rf"\b{name}\b", about):
                yield name


def found() -> set[str]:
    names: set[str] = set()
    for file in sorted(API.rglob("*.py")):
        place = file.relative_to(API).as_posix()
        for owner, function in functions(ast.parse(file.read_text(encoding="utf-8"))):
            full = f"{owner.name}.{function.name}" if owner else function.name
            names |= {f"{place}:{full}.{name}" for name in unread(owner, function)}
    return names | {f"{row.module}:{row.names[0]}.{name}" for row in all_rows() for name in unread_of_row(row)}


def all_rows() -> set[IndexRow]:
    """Every row of the index that is a function."""
    modules = {module_of(path.name) for path in (API / "index").glob("*.txt")}
    found = {row for module in modules for row in rows_of(module).values()}
    return {row for row in found if row.kind != "class" and is_expression(row)}


def unread_of_row(row: IndexRow) -> Iterator[str]:
    tree = tree_of(row)
    tree.body.insert(0, ast.Expr(ast.Constant(row.doc)))
    yield from unread(None, tree)
    del tree.body[0]


def test_every_argument_is_read_or_spoken_of() -> None:
    known = [name for names in excepted()["unread_arguments"].values() for name in names]
    names = found()
    assert [n for n in sorted(names) if not any(n == k or n.startswith(f"{k}.") for k in known)] == []
    assert [k for k in known if not any(n == k or n.startswith(f"{k}.") for n in names)] == [], "they are read by now"
