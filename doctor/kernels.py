"""Which public functions and cells compute with operators that GPUs have no kernel of their own for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from mspc.ops.op import REGISTRY, Op, has_gpu_kernel

DEEPEST = 4
"""Functions that call each other are followed so far."""


def plain_operators(found: Any) -> list[str]:
    """Names of operators without a kernel for GPUs that a public function, operator or cell may compute with, in order.

    What a branch would call that is not taken is among them.
    """
    return sorted(name for name in _operators(found, DEEPEST) if not has_gpu_kernel(REGISTRY[name]))


def _operators(found: Any, depth: int) -> set[str]:
    """Names of operators that something public is, or that its code mentions."""
    name = found.__name__ if isinstance(found, type) else type(found).__name__
    if _is_operator(name) and not inspect.isfunction(found):
        return {name}
    if not depth:
        return set()
    mentioned = {each for code in _codes(found) for each in code.co_names}
    operators = {each for each in mentioned if _is_operator(each)}
    return operators.union(*(_operators(each, depth - 1) for each in map(_function, mentioned) if each is not None))


def _codes(found: Any) -> Iterator[CodeType]:
    """The code of a function, or of a cell's `construct`, with what is defined in it."""
    if isinstance(found, type):
        found = vars(found).get("construct")
    code = getattr(inspect.unwrap(found), "__code__", None) if found is not None else None
    waiting = [code] if isinstance(code, CodeType) else []
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]


def _function(name: str) -> Any:
    """The function, or the operator, of this name in `ops`; None where there is none."""
    from mspc import ops  # late: only who asks for GPUs needs all of it

    found = None if name.startswith("_") else getattr(ops, name, None)
    return found if inspect.isfunction(found) or _is_operator(type(found).__name__) else None


@functools.cache
def _is_operator(name: str) -> bool:
    return name in REGISTRY and isinstance(REGISTRY[name], type) and issubclass(REGISTRY[name], Op)
