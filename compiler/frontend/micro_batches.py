"""Compiles a cell that cuts its batch into parts, for the stages of a pipeline or if it draws random numbers: a `Scan`
over micro-batches.

Input:  `PipelineCell(network, 4)(x, label)`, x of shape (32, 8)
Output: `%1 = Reshape(%x)` of shape (4, 8, 8), the same of label, `%3 = Scan(%1, %2, ...) {turns: 4}` whose body is the
        network on one part, and the sum of its results over the parts.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from mspc.api.nn.wrap import GradAccumulationCell
from mspc.compiler.frontend.loops import Kept, LoopLeaf, LoopPlan, leaves_of, mapped, run_loop
from mspc.compiler.frontend.program_state import TraceSnapshot
from mspc.compiler.frontend.scan import LOOP
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame
from mspc.ir.diagnostics import Location, MspcError
from mspc.ir.graph import Parameter, Value
from mspc.ops.control.regions import MakeStack, Scan, body_of, with_effects


def in_micro_batches(
    tracer: Tracer, caller: Frame, node: ast.AST, place: Location | None, network: Any, count: int, *inputs: Any
) -> Any:  # fmt: skip
    """The sum of what `network` gives for each of `count` parts of the inputs' rows. place: the line that says so.

    Raises:
        MspcError: there are fewer parts than stages, an input has no rows, or they cannot be cut into so many equal
            parts.
    """
    while isinstance(network, GradAccumulationCell) and network.in_parts.cuts_batch:
        count, network = count * network.micro_size, network.network  # parts of parts
    count = tracer.planned.micro_batches(count, place)
    if count < tracer.stages and not tracer.planned.tries:
        raise _refused(
            place, f"micro_size is {count}, and there are {tracer.stages} stages, which would never all work",
            f"give at least {tracer.stages} micro-batches, or set pipeline_stages to at most {count}",
        )  # fmt: skip
    rows = [_parts(tracer, place, value, index, count) for index, value in enumerate(inputs)]
    entries = [Parameter(f"part_{i}", row.tensor_type.with_shape(row.shape[1:]), "input") for i, row in enumerate(rows)]
    frame = Frame(caller.source, {"carry": None}, caller.globals, caller.enclosing, caller, caller.call_frames)
    kept = Kept(rows, entries, micro_batches=True)
    structure: Any = None

    def body(turn: Value | None) -> Any:
        nonlocal structure
        found = tracer.call(frame, node, network, entries, {})
        tracer.at(frame, node)
        kept.values.clear()
        structure = leaves_of(tracer, found, kept.values)

    assert isinstance(LOOP, ast.For)
    assert isinstance(node, ast.expr)
    run_loop(tracer, frame, LoopPlan(LOOP, node, None, body, count, None, kept))
    tracer.at(caller, node)
    _take_out_stacks(tracer)
    total = tracer.op("ReduceSum", axis=(0,), keep_dims=False)
    sums = [tracer.emit(total, value) for value in kept.stacked]

    def summed(leaf: Any) -> Any:
        return sums[int(leaf.name.removeprefix("result"))] if isinstance(leaf, LoopLeaf) else leaf

    return mapped(tracer, structure, summed)


def unrolled(tracer: Tracer, frame: Frame, call: Callable[[], Any]) -> Any:
    """Call a network on one part after the other, and return its result; None, with all of it forgotten, if it draws
    random numbers: those of a loop over micro-batches depend on the turn, so that they are the same in stages."""
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
    """What would be right of rows that are no multiple of `count`: as many micro-batches as stages are needed."""
    fewer = next((each for each in range(count - 1, max(stages, 2) - 1, -1) if rows % each == 0), 0)
    if fewer:
        return f"{rows} rows can be cut into {fewer} micro-batches, for example"
    whole = rows - rows % count
    right = " or ".join(str(each) for each in (whole, whole + count) if each)
    last = "where they are the last ones of a data set, batch(..., drop_remainder=True) leaves them out"
    return f"give {right} rows; {last}"


def _take_out_stacks(tracer: Tracer) -> None:
    """Put stacks of parameters, which every micro-batch reads, ahead of the loop over micro-batches."""
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
    kept = [i for i, p in enumerate(body.parameters) if p in read or i < op.carried + op.scanned]
    body.parameters = [body.parameters[i] for i in kept]
    loop.inputs = [loop.inputs[i] for i in kept]
    loop.op = with_effects(op, loop.inputs, loop.regions)  # type: ignore[assignment]  # fields, see RegionOp
    nodes[at:at] = stacks


def _refused(place: Location | None, message: str, note: str) -> MspcError:
    return MspcError(f"PipelineCell: {message}", place, [note], kind=ValueError)
