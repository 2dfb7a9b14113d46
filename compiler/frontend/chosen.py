"""Elements of lists at places that only the run knows, and functions and cells that only the run chooses."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.compiler.frontend.branches import Ways, choose, is_cheap
from mspc.compiler.frontend.merging import Choosing, Selecting, merged
from mspc.compiler.frontend.operators import reshape
from mspc.compiler.frontend.program_state import emitting_to
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame, OneOf, Undecided, on_way, way_of
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
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
    tracer: Tracer, frame: Frame, node: ast.AST, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call what the run chooses, or with what it chooses. Raises MspcError where that is no function or cell."""
    if isinstance(fn, OneOf):
        if len(fn.items) == 1:
            return tracer.call(frame, node, fn.items[0], args, kwargs)
        half = len(fn.items) // 2
        holds = tracer.emit(tracer.op("Less"), fn.place, fn.first + half)
        left = OneOf(fn.items[:half], fn.place, fn.first)
        fn = Undecided(left, OneOf(fn.items[half:], fn.place, fn.first + half), False, holds)
    else:
        found = way_of(fn, *args, *kwargs.values())
        assert found is not None
        holds = found

    def trace(traced: Ways) -> list[Any]:
        found: list[Any] = []
        for way in (0, 1):
            with traced.along(way):
                given = [on_way(arg, holds, way) for arg in args]
                named = {name: on_way(arg, holds, way) for name, arg in kwargs.items()}
                found.append(tracer.call(frame, node, on_way(fn, holds, way), given, named))
        return found

    return choose(tracer, frame, node, node, holds, trace)


def either(tracer: Tracer, function: Callable[..., Any], *operands: Any) -> Any:
    """What `function`, which has no effects, makes of operands of which the run chooses some."""
    holds = way_of(*operands)
    assert holds is not None
    nodes: tuple[list[Node], list[Node]] = ([], [])
    made: list[Any] = []
    for way in (0, 1):
        with emitting_to(tracer, nodes[way]):
            try:
                made.append(function(*(on_way(value, holds, way) for value in operands)))
            except MspcError as error:
                which = next(value for value in operands if isinstance(value, Undecided) and value.holds is holds)
                raise MspcError(error.message, notes=[*error.notes, f"an operand is {which}"], frames=error.frames,
                                kind=error.kind or RuntimeError) from None  # fmt: skip
    if all(map(is_cheap, (*nodes[0], *nodes[1]))):
        tracer.builder.nodes += [*nodes[0], *nodes[1]]
        return merged(Selecting(tracer, holds, ({}, {})), *made)
    join = Choosing(tracer, holds, ({}, {}), nodes)
    found = merged(join, *made)
    join.emit()
    return found
