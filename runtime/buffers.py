"""Memory for the results of kernels is planned once: each large result gets a place that nothing alive shares, so that
a step asks the system for no new pages.

Input:  %0 = MatMul(%a, %b) [64, 64]; %1 = Tanh(%0) [64, 64]; %2 = MatMul(%1, %b) [64, 64]; returned is ReduceSum(%2).
Output: %0 and %1 share one buffer, as Tanh works in place; %2 has another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.analysis.aliasing import aliased_operands
from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, TupleType
from mspc.ops.control.structural import TupleGetItem, taken_elements
from mspc.ops.op import Op
from mspc.runtime.available_memory import REMEDY, shown_bytes
from mspc.runtime.backend import NumPyBackend

WASTE = 2
"""A free buffer is taken for a result of at least this part of its size."""
_ALIGNMENT = 64
HANDED = -1
"""In the place of a buffer's number, for a result whose place is handed over."""
_NONE: Mapping[Any, Any] = {}

Array = Any
Tensor = tuple[int, int]
"""What a node makes: its index, and the place in its tuple, 0 where it is no tuple."""


class _Pool:
    """Buffers by number; a free one is used again."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._free: list[int] = []

    def take(self, size: int) -> int:
        """The smallest free buffer that fits without much waste, else a new one."""
        fitting = [b for b in self._free if size <= self.sizes[b] <= size * WASTE]
        if not fitting:
            self.sizes.append(size)
            return len(self.sizes) - 1
        best = min(fitting, key=lambda b: (self.sizes[b], b))
        self._free.remove(best)
        return best

    def give(self, buffer: int) -> None:
        self._free.append(buffer)


class Handed:
    """The place of a result of a region, which whoever runs the region hands over.

    used: whether the node writes there; else it makes an array of its own. out: set ahead of every run.
    """

    def __init__(self) -> None:
        self.used = False
        self.out: Array = None


@dataclass(frozen=True)
class BufferPlan:
    """Where results lie.

    places: of nodes that write to buffers, and of what takes a tensor of theirs, for each tensor the number of its
    buffer, `HANDED` where the place is handed over. sizes: of the buffers, in bytes.
    """

    places: Mapping[Value, Sequence[int]]
    sizes: Sequence[int]


def buffered_kernels(
    graph: Graph, backend: NumPyBackend, last_use: Mapping[Value, int], others: Container[int] = (),
    loops: Mapping[int, Callable[..., Array]] | None = None, handed: Mapping[tuple[Node, int], Handed] = _NONE,
) -> dict[int, Callable[..., Array]]:  # fmt: skip
    """Kernels that write to planned buffers, by the index of their node; the other nodes, those in `others` among them,
    make arrays of their own. `loops` are kernels with an `out` in the place of the operators' own, `handed` are places
    of results of the graph, by their nodes and their places in what these make.
    """
    if backend.xp is not np:
        return {}
    into = kernels_into(graph.nodes, backend, others, loops or {})
    plan = plan_buffers(graph, into, last_use, handed)
    memory = _memory(plan.sizes, plan.places)
    return {
        index: _writing(kernel, node, plan.places[node], memory, handed)
        for index, kernel in into.items()
        if (node := graph.nodes[index]) in plan.places
    }


def kernels_into(
    nodes: Sequence[Node], backend: NumPyBackend, others: Container[int], loops: Mapping[int, Callable[..., Array]]
) -> dict[int, Callable[..., Array]]:
    """The kernels that can write to a buffer; arguments are those of `buffered_kernels`."""
    own = {i: loops.get(i) or _kernel_into(node, backend) for i, node in enumerate(nodes) if i not in others}
    return {i: kernel for i, kernel in own.items() if kernel is not None}


def plan_buffers(
    graph: Graph, into: Container[int], last_use: Mapping[Value, int], handed: Container[tuple[Node, int]] = ()
) -> BufferPlan:
    """Give the nodes at the indices `into` their buffers.

    A buffer is free once the last value that may look into it is dead: operators declare of which operands their
    results may be views. What a view of a result of the graph may show is not planned.
    """
    nodes = graph.nodes
    into, ends, shown = _placed(nodes, into, last_use, handed)
    pool = _Pool()
    dying: dict[int, list[int]] = {}
    places: dict[Value, list[int]] = {}
    for index, node in enumerate(nodes):
        types = element_types(node.type)
        if index in into:
            dead = dying.get(index, [])
            places[node] = []
            for element, type in enumerate(types):
                if ends[index, element] == len(nodes):
                    places[node].append(HANDED)
                    continue
                taken = _overwritten(node, type, places, dead, shown)
                places[node].append(pool.take(_size(type)) if taken is None else taken)
                dying.setdefault(ends[index, element], []).append(places[node][element])
        elif isinstance(node.op, TupleGetItem) and node.inputs[0] in places:
            places[node] = [places[node.inputs[0]][node.op.index]]
        for buffer in dying.pop(index, ()):
            pool.give(buffer)
    return BufferPlan(places, pool.sizes)


def _writing(
    kernel: Callable[..., Array], node: Node, places: Sequence[int], memory: Sequence[Array],
    handed: Mapping[tuple[Node, int], Handed],
) -> Callable[..., Array]:  # fmt: skip
    """The kernel, writing to its places."""
    types = element_types(node.type)
    views = [None if b == HANDED else _view(memory[b], t) for b, t in zip(places, types, strict=True)]
    several = isinstance(node.type, TupleType)
    if HANDED not in places:
        return functools.partial(kernel, out=tuple(views) if several else views[0])
    holders = {element: handed[node, element] for element, place in enumerate(places) if place == HANDED}
    for holder in holders.values():
        holder.used = True
    if not several:
        (holder,) = holders.values()
        return lambda *operands: kernel(*operands, out=holder.out)

    def write(*operands: Array) -> Array:
        out = tuple(holders[i].out if i in holders else view for i, view in enumerate(views))
        return kernel(*operands, out=out)

    return write


def _memory(sizes: Sequence[int], places: Mapping[Value, Sequence[int]]) -> list[Array]:
    """The buffers. Raises ExecutionError, which names the largest result that one is for, where there is no room."""
    memory: list[Array] = []
    for number, size in enumerate(sizes):
        try:
            memory.append(_aligned(size))
        except MemoryError:
            nodes = [value for value, taken in places.items() if isinstance(value, Node) and number in taken]
            node = max(nodes, key=lambda n: max(map(_size, element_types(n.type))))
            others = sum(sizes) - size
            raise ExecutionError(
                f"out of memory: {node.label} needs {shown_bytes(size)} for its result {node.type}",
                notes=[f"results of other nodes that are planned: {shown_bytes(others)}", REMEDY], frames=node.frames,
            ) from None  # fmt: skip
    return memory


def _kernel_into(node: Node, backend: NumPyBackend) -> Callable[..., Array] | None:
    """The node's kernel with an `out`, where results and operands are all of one floating-point type of NumPy's, or
    the operator takes any."""
    if not isinstance(node.op, Op) or type(node.op).kernel_into is Op.kernel_into:
        return None
    types = element_types(node.type)
    if max(map(_size, types), default=0) < backend.planned_from:
        return None
    if node.op.any_types:
        return node.op.kernel_into(backend)
    if types[0].dtype.numpy.kind != "f" or any(
        t.dtype != types[0].dtype for v in (node, *node.inputs) for t in element_types(v.type)
    ):
        return None
    return node.op.kernel_into(backend)


def _placed(
    nodes: Sequence[Node], into: Container[int], last_use: Mapping[Value, int], handed: Container[tuple[Node, int]]
) -> tuple[set[int], dict[Tensor, int], dict[Value, set[Tensor]]]:
    """(the nodes of `into` of which no result has to stay where it is, and of these what `_ends` gives). The others run
    their own kernels, which may hand out views of their operands, so that these have to stay, too."""
    placed = {index for index in range(len(nodes)) if index in into}
    while True:
        ends, shown = _ends(nodes, placed, last_use)
        staying = {
            index for (index, element), end in ends.items()
            if end == len(nodes) and (nodes[index], element) not in handed
        }  # fmt: skip
        placed -= staying
        if not any(aliased_operands(nodes[index]) for index in staying if not nodes[index].regions):
            return placed, ends, shown


def _ends(
    nodes: Sequence[Node], into: Container[int], last_use: Mapping[Value, int]
) -> tuple[dict[Tensor, int], dict[Value, set[Tensor]]]:
    """(for every result of a node of `into` the index of the last node that reads it or what may be a view of it, by
    value of which of them it may be a view)."""
    ends: dict[Tensor, int] = {}
    shown: dict[Value, set[Tensor]] = {}
    made: dict[Value, int] = {}
    for index, node in enumerate(nodes):
        operands = aliased_operands(node) if index not in into or node.regions else ()
        makers = {maker for i in operands for maker in shown.get(node.inputs[i], ())}
        if index in into:  # what runs graphs may have no place all the same, and hand out its operands
            makers |= {(index, element) for element in range(len(element_types(node.type)))}
            made[node] = index
        elif node.inputs and node.inputs[0] in made and (taken := taken_elements(node.op)) is not None:
            own = made[node.inputs[0]]
            makers = {m for m in shown[node.inputs[0]] if m[0] != own or m[1] in taken}
        if not makers:
            continue
        shown[node] = makers
        last = last_use.get(node, index)
        for maker in makers:
            ends[maker] = max(ends.get(maker, index), last)
    return ends, shown


def _overwritten(
    node: Node, type: TensorType, places: Mapping[Value, list[int]], dead: list[int], shown: Mapping[Value, set[Tensor]]
) -> int | None:
    """The buffer of an operand in which a result of this type may lie, as nobody looks into it any more, nor does
    another operand show it; it is taken from `dead`."""
    if not (isinstance(node.op, Op) and node.op.in_place):
        return None
    allowed = node.op.in_place_of or range(len(node.inputs))
    for operand in (node.inputs[i] for i in allowed):
        others = (v for i, v in enumerate(node.inputs) if v is not operand or i not in allowed)
        if any(not shown[operand].isdisjoint(shown.get(other, ())) for other in others if operand in shown):
            continue
        if operand.type == type and operand in places and places[operand][0] in dead:
            dead.remove(places[operand][0])
            return places[operand][0]
    return None


def _size(type: TensorType) -> int:
    return type.size * type.dtype.itemsize


def _aligned(size: int) -> Array:
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size]


def _view(memory: Array, type: TensorType) -> Array:
    return memory[: _size(type)].view(type.dtype.numpy).reshape(type.shape)
