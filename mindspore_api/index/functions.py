"""Functions made from rows, with their signature, description, and the line of the row.

An expression is parsed, checked and translated; its functions run only when they are called.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import operator
import re
from collections.abc import Callable, Iterator
from keyword import iskeyword
from types import CodeType, FunctionType
from typing import Any

from mspc.mindspore_api.index.table import IndexRow, module_of, rows_of
from mspc.mindspore_api.ops.checked import checked, checked_class

_PACKAGE = "mspc.mindspore_api"
_MODULES = {
    "ops": "mspc.mindspore_api.ops", "mint": "mspc.mindspore_api.mint",
    "functional": "mspc.mindspore_api.mint.nn.functional",
    "numpy": "mspc.mindspore_api.numpy", "math": "math",
}  # fmt: skip
_PYTHON = frozenset("bool complex float int isinstance len list range str tuple".split())
_GRAMMAR = (
    ast.Name, ast.Call, ast.Attribute, ast.Constant, ast.IfExp, ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp,
    ast.keyword, ast.Tuple, ast.List, ast.Starred, ast.Subscript, ast.Slice, ast.expr_context, ast.operator,
    ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
"""Syntax nodes allowed in an expression."""
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {ast.Div: operator.truediv, ast.Pow: operator.pow}


def found(row: IndexRow) -> Any:
    """Return the object that a row defines or refers to, without checks of arguments. Raise ValueError if the row is
    invalid."""
    if row.home:
        return getattr(importlib.import_module(row.home), row.target)
    if row.kind == "class":
        return _class_of(row)
    if is_expression(row):
        return function_of(row)
    parameters, target = _parts(row)
    if target[0].isupper():
        operator = _of_ops(target)
        return operator if row.names[0][0].isupper() else _operator_function(row, operator, parameters)
    module, _, name = target.rpartition(".")
    if module:
        return getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)
    return found(rows_of(row.module)[name])


def _of_ops(name: str) -> Any:
    return getattr(importlib.import_module(_MODULES["ops"]), name)


def is_expression(row: IndexRow) -> bool:
    """Return whether the row is a function with parameters and an expression; with a capitalised name as its target it
    is an operator."""
    parameters, target = _parts(row)
    return parameters != "" and not (target.isidentifier() and target[0].isupper() and not iskeyword(target))


def _parts(row: IndexRow) -> tuple[str, str]:
    if not row.target.startswith("("):
        return "", row.target
    end = _end_of_parameters(row.target)
    head, expression = re.split(r"\s+=\s+", row.target[end:], maxsplit=1)
    return row.target[:end] + head, expression


def _operator_function(row: IndexRow, operator: Any, parameters: str) -> Any:
    from mspc.mindspore_api.ops.primitive import NEEDED
    from mspc.mindspore_api.ops.primitive import function_of as function_of_operator

    call = ast.parse(f"f{parameters or '()'}", mode="eval").body
    assert isinstance(call, ast.Call)
    needed = [(tuple(ast.unparse(names).split(" | ")), NEEDED) for names in call.args]
    others = [((str(keyword.arg),), _value(row, keyword.value)) for keyword in call.keywords]
    return function_of_operator(operator.op_class, (*needed, *others))


@functools.cache
def _class_of(row: IndexRow) -> Any:
    """Return the class of "class Cross(dim=None) = cross", or of "= cross(dim=axis)" with the function's parameter
    names."""
    tree = tree_of(row)
    expression = tree.body[0].value  # type: ignore[attr-defined]  # a return
    called = expression.func if isinstance(expression, ast.Call) else expression
    renamed = {k.value.id: k.arg for k in getattr(expression, "keywords", ())}
    from mspc.mindspore_api.ops.composite_table import class_of  # it imports NumPy

    ask = functools.partial(_of_class, row, called.id)
    return class_of(row.names[0], called.id, ask, inspect.Signature(_signature(row, tree)), renamed)


def _of_class(row: IndexRow, name: str) -> Any:
    """Return the function that a row of a class names: one of `ops`, or another with checks of its arguments."""
    own = rows_of(row.module).get(name)
    if name not in row.uses and not (own is not None and own.kind == "let"):
        return _of_ops(name)
    return checked(row.names[0], _named(row, name))


def _signature(row: IndexRow, tree: ast.FunctionDef) -> list[inspect.Parameter]:
    """Return the parameters that may be given by position."""
    kind, names = inspect.Parameter.POSITIONAL_OR_KEYWORD, [arg.arg for arg in tree.args.args]
    needed = [inspect.Parameter(name, kind) for name in names[: len(names) - len(tree.args.defaults)]]
    others = zip(names[len(needed) :], tree.args.defaults, strict=True)
    return [*needed, *(inspect.Parameter(name, kind, default=_value(row, node)) for name, node in others)]


class _Operators(ast.NodeTransformer):
    """Replaces `Abs` by `ops.Abs`, which is looked up when the function is called. others: names with another
    meaning."""

    def __init__(self, others: set[str]) -> None:
        self.others = others

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not node.id[0].isupper() or node.id in self.others:
            return node
        return ast.copy_location(ast.parse(f"ops.{node.id}", mode="eval").body, node)


@functools.cache
def tree_of(row: IndexRow) -> ast.FunctionDef:
    """Return the row as a function's syntax tree, with the lines of the table. Raise ValueError if the text is no row,
    or its expression has a construct that rows must not have."""
    parameters, expression = _parts(row)
    name = row.names[0].removeprefix(".")
    try:
        tree = ast.parse(f"def {name}{parameters}: return ({expression})").body[0]
    except SyntaxError as error:
        raise ValueError(f"{row.path}:{row.line}: {error.msg}") from None
    assert isinstance(tree, ast.FunctionDef)
    for node in ast.walk(tree.body[0].value):  # type: ignore[attr-defined]  # a return
        if not isinstance(node, _GRAMMAR):
            raise ValueError(f"{row.path}:{row.line}: {type(node).__name__} has no place in a row; write a function")
    inner = {arg.arg for arg in _parameters(tree.args)}
    tree.body = [_Operators(inner | row.uses.keys()).visit(tree.body[0])]
    for parameter in _parameters(tree.args):
        parameter.annotation = parameter.annotation or ast.Name("Any", ast.Load())
    tree.returns = tree.returns or ast.Name("Any", ast.Load())
    ast.increment_lineno(ast.fix_missing_locations(tree), row.line - 1)
    return tree


def _end_of_parameters(text: str) -> int:
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return place + 1
    return len(text)


def _parameters(arguments: ast.arguments) -> Iterator[ast.arg]:
    """Yield the parameters in the order in which Python stores their annotations."""
    yield from (*arguments.posonlyargs, *arguments.args)
    yield from filter(None, (arguments.vararg,))
    yield from arguments.kwonlyargs
    yield from filter(None, (arguments.kwarg,))


@functools.cache
def function_of(row: IndexRow) -> FunctionType:
    """Return the function of a row with an expression."""
    tree = tree_of(row)
    compiled = compile(ast.Module([tree], []), row.path, "exec", dont_inherit=True)
    code = next(c for c in compiled.co_consts if isinstance(c, CodeType))
    inner = {arg.arg for arg in _parameters(tree.args)}
    read = {node.id for node in ast.walk(tree.body[0]) if isinstance(node, ast.Name)} - inner
    module = f"{_PACKAGE}.{row.module}"
    names = {name: _named(row, name) for name in sorted(read)} | {"__name__": module, "__builtins__": builtins}
    arguments = tree.args
    made = FunctionType(code, names, tree.name, tuple(_value(row, default) for default in arguments.defaults) or None)
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    made.__kwdefaults__ = {arg.arg: _value(row, d) for arg, d in keywords if d is not None} or None
    made.__annotations__ = {arg.arg: ast.unparse(arg.annotation or arg) for arg in _parameters(arguments)}
    made.__annotations__["return"] = ast.unparse(tree.returns or tree)
    made.__doc__, made.__module__, made.__qualname__ = row.doc, module, tree.name
    return made


def _named(row: IndexRow, name: str) -> Any:
    """Return the object with a name in a row's expression. Raise ValueError for an unknown name."""
    if name in row.uses:
        home, target = row.uses[name]
        return getattr(importlib.import_module(home), target)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _PYTHON:
        return getattr(builtins, name)
    if name in rows_of(row.module):  # a name that 'let' defines, or a function of the same module
        return found(rows_of(row.module)[name])
    raise ValueError(f"{row.path}:{row.line}: nothing is called {name!r}; 'use' names its place")


def _value(row: IndexRow, node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return _named(row, node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_value(row, node.left), _value(row, node.right))
    return ast.literal_eval(node)


def tree_at(path: str, line: int, name: str) -> ast.FunctionDef:
    """Return the tree of the function row in a line of a table. Raise LookupError if there is none."""
    return tree_of(_by_place(path)[line, name])


@functools.cache
def _by_place(path: str) -> dict[tuple[int, str], IndexRow]:
    rows = rows_of(module_of(path)).values()
    return {(row.line, row.names[0].removeprefix(".")): row for row in rows if row.path == path}


def object_of(row: IndexRow, name: str) -> Any:
    """Return the object of a row under one of its names, with checks of its arguments. A method of tensors, `.name`,
    and a function with `check_arguments` check their arguments themselves."""
    answer = found(row)
    if isinstance(answer, type):
        return _class(answer) if row.module == "ops" else answer
    if not (row.is_public and row.is_of_tensors and isinstance(answer, FunctionType)):
        return answer
    return answer if hasattr(answer, "check_arguments") else checked(f"{row.module}.{name.removeprefix('.')}", answer)


def _class(found: type) -> type:
    is_by_hand = "__init__" in vars(found) or found.__module__.startswith("mspc.mindspore_api.ops.composite")
    return checked_class(found) if is_by_hand else found
