"""Puts what reads parameters, and nothing that another chunk computes, into the chunk that reads it.

A stage may have several chunks. What a cell makes of its parameters alone could run in the first of them, but a
parameter that micro-batches change must be read and changed in the same one: there micro-batches pass in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.passes.pipelining.placement import Placement
from mspc.passes.pipelining.schedules.action import FORWARD, Action, parts_of
from mspc.passes.pipelining.schedules.table import Table


def near_their_readers(
    body: Graph, forward: Sequence[Node], found: dict[Value, int], placement: Placement, errors: list[MspcError]
) -> None:  # fmt: skip
    """Move operators that read nothing of a chunk to the latest one of their stage that is not behind their readers,
    and to that of an operator which changes what they read. found: the chunks of operators."""
    readers: dict[Value, list[Node]] = {}
    for node in forward:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    movable = {node for node in forward if node in found and not any(value in found for value in node.inputs)}
    for node in reversed(forward):
        if node in movable:
            nearest = min((found[each] for each in readers.get(node, ()) if each in found), default=found[node])
            own = [each for each in range(found[node], nearest + 1) if _may_be(node, each, found, placement)]
            found[node] = max(own, default=found[node])
    for parameter in body.parameters:
        mine = [node for node in readers.get(parameter, ()) if node in found]
        changing = [node for node in mine if any(node.inputs[index] is parameter for index in node.op.mutates)]
        if changing:
            _together(parameter, changing[0], mine, movable, found, placement, errors)


def check_order(body: Graph, found: Mapping[Value, int], table: Table, errors: list[MspcError]) -> None:
    """Note where a table runs micro-batches out of order through a chunk that changes a parameter, as a moving average:
    it would go through other values than on one device. found: the chunks of operators."""
    changing: dict[int, tuple[Node, Parameter]] = {}
    for node in body.nodes:
        for value in (node.inputs[index] for index in node.op.mutates):
            if isinstance(value, Parameter) and node in found:
                changing.setdefault(found[node], (node, value))
    for entries, places in zip(table.schedule.entries, table.lines, strict=True):
        last: dict[int, Action] = {}
        for action, place in ((part, place) for e, place in zip(entries, places, strict=True) for part in parts_of(e)):
            if action.kind != FORWARD or action.chunk not in changing:
                continue
            before = last.setdefault(action.chunk, action)
            if action.micro_batch < before.micro_batch:
                node, parameter = changing[action.chunk]
                errors.append(MspcError(
                    f"{action} comes after {before}, and {node.label} changes {parameter.name} in every "
                    "micro-batch, so that their order decides its value",
                    place, [f"run the forwards of chunk {action.chunk} in the order of the micro-batches"],
                    kind=ValueError,
                ))  # fmt: skip
                break
            last[action.chunk] = action


def _may_be(node: Node, chunk: int, found: dict[Value, int], placement: Placement) -> bool:
    return placement.stage(chunk) == placement.stage(found[node])


def _together(
    parameter: Parameter, changing: Node, mine: Sequence[Node], movable: set[Node], found: dict[Value, int],
    placement: Placement, errors: list[MspcError],
) -> None:  # fmt: skip
    """Bring those that read a parameter into the chunk that changes it."""
    fixed = [node for node in mine if node not in movable]
    chunk = found[changing] if changing in fixed or not fixed else found[fixed[0]]
    for node in mine:
        if node in movable and _may_be(node, chunk, found, placement):
            found[node] = chunk
    apart = next((node for node in mine if found[node] != chunk), None)
    if apart is not None:
        errors.append(apart.error(
            f"{apart.label} of stage {placement.stage(found[apart])} reads {parameter.name}, which micro-batches "
            f"change on stage {placement.stage(chunk)}",
            ["put both into one stage: a micro-batch would have to wait for the one before to come back"],
            ValueError,
        ))  # fmt: skip
