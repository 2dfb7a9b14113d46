"""Makes the program of one stage out of a rank's graph of all stages.

Input:  a rank's graph whose operators have stages (`assign_stages`), with `%6 = Scan(...) {micro_batches: true}`
Output: the work of this stage, in the order of its schedule:
        `%3 = ReceiveFromStage() {stage: 0, micro_batch: 0}`, `%4 = Call(%3, %para3_w) {regions: @body_forward_1}`,
        `SendToStage(%5) {stage: 2, micro_batch: 0}`, ..., then updates of its own parameters.

Values of no micro-batch are computed on the stages they belong to, in the order of the graph, and sent to
others that read them. Sending does not wait, and every stage goes by the same order, so that none waits for another in
a circle.
"""

from __future__ import annotations

from dataclasses import field

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import STAGE, STAGES, Constant, Graph, Node, Parameter, Value, copied_parameter, stages_of
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.base import Collective
from mspc.ops.control.structural import Depend
from mspc.passes.base import WHOLE, Pass
from mspc.passes.lib.stage_placement import micro_batch_loop, placement_of
from mspc.passes.lib.stage_programs import Messages, StageProgram


class CutStages(Pass):
    """Keep the work of `stage`."""

    regions = WHOLE
    stage: int = 0

    def apply(self, graph: Graph) -> tuple[Graph, bool]:
        stages = int(graph.attrs.get(STAGES, 1))
        if STAGE in graph.attrs or stages < 2:
            return graph, False
        if not 0 <= self.stage < stages:
            raise MspcError(f"there is no stage {self.stage}; stages are 0 to {stages - 1}")
        return _cut(graph, self.stage, stages), True


def _cut(graph: Graph, stage: int, stages: int) -> Graph:
    loop = micro_batch_loop(graph)
    messages = Messages(placement_of(graph.attrs), int(graph.attrs.get("ranks", 1)))
    program = StageProgram(graph, loop, stage, messages)
    work = _work(graph, loop, stages, program)
    made = Graph(graph.name)
    made.attrs = {**graph.attrs, "ranks": int(graph.attrs.get("ranks", 1)) * stages, STAGE: stage}
    made.returns_tuple = graph.returns_tuple
    for parameter in graph.parameters:
        if parameter.kind == "input" or stage in work.wanted.get(parameter, ()):
            program.of[parameter] = copy = copied_parameter(parameter)
            made.parameters.append(copy)
    program.begin(made)
    for node in graph.nodes:
        if node is loop:
            program.run_micro_batches()
            continue
        if stage in work.computed[node]:
            operands = [v for i, v in enumerate(node.inputs) if not _is_left_out(node, i, v, work, stage)]
            program.add(node, operands)
        for source, target in work.sent.get(node, ()):
            program.hand_on(node, source, target)
    made.results = [value if isinstance(value, Constant) else program.of[value] for value in graph.results]
    return made


def _is_left_out(node: Node, index: int, value: Value, work: _Work, stage: int) -> bool:
    """Return whether an operand only orders, and is computed elsewhere."""
    if not (isinstance(node.op, Depend) and index) or isinstance(value, Constant | Parameter):
        return False
    return stage not in work.computed.get(value, ())  # type: ignore[call-overload]  # a node


@dataclass
class _Work:
    """computed: the stages that compute each node. sent: (from, to) of what others read. wanted: the stages that read a
    value of the graph."""

    computed: dict[Node, set[int]] = field(default_factory=dict[Node, "set[int]"])
    sent: dict[Node, list[tuple[int, int]]] = field(default_factory=dict[Node, "list[tuple[int, int]]"])
    wanted: dict[Value, set[int]] = field(default_factory=dict[Value, "set[int]"])


def _work(graph: Graph, loop: Node | None, stages: int, program: StageProgram) -> _Work:
    """Find who computes each node: its stages as far as anybody reads it or it changes something."""
    work = _Work()
    everyone = set(range(stages))
    for value in graph.results:
        work.wanted.setdefault(value, set()).update(everyone)
    for node in reversed(graph.nodes):
        if node is loop:
            work.computed[node] = everyone
            for value, readers in program.operands_by_stage().items():
                work.wanted.setdefault(value, set()).update(readers)
            continue
        home = set(stages_of(node.attrs)) or everyone
        wanted = set(work.wanted.get(node, ()))
        if node.op.mutates or (node.op.has_side_effect and not isinstance(node.op, Collective)):
            wanted |= home
        if isinstance(node.op, Collective) and not wanted:  # others read what this rank sends
            wanted |= home
        here = wanted & home
        missing = sorted(wanted - home)
        if missing:
            source = min(home)
            here.add(source)
            work.sent[node] = [(source, target) for target in missing]
        work.computed[node] = here
        for index, value in enumerate(node.inputs):
            if not (isinstance(node.op, Depend) and index):
                work.wanted.setdefault(value, set()).update(here)
    return work
