"""Profile of the time of a step: the run of each node on each rank, as a trace for Perfetto and as a table.

The trace is in Chrome's format ("Trace Event Format", chrome://tracing and ui.perfetto.dev read it): one process per
rank, one thread per stream, times in microseconds from the begin of the rank's step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.analysis.cost.nodes import moved_bytes, sent_bytes, share_of_scores, work_of
from mspc.ir.graph import Graph, Node
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import Type

HOST_STREAMS = ("to_host", "from_host")
"""Streams that a trace shows only if something runs on them."""
STREAMS = ("compute", "communication", "reduction", "messages", *HOST_STREAMS)


@dataclass(frozen=True)
class NodeTiming:
    """Run of a node. index: position in the graph; nodes of regions follow all nodes of the graph, see `nodes_of`.
    begin: milliseconds from the start of the step. duration: milliseconds. plain: it ran on a GPU without a kernel of
    its own. inside: milliseconds of the duration with entries of nodes inside it. runs: number of consecutive runs."""

    index: int
    stream: str
    begin: float
    duration: float
    plain: bool = False
    inside: float = 0.0
    runs: int = 1

    @property
    def own(self) -> float:
        """Milliseconds of the node without the nodes inside it."""
        return self.duration - self.inside


@dataclass(frozen=True)
class NodeCost:
    """Time of one node. seconds: median over the steps, without the nodes inside it. share: of all nodes' time. line:
    "file:line: source", or "". runs: per step. scope: of the node. moved, operations: bytes that are read and written,
    or sent, and floating-point operations, in all runs of a step; 0 if unknown, as for a node that runs graphs."""

    label: str
    type: Type
    stream: str
    seconds: float
    share: float
    line: str
    runs: int
    scope: str
    moved: float = 0.0
    operations: float = 0.0


def stream_of(node: Node) -> str:
    """Return the kind of a node's work, by default also its stream in a trace."""
    if node.attrs.get("stream") in HOST_STREAMS:
        return str(node.attrs["stream"])
    return "communication" if node.op.is_collective and not node.regions else "compute"


def nodes_of(graph: Graph) -> list[tuple[Node, str]]:
    """Return the nodes of a graph and those of the graphs that they run, in the order of `NodeTiming.index`, each with
    the name of its region, "" in the graph itself."""
    return [(node, "" if each is graph else each.name) for each in graph.graphs() for node in each.nodes]


def trace(
    steps: Mapping[int, Sequence[Sequence[NodeTiming]]],
    graphs: Mapping[int, Graph],
    first: Mapping[int, int] | None = None,
) -> dict[str, Any]:
    """Return Chrome's trace of several steps of every rank. Clocks of ranks are not synchronised: a step starts at the
    same time on all ranks, after the longest previous step. graphs: of every rank. first: number of every rank's first
    step; 0 by default."""
    first = first or {}
    events: list[dict[str, Any]] = []
    lengths = [
        max((length(every[number]) for every in steps.values() if number < len(every)), default=0.0)
        for number in range(max(map(len, steps.values()), default=0))
    ]
    for rank in sorted(steps):
        events.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}})
        used = {timed.stream for times in steps[rank] for timed in times}
        for thread, name in enumerate(STREAMS):
            if name in HOST_STREAMS and name not in used:
                continue
            events.append({"name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}})
        offset = 0.0
        nodes = nodes_of(graphs[rank])
        first_of = {region: index for index, (_, region) in reversed([*enumerate(nodes)])}
        for number, times in enumerate(steps[rank]):
            for timed in times:
                node, region = nodes[timed.index]
                events.append(
                    {
                        "name": node.label, "cat": timed.stream, "ph": "X", "pid": rank,
                        "tid": STREAMS.index(timed.stream), "ts": round(1000 * (offset + timed.begin), 3),
                        "dur": round(1000 * timed.duration, 3),
                        "args": {"step": first.get(rank, 0) + number, "node": timed.index - first_of[region],
                                 "result": str(node.type), "scope": node.scope, "line": _line(node),
                                 **_attributes(node), **({"plain": True} if timed.plain else {}),
                                 **({"region": region, "runs": timed.runs} if region else {})},
                    }
                )  # fmt: skip
            offset += lengths[number]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def costs(steps: Sequence[Sequence[NodeTiming]], graph: Graph) -> list[NodeCost]:
    """Return the median time of every node over a rank's steps, which a stall in one step does not change, in
    descending order."""
    found: dict[int, list[float]] = {}
    streams: dict[int, str] = {}
    runs: dict[int, int] = {}
    for number, times in enumerate(steps):
        for timed in times:
            found.setdefault(timed.index, [0.0] * len(steps))[number] += timed.own / 1000
            streams[timed.index] = timed.stream
            if number == 0:
                runs[timed.index] = runs.get(timed.index, 0) + timed.runs
    typical = {index: float(np.median(each)) for index, each in found.items()}
    everything = sum(typical.values()) or 1.0
    nodes = [node for node, _ in nodes_of(graph)]
    return [
        NodeCost(
            nodes[i].label, nodes[i].type, streams[i], typical[i], typical[i] / everything, _line(nodes[i]),
            runs.get(i, 1), nodes[i].scope, *(runs.get(i, 1) * amount for amount in traffic_and_operations(nodes[i])),
        )
        for i in sorted(typical, key=lambda index: (-typical[index], index))
    ]  # fmt: skip


def traffic_and_operations(node: Node) -> tuple[float, float]:
    """Return (bytes, floating-point operations) of one run."""
    if node.regions:
        return 0.0, 0.0
    if node.op.is_collective:
        return sent_bytes(node), 0.0
    return moved_bytes(node), work_of(node) * share_of_scores(node)


def sums(steps: Sequence[Sequence[NodeTiming]], graph: Graph) -> tuple[float, float, float]:
    """Return three medians over a rank's steps, in seconds: all compute, all communication, and the time from the first
    node's start to the last node's end. The first two overlap if there are two streams."""
    found: dict[str, list[float]] = {name: [0.0] * len(steps) for name in STREAMS}
    nodes = [node for node, _ in nodes_of(graph)]
    for number, times in enumerate(steps):
        for timed in times:
            found[stream_of(nodes[timed.index])][number] += timed.own
    compute, communication, whole = (
        float(np.median(each)) / 1000 if each else 0.0
        for each in (found["compute"], found["communication"], list(map(length, steps)))
    )
    return compute, communication, whole


def length(times: Sequence[NodeTiming]) -> float:
    """Return the milliseconds from the start of a step to the end of its last node."""
    return max((timed.begin + timed.duration for timed in times), default=0.0)


def _line(node: Node) -> str:
    """Return the innermost line of the user's own files, or else the innermost line; "" if there is none."""
    if not node.frames:
        return ""
    place = next((frame for frame in node.frames if not frame.file.startswith("mspc/")), node.frames[0])
    return f"{place.file}:{place.line}: {place.text.strip()}"


def _attributes(node: Node) -> dict[str, str]:
    """Return the node's attributes shown in a trace: the operators fused into it, the reason of its communication."""
    return {name: str(node.attrs[name]) for name in ("fused", "reason", "mirror_user_id") if name in node.attrs}


Kernel = Callable[..., Any]


class NodeTimer:
    """Timer of the nodes of one step.

    All runs of a node inside a region are one entry per node of the program, with their total time. These entries
    follow each other within the time of that node.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._begin = time.perf_counter()
        self._times: list[NodeTiming] = []
        self._taken: list[float] = []
        """Seconds spent inside of the nodes that are running, the outermost first."""
        self._inner: dict[tuple[Graph, int], tuple[float, int]] = {}

    def run(self, index: int, kernel: Kernel, *operands: Any) -> Any:
        """Return the result of a node of the program, and record its time."""
        start = time.perf_counter()
        self._taken.append(0.0)
        result = kernel(*operands)
        end = time.perf_counter()
        inside, begin = self._taken.pop(), 1000 * (start - self._begin)
        stream = stream_of(self._graph.nodes[index])
        self._times.append(NodeTiming(index, stream, begin, 1000 * (end - start), inside=1000 * inside))
        self._place_inner(begin)
        return result

    def run_inside(self, graph: Graph, index: int, kernel: Kernel, *operands: Any) -> Any:
        """Return the result of a node inside of a region, and record its time."""
        start = time.perf_counter()
        self._taken.append(0.0)
        result = kernel(*operands)
        taken = time.perf_counter() - start
        seconds, runs = self._inner.get((graph, index), (0.0, 0))
        self._inner[graph, index] = seconds + taken - self._taken.pop(), runs + 1
        self._taken[-1] += taken
        return result

    def _place_inner(self, begin: float) -> None:
        if not self._inner:
            return
        first: dict[Graph, int] = {}
        count = 0
        for graph in self._graph.graphs():
            first[graph] = count
            count += len(graph.nodes)
        for (graph, index), (seconds, runs) in self._inner.items():
            stream = stream_of(graph.nodes[index])
            self._times.append(NodeTiming(first[graph] + index, stream, begin, 1000 * seconds, runs=runs))
            begin += 1000 * seconds
        self._inner.clear()

    def times(self) -> list[NodeTiming]:
        """Return the times of the step."""
        return self._times
