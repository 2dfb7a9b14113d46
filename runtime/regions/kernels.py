"""Kernels of nodes with regions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from mspc.ir.graph import MICRO_BATCH, Graph, Node, element_types
from mspc.ir.types import StackType, TupleType
from mspc.ops.control.regions import If, Loop, spread
from mspc.ops.control.structural import CALL
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import Check, path_check
from mspc.runtime.compiled_loops import is_worth_compiling
from mspc.runtime.plan import RegionKernels
from mspc.runtime.regions.loops import LoopKernel
from mspc.runtime.regions.region import Region, path_text, store_results

Array = Any
Kernel = Callable[..., Any]


class Regions:
    """Prepared regions of one rank's graph; nodes with the same region share it.

    Args:
        cursor: see `Executor`. compiles: nodes may run as compiled loops; None to decide by the size of the program.
    """

    def __init__(self, program: Graph, backend: NumPyBackend, cursor: Any, compiles: bool | None = None) -> None:
        self._compiles = is_worth_compiling(program, backend) if compiles is None else compiles
        self._backend = backend
        self._cursor = cursor
        self._made: dict[Graph, Region] = {}

    @property
    def prepared(self) -> Iterable[Region]:
        """All prepared regions."""
        return self._made.values()

    def kernels(self, nodes: Sequence[Node]) -> RegionKernels:
        """Return the kernels of the nodes with regions."""
        made = {index: self.kernel(node) for index, node in enumerate(nodes) if node.regions}
        return RegionKernels(made, {i: kernel for i, kernel in made.items() if is_planned(nodes[i], self._backend)})

    def kernel(self, node: Node) -> Kernel:
        """Return the kernel of a node with regions. Its argument `out`, if given, has memory for every result."""
        kernel = self._kernel(node)
        if MICRO_BATCH in node.attrs:
            return _numbered(kernel, self._backend, "turns", int(node.attrs[MICRO_BATCH]))
        number = node.attrs.get(CALL)
        return kernel if number is None else _numbered(kernel, self._backend, "calls", int(number))

    def _kernel(self, node: Node) -> Kernel:
        regions = [self._region(graph) for graph in node.regions]
        if isinstance(node.op, Loop):
            return LoopKernel(node, node.op, regions, self._backend, self._cursor).run
        if isinstance(node.op, If):
            return _choice(*regions, path_check(node, self._backend.comm, partial(path_text, node)), self._backend)
        return _call(node, *regions)

    def _region(self, graph: Graph) -> Region:
        if graph not in self._made:
            self._made[graph] = Region(graph, self._backend, self.kernels(graph.nodes), self._compiles)
        return self._made[graph]


def is_planned(node: Node, backend: NumPyBackend) -> bool:
    """Return whether memory is planned for the results of a node with regions: some are large, and none are stacks."""
    types = element_types(node.type)
    return max((t.nbytes for t in types), default=0) >= backend.planned_from and not any(
        isinstance(t, StackType) for t in types
    )


def _numbered(kernel: Kernel, backend: NumPyBackend, place: str, number: int) -> Kernel:
    """Return the kernel with random numbers that differ from those of other nodes with the same regions. place:
    "calls", or "turns" for a stage's work on a micro-batch, which draws the numbers of an iteration of the loop over
    micro-batches."""

    def run(*operands: Array, **places: Any) -> tuple[Array, ...]:
        around = getattr(backend, place)
        setattr(backend, place, (*around, number))
        try:
            return kernel(*operands, **places)
        finally:
            setattr(backend, place, around)

    return run


def _choice(then: Region, otherwise: Region, check: Check | None, backend: NumPyBackend) -> Kernel:
    def run(condition: Array, *operands: Array, out: Sequence[Array] = ()) -> tuple[Array, ...]:
        if check is not None:
            check(int(condition))
        region = then if condition else otherwise
        if backend.taken is not None:
            backend.taken.add(region.graph)
        return _run(region, operands, out)

    return run


def _call(node: Node, region: Region) -> Kernel:
    def run(*operands: Array, out: Sequence[Array] = ()) -> tuple[Array, ...]:
        return _run(region, operands, out)

    def run_spread(*operands: Any, out: Sequence[Array] = ()) -> tuple[Array, ...]:
        return _run(region, spread(node, operands), out)

    return run_spread if any(isinstance(value.type, TupleType) for value in node.inputs) else run


def _run(region: Region, operands: Sequence[Array], out: Sequence[Array]) -> tuple[Array, ...]:
    region.slots[: len(operands)] = operands
    for number, place in region.handed.items():
        place.out = out[number] if out else region.new_result(number)
    results = region.run()
    region.forget()
    return store_results(results, out) if out else tuple(results)
