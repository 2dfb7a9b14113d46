"""Kernels of the nodes that run graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mspc.ir.graph import Graph, Node
from mspc.ops.control.loops import Loop
from mspc.ops.control.regions import If
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.control_flow import Check, same_way
from mspc.runtime.regions.loops import LoopKernel
from mspc.runtime.regions.region import Region

Array = Any
Kernel = Callable[..., Any]


class Regions:
    """The regions of one rank's graph that are prepared; nodes that run the same graph share it. cursor: see
    `Executor`."""

    def __init__(self, backend: NumPyBackend, cursor: Any) -> None:
        self._backend = backend
        self._cursor = cursor
        self._made: dict[Graph, Region] = {}

    @property
    def prepared(self) -> Iterable[Region]:
        """All of them."""
        return self._made.values()

    def kernels(self, nodes: Sequence[Node]) -> dict[int, Kernel]:
        """The kernels of those that run graphs, by their places."""
        return {index: self.kernel(node) for index, node in enumerate(nodes) if node.regions}

    def kernel(self, node: Node) -> Kernel:
        """The kernel of a node that runs graphs."""
        regions = [self._region(graph) for graph in node.regions]
        if isinstance(node.op, Loop):
            return LoopKernel(node, node.op, regions, self._backend, self._cursor).run
        if isinstance(node.op, If):
            return _choice(*regions, same_way(node, self._backend.comm, _condition_of(node)))
        return _call(*regions)

    def _region(self, graph: Graph) -> Region:
        if graph not in self._made:
            self._made[graph] = Region(graph, self._backend, self.kernels(graph.nodes))
        return self._made[graph]


def _condition_of(node: Node) -> Callable[[int], str]:
    return lambda way: f"has {'true' if way else 'false'} as the condition of {node.label}"


def _choice(then: Region, otherwise: Region, check: Check | None) -> Kernel:
    def run(condition: Array, *operands: Array) -> tuple[Array, ...]:
        if check is not None:
            check(int(condition))
        region = then if condition else otherwise
        region.slots[: len(operands)] = operands
        results = region.run()
        region.forget()
        return tuple(results)

    return run


def _call(region: Region) -> Kernel:
    def run(*operands: Array) -> tuple[Array, ...]:
        region.slots[: len(operands)] = operands
        results = region.run()
        region.forget()
        return tuple(results)

    return run
