"""Parses the source of functions to syntax trees with true positions, which the front end interprets.

Only the lines of one function are parsed; a lambda needs its whole file. All traces share one tree per text, so trees
must not be changed. May be imported by the compiler only.
"""

from __future__ import annotations

import ast
import linecache
import os
import types
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from mspc.ir.diagnostics import Location, MspcError, cell_name
from mspc.ir.files.atomic_writing import utf8_bytes
from mspc.mindspore_api.errors import PACKAGE, is_own
from mspc.mindspore_api.index.functions import tree_at
from mspc.mindspore_api.index.table import is_table

FunctionTree = ast.FunctionDef | ast.Lambda

_API = os.path.join(PACKAGE, "mindspore_api", "")
_TRACED_OWN = (
    *(os.path.join(_API, *place) for place in (
        ("index", ""), ("nn", ""), ("mint", ""), ("ops", "function", ""),
        ("ops", "tensor_method"), ("ops", "hyper_map"),
        ("ops", "composite"), ("numpy", ""), ("parallel", "reshard"),
        ("parallel", "transformer"), ("communication", "comm_func"), ("common", "recompute"),
        ("common", "no_grad"),
    )),
    *(os.path.join(PACKAGE, "readers", "pytorch", *place) for place in (("kinds", ""), ("training",), ("recipes",))),
    os.path.join(PACKAGE, "verify", "pytorch", "operator_samples"),
)  # fmt: skip
"""Folders and modules of mspc's functions that become part of a graph."""
_SHOWN_OWN = tuple(os.path.join(_API, *place) for place in (("nn", ""), ("parallel", ""), ("ops", "hyper_map")))
"""Folders and modules whose frames are shown between the user's lines and an operator."""
_NOT_TRACED = tuple(os.path.join(_API, "nn", name) for name in ("cell.py", "cell_state.py"))
_STANDARD_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))


class SourceFile:
    """One Python file.

    name: as dumps and messages show it, "" for libraries, whose lines are left out of call stacks. is_traced: whether
    functions of this file are traced; those of libraries and of mspc's own machinery are called.
    """

    def __init__(self, path: str, script_folder: str) -> None:
        self.path = path
        full = os.path.abspath(path)
        self.is_own = is_own(full)
        is_library = path.startswith(("<frozen ", _STANDARD_LIBRARY)) or any(folder in path for folder in _INSTALLED)
        self.is_traced = full.startswith(_TRACED_OWN) and full not in _NOT_TRACED if self.is_own else not is_library
        self.name = ""
        if self.is_own:
            if full.startswith(_SHOWN_OWN):
                self.name = "mspc/" + full[len(PACKAGE) :].replace(os.sep, "/")
        elif not is_library:
            name = cell_name(path) or os.path.relpath(full, script_folder or os.getcwd()).replace(os.sep, "/")
            self.name = utf8_bytes(name).decode()
        self.lines: list[str] = []
        self._text: str | None = None

    def load(self) -> None:
        """Read the lines, once. They stay empty without such a file."""
        if not self.lines:
            self.lines = linecache.getlines(self.path)

    def functions(self, line: int, name: str) -> Sequence[FunctionTree]:
        """Return the functions with a name that begin on a line. Raise SyntaxError for a file that changed since it was
        imported."""
        if self._text is None:
            self._text = "".join(self.lines)
        return _functions(self._text).get((line, name), ())


class FunctionSource:
    """Syntax tree of one function in its file.

    offset: difference between the file's line numbers and the tree's.
    """

    __slots__ = ("_locations", "file", "offset", "tree")

    def __init__(self, file: SourceFile, tree: FunctionTree, offset: int) -> None:
        self.file = file
        self.tree = tree
        self.offset = offset
        self._locations: dict[ast.AST, Location] = {}

    def location(self, node: Any) -> Location:
        """Return the span of `node`, an expression or a statement; up to the end of the first line if it spans several
        lines."""
        found = self._locations.get(node)
        if found is None:
            line, lines = node.lineno + self.offset, self.file.lines
            text = lines[line - 1].rstrip("\n") if line <= len(lines) else ""
            start = node.col_offset
            end = node.end_col_offset if node.end_lineno == node.lineno else len(text.encode())
            if not text.isascii():
                raw = text.encode()
                start = len(raw[:start].decode(errors="ignore"))
                end = len(raw[:end].decode(errors="ignore"))
            found = self._locations[node] = Location(self.file.name, line, start + 1, end + 1, text)
        return found


def _without_file(is_own: bool) -> FunctionSource:
    tree: Any = ast.parse("lambda: 0", mode="eval").body
    file: Any = types.SimpleNamespace(name="", is_own=is_own)
    return FunctionSource(file, tree, 0)


OUTERMOST, IMPORTED = _without_file(True), _without_file(False)
"""Sources without lines, for the frame around the outermost function and for nodes that bring lines of their own."""


class Sources:
    """Files and functions read by one trace. Paths are shown relative to `script_folder`."""

    def __init__(self, script_folder: str) -> None:
        self.script_folder = script_folder
        self._files: dict[str, SourceFile] = {}
        self._functions: dict[tuple[str, types.CodeType], FunctionSource] = {}

    def file(self, path: str) -> SourceFile:
        found = self._files.get(path)
        if found is None:
            found = self._files[path] = SourceFile(path, self.script_folder)
        return found

    def function(self, function: types.FunctionType) -> FunctionSource:
        """Return the source of a Python function. Raise MspcError if there is none, or it is not a def or a lambda."""
        code = function.__code__
        key = (code.co_filename, code)
        found = self._functions.get(key)
        if found is None:
            file = self.file(code.co_filename)
            file.load()
            found = self._functions[key] = _find(file, code, function.__qualname__)
        return found


_IN_A_FILE = "a network is compiled from its source text: define it in a file"
_TIMED = "a network is compiled from its source text, which IPython drops below %%time: define it in another cell"


def _find(file: SourceFile, code: types.CodeType, name: str) -> FunctionSource:
    if not file.lines:
        raise MspcError(
            f"the source of '{name}' is not available",
            notes=[_TIMED if code.co_filename == "<timed exec>" else _IN_A_FILE],
        )
    if is_table(code.co_filename):
        return FunctionSource(file, tree_at(code.co_filename, code.co_firstlineno, code.co_name), 0)
    if code.co_name != "<lambda>":
        found = _parse_lines(file, code)
        if found is not None:
            return found
    try:
        fits = file.functions(code.co_firstlineno, code.co_name)
    except SyntaxError:
        raise MspcError(f"'{file.name}' changed after it was imported, so '{name}' cannot be read") from None
    if len(fits) > 1:
        fits = [f for f in fits if _argument_names(f) == code.co_varnames[: len(_argument_names(f))]]
    if len(fits) > 1:
        columns = {position[2] for position in code.co_positions() if position[2]}
        fits = [f for f in fits if isinstance(f, ast.Lambda) and f.body.col_offset in columns][:1]
    if not fits:
        raise MspcError(f"the source of '{name}' was not found in '{file.name}'")
    return FunctionSource(file, fits[0], 0)


def _parse_lines(file: SourceFile, code: types.CodeType) -> FunctionSource | None:
    """Parse only the function's own lines; None if they do not parse to the function."""
    first = code.co_firstlineno
    last = _last_line(code)
    lines = file.lines
    if first > len(lines):
        return None
    head = lines[first - 1]
    indent = len(head) - len(head.lstrip())
    # Code that can never run leaves no trace in the bytecode, so the block continues while lines are indented deeper.
    while last < len(lines):
        line = lines[last]
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        last += 1
    tree = _statement("".join(lines[first - 1 : last]), bool(indent))
    if isinstance(tree, ast.FunctionDef) and tree.name == code.co_name:
        return FunctionSource(file, tree, first - 2 if indent else first - 1)
    return None


@lru_cache(maxsize=8)
def _functions(text: str) -> Mapping[tuple[int, str], Sequence[FunctionTree]]:
    """Return all functions of a file's text by (first line, name)."""
    found: dict[tuple[int, str], list[FunctionTree]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            decorators = getattr(node, "decorator_list", None)
            line = decorators[0].lineno if decorators else node.lineno
            name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
            found.setdefault((line, name), []).append(node)
    return found


@lru_cache(maxsize=256)
def _statement(text: str, is_indented: bool) -> ast.stmt | None:
    """Return the first statement of some lines, or None. If they are indented, its line numbers are one too large."""
    try:
        tree: Any = ast.parse("if 1:\n" + text if is_indented else text).body[0]
    except (SyntaxError, IndexError):
        return None
    return tree.body[0] if is_indented else tree


@lru_cache(maxsize=4096)
def _last_line(code: types.CodeType) -> int:
    last = max((position[1] or 0 for position in code.co_positions()), default=code.co_firstlineno)
    inner = (_last_line(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return max(last, code.co_firstlineno, *inner)


def _argument_names(tree: FunctionTree) -> tuple[str, ...]:
    a = tree.args
    return tuple(arg.arg for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs))


@lru_cache(maxsize=1024)
def assigned_names(tree: ast.AST) -> frozenset[str]:
    """Return the names that a function's body, or one statement, binds: they are local in the whole function."""
    found: set[str] = set()
    todo: list[ast.AST] = list(tree.body) if isinstance(tree, ast.FunctionDef) else [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                found.add(node.id)
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
            continue
        todo.extend(ast.iter_child_nodes(node))
    return frozenset(found)


def names_of_filled(tree: ast.AST, values: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of lists and dicts in `values` whose methods a statement calls, which may add elements."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    owners = (call.value for call in calls if isinstance(call, ast.Attribute))
    names = {owner.id for owner in owners if isinstance(owner, ast.Name)}
    return frozenset(name for name in names if isinstance(values.get(name), list | dict))


_OF_THEIR_OWN = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Nodes with a scope of their own, or that read names later."""


@lru_cache(maxsize=1024)
def names_read_early(tree: ast.AST) -> dict[str, ast.Name]:
    """Return the local names that a function's body reads before it binds them, in the order of the text."""
    found: dict[str, ast.Name] = {}
    assigned = assigned_names(tree)
    if not assigned:
        return found
    arguments = (argument.arg for argument in ast.walk(tree) if isinstance(argument, ast.arg))
    bound = set(arguments)
    todo: list[ast.AST] = list(reversed(tree.body)) if isinstance(tree, ast.FunctionDef) else []
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id in assigned and node.id not in bound:
                found.setdefault(node.id, node)
            bound.add(node.id)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            if node.target.id not in bound:
                found.setdefault(node.target.id, node.target)
            todo += [node.target, node.value]
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.For):
            value = node.iter if isinstance(node, ast.For) else node.value
            rest = [child for child in ast.iter_child_nodes(node) if child is not value]
            todo += [*reversed(rest), *([] if value is None else [value])]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif not isinstance(node, _OF_THEIR_OWN):
            todo += reversed(list(ast.iter_child_nodes(node)))
    return found


@lru_cache(maxsize=1024)
def names_read(tree: ast.AST, without: ast.AST | None = None) -> frozenset[str]:
    """Return the names read anywhere in a tree, except those read only inside its part `without`."""
    found: set[str] = set()
    todo = [tree]
    while todo:
        node = todo.pop()
        if node is without:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        todo.extend(ast.iter_child_nodes(node))
    return frozenset(found)
