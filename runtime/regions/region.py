"""A region is prepared once; a run walks over its prepared steps.

Its parameters are the slots 0, 1, ... of its plan, in which the operands' arrays are put as they are: what a region
overwrites is the operand's memory. Results are arrays that no later run writes to: the plan of buffers leaves out what
a result may show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.faults.failure import RegionFailure
from mspc.runtime.plan import Instructions, plan

Array = Any
Kernel = Callable[..., Any]
Call = Callable[[Graph, int, Kernel, Sequence[Any]], Any]
"""Runs the kernel of a node, by its graph and its place there, on operands."""


class Region:
    """A graph that nodes run, prepared.

    Args:
        kernels: of its nodes that run graphs, by their places.

    slots: of its values; the first are its parameters', in which the operands are put ahead of `run`. overwrites: the
    numbers of the results that show a parameter which the region overwrites. call: where it is set, runs the kernels of
    the nodes: called with graph, place, kernel and operands.
    """

    def __init__(self, graph: Graph, backend: NumPyBackend, kernels: Mapping[int, Kernel]) -> None:
        self.graph = graph
        made = plan(graph, backend, kernels)
        updates = Updates(graph)
        if updates.numbers:
            for index, node in enumerate(graph.nodes):
                last = made.last_use.get(node, index)
                # What runs graphs may read an operand after it has updated another.
                behind = last if last < len(graph.nodes) and graph.nodes[last].regions else last - 1
                is_written = any(node in map(user.inputs.__getitem__, user.op.mutates) for user in graph.nodes[index:])
                if updates.between((node,), index, behind) and not is_written:
                    made.copy_result(index)
        self.overwrites = [i for i, value in enumerate(graph.results) if updates.changes(value)]
        self.call: Call | None = None
        self.slots: list[Any] = [None] * made.slots
        for constant, slot in made.constants:
            self.slots[slot] = constant.value
        self._steps: Instructions = [*made.before_update, *made.after_update]
        self._results = made.result_slots
        self._free = made.free_at_end
        self._unset = [None] * len(graph.parameters)

    def run(self) -> list[Array]:
        """The results for the operands that are in the first slots. Raises RegionFailure."""
        slots = self.slots
        index = -1
        try:
            if self.call is not None:
                return self._run_by(self.call)
            for index, kernel, first, second, operands, out, frees in self._steps:  # noqa: B007  # for the failure
                if second >= 0:
                    slots[out] = kernel(slots[first], slots[second])
                elif operands is None:
                    slots[out] = kernel(slots[first])
                else:
                    slots[out] = kernel(*[slots[i] for i in operands])
                if frees is not None:
                    for i in frees:
                        slots[i] = None
        except RegionFailure:
            raise
        except Exception as error:
            raise RegionFailure(self.graph, index, error) from error
        results = [slots[slot] for slot in self._results]
        for slot in self._free:
            slots[slot] = None
        return results

    def _run_by(self, call: Call) -> list[Array]:
        slots = self.slots
        for index, kernel, first, second, operands, out, frees in self._steps:
            if operands is None:
                operands = (first,) if second < 0 else (first, second)
            try:
                slots[out] = call(self.graph, index, kernel, [slots[i] for i in operands])
            except RegionFailure:
                raise
            except Exception as error:
                raise RegionFailure(self.graph, index, error) from error
            for i in frees or ():
                slots[i] = None
        return [slots[slot] for slot in self._results]

    def forget(self) -> None:
        """Hold the operands no longer."""
        self.slots[: len(self._unset)] = self._unset
