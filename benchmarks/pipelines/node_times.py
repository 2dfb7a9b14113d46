"""What the nodes of every stage's graph take, read out of the trace of a run.

A node takes what lies between its begin and that of the next one, so that memory which is given back behind it counts;
views, which only name results, are counted to the node before them, and what waits for a message is not counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from mspc.ir.graph import Graph, Node
from mspc.ir.text.parser import parse
from mspc.ops.collective.stage_messages import ReceiveFromStage, SendToStage
from mspc.ops.op import REGISTRY
from mspc.output.dumps import LAST
from mspc.output.stage_times import StageTimes, timeline_of
from mspc.passes.pipelining.timeline import Timeline


class Ran(NamedTuple):
    """A run of a node of a rank's graph, by its index there; in seconds from the begin of the step."""

    index: int
    begin: float
    seconds: float


Steps = Sequence[Sequence[Ran]]
"""The runs of a rank's steps."""


@dataclass
class NodeTimes:
    """What the nodes of every stage's graph take, in seconds."""

    graphs: list[Graph]
    seconds: dict[Node, float] = field(default_factory=dict[Node, float])

    @staticmethod
    def of(graphs: Sequence[Graph], steps: Sequence[Steps], counted: Sequence[bool]) -> NodeTimes:
        """steps: of the ranks. counted: the steps that count."""
        made = NodeTimes(list(graphs))
        for graph, own in zip(graphs, steps, strict=True):
            times: dict[Node, list[float]] = {}
            for step, counts in zip(own, counted, strict=True):
                for node, taken in _taken(graph, step) if counts else ():
                    times.setdefault(node, []).append(taken)
            made.seconds |= {node: median(each) for node, each in times.items()}
        return made

    def timeline(self, message: Callable[[int], float], attrs: Mapping[str, Any] | None = None) -> Timeline:
        """message: seconds of one of so many bytes. attrs: of a program of another schedule, with the same actions."""
        return timeline_of(self.graphs[0].attrs if attrs is None else attrs, self._programs(message))

    def actions(self) -> set[tuple[int, str]]:
        """The chunks and kinds of the work on micro-batches."""
        return {key for program in self._programs(lambda nbytes: 0.0) for key in program.times}

    def _programs(self, message: Callable[[int], float]) -> list[StageTimes]:
        def own(node: Node) -> float:
            return self.seconds.get(node, 0.0)

        def way(node: Node) -> float:
            return message(node.inputs[0].type.nbytes)

        return [StageTimes.of(graph, own, way, sends=True) for graph in self.graphs]

    def message_bytes(self) -> set[int]:
        """The sizes of messages between stages."""
        nodes = (node for graph in self.graphs for node in graph.nodes)
        return {node.inputs[0].type.nbytes for node in nodes if isinstance(node.op, SendToStage)}


def _taken(graph: Graph, step: Iterable[Ran]) -> Iterable[tuple[Node, float]]:
    ran = [(graph.nodes[each.index], each) for each in sorted(step, key=lambda each: each.begin)]
    ran = [(node, each) for node, each in ran if not node.op.is_view]
    for place, (node, each) in enumerate(ran):
        if not isinstance(node.op, ReceiveFromStage):
            yield node, ran[place + 1][1].begin - each.begin if place + 1 < len(ran) else each.seconds


def graphs_of_folder(folder: Path, ranks: int) -> list[Graph]:
    """The programs of the ranks that `mspc compile --out` has written."""
    files = [next((folder / f"rank_{rank}").glob(f"*_{LAST}_0000.ir")) for rank in range(ranks)]
    return [parse(file.read_text(), REGISTRY, str(file)).main for file in files]


def steps_of_trace(file: Path, ranks: int) -> list[Steps]:
    """Those of a trace (`mspc run --profile`)."""
    found: list[dict[int, list[Ran]]] = [{} for _ in range(ranks)]
    for event in json.loads(file.read_text())["traceEvents"]:
        if event["ph"] == "X" and "region" not in event["args"]:
            args = event["args"]
            ran = Ran(args["node"], event["ts"] / 1e6, event["dur"] / 1e6)
            found[event["pid"]].setdefault(args["step"], []).append(ran)
    return [[step for _, step in sorted(own.items())] for own in found]
