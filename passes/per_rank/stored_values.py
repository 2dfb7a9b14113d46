"""Finds the tensors of a rank's graph that gradients read again: who makes them, shows their memory, and reads them.

They are results of forward nodes, and of calls of a stage's program what that has made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.control.regions import Call
from mspc.ops.control.structural import MakeTuple, TupleGetItem, TupleGetItems
from mspc.passes.per_rank.insertions import Insertions


class Reading(NamedTuple):
    """A node reads a tensor: its place, and which operand. element: of a tuple that is the operand; -1 of none."""

    place: int
    operand: int
    element: int = -1


@dataclass(frozen=True, eq=False)
class StoredValue:
    """A tensor that gradients read again. maker: the node that has made it, within what a call runs. made: the place of
    the node in the graph, taken: that of the value, which may be one of several results. shown: nodes whose results are
    its memory, itself and views. readers: by their places. back: from which of them on they read it again."""

    value: Node
    maker: Node
    made: int
    taken: int
    shown: tuple[Node, ...]
    readers: tuple[Reading, ...]
    back: int

    @property
    def is_called(self) -> bool:
        """Whether a call has made it."""
        own = self.value.inputs[0] if isinstance(self.value.op, TupleGetItem) else self.value
        return own is not self.maker

    @property
    def wanted(self) -> int:
        """The place of the first node that reads it again."""
        return self.readers[self.back].place


def take_apart_calls(graph: Graph) -> bool:
    """Let several results of a call that are handed on as a tuple be taken one by one, and put into one again; whether
    there are any."""
    if not any(isinstance(node.op, Call) for node in graph.nodes):
        return False
    insertions = Insertions(graph)
    items: dict[tuple[Value, int], Node] = {}
    taken: dict[Value, Value] = {}
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in places:
        if isinstance(node.op, TupleGetItem):
            items[node.inputs[0], node.op.index] = node
    for place, node in enumerate(graph.nodes):
        call = node.inputs[0] if isinstance(node.op, TupleGetItems) else None
        if not isinstance(call, Node) or not isinstance(call.op, Call) or call.phase != "forward":
            continue
        assert isinstance(node.op, TupleGetItems)
        parts: list[Value] = []
        for index in node.op.indices:
            item = items.get((call, index))
            if item is None or places.get(item, place) > place:
                op = TupleGetItem(index)
                item = insertions.put(place, op, [call], op.infer(call.type), node, "forward")  # type: ignore[arg-type]  # the call gives a tuple, as operators of structure take it
                items[call, index] = item
            parts.append(item)
        taken[node] = insertions.put(place, MakeTuple(), parts, node.type, node, "forward")
    insertions.apply()
    graph.nodes = [node for node in graph.nodes if node not in taken]
    graph.replace(taken)
    return bool(taken)


class StoredValues:
    """The tensors of a graph that gradients read again."""

    def __init__(self, graph: Graph) -> None:
        self._nodes, self._returned = graph.nodes, set(graph.results)
        self._made_inside: dict[Graph, list[Node | None]] = {}
        self._uses: dict[Value, list[Reading]] = {}
        self._place: dict[Value, int] = {}
        for place, node in enumerate(graph.nodes):
            self._place[node] = place
            for operand, value in enumerate(node.inputs):
                self._uses.setdefault(value, []).append(Reading(place, operand))

    def __iter__(self) -> Iterator[StoredValue]:
        """In run order."""
        for place, node in enumerate(self._nodes):
            if not isinstance(node.type, TensorType):
                continue
            made, index = (node.inputs[0], node.op.index) if isinstance(node.op, TupleGetItem) else (node, 0)
            maker = self._maker(made, index)
            if maker is None or (made is not node and self._is_taken_twice(made, index)):
                continue
            found = self._shown(node)
            if found is None or not self._returned.isdisjoint(found[0]):
                continue
            shown, readers = found
            back = next((i for i, r in enumerate(readers) if self._nodes[r.place].phase != "forward"), None)
            if back is not None:
                yield StoredValue(node, maker, self._place[made], place, shown, readers, back)

    def _maker(self, made: Value, index: int) -> Node | None:
        """The node that has made a new tensor, without a gap between rows; None where there is none, or where the
        tensor is another result, too."""
        if not isinstance(made, Node) or "row_pitch" in made.attrs or made.op.is_view or made.phase != "forward":
            return None
        if not made.regions:
            return None if made.op.mutates else made
        if not isinstance(made.op, Call):
            return None
        (region,) = made.regions
        if region not in self._made_inside:
            found = [_base(value) for value in region.results]
            times = Counter(found)
            self._made_inside[region] = [each[0] if each is not None and times[each] == 1 else None for each in found]
        return self._made_inside[region][index]

    def _is_taken_twice(self, made: Value, index: int) -> bool:
        """Whether a result of several is also taken by another node, or with others."""
        ops = [self._nodes[reading.place].op for reading in self._uses[made]]
        return made in self._returned or sum(not isinstance(op, TupleGetItem) or op.index == index for op in ops) > 1

    def _shown(self, value: Node) -> tuple[tuple[Node, ...], tuple[Reading, ...]] | None:
        """(the value and views of it, who reads them); None where views show more than it, but for tuples that nodes
        read as such."""
        shown, readers = [value], list[Reading]()
        for each in shown:
            for reading in self._uses.get(each, ()):
                node = self._nodes[reading.place]
                if isinstance(node.op, MakeTuple):
                    further = self._uses.get(node, ())
                    if node in self._returned or any(self._nodes[other.place].op.is_view for other in further):
                        return None
                    readers += [other._replace(element=reading.operand) for other in further]
                elif not node.op.is_view:
                    readers.append(reading)
                elif len(node.inputs) > 1 or not isinstance(node.type, TensorType):
                    return None
                else:
                    shown.append(node)
        return tuple(shown), tuple(sorted(readers))


def _base(value: Value) -> tuple[Node, int] | None:
    """The node that has made what a result shows, and which of its results that is."""
    index = 0
    while isinstance(value, Node) and value.op.is_view and len(value.inputs) == 1:
        index = value.op.index if isinstance(value.op, TupleGetItem) else 0
        value = value.inputs[0]
    if not isinstance(value, Node) or value.op.is_view or value.op.mutates or value.regions:
        return None
    return (value, index) if value.phase == "forward" else None
