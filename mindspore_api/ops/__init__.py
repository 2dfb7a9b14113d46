"""`mindspore.ops`: a Primitive for every operator, and functions that call operators.

Names are looked up on first use: those of the index in its tables, operators in the registry. Code inside mspc imports
the operators' modules instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from mspc.mindspore_api.index.module import answers


def _otherwise(name: str) -> Any:
    """Return an operator."""
    is_operator = name[:1].isupper()
    found = _operator(name) if is_operator else None
    if found is None:
        from mspc.mindspore_api.index.module import said_of  # only on the way to an error

        kind, said = "operator" if is_operator else "function", said_of(f"ops.{name}")
        raise AttributeError(f"ops has no {kind} {name!r}; {said or '`mspc ops` lists the operators'}")
    return found


def _operator(name: str) -> Any:
    from mspc.mindspore_api.ops.primitive import primitive_class
    from mspc.ops.op import REGISTRY  # late: it imports NumPy

    importlib.import_module(
        "mspc.mindspore_api.common.tensor"
    )  # it tells operators of groups and of results outside a graph
    op = REGISTRY.get(name)
    return None if op is None else primitive_class(op)


def _operators() -> Iterable[str]:
    from mspc.ops.op import load_operators

    return load_operators()


__getattr__, __dir__ = answers(__name__, _otherwise, _operators)
