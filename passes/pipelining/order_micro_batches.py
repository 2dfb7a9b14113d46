"""Writes a stage's work on all micro-batches in the order of its schedule.

Input:  `%2 = Scan(...) {regions: @scan_1_body} {turns: 2, micro_batches: true}`, whose body is the
        stage's work on one micro-batch: `%0 = ReceiveFromStage()`, `%1 = Call(%0, %para1_w) {work: "F"}`,
        `SendToStage(%2)`, ...
Output: `%2 = ReceiveFromStage() {micro_batch: 0}`, `%3 = Call(%2, %para1_w) {work: "F", micro_batch: 0}`,
        `SendToStage(%4) {micro_batch: 0}`, `%6 = ReceiveFromStage() {micro_batch: 1}`, ...

All passes before this one see one micro-batch. A message is received right before it is read: a rank that receives
waits, and would wait before work that its schedule has earlier. Results go to the other stages as soon as they are
known, among the work (`sent_when_known`).
"""

from __future__ import annotations

from mspc.ir.graph import STAGE, STAGES, Graph, Node
from mspc.passes.base import WHOLE, Pass
from mspc.passes.lib.stage_placement import micro_batch_loop
from mspc.passes.lib.stage_programs import OrderedWork, sent_when_known


class OrderMicroBatches(Pass):
    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        if STAGES not in graph.attrs or STAGE not in graph.attrs:
            return False
        loop = micro_batch_loop(graph)
        if loop is None:
            return False
        work = OrderedWork(graph, loop)
        nodes: list[Node] = []
        for node in graph.nodes:
            if node is loop:
                nodes += work.nodes()
            elif node.inputs[:1] == [loop]:
                nodes += work.result(node)
            else:
                nodes.append(node)
        graph.nodes = nodes
        graph.replace(work.results)
        graph.nodes = sent_when_known(graph)
        return True
