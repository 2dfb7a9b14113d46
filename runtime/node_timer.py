"""Timer of the nodes of a step on the CPU, and of those of the graphs that they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.graph import Graph
from mspc.runtime.profile import NodeTiming, stream_of

Kernel = Callable[..., Any]


class NodeTimer:
    """Times of one step.

    A node inside of a region has one entry for all its iterations in a node of the program, with their total time.
    These entries follow each other within the time of that node.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._begin = time.perf_counter()
        self._times: list[NodeTiming] = []
        self._taken: list[float] = []
        """Seconds spent inside of the nodes that are running, the outermost first."""
        self._inner: dict[tuple[Graph, int], tuple[float, int]] = {}

    def kernel(self, index: int, kernel: Kernel) -> Kernel:
        """Return the kernel of a node of the program, timed."""
        stream = stream_of(self._graph.nodes[index])

        def run(*operands: Any) -> Any:
            start = time.perf_counter()
            self._taken.append(0.0)
            result = kernel(*operands)
            end = time.perf_counter()
            inside, begin = self._taken.pop(), 1000 * (start - self._begin)
            self._times.append(NodeTiming(index, stream, begin, 1000 * (end - start), inside=1000 * inside))
            self._place_inner(begin)
            return result

        return run

    def call(self, graph: Graph, index: int, kernel: Kernel, operands: Sequence[Any]) -> Any:
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
