"""Checks whether a memory plan lets values share bytes that are overwritten while they are read: byte by byte, stream
by stream.

Input is a rank's program and its plan: the places of all values, and who waits for whom. Nodes are visited in their
order. The operands of a node must still be in place, and their writers must be over; the bytes that it writes must be
free, and all earlier readers and writers of them must be over, on any stream.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from mspc.analysis.aliasing import aliased_operands
from mspc.ir.graph import Graph, Node, Parameter, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.control.regions import MakeStack
from mspc.ops.control.structural import MakeTuple, TupleGetItem, extracted_elements
from mspc.ops.cpu.loops.program import has_loop
from mspc.ops.op import Op
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.buffers import BufferPlan, kernels_into, plan_buffers
from mspc.runtime.comm.agreement import arrival_kernels
from mspc.runtime.compiled_loops import is_worth_compiling, large_calls
from mspc.runtime.memory import (
    Allocation,
    MemoryPlan,
    is_awaited,
    is_received,
    is_sent,
    read_elsewhere,
    side_stream,
    updated_operands,
)
from mspc.runtime.memory_plan import device_bytes_inside, plan_memory
from mspc.runtime.plan import lifetimes
from mspc.runtime.regions.region import is_planned, placeable_results
from mspc.verify.scale.rank_kinds import RankKind

# Bytes of an arena: whose they are at a moment, who wrote them, and who has read them since.


Access = tuple[int, str]
"""The place of a node in its program, and its stream."""


@dataclass
class OwnedBytes:
    """Bytes from `begin` to `end` that hold `owner`. readers: by stream the last that reads them."""

    begin: int
    end: int
    owner: Hashable
    writer: Access
    readers: dict[str, int] = field(default_factory=dict[str, int])

    def accesses(self) -> Iterator[Access]:
        """Yield the last access of each stream."""
        yield self.writer
        for stream, index in self.readers.items():
            yield index, stream


class Occupancy:
    """The pieces of memory with their owners, by their begins."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._pieces: list[OwnedBytes] = []

    def over(self, begin: int, end: int) -> list[OwnedBytes]:
        """Return the pieces that have some of these bytes."""
        first = max(bisect_right(self._begins, begin) - 1, 0)
        return [p for p in self._pieces[first : bisect_left(self._begins, end)] if p.begin < end and begin < p.end]

    def write(self, begin: int, end: int, owner: Hashable, writer: Access) -> None:
        """Give these bytes a new owner; the rest of pieces that they were of stays."""
        if begin >= end:
            return
        first = max(bisect_right(self._begins, begin) - 1, 0)
        last = bisect_left(self._begins, end)
        if first < last and self._pieces[first].end <= begin:
            first += 1
        left: list[OwnedBytes] = []
        for piece in self._pieces[first:last]:
            if piece.begin < begin:
                left.append(OwnedBytes(piece.begin, begin, piece.owner, piece.writer, dict(piece.readers)))
            if piece.end > end:
                left.append(OwnedBytes(end, piece.end, piece.owner, piece.writer, dict(piece.readers)))
        made = sorted([*left, OwnedBytes(begin, end, owner, writer)], key=lambda piece: piece.begin)
        self._pieces[first:last] = made
        self._begins[first:last] = [piece.begin for piece in made]


# Clocks of streams say which nodes are over when a node starts.
#
# `runtime/memory_plan.py` defines the streams. Only the waits are taken from it: a stream runs its nodes in their
# order, nodes of a side stream start after all earlier nodes of the main stream, and a node that waits for another
# knows all that this one knew.


Clock = dict[str, int]
MAIN = ""


class Clocks:
    """The clocks of all streams, as a program's nodes start one after the other."""

    def __init__(self, nodes: Sequence[Node], waits: Mapping[Node, tuple[Node, ...]]) -> None:
        self._place = {node: index for index, node in enumerate(nodes)}
        self._waits = waits
        self._signals = {other for others in waits.values() for other in others}
        self._at: dict[str, Clock] = {MAIN: {}}
        self._ends: dict[Node, tuple[str, Clock]] = {}

    def start(self, index: int, node: Node) -> tuple[str, list[Node]]:
        """Return (the stream of a node that starts now, nodes that it waits for though they come later)."""
        stream = side_stream(node)
        clock = self._at.setdefault(stream, {})
        if stream != MAIN:
            _join(clock, self._at[MAIN])
        late: list[Node] = []
        for other in self._waits.get(node, ()):
            if self._place.get(other, index) >= index:
                late.append(other)
            elif other in self._ends:
                _join(clock, self._ends[other][1])
        return stream, late

    def is_over(self, access: tuple[int, str], stream: str) -> bool:
        """Return whether the access at that place of that stream is over for the node that starts now on this one."""
        index, other = access
        return index < 0 or other == stream or self._at[stream].get(other, -1) >= index

    def end(self, index: int, node: Node) -> None:
        """Note the node as the last one of its stream."""
        stream = side_stream(node)
        clock = self._at[stream]
        clock[stream] = index
        if node in self._signals:
            self._ends[node] = stream, dict(clock)


def _join(clock: Clock, other: Clock) -> None:
    for stream, index in other.items():
        if clock.get(stream, -1) < index:
            clock[stream] = index


BEGIN = (-1, "")
"""The writer of all bytes that are there when a step begins."""


@dataclass(frozen=True)
class Misuse:
    """A misuse of memory at a node. other: the node that has overwritten its operand, or reads the bytes that it
    overwrites."""

    node: Node
    why: str
    other: Node | None = None


@dataclass(frozen=True)
class _Content:
    """A tensor as a program knows it: which result of which node, or a parameter after so many updates."""

    of: Value
    number: int = 0


class MemoryCheck:
    """A check of the memory of a program, node by node. early: messages of other stages may come at any time of a
    step."""

    def __init__(self, graph: Graph, plan: MemoryPlan, early: bool) -> None:
        self.graph, self.plan, self.early = graph, plan, early
        self.clocks = Clocks(graph.nodes, plan.waits)
        self.arena = Occupancy()
        self.host = Occupancy()
        self.parameter_bytes: dict[Value, Occupancy] = {}
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
        """Return whether it is launched."""
        return node in self.plan.copied or not node.op.is_view

    def _stands_at_begin(self, node: Node) -> None:
        """Enter the values from before all nodes: copies of parameters, and messages of other stages, which come at any
        time."""
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
        """Return the contents of a node that only hands tensors on."""
        taken = extracted_elements(node.op)
        if taken is not None:
            whole = self._content(node.inputs[0])
            return tuple(whole[i] for i in taken)
        if isinstance(node.op, MakeTuple | MakeStack):
            return tuple(content for value in node.inputs for content in self._content(value))
        return self._content(node.inputs[0])

    def _bytes(self, place: Allocation) -> Occupancy:
        if place.kind in ("arena", "host"):
            return self.arena if place.kind == "arena" else self.host
        assert place.value is not None
        if place.value not in self.parameter_bytes:
            held = self.parameter_bytes[place.value] = Occupancy()
            held.write(0, place.value.type.nbytes, _Content(place.value), BEGIN)
        return self.parameter_bytes[place.value]

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

    def _read(self, index: int, node: Node, stream: str, place: Allocation, content: _Content) -> Iterator[Misuse]:
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
        """Check the workspace of a node, and the gaps of a block that is reduced as one."""
        for name, places in (("inside", self.plan.inside), ("gap", self.plan.buckets)):
            place = places.get(node)
            if place is None:
                continue
            own = [_extent(p) for value in node.inputs for p in self.plan.places[value]] if name == "gap" else []
            for begin, end in _without(_extent(place), own):
                yield from self._write(index, node, stream, place, begin, end, (name, node))

    def _overwrites(self, index: int, node: Node, stream: str) -> Iterator[Misuse]:
        """Check the values that the node updates, and copies of them."""
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
                yield from self._write(index, node, stream, place, *_extent(place), _Content(copy, 1))

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
            where = (place.kind, place.value, place.offset, place.nbytes)  # an empty one has the place of the next one
            if where in done:  # a result that is another one, too
                contents = (*contents[:number], contents[done[where]], *contents[number + 1 :])
                continue
            done[where] = number
            yield from self._in_place(node, place)
            yield from self._write(index, node, stream, place, *_extent(place), content)
        self.contents[node] = contents

    def _in_place(self, node: Node, place: Allocation) -> Iterator[Misuse]:
        """A result may overlap an operand only if the operator works in place."""
        apart = {p for value in read_elsewhere(node) for p in self.plan.places[value]}
        for value in node.inputs:
            for read in self.plan.places[value]:
                if read.kind != place.kind or read.value is not place.value or not _overlap(read, place):
                    continue
                works = getattr(node.op, "in_place", False) or isinstance(node.op, AllReduce) or bool(node.regions)
                if node in self.plan.copied or not works or read.offset != place.offset or read in apart:
                    yield Misuse(node, "a result overwrites its own operand")
                    return

    def _write(
        self, index: int, node: Node, stream: str, place: Allocation, begin: int, end: int, content: Hashable
    ) -> Iterator[Misuse]:
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


# Values share buffers on a CPU, too, and must not be overwritten while they are read.
#
# Input is a graph and the buffers of its results. Nodes are visited in their order, with the contents of each buffer:
# the operands of a node, and values that they may be views of, must still be in place, and a result may overlap an
# operand only if the operator works in place. The next step must not write to a buffer that a step hands out.


Content = tuple[Node, int]
"""A tensor in a buffer: the node that makes it, and its number in the node's result."""


_NOTHING: set[Content] = set()


class BufferCheck:
    """A check of the buffers of a graph, node by node."""

    def __init__(self, graph: Graph, plan: BufferPlan) -> None:
        self.graph, self.plan = graph, plan
        self.owners: dict[int, Content] = {}
        self._begins = np.array(plan.offsets, np.int64)
        self._ends = self._begins + np.array(plan.sizes, np.int64)
        self._sharing: dict[int, list[int]] = {}
        self.lost: dict[Content, Node] = {}
        """Contents that have been overwritten, and by which node."""
        self.views: dict[Value, list[set[Content]]] = {}
        """By value for each of its tensors the contents that it may be a view of."""
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
                if self.plan.places[content[0]][content[1]] >= 0:
                    yield Misuse(content[0], "a result of the step is in a buffer that the next step overwrites")

    def _shares(self, buffer: int) -> list[int]:
        """Return the buffers with a byte of this one, itself among them."""
        if buffer not in self._sharing:
            begin, end = self._begins[buffer], self._ends[buffer]
            shared = (self._begins < end) & (begin < self._ends)
            shared[buffer] = True
            self._sharing[buffer] = np.flatnonzero(shared).tolist()
        return self._sharing[buffer]

    def _writes(self, node: Node) -> bool:
        return node in self.plan.places and not isinstance(node.op, TupleGetItem)

    def _show(self, node: Node, views: list[set[Content]]) -> None:
        found = set[Content]().union(*views)
        if found:
            self.views[node], self.all[node] = views, found

    def _of(self, value: Value) -> set[Content]:
        return self.all.get(value, _NOTHING)

    def _tensors(self, value: Value) -> list[set[Content]]:
        return self.views.get(value) or [set() for _ in element_types(value.type)]

    def _views(self, node: Node) -> list[set[Content]]:
        taken = extracted_elements(node.op)
        if taken is not None:
            whole = self.views.get(node.inputs[0], [])
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
        over = {self.owners[each] for buffer in own for each in self._shares(buffer) if each in self.owners}
        reading: dict[Content, list[int]] = {}
        for operand, value in enumerate(node.inputs) if over else ():
            for content in over & self._of(value):
                reading.setdefault(content, []).append(operand)
        for number, (buffer, type) in enumerate(zip(places, element_types(node.type), strict=True)):
            if buffer < 0:
                continue
            if self.plan.sizes[buffer] < type.nbytes:
                yield Misuse(node, "its result is larger than its buffer")
            for each in self._shares(buffer):
                before = self.owners.pop(each, None)
                in_place = each == buffer and self._may_lie_over(node, type, before, reading.get(before, ()))
                if before in reading and not in_place:
                    yield Misuse(node, "a result overwrites its own operand", before[0])
                if before is not None:
                    self.lost[before] = node
            self.owners[buffer] = node, number

    def _may_lie_over(self, node: Node, type: object, content: Content | None, reading: Sequence[int]) -> bool:
        """Return whether a result may overlap a content that some operands show: the operator works in place of
        them."""
        op = node.op
        allowed: Sequence[int] = getattr(op, "in_place_of", ()) or range(len(node.inputs))
        return (
            content is not None
            and isinstance(op, Op)
            and op.in_place
            and all(i in allowed and node.inputs[i].type == type and self._is(node.inputs[i], content) for i in reading)
        )

    def _is(self, value: Value, content: Content) -> bool:
        node, number = content
        if isinstance(value, Node) and isinstance(value.op, TupleGetItem):
            return value.inputs[0] is node and value.op.index == number
        return value is node and not number


def buffer_plan(graph: Graph, compiles: bool, is_region: bool = False) -> BufferPlan:
    """Plan the buffers of a graph as the executor does. compiles: with a compiler, the program compiles its loops.
    is_region: it is run by a node of another one."""
    backend = NumPyBackend(OneRank())
    handed = {*placeable_results(graph).values()} if is_region else set[tuple[Node, int]]()
    calls = large_calls(graph) if compiles else {}
    loops = {i: _has_loop(op, tuple(operands), tuple(results)) for i, (op, operands, results) in calls.items()}
    updates = {i for i, (_, is_update) in loops.items() if is_update}
    planned = [i for i, node in enumerate(graph.nodes) if node.regions and is_planned(node, backend)]
    made = dict.fromkeys([*(i for i, (is_loop, _) in loops.items() if is_loop), *planned], _none)
    others = {*arrival_kernels(graph, backend), *updates}
    return plan_buffers(graph, kernels_into(graph.nodes, backend, others, made), lifetimes(graph).last_use, handed)


def _none(*operands: Any, **named: Any) -> Any:
    """Stand in for a kernel that is never called: only its presence counts."""
    raise NotImplementedError


@lru_cache(maxsize=4096)
def _has_loop(op: Op, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> tuple[bool, bool]:
    return has_loop(NumPyBackend(OneRank()), (op, operands, results))


# The memory of the programs of all kinds of ranks, as it is planned for GPUs and for CPUs, and that of the graphs that
# they run.


MAX_REPORTED = 8
"""The most misuses of a kind that are reported."""


@dataclass(frozen=True)
class MemoryFound:
    """The result of a check. arenas: bytes that values share, of every kind. values: how many have a place there.
    misuses: with their kinds."""

    arenas: tuple[int, ...]
    values: int
    misuses: tuple[tuple[RankKind, Misuse], ...]


def memory_of_kinds(kinds: Sequence[RankKind]) -> MemoryFound:
    """Plan the memory of every kind at real sizes as a GPU's step does, and as the executor on CPUs does, and look at
    every access of it.

    Sizes are all that a plan knows of a program, and they are equal for ranks of one kind.
    """
    arenas: list[int] = []
    values = 0
    misuses: list[tuple[RankKind, Misuse]] = []
    for kind in kinds:
        compiles = is_worth_compiling(kind.graph, NumPyBackend(OneRank()))
        for number, graph in enumerate(kind.graph.graphs()):
            plan = plan_memory(graph, inside=device_bytes_inside, early=not number)
            found = list(islice(MemoryCheck(graph, plan, early=not number).misuses(), MAX_REPORTED))
            buffers = buffer_plan(graph, compiles, is_region=number > 0)
            found += islice(BufferCheck(graph, buffers).misuses(), MAX_REPORTED)
            misuses += [(kind, misuse) for misuse in found]
            values += sum(any(p.kind == "arena" for p in places) for places in plan.places.values())
            if not number:
                arenas.append(plan.arena)
    return MemoryFound(tuple(arenas), values, tuple(misuses))
