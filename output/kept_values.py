"""What a stage's forward work on a micro-batch keeps for gradients."""

from __future__ import annotations

from mspc.ir.graph import WORK, Graph, Node
from mspc.ops.collective.point_to_point import ReceiveFromStage
from mspc.ops.control.structural import taken_elements
from mspc.passes.lib.schedules import FORWARD
from mspc.passes.lib.stage_programs import work_of


def kept_of_chunks(graph: Graph) -> dict[int, float]:
    """For each chunk of a stage the bytes that gradients read of its forward work on the first micro-batch, and of what
    came from another stage for that."""
    calls = {(kind, chunk): node for node in graph.nodes if WORK in node.attrs
             for kind, chunk, number in (work_of(node),) if number == 0}  # fmt: skip
    kept: dict[int, dict[Node, int]] = {}
    for (kind, chunk), node in calls.items():
        if kind == FORWARD:
            kept.setdefault(chunk, {})
            continue
        forward = calls.get((FORWARD, chunk))
        if forward is None:
            continue
        received = {each for each in forward.inputs if isinstance(each, Node) and isinstance(each.op, ReceiveFromStage)}
        for value in node.inputs:
            if isinstance(value, Node) and (_is_of(value, forward) or value in received):
                kept.setdefault(chunk, {})[value] = value.type.nbytes
    return {chunk: float(sum(values.values())) for chunk, values in kept.items()}


def _is_of(value: Node, call: Node) -> bool:
    return taken_elements(value.op) is not None and value.inputs[0] is call
