"""Whether what a plan of memory lets values share is overwritten while it is read: byte by byte, stream by stream.

Input is a rank's program and the plan that would be run: the places of all values, and who waits for whom. Nodes are
gone through in their order. What a node reads has to be there still, and who made it has to be over; what it writes has
to be nobody's any more, and who has read or written those bytes before has to be over, whatever stream that runs on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.regions import MakeStack
from mspc.ops.control.structural import MakeTuple, taken_elements
from mspc.runtime.memory import (
    Allocation,
    MemoryPlan,
    is_awaited,
    is_received,
    is_sent,
    read_elsewhere,
    updated_operands,
)
from mspc.verify.scale.held_bytes import HeldBytes, OwnedBytes
from mspc.verify.scale.stream_clocks import Clocks

BEGIN = (-1, "")
"""Who has written what is there when a step begins."""


@dataclass(frozen=True)
class Misuse:
    """What is wrong at a node. other: who has overwritten what it reads, or reads what it overwrites."""

    node: Node
    why: str
    other: Node | None = None


@dataclass(frozen=True)
class _Content:
    """A tensor as a program knows it: which result of which node, or a parameter after so many updates."""

    of: Value
    number: int = 0


class _Walk:
    """A program's nodes, one after the other."""

    def __init__(self, graph: Graph, plan: MemoryPlan, early: bool) -> None:
        self.graph, self.plan, self.early = graph, plan, early
        self.clocks = Clocks(graph.nodes, plan.waits)
        self.arena = HeldBytes()
        self.host = HeldBytes()
        self.kept: dict[Value, HeldBytes] = {}
        self.updates: dict[Value, int] = {}
        self.contents: dict[Value, tuple[_Content, ...]] = {}
        self.ahead = plan.shadow_weights.nodes()
        self.copies = {
            (piece.update, piece.operand): node
            for node, pieces in plan.shadow_weights.copies.items()
            for piece in pieces
        }

    def misuses(self) -> Iterator[Misuse]:
        nodes = self.graph.nodes
        for node in nodes:
            if node in self.ahead or (self.early and is_received(node)):
                self._stands_at_begin(node)
        for index, node in enumerate(nodes):
            if node in self.ahead:
                continue
            if not self.runs(node):
                self.contents[node] = self._shown(node)
                continue
            yield from self._run(index, node)
        yield from self._results()

    def runs(self, node: Node) -> bool:
        """Whether it is launched."""
        return node in self.plan.copied or not node.op.is_view

    def _stands_at_begin(self, node: Node) -> None:
        """What is there ahead of all nodes: copies of parameters, and what other stages send at any time."""
        self.contents[node] = tuple(_Content(node, k) for k in range(len(self.plan.places[node])))
        if node in self.plan.shadow_weights.inner:
            return
        for place, content in zip(self.plan.places[node], self.contents[node], strict=True):
            self._bytes(place).write(*_extent(place), content, BEGIN)

    def _content(self, value: Value) -> tuple[_Content, ...]:
        if isinstance(value, Node):
            return self.contents[value]
        return (_Content(value, self.updates.get(value, 0)),)

    def _shown(self, node: Node) -> tuple[_Content, ...]:
        """What a node shows that only hands tensors on."""
        taken = taken_elements(node.op)
        if taken is not None:
            whole = self._content(node.inputs[0])
            return tuple(whole[i] for i in taken)
        if isinstance(node.op, MakeTuple | MakeStack):
            return tuple(content for value in node.inputs for content in self._content(value))
        return self._content(node.inputs[0])

    def _bytes(self, place: Allocation) -> HeldBytes:
        if place.kind in ("arena", "host"):
            return self.arena if place.kind == "arena" else self.host
        assert place.value is not None
        if place.value not in self.kept:
            held = self.kept[place.value] = HeldBytes()
            held.write(0, place.value.type.nbytes, _Content(place.value), BEGIN)
        return self.kept[place.value]

    # A node

    def _run(self, index: int, node: Node) -> Iterator[Misuse]:
        stream, late = self.clocks.start(index, node)
        for other in late:
            yield Misuse(node, f"it waits for {other.label}, which comes later", other)
        for value in node.inputs:
            for place, content in zip(self.plan.places[value], self._content(value), strict=True):
                yield from self._read(index, node, stream, place, content)
        yield from self._room(index, node, stream)
        yield from self._overwrites(index, node, stream)
        if is_sent(node) or is_awaited(node):
            self.contents[node] = self._content(node.inputs[0])
        else:
            yield from self._makes(index, node, stream)
        self.clocks.end(index, node)

    def _read(
        self, index: int, node: Node, stream: str, place: Allocation, content: _Content
    ) -> Iterator[Misuse]:
        begin, end = _extent(place)
        reached = begin
        for piece in self._bytes(place).over(begin, end):
            if piece.begin > reached:
                break
            reached = piece.end
            if piece.owner != content:
                yield Misuse(node, f"{_named(content)} is overwritten before it is read", self._node(piece))
                return
            if not self.clocks.is_over(piece.writer, stream):
                yield Misuse(node, f"{_named(content)} may not be there yet when it is read", self._node(piece))
                return
            piece.readers[stream] = index
        if reached < end:
            yield Misuse(node, f"{_named(content)} is not where it is read")

    def _node(self, piece: OwnedBytes) -> Node | None:
        index, _ = piece.writer
        return self.graph.nodes[index] if index >= 0 else None

    def _room(self, index: int, node: Node, stream: str) -> Iterator[Misuse]:
        """What a node takes while it runs, and the gaps of a block that is reduced as one."""
        for name, places in (("inside", self.plan.inside), ("gap", self.plan.buckets)):
            place = places.get(node)
            if place is None:
                continue
            own = [_extent(p) for value in node.inputs for p in self.plan.places[value]] if name == "gap" else []
            for begin, end in _without(_extent(place), own):
                yield from self._write(index, node, stream, place, begin, end, (name, node))

    def _overwrites(self, index: int, node: Node, stream: str) -> Iterator[Misuse]:
        """New values of what a node updates, and of copies of it."""
        written = dict.fromkeys(node.inputs[i] for i in node.op.mutates)
        for value in written:
            for place, content in zip(self.plan.places[value], self._content(value), strict=True):
                self.updates[content.of] = self.updates.get(content.of, 0) + 1
                new = _Content(content.of, self.updates[content.of])
                yield from self._write(index, node, stream, place, *_extent(place), new)
            if isinstance(value, Node):
                self.contents[value] = tuple(_Content(c.of, self.updates[c.of]) for c in self.contents[value])
        for operand in node.op.mutates:
            copy = self.copies.get((node, operand))
            if copy is not None:
                (place,) = self.plan.places[copy]
                new = _Content(copy, 1)
                yield from self._write(index, node, stream, place, *_extent(place), new, (copy, new))

    def _makes(self, index: int, node: Node, stream: str) -> Iterator[Misuse]:
        places = self.plan.places[node]
        operands = updated_operands(node)
        if operands and node not in self.plan.copied:
            self.contents[node] = tuple(self._content(node.inputs[i])[0] for i in operands)
            return
        contents = self.contents[node] = tuple(_Content(node, k) for k in range(len(places)))
        if self.early and is_received(node):
            return
        done: dict[tuple[str, Value | None, int, int], int] = {}
        for number, (place, content) in enumerate(zip(places, contents, strict=True)):
            where = (place.kind, place.value, place.offset, place.nbytes)  # an empty one lies where the next one does
            if where in done:  # a result that is another one, too
                contents = (*contents[:number], contents[done[where]], *contents[number + 1 :])
                continue
            done[where] = number
            yield from self._in_place(node, place)
            yield from self._write(index, node, stream, place, *_extent(place), content)
        self.contents[node] = contents

    def _in_place(self, node: Node, place: Allocation) -> Iterator[Misuse]:
        """A result may lie over what the node reads only where the operator says that it works in place."""
        apart = {p for value in read_elsewhere(node) for p in self.plan.places[value]}
        for value in node.inputs:
            for read in self.plan.places[value]:
                if read.kind != place.kind or read.value is not place.value or not _overlap(read, place):
                    continue
                works = getattr(node.op, "in_place", False) or isinstance(node.op, AllReduce) or bool(node.regions)
                if node in self.plan.copied or not works or read.offset != place.offset or read in apart:
                    yield Misuse(node, "a result lies over what it is computed of")
                    return

    def _write(
        self, index: int, node: Node, stream: str, place: Allocation, begin: int, end: int, content: Hashable,
        instead: object = None,
    ) -> Iterator[Misuse]:  # fmt: skip
        held = self._bytes(place)
        for piece in held.over(begin, end):
            for access in piece.accesses():
                if access[0] != index and not self.clocks.is_over(access, stream):
                    other = self.graph.nodes[access[0]]
                    verb = "writes" if access == piece.writer else "reads"
                    yield Misuse(node, f"it overwrites what {other.label} {verb}, which may run still", other)
                    break
        held.write(begin, end, content, (index, stream))

    # The end

    def _results(self) -> Iterator[Misuse]:
        """Results are there when the step is over."""
        for value in self.graph.results:
            if isinstance(value, Node):
                for place, content in zip(self.plan.places[value], self.contents[value], strict=True):
                    for piece in self._bytes(place).over(*_extent(place)):
                        if piece.owner != content:
                            yield Misuse(value, "a result is overwritten before the step ends", self._node(piece))
                            break


def _extent(place: Allocation) -> tuple[int, int]:
    return place.offset, place.offset + place.nbytes


def _overlap(one: Allocation, other: Allocation) -> bool:
    return one.offset < other.offset + other.nbytes and other.offset < one.offset + one.nbytes


def _without(whole: tuple[int, int], parts: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    begin, end = whole
    for first, last in sorted(parts):
        if begin < first:
            yield begin, first
        begin = max(begin, last)
    if begin < end:
        yield begin, end


def _named(content: _Content) -> str:
    if isinstance(content.of, Node):
        return f"the result of {content.of.label}"
    return f"parameter {content.of.name}" if isinstance(content.of, Parameter) else "a constant"


def memory_misuses(graph: Graph, plan: MemoryPlan, early: bool) -> Iterator[Misuse]:
    """What is wrong with the memory of a program. early: what other stages send may come at any time of a step."""
    return _Walk(graph, plan, early).misuses()
