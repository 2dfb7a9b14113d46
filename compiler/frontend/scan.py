"""Compiles `ops.Scan` of a body that is not unrolled: a `Scan`, whose body is in the graph once."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.compiler.frontend.index import subscript
from mspc.compiler.frontend.loops import Kept, LoopLeaf, LoopPlan, leaves_of, mapped, run_loop
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame
from mspc.ir.graph import Parameter, Value

LOOP = ast.parse("for x in xs:\n    carry = carry").body[0]
"""What stands for the loop, whose name `carry` every turn reads and assigns."""


def rolled(
    tracer: Tracer, frame: Frame, node: ast.AST, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The result of an `ops.Scan` that is not to be unrolled; None for another one, and where it has to be."""
    try:
        given = inspect.signature(fn).bind(*args, **kwargs).arguments
    except TypeError:
        return None
    if given.get("unroll", True) is not False or not isinstance(node, ast.expr):
        return None
    rows = _rows_of(tracer, given["xs"])
    return None if rows is None else _scan(tracer, frame, node, given["loop_func"], given["init"], rows)


def _rows_of(tracer: Tracer, xs: Any) -> Value | None:
    """The elements of `xs` as the rows of one tensor; None where they are of several types, or none."""
    if tracer.is_tensor(xs):
        table = tracer.value(xs)
        return table if table.shape and table.shape[0] else None
    if not isinstance(xs, list | tuple) or not xs:
        return None
    if not all(tracer.is_tensor(item) or isinstance(item, bool | int | float | np.generic) for item in xs):
        return None
    values = [tracer.value(item) for item in xs]
    if len({value.type for value in values}) > 1:
        return None
    return tracer.emit(tracer.op("Stack", axis=0), *values)


def _scan(tracer: Tracer, caller: Frame, node: ast.expr, loop_func: Any, init: Any, rows: Value) -> Any:
    """(what the last call of `loop_func` carries on, the list of the second results of all calls).

    Raises:
        MspcError: `loop_func` returns no two values, or what it carries changes its type.
    """
    tracer.at(caller, node)
    frame = Frame(caller.source, {"carry": init}, caller.globals, caller.enclosing, caller, caller.call_frames)
    entry = Parameter("x", rows.tensor_type.with_shape(rows.shape[1:]), "input")
    kept = Kept([rows], [entry])
    structure: Any = None

    def body(turn: Value | None) -> Any:
        nonlocal structure
        found = tracer.call(frame, node, loop_func, [frame.locals["carry"], entry], {})
        tracer.at(frame, node)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise tracer.error("Scan: loop_func returns two values: what it carries on, and a result", kind=ValueError)
        frame.locals["carry"] = found[0]
        kept.values.clear()
        structure = leaves_of(tracer, found[1], kept.values)

    assert isinstance(LOOP, ast.For)
    run_loop(tracer, frame, LoopPlan(LOOP, node, None, body, rows.shape[0], None, kept))
    tracer.at(caller, node)
    results = [_row(tracer, structure, kept.stacked, i) for i in range(rows.shape[0])]
    return frame.locals["carry"], tracer.own(results)


def _row(tracer: Tracer, structure: Any, stacked: Sequence[Value], i: int) -> Any:
    """The second result of call `i`."""
    columns: Mapping[str, Value] = {f"result{place}": value for place, value in enumerate(stacked)}

    def entry(leaf: Any) -> Any:
        return subscript(tracer, columns[leaf.name], i) if isinstance(leaf, LoopLeaf) else leaf

    return mapped(tracer, structure, entry)
