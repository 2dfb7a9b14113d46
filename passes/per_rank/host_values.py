"""What gradients read of marked cells waits for them on the host.

A value leaves right behind the node that makes it. Its memory is free once the copy is over, at a place where by the
rates of a machine that is so, or as many operators later as the script says; in the same way it is fetched. What would
be wanted back before it has left stays.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from mspc.analysis.cost.known_machines import H200
from mspc.analysis.cost.nodes import seconds
from mspc.analysis.cost.timeline import Timeline
from mspc.ir.copies import copied_node
from mspc.ir.graph import FROM_HOST, OFFLOAD, TO_HOST, Graph, Node, Value
from mspc.ops.tensor.host_memory import AwaitHost, FromHost, ToHost
from mspc.passes.per_rank.host_marks import AUTO, distance, mark_of, marked_cells
from mspc.passes.per_rank.insertions import Insertions
from mspc.passes.per_rank.stored_values import StoredValue, StoredValues, take_apart_calls

ONE_HOST = replace(H200, ranks_per_host=0)
"""What times are reckoned for, so that all ranks of a kind have equal programs."""


def keep_values(graph: Graph) -> bool:
    """Insert the copies of what a graph's cells keep on the host."""
    cells: dict[str, object] = {}
    for each in graph.graphs():
        cells |= marked_cells(each)
    if not cells and not any(OFFLOAD in node.attrs for each in graph.graphs() for node in each.nodes):
        return False
    apart = take_apart_calls(graph)
    chosen = [(each, _distance(each, mark)) for each in StoredValues(graph) if (mark := mark_of(each.maker, cells))]
    if not chosen:
        return apart
    times = _Times(graph)
    left, fetched = times.left(chosen), times.fetched(chosen)
    copies = _Copies(graph)
    for each, _ in chosen:
        if left[each] < fetched[each]:
            copies.keep(each, left[each], fetched[each])
    return copies.apply() or apart


def _distance(each: StoredValue, mark: object) -> int:
    """Operators between a copy and who waits for it. What a call makes is fetched by times: calls are no operators."""
    return AUTO if each.is_called else distance(mark)


class _Copies:
    """The copies of values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._insertions = graph, Insertions(graph)
        self._tuples: dict[tuple[int, int], dict[int, Node]] = {}
        self._count = 0

    def keep(self, each: StoredValue, free: int, begin: int) -> None:
        """Let a value leave, whose memory is free ahead of one place, and whoever reads it again read what has come
        back from another place on."""
        insertions, nodes, value, type = self._insertions, self._graph.nodes, each.value, each.value.type
        self._count += 1
        host = insertions.put(each.taken + 1, ToHost(), [value], type, each.maker, "forward", TO_HOST)
        host = insertions.put(free, AwaitHost(), [host], type, each.maker, "forward")
        again: dict[Value, Node] = {}
        again[value] = insertions.put(begin, FromHost(), [host], type, nodes[each.wanted], "backward", FROM_HOST)
        for place, operand, element in each.readers[each.back :]:
            read = nodes[place].inputs[operand]
            if element >= 0:
                assert isinstance(read, Node)
                self._tuples.setdefault((place, operand), {})[element] = self._again(read.inputs[element], again, begin)
            else:
                nodes[place].inputs[operand] = self._again(read, again, begin)

    def _again(self, value: Value, again: dict[Value, Node], begin: int) -> Node:
        """A view of what has been fetched, as a value is one of what has left."""
        if value not in again:
            assert isinstance(value, Node)
            again[value] = copied_node(value, [self._again(value.inputs[0], again, begin)])
            again[value].phase = "backward"
            self._insertions.add(begin, again[value])
        return again[value]

    def apply(self) -> bool:
        """Put the copies into the graph; whether there are any."""
        for (place, operand), elements in self._tuples.items():
            reader = self._graph.nodes[place]
            whole = reader.inputs[operand]
            assert isinstance(whole, Node)
            own = copied_node(whole, [elements.get(i, value) for i, value in enumerate(whole.inputs)])
            self._insertions.add(place, own)
            reader.inputs[operand] = own
        self._insertions.apply()
        return self._count > 0


class _Times:
    """When nodes begin, and which of them run on the main stream: `main`, their places, `begins`, ascending."""

    def __init__(self, graph: Graph) -> None:
        spans = Timeline(graph, ONE_HOST).spans
        self._nodes = graph.nodes
        self._ends = {place: sum(spans[node]) for place, node in enumerate(graph.nodes) if node in spans}
        self.main = [place for place in self._ends if "stream" not in graph.nodes[place].attrs]
        self.begins = [spans[graph.nodes[place]][0] for place in self.main]

    def left(self, chosen: Sequence[tuple[StoredValue, int]]) -> dict[StoredValue, int]:
        """Ahead of which place the memory of each value is free."""
        found: dict[StoredValue, int] = {}
        over = 0.0
        for each, ahead in chosen:
            over = max(over, self._ends[each.made]) + _copy_seconds(each)
            last = max((reading.place for reading in each.readers[: each.back]), default=each.taken)
            number = bisect_left(self.begins, over) if ahead == AUTO else bisect_right(self.main, each.made) + ahead
            number = max(number, bisect_right(self.main, last))
            found[each] = self.main[number] if number < len(self.main) else len(self._nodes)
        return found

    def fetched(self, chosen: Sequence[tuple[StoredValue, int]]) -> dict[StoredValue, int]:
        """Ahead of which place each value begins to come back."""
        found: dict[StoredValue, int] = {}
        due = math.inf
        for each, ahead in sorted(chosen, key=lambda item: -item[0].wanted):
            reader = min(bisect_left(self.main, each.wanted), len(self.main) - 1)
            due = min(due, self.begins[reader]) - _copy_seconds(each)
            number = bisect_right(self.begins, due) - 1 if ahead == AUTO else reader - ahead
            found[each] = min(self.main[max(0, min(number, reader))], each.wanted)
        return found


def _copy_seconds(each: StoredValue) -> float:
    return seconds(Node(ToHost(), [each.value], each.value.type), ONE_HOST)
