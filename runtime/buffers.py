"""Plan of the memory for results of kernels, made once: each large result gets memory that no live value shares, so
that a step requests no new pages from the operating system.

Input:  %0 = MatMul(%a, %b) [64, 64]; %1 = Tanh(%0) [64, 64]; %2 = MatMul(%1, %b) [64, 64]; returned is ReduceSum(%2).
Output: %0 and %1 share one buffer, as Tanh works in place; %2 has another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.analysis.aliasing import aliased_operands
from mspc.ir.diagnostics import ExecutionError, shown_bytes
from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, TupleType
from mspc.ops.control.structural import TupleGetItem, extracted_elements
from mspc.ops.op import Op
from mspc.runtime.arena import MemoryBlock, assign
from mspc.runtime.available_memory import REMEDY
from mspc.runtime.backend import NumPyBackend

_ALIGNMENT = 64
CALLER_PLACE = -1
"""In place of a buffer's number: the caller supplies the memory of the result."""
NEW_ARRAY = -2
"""In place of a buffer's number: every step allocates a new array for a result of the graph, because the caller may
still use the last one."""
_NONE: Mapping[Any, Any] = {}

Array = Any
Tensor = tuple[int, int]
"""Result of a node: (index of the node, element of its tuple or 0)."""


class RegionResultBuffer:
    """Memory of a region's result, supplied by the caller of the region.

    used: the node writes there; otherwise it allocates an array. out: set before every run.
    """

    def __init__(self) -> None:
        self.used = False
        self.out: Array = None


@dataclass(frozen=True)
class BufferPlan:
    """Memory of results.

    places: for nodes that write to buffers, and nodes that extract their tuple elements: the buffer number of each
    tensor, or `CALLER_PLACE` or `NEW_ARRAY`. sizes: of the buffers in bytes. offsets: of the buffers in the arena, in
    which buffers with disjoint live ranges share memory. nbytes: of the arena.
    """

    places: Mapping[Value, Sequence[int]]
    sizes: Sequence[int]
    offsets: Sequence[int]
    nbytes: int


def buffered_kernels(
    graph: Graph, backend: NumPyBackend, last_use: Mapping[Value, int], others: Container[int] = (),
    loops: Mapping[int, Callable[..., Array]] | None = None,
    handed: Mapping[tuple[Node, int], RegionResultBuffer] = _NONE,
) -> dict[int, Callable[..., Array]]:  # fmt: skip
    """Return the kernels that write to planned buffers, by node index. The other nodes, including those in `others`,
    allocate their results. loops: kernels with an `out` that replace the operators' own. handed: memory for results of
    the graph, by (node, number of the result)."""
    if backend.xp is not np:
        return {}
    into = kernels_into(graph.nodes, backend, others, loops or {})
    plan = plan_buffers(graph, into, last_use, handed)
    memory = _memory(plan)
    return {
        index: _writing(kernel, node, plan.places[node], memory, handed)
        for index, kernel in into.items()
        if (node := graph.nodes[index]) in plan.places
    }


def kernels_into(
    nodes: Sequence[Node], backend: NumPyBackend, others: Container[int], loops: Mapping[int, Callable[..., Array]]
) -> dict[int, Callable[..., Array]]:
    """Return the kernels that can write to a buffer; arguments as in `buffered_kernels`."""
    own = {i: loops.get(i) or _kernel_into(node, backend) for i, node in enumerate(nodes) if i not in others}
    return {i: kernel for i, kernel in own.items() if kernel is not None}


def plan_buffers(
    graph: Graph, into: Container[int], last_use: Mapping[Value, int], handed: Container[tuple[Node, int]] = ()
) -> BufferPlan:
    """Return a plan of buffers for the nodes at the indices `into`.

    A buffer is free once the last value that may alias it is dead: operators declare the operands that their results
    may alias. Memory that a result of the graph may alias is not planned.
    """
    nodes = graph.nodes
    into, ends, shown = _placed(nodes, into, last_use, handed)
    buffers: list[MemoryBlock] = []
    dying: dict[int, list[int]] = {}
    places: dict[Value, list[int]] = {}
    for index, node in enumerate(nodes):
        types = element_types(node.type)
        if index in into:
            dead = dying.get(index, [])
            places[node] = []
            for element, type in enumerate(types):
                if ends[index, element] == len(nodes):
                    places[node].append(CALLER_PLACE if (node, element) in handed else NEW_ARRAY)
                    continue
                taken = _overwritten(node, type, places, dead, shown)
                if taken is None:
                    taken = len(buffers)
                    buffers.append(MemoryBlock(_size(type), index))
                places[node].append(taken)
                buffers[taken].last = max(buffers[taken].last, ends[index, element])
                buffers[taken].free = buffers[taken].free_on_side = buffers[taken].last + 1
                dying.setdefault(ends[index, element], []).append(taken)
        elif isinstance(node.op, TupleGetItem) and node.inputs[0] in places:
            places[node] = [places[node.inputs[0]][node.op.index]]
    nbytes = assign(buffers, _ALIGNMENT)
    return BufferPlan(places, [each.nbytes for each in buffers], [each.offset for each in buffers], nbytes)


def _writing(
    kernel: Callable[..., Array], node: Node, places: Sequence[int], memory: Sequence[Array],
    handed: Mapping[tuple[Node, int], RegionResultBuffer],
) -> Callable[..., Array]:  # fmt: skip
    """Return the kernel bound to its buffers."""
    types = element_types(node.type)
    views = [None if b < 0 else _view(memory[b], t) for b, t in zip(places, types, strict=True)]
    several = isinstance(node.type, TupleType)
    if min(places) >= 0:
        return functools.partial(kernel, out=tuple(views) if several else views[0])
    holders = {element: handed[node, element] for element, place in enumerate(places) if place == CALLER_PLACE}
    for holder in holders.values():
        holder.used = True
    if not several:
        (holder,) = holders.values()
        return lambda *operands: kernel(*operands, out=holder.out)

    def write(*operands: Array) -> Array:
        out = tuple(
            view if view is not None else holders[i].out if i in holders else np.empty(type.shape, type.dtype.numpy)
            for i, (view, type) in enumerate(zip(views, types, strict=True))
        )
        return kernel(*operands, out=out)

    return write


def _memory(plan: BufferPlan) -> list[Array]:
    """Return the buffers in one arena. Raise ExecutionError, with the name of the largest result, if memory is
    insufficient."""
    try:
        arena = _aligned(plan.nbytes)
    except MemoryError:
        nodes = [value for value in plan.places if isinstance(value, Node)]
        node = max(nodes, key=lambda n: max(map(_size, element_types(n.type))))
        size = max(map(_size, element_types(node.type)))
        raise ExecutionError(
            f"out of memory: {node.label} needs {shown_bytes(size)} for its result {node.type}",
            notes=[f"results of other nodes that are planned: {shown_bytes(plan.nbytes - size)}", REMEDY],
            frames=node.frames, code="E0803",
        ) from None  # fmt: skip
    return [arena[at : at + size] for at, size in zip(plan.offsets, plan.sizes, strict=True)]


def _kernel_into(node: Node, backend: NumPyBackend) -> Callable[..., Array] | None:
    """Return the node's kernel with an `out` if all results and operands have one floating-point type of NumPy, or the
    operator takes any types; None for other nodes and for small results."""
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
    """Return (the nodes of `into` that get buffers, the results of `_last_reads` for them). A node gets none if all its
    results are results of the graph without memory from the caller: it runs its own kernel, which may return views of
    its operands, so that these stay live. If only some are, every step allocates arrays for them."""
    placed = {index for index in range(len(nodes)) if index in into}
    while True:
        ends, shown = _last_reads(nodes, placed, last_use)
        stays: dict[int, list[bool]] = {}
        for (index, element), end in ends.items():
            stays.setdefault(index, []).append(end == len(nodes) and (nodes[index], element) not in handed)
        staying = {index for index, elements in stays.items() if all(elements)}
        placed -= staying
        if not any(aliased_operands(nodes[index]) for index in staying if not nodes[index].regions):
            return placed, ends, shown


def _last_reads(
    nodes: Sequence[Node], into: Container[int], last_use: Mapping[Value, int]
) -> tuple[dict[Tensor, int], dict[Value, set[Tensor]]]:
    """Return (for every result of a node of `into`, the index of the last node that reads it or a value that may alias
    it; for every value, the results that it may alias)."""
    ends: dict[Tensor, int] = {}
    shown: dict[Value, set[Tensor]] = {}
    made: dict[Value, int] = {}
    taken = _element_reads(nodes, last_use)
    for index, node in enumerate(nodes):
        operands = aliased_operands(node) if index not in into or node.regions else ()
        makers = {maker for i in operands for maker in shown.get(node.inputs[i], ())}
        if index in into:  # a node with regions may get no buffer, and return its operands
            makers |= {(index, element) for element in range(len(element_types(node.type)))}
            made[node] = index
        elif node.inputs and node.inputs[0] in made and (elements := extracted_elements(node.op)) is not None:
            maker = made[node.inputs[0]]
            makers = {m for m in shown[node.inputs[0]] if m[0] != maker or m[1] in elements}
        if not makers:
            continue
        shown[node] = makers
        last = last_use.get(node, index)
        for maker in makers:
            own = taken.get(node, {}) if maker[0] == index else {}
            ends[maker] = max(ends.get(maker, index), own.get(maker[1], index) if own else last)
    return ends, shown


def _element_reads(nodes: Sequence[Node], last_use: Mapping[Value, int]) -> dict[Value, dict[int, int]]:
    """Return the last read of each element of tuples that are only read element by element. An unread element is dead
    at once, even if others are read later, such as the statistics of a normalization by its gradient."""
    found: dict[Value, dict[int, int]] = {}
    whole: set[Value] = set()
    for index, node in enumerate(nodes):
        elements = extracted_elements(node.op) if len(node.inputs) == 1 else None
        for value in node.inputs:
            if elements is None:
                whole.add(value)
            elif isinstance(value.type, TupleType):
                found.setdefault(value, {}).update(dict.fromkeys(elements, index))
    return {
        value: taken for value, taken in found.items()
        if value not in whole and last_use.get(value) == max(taken.values())
    }  # fmt: skip


def _overwritten(
    node: Node, type: TensorType, places: Mapping[Value, list[int]], dead: list[int], shown: Mapping[Value, set[Tensor]]
) -> int | None:
    """Remove from `dead` and return the buffer of an operand that a result of this type may overwrite, because nothing
    reads it later and no other operand aliases it; None if there is none."""
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
