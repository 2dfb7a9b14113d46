"""Loops that are not loop statements: `ops.Scan`, and micro-batches of a cell."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.compiler.frontend.branches import TraceSnapshot, mapped
from mspc.compiler.frontend.index import subscript
from mspc.compiler.frontend.loops import LoopLeaf, LoopPlan, ScanRows, leaves_of, run_loop
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame
from mspc.ir.diagnostics import Location, MspcError
from mspc.ir.graph import Parameter, Value
from mspc.mindspore_api.nn.wrap import GradAccumulationCell
from mspc.mindspore_api.ops.function.control_func import ScannedTables
from mspc.ops.control.regions import MakeStack, Scan, body_of, with_effects

LOOP = ast.parse("for x in xs:\n    carry = carry").body[0]
"""Stand-in for the loop statement: each iteration reads and assigns the name `carry`."""


def rolled(tracer: Tracer, frame: Frame, node: ast.AST, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of an `ops.Scan` that is to be a loop; None if it is to be, or must be, unrolled."""
    try:
        given = inspect.signature(fn).bind(*args, **kwargs).arguments
    except TypeError:
        return None
    if given.get("unroll", True) is not False or not isinstance(node, ast.expr):
        return None
    xs = given["xs"]
    if isinstance(xs, ScannedTables):
        tables: list[Value | None] = [tracer.value(table) for table in xs.tables]
    else:
        tables = [_rows_of(tracer, xs)]
    rows = [table for table in tables if table is not None]
    return _scan(tracer, frame, node, given["loop_func"], given["init"], rows, xs) if rows else None


def _rows_of(tracer: Tracer, xs: Any) -> Value | None:
    """Return the elements of `xs` as rows of one tensor; None if they have several types, or there are none."""
    if tracer.is_tensor(xs):
        table = tracer.value(xs)
        return table if table.shape and table.shape[0] else None
    numbers = (bool, int, float, np.generic)
    if not isinstance(xs, list | tuple) or not all(tracer.is_tensor(x) or isinstance(x, numbers) for x in xs):
        return None
    values = [tracer.value(item) for item in xs]
    if len({value.type for value in values}) != 1:
        return None
    return tracer.emit(tracer.op("Stack", axis=0), *values)


def _scan(
    tracer: Tracer, caller: Frame, node: ast.expr, loop_func: Any, init: Any, rows: Sequence[Value], xs: Any
) -> Any:  # fmt: skip
    """Return (the final carried value, the list of the second results of all calls of `loop_func`). xs: as in the call.
    Raise MspcError if `loop_func` does not return two values, or the carried value changes its type."""
    tracer.at(caller, node)
    entries = [Parameter("x", table.tensor_type.with_shape(table.shape[1:]), "input") for table in rows]
    scanned = ScanRows(rows, entries, reverse=isinstance(xs, ScannedTables) and xs.reverse)
    given, count = tuple(entries) if isinstance(xs, ScannedTables) else entries[0], rows[0].shape[0]

    def run(frame: Frame) -> Any:
        found = tracer.call(frame, node, loop_func, [frame.locals["carry"], given], {})
        tracer.at(frame, node)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise tracer.error("Scan: loop_func returns two values: the carried one, and a result", kind=ValueError)
        frame.locals["carry"] = found[0]
        return found[1]

    frame, structure = _looped(tracer, caller, node, init, scanned, count, run)
    columns = {f"result{place}": value for place, value in enumerate(scanned.stacked)}

    def entry(turn: int, leaf: Any) -> Any:
        return subscript(tracer, columns[leaf.name], turn) if isinstance(leaf, LoopLeaf) else leaf

    results = [mapped(tracer, structure, partial(entry, turn), LoopLeaf) for turn in range(count)]
    return frame.locals["carry"], tracer.own(results)


def _looped(
    tracer: Tracer, caller: Frame, node: ast.expr, carry: Any, scanned: ScanRows, count: int,
    run: Callable[[Frame], Any],
) -> tuple[Frame, Any]:  # fmt: skip
    """Compile a loop of `count` iterations that keeps the results of `run`. Return the frame in which it carries the
    name `carry`, and the structure of a result, with leaves for its tensors."""
    frame = Frame(caller.source, {"carry": carry}, caller.globals, caller.enclosing, caller, caller.call_frames)
    structure: Any = None

    def body(turn: Value | None) -> Any:
        nonlocal structure
        found = run(frame)
        scanned.values.clear()
        structure = leaves_of(tracer, found, scanned.values)

    assert isinstance(LOOP, ast.For)
    run_loop(tracer, frame, LoopPlan(LOOP, node, None, body, count, scan=scanned))
    tracer.at(caller, node)
    return frame, structure


def in_micro_batches(
    tracer: Tracer, caller: Frame, node: ast.AST, place: Location | None, network: Any, count: int, *inputs: Any
) -> Any:  # fmt: skip
    """Return the sum of the results of `network` for each of `count` parts of the rows of the inputs. place: the line
    that sets the number. Raise MspcError if there are fewer parts than stages, an input has no rows, or its rows do not
    divide into `count` equal parts."""
    while isinstance(network, GradAccumulationCell) and network.in_parts.cuts_batch:
        count, network = count * network.micro_size, network.network  # nested parts multiply
    count = tracer.planned.micro_batches(count, place)
    if count < tracer.stages and not tracer.planned.tries:
        raise _refused(
            place, f"micro_size is {count}, and there are {tracer.stages} stages, which would never all work",
            f"give at least {tracer.stages} micro-batches, or set pipeline_stages to at most {count}",
        )  # fmt: skip
    rows = [_parts(tracer, place, value, index, count) for index, value in enumerate(inputs)]
    entries = [Parameter(f"part_{i}", row.tensor_type.with_shape(row.shape[1:]), "input") for i, row in enumerate(rows)]
    scanned = ScanRows(rows, entries, micro_batches=True)
    assert isinstance(node, ast.expr)

    def run(frame: Frame) -> Any:
        found = tracer.call(frame, node, network, entries, {})
        tracer.at(frame, node)
        return found

    _, structure = _looped(tracer, caller, node, None, scanned, count, run)
    _take_out_stacks(tracer)
    total = tracer.op("ReduceSum", axis=(0,), keep_dims=False)
    sums = [tracer.emit(total, value) for value in scanned.stacked]

    def summed(leaf: Any) -> Any:
        return sums[int(leaf.name.removeprefix("result"))] if isinstance(leaf, LoopLeaf) else leaf

    return mapped(tracer, structure, summed, LoopLeaf)


def unrolled(tracer: Tracer, frame: Frame, call: Callable[[], Any]) -> Any:
    """Call a network on one part after the other, and return its result. Return None, and undo the trace, if it draws
    random numbers: in a loop over micro-batches they depend on the iteration, so that they are the same in stages."""
    beginning = TraceSnapshot(tracer, frame)
    found = call()
    if tracer.draws == beginning.noted["draws"]:
        return found
    beginning.restore()
    return None


def _parts(tracer: Tracer, place: Location | None, value: Any, index: int, count: int) -> Value:
    if not tracer.is_tensor(value):
        raise _refused(
            place, f"input {index} is no tensor", "every input is a tensor, whose rows are cut into micro-batches"
        )  # fmt: skip
    found = tracer.value(value)
    given = f"input {index} of shape {found.shape}"
    if not found.shape:
        raise _refused(place, f"{given} has no rows", "every input has a row for each sample of the batch")
    if found.shape[0] % count:
        raise _refused(
            place, f"{given} must have a number of rows that is a multiple of micro_size={count}",
            _how_to_divide(found.shape[0], count, tracer.stages),
        )  # fmt: skip
    shape = (count, found.shape[0] // count, *found.shape[1:])
    return tracer.emit(tracer.op("Reshape", shape=shape), found)


def _how_to_divide(rows: int, count: int, stages: int) -> str:
    """Suggest a valid number of rows, or of micro-batches, for rows that are no multiple of `count`. There must be at
    least as many micro-batches as stages."""
    fewer = next((each for each in range(count - 1, max(stages, 2) - 1, -1) if rows % each == 0), 0)
    if fewer:
        return f"{rows} rows can be cut into {fewer} micro-batches, for example"
    whole = rows - rows % count
    right = " or ".join(str(each) for each in (whole, whole + count) if each)
    last = "if they are the last ones of a data set, batch(..., drop_remainder=True) leaves them out"
    return f"give {right} rows; {last}"


def _take_out_stacks(tracer: Tracer) -> None:
    """Move stacks of parameters, which every micro-batch reads, before the loop over micro-batches."""
    nodes = tracer.builder.nodes
    at = next(i for i in reversed(range(len(nodes))) if isinstance(nodes[i].op, Scan))
    loop, body = nodes[at], body_of(nodes[at])
    given = dict(zip(body.parameters, loop.inputs, strict=True))
    stacks = [node for node in body.nodes if isinstance(node.op, MakeStack) and all(v in given for v in node.inputs)]
    for stack in stacks:
        inside = Parameter(stack.name, stack.type, "input")
        body.replace({stack: inside})
        stack.inputs = [given[value] for value in stack.inputs]
        body.parameters.append(inside)
        loop.inputs.append(stack)
    gone = set(stacks)
    body.nodes = [node for node in body.nodes if node not in gone]
    read = {*body.results, *(value for node in body.nodes for value in node.inputs)}
    op = loop.op
    assert isinstance(op, Scan)
    scanned = [i for i, p in enumerate(body.parameters) if p in read or i < op.carried + op.scanned]
    body.parameters = [body.parameters[i] for i in scanned]
    loop.inputs = [loop.inputs[i] for i in scanned]
    loop.op = with_effects(op, loop.inputs, loop.regions)  # type: ignore[assignment]  # fields, see RegionOp
    nodes[at:at] = stacks


def _refused(place: Location | None, message: str, note: str) -> MspcError:
    return MspcError(f"PipelineCell: {message}", place, [note], kind=ValueError, code="E0503")
