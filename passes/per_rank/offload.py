"""Inserts the copies by which states of optimizers and values saved for gradients live in host memory.

Input:  `%para3_m: <Ref[...]> cnode_attrs: {offload: 0}`, `%9 = Adam(%w, %para3_m, ...)`
Output: `%8 = FromHost(%para3_m) {stream: from_host}`, `%9 = Adam(%w, %8, ...)`,
        `%10 = AssignOnHost(%para3_m, %8) {stream: to_host}`, and later on `AwaitHost(%10)`

Input:  `%1 = MatMul(%x, %w) cnode_attrs: {offload: "Default/net, Auto"}`, read by a backward node
Output: `%2 = ToHost(%1) {stream: to_host}` after it, `%3 = AwaitHost(%2)` at the place that needs the memory of `%1`,
        `%4 = FromHost(%3) {stream: from_host}` before the backward node, which reads `%4`

It runs after all passes that change which values are saved, or the order of nodes. MindSpore's `Cell.offload`.
"""

from __future__ import annotations

from mspc.analysis.cost.timeline import StreamTimeline
from mspc.ir.graph import OFFLOAD, WORK, Graph
from mspc.passes.base import WHOLE, Pass
from mspc.passes.communication.schedule_communication import ONE_HOST
from mspc.passes.lib.host_memory import (
    HostStates,
    HostTimes,
    HostValues,
    Insertions,
    StageClock,
    take_apart_calls,
    update_early,
)


class Offload(Pass):
    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        before = graph.nodes
        marked = any(OFFLOAD in node.attrs for node in graph.all_nodes())
        if any(OFFLOAD in parameter.attrs for parameter in graph.parameters):
            update_early(graph)
        apart = marked and take_apart_calls(graph)
        values = HostValues(graph) if marked else None
        parts: list[HostStates | HostValues] = [HostStates(graph), *([] if values is None else [values])]
        times, insertions = _times(graph, values), Insertions(graph)
        left = times.left(copy for part in parts for copy in part.leaving)
        fetched = times.fetched(copy for part in parts for copy in part.fetched)
        for part in parts:
            part.insert(insertions, left, fetched)
        insertions.apply()
        return apart or graph.nodes != before


def _times(graph: Graph, values: HostValues | None) -> HostTimes:
    """Return the times of a graph's nodes; with the waits for other stages if a stage's work on micro-batches stores
    values on the host."""
    spans = StreamTimeline(graph, ONE_HOST).spans
    if values is None or not any(WORK in node.attrs for node in graph.nodes):
        return HostTimes(graph, spans)
    clock = StageClock(graph, spans)
    return HostTimes(graph, spans, clock.later(values.stay_in_time(clock)))
