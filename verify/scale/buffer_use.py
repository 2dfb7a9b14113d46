"""Whether what values share on a CPU, where results lie in planned buffers, is overwritten while it is read.

Input is a graph and the buffers of its results. Nodes are gone through in their order, with what each buffer holds:
what a node reads, or what it reads may be a view of, has to be there still, and a result may lie over an operand only
where the operator says that it works in place. Nothing that a step hands out may lie where the next one writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mspc.analysis.aliasing import aliased_operands
from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ops.control.regions import MakeStack
from mspc.ops.control.structural import MakeTuple, TupleGetItem, taken_elements
from mspc.ops.op import Op
from mspc.runtime.buffers import BufferPlan
from mspc.verify.scale.memory_use import Misuse

Content = tuple[Node, int]
"""A tensor that lies in a buffer: the node that makes it, and its number in what that makes."""


_NOTHING: set[Content] = set()


class _Walk:
    """The nodes of a graph, one after the other."""

    def __init__(self, graph: Graph, plan: BufferPlan) -> None:
        self.graph, self.plan = graph, plan
        self.held: dict[int, Content] = {}
        self._sharing: dict[int, list[int]] = {}
        self.lost: dict[Content, Node] = {}
        """What has been overwritten, and by which node."""
        self.shown: dict[Value, list[set[Content]]] = {}
        """By value for each of its tensors what it may be a view of."""
        self.all: dict[Value, set[Content]] = {}
        """The same of all its tensors."""

    def misuses(self) -> Iterator[Misuse]:
        for node in self.graph.nodes:
            if not node.op.is_view:
                yield from self._reads(node)
            if self._writes(node):
                yield from self._makes(node)
            self._show(node, self._views(node))
        for value in self.graph.results:
            for content in self._of(value):
                if self._buffer(content) >= 0:
                    yield Misuse(content[0], "a result of the step lies in a buffer that the next step overwrites")

    def _shares(self, buffer: int) -> list[int]:
        """The buffers with a byte of this one, itself among them."""
        if buffer not in self._sharing:
            begin, size = self.plan.offsets[buffer], self.plan.sizes[buffer]
            self._sharing[buffer] = [
                other for other, (at, count) in enumerate(zip(self.plan.offsets, self.plan.sizes, strict=True))
                if other == buffer or (at < begin + size and begin < at + count)
            ]  # fmt: skip
        return self._sharing[buffer]

    def _writes(self, node: Node) -> bool:
        return node in self.plan.places and not isinstance(node.op, TupleGetItem)

    def _show(self, node: Node, views: list[set[Content]]) -> None:
        found = set[Content]().union(*views)
        if found:
            self.shown[node], self.all[node] = views, found

    def _of(self, value: Value) -> set[Content]:
        return self.all.get(value, _NOTHING)

    def _tensors(self, value: Value) -> list[set[Content]]:
        return self.shown.get(value) or [set() for _ in element_types(value.type)]

    def _buffer(self, content: Content) -> int:
        node, number = content
        return self.plan.places[node][number]

    def _views(self, node: Node) -> list[set[Content]]:
        """What the tensors of a node's result may be views of."""
        taken = taken_elements(node.op)
        if taken is not None:
            whole = self.shown.get(node.inputs[0], [])
            return [whole[i] for i in taken] if whole else []
        if isinstance(node.op, MakeTuple | MakeStack):
            return [part for value in node.inputs for part in self._tensors(value)]
        writes = self._writes(node)
        operands = aliased_operands(node) if node.regions or not writes else ()
        seen = set[Content]().union(*(self._of(node.inputs[i]) for i in operands))
        numbers = range(len(element_types(node.type)))
        if not writes:
            return [seen for _ in numbers]
        return [{(node, number), *seen} for number in numbers]

    def _reads(self, node: Node) -> Iterator[Misuse]:
        for value in node.inputs:
            found = self._of(value)
            if not self.lost.keys().isdisjoint(found):
                made, other = next((content[0], by) for content, by in self.lost.items() if content in found)
                yield Misuse(node, f"the result of {made.label} is overwritten before it is read", other)
                return

    def _makes(self, node: Node) -> Iterator[Misuse]:
        places = self.plan.places[node]
        own = [buffer for buffer in places if buffer >= 0]
        if sum(other in own for buffer in own for other in self._shares(buffer)) > len(own) or len(set(own)) < len(own):
            yield Misuse(node, "two of its results lie in one buffer")
        over = {self.held[each] for buffer in own for each in self._shares(buffer) if each in self.held}
        reading: dict[Content, list[int]] = {}
        for operand, value in enumerate(node.inputs) if over else ():
            for content in over & self._of(value):
                reading.setdefault(content, []).append(operand)
        for number, (buffer, type) in enumerate(zip(places, element_types(node.type), strict=True)):
            if buffer < 0:
                continue
            if self.plan.sizes[buffer] < type.nbytes:
                yield Misuse(node, "its result is larger than the buffer in which it lies")
            for each in self._shares(buffer):
                before = self.held.pop(each, None)
                in_place = each == buffer and self._may_lie_over(node, type, before, reading.get(before, ()))
                if before in reading and not in_place:
                    yield Misuse(node, "a result lies over what it is computed of", before[0])
                if before is not None:
                    self.lost[before] = node
            self.held[buffer] = node, number

    def _may_lie_over(self, node: Node, type: object, content: Content | None, reading: Sequence[int]) -> bool:
        """Whether a result may lie where this is, which some operands show: the operator works in place of them."""
        op = node.op
        allowed: Sequence[int] = getattr(op, "in_place_of", ()) or range(len(node.inputs))
        return (
            content is not None
            and isinstance(op, Op)
            and op.in_place
            and all(i in allowed and node.inputs[i].type == type and self._is(node.inputs[i], content) for i in reading)
        )

    def _is(self, value: Value, content: Content) -> bool:
        """Whether a value is this tensor, and no view of it."""
        node, number = content
        if isinstance(value, Node) and isinstance(value.op, TupleGetItem):
            return value.inputs[0] is node and value.op.index == number
        return value is node and not number


def buffer_misuses(graph: Graph, plan: BufferPlan) -> Iterator[Misuse]:
    """What is wrong with the buffers of a graph."""
    return _Walk(graph, plan).misuses()
