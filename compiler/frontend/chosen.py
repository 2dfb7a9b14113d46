"""Elements of lists at places that only the run knows, and functions and cells that only the run chooses."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.compiler.frontend.branches import Ways, choose
from mspc.compiler.frontend.operators import reshape
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame, OneOf, Undecided
from mspc.ir.graph import Value
from mspc.ir.types import INT64


def element_at(tracer: Tracer, base: Sequence[Any], index: Value) -> Any:
    """`base[index]`: of tensors of one type, or numbers, a tensor; of cells and functions what may be called.

    Raises:
        MspcError: the index is no integer of one element.
    """
    type = index.tensor_type
    if type.size != 1 or type.dtype.kind not in "iu":
        message = f"an index of a {base.__class__.__name__} is an integer of one element, not {type}"
        raise tracer.error(message, kind=TypeError)
    place = reshape(tracer, tracer.cast(index, INT64), ())
    below = tracer.emit(tracer.op("Less"), place, 0)
    place = tracer.emit(tracer.op("Select"), below, tracer.emit(tracer.op("Add"), place, len(base)), place)
    items = list(base)
    if not items:
        raise tracer.error(f"the {base.__class__.__name__} has no elements", kind=IndexError)
    if all(tracer.is_tensor(item) or isinstance(item, bool | int | float | np.generic) for item in items):
        values = [tracer.value(item) for item in items]
        if len({value.type for value in values}) == 1:
            return tracer.emit(tracer.op("Gather", axis=0), tracer.emit(tracer.op("Stack", axis=0), *values), place)
    return OneOf(tuple(items), place)


def call_chosen(
    tracer: Tracer, frame: Frame, node: ast.AST, fn: OneOf | Undecided, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call what the run chooses. Raises MspcError where that is no function or cell."""
    if isinstance(fn, OneOf):
        if len(fn.items) == 1:
            return tracer.call(frame, node, fn.items[0], args, kwargs)
        half = len(fn.items) // 2
        holds = tracer.emit(tracer.op("Less"), fn.place, fn.first + half)
        ways = (OneOf(fn.items[:half], fn.place, fn.first), OneOf(fn.items[half:], fn.place, fn.first + half))
    else:
        assert fn.holds is not None
        holds, ways = fn.holds, (fn.left, fn.right)

    def trace(traced: Ways) -> list[Any]:
        found: list[Any] = []
        for way in (0, 1):
            with traced.along(way):
                found.append(tracer.call(frame, node, ways[way], args, kwargs))
        return found

    return choose(tracer, frame, node, node, holds, trace)
