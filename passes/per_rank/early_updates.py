"""Takes updates whose states live on the host to where their gradients are known, so that the copies of states run
beside the gradients that are still to be computed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from mspc.analysis.cost.timeline import Timeline
from mspc.ir.graph import OFFLOAD, Graph, Node, Parameter, Value
from mspc.passes.communication.schedule_communication import ONE_HOST, ScheduleFacts


def update_early(graph: Graph) -> None:
    """Move updates of states on the host, and what else of the update phase must come before them, ahead as far as may
    be. A sum over ranks is waited for no earlier than it is over by the rates of a machine."""
    nodes, needs = graph.nodes, ScheduleFacts(graph).needs
    moving = _moving(nodes, needs)
    spans = Timeline(graph, ONE_HOST).spans
    main = [place for place, node in enumerate(nodes) if node in spans and "stream" not in node.attrs]
    begins = [spans[nodes[place]][0] for place in main]
    behind = list(range(len(nodes)))  # which node each comes behind, as they stood; itself where it stays
    for place in sorted(moving):
        last = 0
        for other in needs[place]:
            last = max(last, behind[other])
            if "stream" in nodes[other].attrs and nodes[other] in spans:
                number = bisect_left(begins, sum(spans[nodes[other]]))
                last = max(last, main[number - 1] if number else 0)
        behind[place] = min(last, place)
    graph.nodes = [nodes[i] for i in sorted(range(len(nodes)), key=lambda i: (behind[i], i in moving, i))]


def _moving(nodes: Sequence[Node], needs: Sequence[Sequence[int]]) -> set[int]:
    """The places of updates of states on the host, and of nodes of the update phase that must come before them, which
    neither communicate nor run graphs."""
    found: set[int] = set()
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        if place not in found and not any(_is_on_host(node.inputs[i]) for i in node.op.mutates):
            continue
        if node.phase == "update" and not (node.op.is_collective or node.regions or "stream" in node.attrs):
            found.add(place)
            found.update(other for other in needs[place] if nodes[other].phase == "update")
        else:
            found.discard(place)
    return found


def _is_on_host(value: Value) -> bool:
    return isinstance(value, Parameter) and OFFLOAD in value.attrs
