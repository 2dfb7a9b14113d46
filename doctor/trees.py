"""This module walks through syntax trees, which programs of hundreds of files take several times."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator

_LEAVES = frozenset("arg asname attr conversion ctx id kind level lineno module name op ops tag type_comment".split())
"""Fields that hold texts, numbers, or nodes without anything of interest inside."""

_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


@functools.cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(field for field in kind._fields if field not in _LEAVES)


def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """The nodes right below one, apart from operators, contexts and constants; they are stored with it."""
    found = node.__dict__.get("children_of_doctor")
    if found is None:
        made: list[ast.AST] = []
        for field in _fields(type(node)):
            value = getattr(node, field, None)
            if isinstance(value, list):
                made += [part for part in value if isinstance(part, ast.AST) and type(part) is not ast.Constant]
            elif isinstance(value, ast.AST) and type(value) is not ast.Constant:
                made.append(value)
        found = node.__dict__["children_of_doctor"] = tuple(made)
    return found


def statements(*nodes: ast.AST) -> Iterator[ast.AST]:
    """The statements, and all inside them, level by level: no expressions."""
    waiting: Iterable[ast.AST] = nodes
    while waiting:
        yield from waiting
        blocks = [getattr(node, field, None) for node in waiting for field in _BLOCKS]
        waiting = [part for block in blocks if isinstance(block, list) for part in block]


def walk(*nodes: ast.AST) -> Iterator[ast.AST]:
    """The nodes and all below them, level by level."""
    waiting: Iterable[ast.AST] = nodes
    while waiting:
        yield from waiting
        waiting = [child for node in waiting for child in children(node)]
