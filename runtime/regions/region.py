"""A region, prepared once and run many times.

Its parameters are slots 0, 1, ... of its plan, which receive the operands' arrays without a copy: a parameter that the
region overwrites is the operand's memory. Results are arrays that no later run writes to, unless the caller supplies
the same memory again: large results are written to supplied memory if nothing else is a view of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.analysis.aliasing import aliased_operands
from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Graph, Node, Value, Worklist
from mspc.ops.control.regions import If, While
from mspc.ops.control.structural import TupleGetItem
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.buffers import RegionResultBuffer
from mspc.runtime.faults.record import RegionFailure
from mspc.runtime.plan import KernelFailed, RegionKernels, hooked, plan, run_instructions

Array = Any
Kernel = Callable[..., Any]
Call = Callable[..., Any]
"""Function that runs the kernel of a node, given its graph, its position there, the kernel and the operands."""


class Region:
    """Prepared region.

    Args:
        kernels: of its nodes with regions. compiles: see `plan`.

    slots: of its values, starting with its parameters', to be filled with the operands before `run`. overwrites:
    numbers of the results that alias a parameter which the region overwrites. handed: memory for results by number, to
    be set before `run`. shown: for every result, the parameters of which it may be a view.
    """

    def __init__(self, graph: Graph, backend: NumPyBackend, kernels: RegionKernels, compiles: bool) -> None:
        self.graph = graph
        makers = placeable_results(graph)
        places = {number: RegionResultBuffer() for number in makers}
        handed = {makers[number]: place for number, place in places.items()}
        made = plan(graph, backend, kernels, handed, compiles)
        self.handed = {number: place for number, place in places.items() if place.used}
        self.shown = [made.updates.parameters(value) for value in graph.results]
        self.overwrites = [i for i, value in enumerate(graph.results) if made.updates.changes(value)]
        self.slots: list[Any] = [None] * made.slots
        for constant, slot in made.constants:
            self.slots[slot] = constant.value
        self._steps = self._plain = [*made.before_update, *made.after_update]
        self._call: Call | None = None
        self._running = [-1]
        self._results = made.result_slots
        self._free = made.free_at_end
        self._unset = [None] * len(graph.parameters)

    def run(self) -> list[Array]:
        """Return the results for the operands in the first slots. Raise RegionFailure if a kernel fails."""
        slots = self.slots
        try:
            run_instructions(self._steps, slots, self._running)
        except KernelFailed as failed:
            cause = failed.__cause__
            assert isinstance(cause, Exception)
            inner = isinstance(cause, RegionFailure)
            raise cause if inner else RegionFailure(self.graph, failed.index, cause) from cause
        results = [slots[slot] for slot in self._results]
        for slot in self._free:
            slots[slot] = None
        return results

    def hook(self, call: Call | None) -> None:
        """Run the kernels of the nodes by `call`; None to run them directly."""
        if call != self._call:
            self._call = call
            self._steps = self._plain if call is None else hooked(self._plain, partial(call, self.graph))

    def new_result(self, number: int) -> Array:
        """Allocate an array for a result."""
        type = self.graph.results[number].tensor_type
        return np.empty(type.shape, type.dtype.numpy)

    def forget(self) -> None:
        """Release operands and memory of results."""
        self.slots[: len(self._unset)] = self._unset
        for place in self.handed.values():
            place.out = None


def store_results(results: Sequence[Array], places: Sequence[Array]) -> tuple[Array, ...]:
    """Return the results in these arrays; results that are elsewhere are copied."""
    for result, place in zip(results, places, strict=True):
        if result is not place:
            place[...] = result
    return tuple(places)


def placeable_results(graph: Graph) -> dict[int, tuple[Node, int]]:
    """Return, for the numbers of results that may be written to supplied memory, (the node that makes them, the number
    among its results)."""
    return {number: _maker(graph.results[number]) for number in _alone(graph.results)}


def _maker(value: Value) -> tuple[Node, int]:
    """Return (the node that makes a value, the number of the value among its results)."""
    assert isinstance(value, Node)
    if isinstance(value.op, TupleGetItem) and isinstance(value.inputs[0], Node):
        return value.inputs[0], value.op.index
    return value, 0


def _alone(results: Sequence[Value]) -> list[int]:
    """Return the numbers of the results of nodes whose memory no other result may alias."""
    makers = [_maker(value) if isinstance(value, Node) else None for value in results]
    found: list[int] = []
    for number, maker in enumerate(makers):
        others = [value for i, value in enumerate(results) if i != number]
        if maker is not None and makers.count(maker) == 1 and not _may_alias(others, maker):
            found.append(number)
    return found


def _may_alias(values: Sequence[Value], maker: tuple[Node, int]) -> bool:
    """Return whether one of the values may be a view of a node's result."""
    waiting = Worklist(values)
    for value in waiting:
        if not isinstance(value, Node):
            continue
        if value is maker[0]:
            return True
        if isinstance(value.op, TupleGetItem) and value.inputs[0] is maker[0]:
            if value.op.index == maker[1]:
                return True
            continue
        waiting.add(value.inputs[i] for i in aliased_operands(value))
    return False


def too_long(limit: float, turns: int, has_condition: bool) -> ExecutionError:
    """Return the error of a loop that has run for more than `limit` seconds."""
    goes_on = "its condition still holds" if has_condition else "more turns are to come"
    return ExecutionError(
        f"it has run for more than {limit:g} s, {turns} turn{'s' * (turns != 1)} so far, and {goes_on}",
        notes=["mspc run --timeout SECONDS lets it run longer; without it a loop may take any time"],
    )


def path_text(node: Node, way: int) -> str:
    """Return the text about a rank's path: the condition `way` of a branch, or `way` iterations of a loop."""
    if isinstance(node.op, If):
        return f"has {'true' if way else 'false'} as the condition of {node.label}"
    turns = way
    counted = f"{turns} turn{'s' * (turns != 1)}"
    return f"has left {node.label} after {counted}" if isinstance(node.op, While) else f"has {counted} of {node.label}"


def check_lengths(label: str, turns: int, scanned: Iterable[Any]) -> None:
    """Raise ExecutionError if a scanned array or stack does not have an entry for every iteration."""
    for entries in scanned:
        if len(entries) != turns:
            raise ExecutionError(f"{label} has {turns} turns and scans a stack of {len(entries)} entries")
