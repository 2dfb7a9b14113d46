"""Finds whether a script reads its rank for a name alone: of a folder of checkpoints, or in what it prints.

What a script makes of its rank may decide anything, so that it is run for other ranks too. Not where the number goes,
in the very expression that asks for it, into a text or a path and from there to something that only names files or
writes to the screen: `ModelCheckpoint(directory=f"rank_{get_rank()}")`, `print("rank", get_rank())`.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from mspc.api.communication.group import get_local_rank, get_rank
from mspc.api.errors import is_library

ASKING = (get_rank, get_local_rank)
TEXTS = (str, repr, os.path.join, Path)
"""What makes a text or a path of its arguments and nothing else."""
WRITING = (print, os.makedirs)
"""What takes a text and hands nothing back."""
NAMING = ("mspc.api.train.checkpointing", "ModelCheckpoint")
"""The callback whose arguments name files."""


def only_named(frame: FrameType | None) -> bool:
    """Whether the line of a script that runs below `frame` asks for its rank for a name alone."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    first, last, begin, end = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    calls, parents = _read(frame.f_code.co_filename)
    node: ast.AST | None = calls.get((first, last, begin, end))
    if not isinstance(node, ast.Call) or not _asks(_meant(node.func, frame)):
        return False
    while (parent := parents.get(node)) is not None:
        match parent:
            case ast.FormattedValue() | ast.JoinedStr() | ast.keyword():
                pass
            case ast.BinOp() if isinstance(parent.right if node is parent.left else parent.left, ast.Constant):
                pass
            case ast.Call() if node is not parent.func:
                called = _meant(parent.func, frame)
                if _is_one(called, WRITING) or _is_naming(called):
                    return True
                if not _is_one(called, TEXTS) and not _is_format(parent.func):
                    return False
            case _:
                return False
        node = parent
    return False


def _is_one(called: Any, among: Sequence[Any]) -> bool:
    """Identity, as what a script has may compare as it likes."""
    return any(called is each for each in among)


def _asks(called: Any) -> bool:
    return callable(called) and _is_one(inspect.unwrap(called), ASKING)


def _is_naming(called: Any) -> bool:
    module = sys.modules.get(NAMING[0])
    return module is not None and called is getattr(module, NAMING[1])


def _is_format(function: ast.expr) -> bool:
    """Whether it is `"...".format`."""
    text = function.value if isinstance(function, ast.Attribute) and function.attr == "format" else None
    return isinstance(text, ast.Constant)


def _meant(function: ast.expr, frame: FrameType) -> Any:
    """What a name, or a name of a module, refers to where a script runs; None for anything else."""
    if isinstance(function, ast.Name):
        for names in (frame.f_locals, frame.f_globals, vars(builtins)):
            if function.id in names:
                return names[function.id]
    if isinstance(function, ast.Attribute):
        owner = _meant(function.value, frame)
        return getattr(owner, function.attr, None) if isinstance(owner, ModuleType) else None
    return None


@lru_cache(maxsize=64)
def _read(file: str) -> tuple[dict[Any, ast.Call], dict[ast.AST, ast.AST]]:
    """(the calls of a file by their places, the expression or statement around each expression)."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}, {}
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    calls = {
        (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset): node
        for node in parents if isinstance(node, ast.Call)
    }  # fmt: skip
    return calls, parents
