"""Makes the text of a program smaller while something about it stays so: statements and branches are taken away."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from copy import deepcopy

from tests.control.assigned import always_assigned

Block = list[ast.stmt]
TRIES = 2000
KEPT = ("drawn", "total", "__init__")


def smaller(text: str, stays: Callable[[str], bool]) -> str:
    """The smallest text found for which `stays` is true, as it is for `text`."""
    tries = 0
    going = True
    while going:
        going = False
        number = 0
        while (found := _edited(text, number)) is not None and tries < TRIES:
            tries += 1
            if found != text and always_assigned(found) and stays(found):
                text, going = found, True  # the edit of this number is another one now
            else:
                number += 1
    return text


def _edited(text: str, number: int) -> str | None:
    """The text behind one of its edits; None where there are not so many."""
    tree = ast.parse(text)
    for at, edit in enumerate(_edits(tree)):
        if at == number:
            edit()
            return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return None


def _edits(tree: ast.Module) -> Iterator[Callable[[], None]]:
    """Changes of functions and classes: outer statements first, so that much goes at once. The lines that make a
    program's arguments and add up its results stay."""
    changed = [node for node in tree.body if _name(node) not in KEPT]
    for node in (inner for outer in changed for inner in ast.walk(outer)):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield from _of_block(block, may_be_empty=name == "orelse")
    for node in (inner for outer in changed for inner in ast.walk(outer)):
        if isinstance(node, ast.IfExp | ast.BinOp | ast.BoolOp | ast.Call):
            yield from _of_expression(tree, node)


def _name(node: ast.stmt) -> str | None:
    """Changes of a function or a class; other statements of a module stay."""
    return node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else KEPT[0]


def _of_block(block: Block, may_be_empty: bool) -> Iterator[Callable[[], None]]:
    for place, statement in enumerate(block):
        if isinstance(statement, ast.Pass | ast.Return) or _name(statement) == "__init__":
            continue

        def replace(place: int = place, new: Block = []) -> None:  # noqa: B006  # never changed
            block[place : place + 1] = new
            if not block and not may_be_empty:
                block.append(ast.Pass())

        yield replace
        for inner in ("body", "orelse"):
            held = getattr(statement, inner, None)
            if held and isinstance(statement, ast.If | ast.While | ast.For):
                yield lambda replace=replace, held=held: replace(new=held)


def _of_expression(tree: ast.Module, node: ast.expr) -> Iterator[Callable[[], None]]:
    """An expression becomes one of its operands."""
    if isinstance(node, ast.IfExp):
        parts = [node.body, node.orelse]
    elif isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.BoolOp):
        parts = list(node.values)
    else:
        parts = list(node.args) if isinstance(node, ast.Call) else []
    for part in parts:

        def replace(part: ast.expr = part) -> None:
            new = deepcopy(part)

            class Replacing(ast.NodeTransformer):
                def visit(self, found: ast.AST) -> ast.AST:
                    return new if found is node else self.generic_visit(found)

            Replacing().visit(tree)

        yield replace
