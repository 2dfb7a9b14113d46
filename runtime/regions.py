"""Kernels of the nodes that run graphs: every region is prepared once, and a turn walks over its prepared steps.

A region's parameters are the slots 0, 1, ... of its plan, in which the operands' arrays are put as they are: what a
region overwrites is the operand's memory. Results are arrays that no later turn writes to: the plan of buffers leaves
out what a result may show, and results that show a parameter which is overwritten are copied at the end of a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.analysis.aliasing import Updates
from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Graph, Node
from mspc.ir.types import StackType, TensorType
from mspc.ops.control.loops import Loop, While
from mspc.ops.control.regions import If
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.control_flow import Check, same_way
from mspc.runtime.faults.failure import RegionFailure
from mspc.runtime.plan import Instructions, own, parts_of, plan

Array = Any
Kernel = Callable[..., Any]


class Regions:
    """The regions of one rank's graph that are prepared; nodes that run the same graph share it."""

    def __init__(self, backend: NumPyBackend) -> None:
        self.backend = backend
        self._made: dict[Graph, Region] = {}

    def kernels(self, nodes: Sequence[Node]) -> dict[int, Kernel]:
        """The kernels of those that run graphs, by their places."""
        return {index: self.kernel(node) for index, node in enumerate(nodes) if node.regions}

    def kernel(self, node: Node) -> Kernel:
        """The kernel of a node that runs graphs."""
        regions = [self._region(graph) for graph in node.regions]
        if isinstance(node.op, Loop):
            return _LoopKernel(node, node.op, regions, self.backend).run
        if isinstance(node.op, If):
            check = same_way(node, self.backend.comm, _branch_of(node))
            return _choice(*regions, check)
        return _call(*regions)

    def _region(self, graph: Graph) -> Region:
        if graph not in self._made:
            self._made[graph] = Region(graph, self)
        return self._made[graph]


class Region:
    """A graph that nodes run, prepared.

    slots: of its values; the first are its parameters', in which the operands are put ahead of `run`. overwrites: the
    numbers of the results that show a parameter which the region overwrites.
    """

    def __init__(self, graph: Graph, regions: Regions) -> None:
        self.graph = graph
        made = plan(graph, regions.backend, regions.kernels(graph.nodes))
        updates = Updates(graph)
        if updates.numbers:
            for index, node in enumerate(graph.nodes):
                last = made.last_use.get(node, index)
                # What runs graphs may read an operand after it has updated another.
                behind = last if last < len(graph.nodes) and graph.nodes[last].regions else last - 1
                if updates.between((node,), index, behind):
                    made.copy_result(index)
        self.overwrites = [i for i, value in enumerate(graph.results) if updates.changes(value)]
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

    def forget(self) -> None:
        """Hold the operands no longer."""
        self.slots[: len(self._unset)] = self._unset


def _branch_of(node: Node) -> Callable[[int], str]:
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


class _LoopKernel:
    """The kernel of a loop.

    carried: how many values go from turn to turn. stacked: the types of what every turn's is kept of.
    """

    def __init__(self, node: Node, op: Loop, regions: Sequence[Region], backend: NumPyBackend) -> None:
        self._label = node.label
        self._op = op
        self._backend = backend
        self._body = body = regions[-1]
        self._condition = regions[0] if isinstance(op, While) else None
        self._carried = op.carried
        self._places = range(op.leading, op.leading + op.carried)
        self._stacked = [value.tensor_type for value in body.graph.results[op.carried :]]
        self._known = op.known_turns([value.type for value in node.inputs])
        self._copied = body.overwrites
        self._written = set(op.mutates)
        met = same_way(node, backend.comm, self._went) if self._known < 0 else None
        self._ahead, self._behind = (None, met) if self._condition else (met, None)

    def run(self, *operands: Array) -> tuple[Array, ...]:
        """All turns. Raises RegionFailure."""
        op = self._op
        begin, end = op.first, op.first + op.carried + op.scanned
        if self._written:
            operands = self._apart(operands, range(begin, end))
        turns = self._known if self._known >= 0 or self._condition else max(0, int(operands[0]))
        if self._ahead is not None:
            self._ahead(turns)
        scanned = operands[begin + op.carried : end]
        for array in scanned:
            if len(array) != turns and self._condition is None:
                raise ExecutionError(f"{self._label} has {turns} turns and scans a stack of {len(array)} entries")
        for region in (self._condition, self._body):
            if region is not None:
                region.slots[op.leading + end - begin : len(region.graph.parameters)] = operands[end:]
        carried = list(operands[begin : begin + op.carried])
        stacks = [_room(type, self._known, turns) for type in self._stacked]
        around = self._backend.turns
        if self._condition is not None:
            turns = self._while(self._condition, carried, scanned, stacks)
            if self._behind is not None:
                self._behind(turns)
        else:
            self._turns(carried, scanned, stacks, range(turns - 1, -1, -1) if op.reverse else range(turns))
        self._backend.turns = around
        for region in (self._condition, self._body):
            if region is not None:
                region.forget()
        counted = (np.array(turns, np.int64),) if isinstance(op, While) and op.stacked else ()
        return (*carried, *counted, *stacks)

    def _went(self, turns: int) -> str:
        counted = f"{turns} turn{'s' * (turns != 1)}"
        return f"has left {self._label} after {counted}" if self._condition else f"has {counted} of {self._label}"

    def _turns(
        self, carried: list[Array], scanned: Sequence[Array], stacks: Sequence[Array], numbers: Sequence[int]
    ) -> None:
        """So many turns, in the order of their numbers; `carried` is changed, `stacks` filled."""
        body, backend, around = self._body, self._backend, self._backend.turns
        slots, leading, count = body.slots, self._op.leading, len(carried)
        behind = leading + count
        turn = -1
        try:
            for turn in numbers:
                backend.turns = (*around, turn)
                if leading:
                    slots[0] = np.int64(turn)
                slots[leading:behind] = carried
                if scanned:
                    slots[behind : behind + len(scanned)] = [array[turn] for array in scanned]
                results = body.run()
                for i in self._copied:
                    results[i] = own(results[i])
                carried[:] = results[:count]
                for stack, entry in zip(stacks, results[count:], strict=True):
                    stack[turn] = entry
        except RegionFailure as failure:
            backend.turns = around
            failure.turns.append((self._label, turn))
            raise

    def _while(
        self, condition: Region, carried: list[Array], scanned: Sequence[Array], stacks: Sequence[list[Array]]
    ) -> int:
        """Turns while the condition holds, and how many there were; `carried` is changed, `stacks` filled."""
        body, backend, around = self._body, self._backend, self._backend.turns
        count = len(carried)
        behind = count + len(scanned)
        turn = 0
        try:
            while True:
                entries = [array[turn] for array in scanned]
                backend.turns = (*around, turn)
                condition.slots[:behind] = [*carried, *entries]
                if not condition.run()[0]:
                    return turn
                body.slots[:behind] = [*carried, *entries]
                results = body.run()
                for i in self._copied:
                    results[i] = own(results[i])
                carried[:] = results[:count]
                for stack, entry in zip(stacks, results[count:], strict=True):
                    stack.append(entry)
                turn += 1
        except RegionFailure as failure:
            backend.turns = around
            failure.turns.append((self._label, turn))
            raise

    def _apart(self, operands: Sequence[Array], places: range) -> tuple[Array, ...]:
        """The operands, where those at these places share no memory with what the loop overwrites."""
        found = list(operands)
        for i in places:
            if i not in self._written and any(
                np.may_share_memory(part, found[k]) for part in parts_of(found[i]) for k in self._written
            ):
                found[i] = own(found[i])
        return tuple(found)


def _room(type: TensorType, known: int, turns: int) -> Any:
    """Where every turn's entry goes: an array where the number of turns was known ahead, else a list, as for stacks."""
    if known >= 0 and not isinstance(type, StackType):
        return np.empty((known, *type.shape), type.dtype.numpy)
    return [None] * max(0, turns)
