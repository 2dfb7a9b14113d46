"""Preparation of a graph for the executor: one slot for every live value, one instruction for every node, and values
freed at their last use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any, cast

import numpy as np

from mspc.analysis.aliasing import Updates, source, updated_parameters
from mspc.ir.diagnostics import raise_all
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.op import Op, has_kernel
from mspc.ops.optim.optimizer import AllFinite
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.buffers import RegionResultBuffer, buffered_kernels

Instruction = tuple[int, Callable[..., Any], int, int, tuple[int, ...] | None, int, tuple[int, ...] | None]
"""(node index, kernel, slot of operand 0, slot of operand 1 or -1, all operands' slots unless there are one or two,
slot of the result, slots to free afterwards). One and two operands have fields of their own because building a list of
arguments costs as much as a small kernel."""

Instructions = list[Instruction]


@dataclass
class ExecutionPlan:
    """Graph as the executor runs it.

    slots: number of slots; parameters and constants have their own, nodes share the others over time. boundary: index
    of the first node that updates a parameter; `before_update` are the instructions before it. losses: scalar results
    known at the boundary, so that a non-finite step can be rejected before it changes parameters. late_losses: scalar
    results that are not known there.
    """

    graph: Graph
    slots: int
    slot_of: dict[Value, int]
    constants: list[tuple[Constant, int]]
    last_use: dict[Value, int]
    boundary: int
    before_update: Instructions
    after_update: Instructions
    result_slots: list[int]
    free_at_end: list[int]
    updates: Updates
    losses: list[Value] = field(default_factory=list)
    late_losses: list[Value] = field(default_factory=list)


class KernelFailed(Exception):
    """Raised from the error of a kernel. index: of its node."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def run_instructions(instructions: Instructions, slots: list[Any], cursor: Any) -> None:
    """Run instructions in order, with the index of the running one in `cursor[0]`. Raise KernelFailed."""
    index = -1
    try:
        for index, kernel, first, second, operands, out, frees in instructions:
            cursor[0] = index
            if second >= 0:
                slots[out] = kernel(slots[first], slots[second])
            elif operands is None:
                slots[out] = kernel(slots[first])
            else:
                slots[out] = kernel(*[slots[i] for i in operands])
            if frees is not None:
                for i in frees:
                    slots[i] = None
    except Exception as error:
        raise KernelFailed(index) from error


def hooked(instructions: Instructions, call: Callable[..., Any]) -> Instructions:
    """Return the instructions with every kernel run by `call`, given the node's index, the kernel and the operands."""
    return [(step[0], partial(call, step[0], step[1]), *step[2:]) for step in instructions]


def prepare(graph: Graph, backend: NumPyBackend) -> None:
    """Prepare a program with all its regions, before a plan is made. Raise MspcError if operators have no kernel; one
    error for all of them."""
    graphs = graph.graphs()
    lacking = [node for each in graphs for node in each.nodes if not (isinstance(node.op, Op) and has_kernel(node.op))]
    notes = ["`mspc ops` lists the operators; CHANGELOG.md names the replacement of each that was removed"]
    raise_all([node.error(f"{node.label} has no kernel", notes=notes) for node in lacking])
    backend.halves = any(t.dtype.itemsize == 2 and t.dtype.is_float for each in graphs for v in each.values()
                         for t in element_types(v.type))  # fmt: skip


@dataclass
class RegionKernels:
    """Kernels of the nodes with regions, by index. plain: kernels that allocate their results. into: those that can
    also write to `out`."""

    plain: Mapping[int, Callable[..., Any]] = field(default_factory=dict[int, Callable[..., Any]])
    into: Mapping[int, Callable[..., Any]] = field(default_factory=dict[int, Callable[..., Any]])


def plan(
    graph: Graph, backend: NumPyBackend, regions: RegionKernels,
    handed: Mapping[tuple[Node, int], RegionResultBuffer] | None = None, compiles: bool = False,
) -> ExecutionPlan:  # fmt: skip
    """Return the plan of a graph, with slots assigned and kernels bound. handed: see `buffered_kernels`. compiles:
    nodes run as compiled loops if possible."""
    # Imported here, because compiling reads plans without running them.
    from mspc.runtime.comm.agreement import arrival_kernels
    from mspc.runtime.compiled_loops import compiled_kernels

    nodes = graph.nodes
    lives = lifetimes(graph)
    last_use, boundary = lives.last_use, lives.boundary
    slot_of: dict[Value, int] = {parameter: i for i, parameter in enumerate(graph.parameters)}
    constants = _constant_slots(graph, slot_of)
    slots = _Slots(slot_of, last_use)
    bound = arrival_kernels(graph, backend)
    loops, changes = compiled_kernels(graph, backend) if compiles else ({}, {})
    bound = {**changes, **bound}
    buffered = buffered_kernels(graph, backend, last_use, bound, {**loops, **regions.into}, handed or {})
    bound = {**loops, **regions.plain, **buffered, **bound}
    updates = Updates(graph)
    copied = _overwritten(nodes, last_use, updates)
    steps = [_instruction(i, node, bound.get(i), backend, slots, i in copied) for i, node in enumerate(nodes)]
    return ExecutionPlan(
        graph=graph,
        slots=slots.count,
        slot_of=slot_of,
        constants=constants,
        last_use=last_use,
        boundary=boundary,
        before_update=steps[:boundary],
        after_update=steps[boundary:],
        result_slots=[slot_of[value] for value in graph.results],
        free_at_end=sorted({slot_of[v] for v in [*graph.results, *lives.losses] if isinstance(v, Node)}),
        updates=updates,
        losses=lives.losses,
        late_losses=lives.late_losses,
    )


@dataclass(frozen=True)
class Lifetimes:
    """Live ranges of the values of a graph. last_use: index of the last node that reads each value; for results the
    number of nodes. updates: the parameters that nodes update, by index. Other fields as in `ExecutionPlan`."""

    last_use: dict[Value, int]
    boundary: int
    updates: dict[int, tuple[Parameter, ...]]
    losses: list[Value]
    late_losses: list[Value]


def lifetimes(graph: Graph) -> Lifetimes:
    """Return the live ranges of a graph's values, and the losses that are checked before its updates."""
    nodes = graph.nodes
    updates = updated_parameters(graph)
    boundary = min(updates, default=len(nodes))
    last_use = {value: index for index, node in enumerate(nodes) for value in node.inputs}
    last_use |= dict.fromkeys(graph.results, len(nodes))
    losses = loss_values(graph) if updates else []
    position = {node: index for index, node in enumerate(nodes)}
    early = [value for value in losses if not isinstance(value, Node) or position[value] < boundary]
    for value in early:
        last_use[value] = max(last_use[value], boundary)
    return Lifetimes(last_use, boundary, updates, early, [value for value in losses if value not in early])


def _constant_slots(graph: Graph, slot_of: dict[Value, int]) -> list[tuple[Constant, int]]:
    """Return the constants of a graph, each with its own slot, which is added to `slot_of`."""
    found: list[tuple[Constant, int]] = []
    for value in [*(v for node in graph.nodes for v in node.inputs), *graph.results]:
        if isinstance(value, Constant) and value not in slot_of:
            slot_of[value] = len(slot_of)
            found.append((value, slot_of[value]))
    return found


class _Slots:
    """Slots of results, which reuse those of dead operands. count: number of slots so far."""

    def __init__(self, slot_of: dict[Value, int], last_use: dict[Value, int]) -> None:
        self.slot_of = slot_of
        self.count = len(slot_of)
        self._last_use = last_use
        self._free: list[int] = []

    def take(self, index: int, node: Node) -> tuple[int, tuple[int, ...] | None]:
        """Return (slot of a node's result, slots that are free after it)."""
        dying = [
            self.slot_of[value]
            for value in dict.fromkeys(node.inputs)
            if isinstance(value, Node) and self._last_use[value] == index
        ]
        if dying:
            out = dying.pop()
        elif self._free:
            out = self._free.pop()
        else:
            out, self.count = self.count, self.count + 1
        self.slot_of[node] = out
        if node not in self._last_use:
            dying.append(out)
        self._free.extend(dying)
        return out, tuple(dying) or None


def _overwritten(nodes: Sequence[Node], last_use: Mapping[Value, int], updates: Updates) -> set[int]:
    """Return the nodes whose results may be views of a parameter that is updated before their last use."""
    # A stack of parameters aliases them.
    written = {node.inputs[place] for node in nodes for place in node.op.mutates} if updates.numbers else ()
    found: set[int] = set()
    for index, node in enumerate(nodes) if updates.numbers else ():
        last = last_use.get(node, index)
        # A node with regions may read an operand after it has updated another.
        until = last if last < len(nodes) and nodes[last].regions else last - 1
        if node not in written and updates.between((node,), index, until):
            found.add(index)
    return found


def _instruction(
    index: int, node: Node, kernel: Callable[..., Any] | None, backend: NumPyBackend, slots: _Slots, copies: bool
) -> Instruction:
    """Return the instruction of a node. copies: it returns a copy of its kernel's result."""
    operands = tuple(slots.slot_of[value] for value in node.inputs)
    out, frees = slots.take(index, node)
    if kernel is None:
        kernel = cast(Op, node.op).kernel(backend)
    if copies:
        kernel = _copying(kernel)
    if len(operands) == 2:
        return index, kernel, operands[0], operands[1], None, out, frees
    if len(operands) == 1:
        return index, kernel, operands[0], -1, None, out, frees
    return index, kernel, -1, -1, operands, out, frees


def loss_values(graph: Graph) -> list[Value]:
    """Return the floating-point results of one element, looking through `Depend`. Return none if the graph itself
    checks for infinities and skips such steps."""
    if any(isinstance(node.op, AllFinite) for node in graph.nodes):
        return []
    found: list[Value] = []
    for value in graph.results:
        value = source(value)
        type = value.type
        if isinstance(type, TensorType) and type.dtype.is_float and math.prod(type.shape) == 1:
            found.append(value)
    return found


def _copying(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: copy_value(kernel(*operands))


def copy_value(value: Any) -> Any:
    """Return a copy of an array, or of every array of a tuple or a stack."""
    if isinstance(value, tuple | list):
        return type(value)(map(copy_value, cast("list[Any]", value)))
    return np.array(value)


def parts_of(value: Any) -> Iterator[Any]:
    """Yield the arrays of a value: itself, or those of a tuple or a stack."""
    if isinstance(value, tuple | list):
        for part in cast("Sequence[Any]", value):
            yield from parts_of(part)
    else:
        yield value
