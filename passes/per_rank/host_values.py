"""What gradients read of marked cells waits for them on the host.

A value leaves right behind the node that makes it. Its memory is free once the copy is over, at a place where by the
rates of a machine that is so, or as many operators later as the script says; in the same way it is fetched. What would
be wanted back before it has left stays.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mspc.analysis.cost.known_machines import H200
from mspc.analysis.cost.nodes import seconds
from mspc.analysis.cost.timeline import Timeline
from mspc.ir.copies import copied_node
from mspc.ir.graph import FROM_HOST, OFFLOAD, TO_HOST, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.tensor.host_memory import AwaitHost, FromHost, ToHost
from mspc.passes.per_rank.host_marks import AUTO, distance, mark_of, marked_cells
from mspc.passes.per_rank.insertions import Insertions

ONE_HOST = replace(H200, ranks_per_host=0)
"""What times are reckoned for, so that all ranks of a kind have equal programs."""


@dataclass(frozen=True, eq=False)
class StoredValue:
    """A tensor that gradients read again. made: the place of the node that makes it. taken: that of the value, one of
    several results maybe. shown: nodes whose results are its memory, itself and views. readers: places, ascending, with
    operands. back: from which of them on they read what was fetched."""

    value: Node
    made: int
    taken: int
    shown: tuple[Node, ...]
    readers: tuple[tuple[int, int], ...]
    back: int

    @property
    def wanted(self) -> int:
        """The place of the first node that reads it again."""
        return self.readers[self.back][0]


def stored_values(graph: Graph) -> Iterator[StoredValue]:
    """The tensors that forward nodes make and that other ones than forward nodes read, in run order."""
    uses: dict[Value, list[tuple[int, int]]] = {}
    place_of: dict[Value, int] = {}
    for place, node in enumerate(graph.nodes):
        place_of[node] = place
        for operand, value in enumerate(node.inputs):
            uses.setdefault(value, []).append((place, operand))
    returned = set(graph.results)
    for place, node in enumerate(graph.nodes):
        op = node.op
        made = node.inputs[0] if isinstance(op, TupleGetItem) and node.inputs else node
        if not isinstance(node.type, TensorType) or node.phase != "forward" or not _is_made(made):
            continue
        if isinstance(op, TupleGetItem) and _is_taken_twice(graph, made, op.index, uses):
            continue
        found = _shown(graph, node, uses)
        if found is None or any(value in returned for value in found[0]):
            continue
        shown, readers = found
        behind = [i for i, (reader, _) in enumerate(readers) if graph.nodes[reader].phase != "forward"]
        if behind:
            yield StoredValue(node, place_of[made], place, shown, readers, behind[0])


def _is_made(value: Value) -> bool:
    """Whether a node has made a new tensor, or several, without a gap between rows."""
    if not isinstance(value, Node) or "row_pitch" in value.attrs:
        return False
    return not (value.op.is_view or value.op.mutates or value.regions)


def _is_taken_twice(graph: Graph, made: Value, index: int, uses: Mapping[Value, list[tuple[int, int]]]) -> bool:
    """Whether a result of several is also taken by another node, or with others."""
    readers = [graph.nodes[place].op for place, _ in uses[made]]
    return made in graph.results or sum(not isinstance(op, TupleGetItem) or op.index == index for op in readers) > 1


def _shown(
    graph: Graph, value: Node, uses: Mapping[Value, list[tuple[int, int]]]
) -> tuple[tuple[Node, ...], tuple[tuple[int, int], ...]] | None:
    """(the value and views of it, who reads them); None where views show more than it."""
    shown, readers = [value], list[tuple[int, int]]()
    for each in shown:
        for place, operand in uses.get(each, ()):
            node = graph.nodes[place]
            if not node.op.is_view:
                readers.append((place, operand))
            elif len(node.inputs) > 1 or not isinstance(node.type, TensorType):
                return None
            else:
                shown.append(node)
    return tuple(shown), tuple(sorted(readers))


def keep_values(graph: Graph) -> bool:
    """Insert the copies of what a graph's cells keep on the host."""
    cells = marked_cells(graph)
    if not cells and not any(OFFLOAD in node.attrs for node in graph.nodes):
        return False
    chosen = [(each, distance(mark)) for each in stored_values(graph) if (mark := _mark(graph, each, cells))]
    if not chosen:
        return False
    times = _Times(graph)
    left, fetched = times.left(chosen), times.fetched(chosen)
    insertions = Insertions(graph)
    kept = [each for each, _ in chosen if left[each] < fetched[each]]
    for each in kept:
        _keep(graph, insertions, each, left[each], fetched[each])
    insertions.apply()
    return bool(kept)


def _mark(graph: Graph, each: StoredValue, cells: Mapping[str, object]) -> object:
    return mark_of(each.value, cells) or mark_of(graph.nodes[each.made], cells)


def _keep(graph: Graph, insertions: Insertions, each: StoredValue, free: int, begin: int) -> None:
    """Let a value leave, and whoever reads it again read what has come back."""
    value, type = each.value, each.value.type
    host = insertions.put(each.taken + 1, ToHost(), [value], type, value, "forward", TO_HOST)
    host = insertions.put(free, AwaitHost(), [host], type, value, "forward")
    again: dict[Value, Node] = {}
    again[value] = insertions.put(begin, FromHost(), [host], type, graph.nodes[each.wanted], "backward", FROM_HOST)
    made_by = {view: view.inputs[0] for view in each.shown[1:]}
    for place, operand in each.readers[each.back :]:
        reader = graph.nodes[place]
        chain = [reader.inputs[operand]]
        while chain[-1] not in again:
            chain.append(made_by[chain[-1]])  # type: ignore[index]  # what is shown are nodes
        for view in reversed(chain[:-1]):
            assert isinstance(view, Node)
            again[view] = copied_node(view, [again[made_by[view]]])
            again[view].phase = "backward"
            insertions.add(begin, again[view])
        reader.inputs[operand] = again[chain[0]]


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
            last = max((place for place, _ in each.readers[: each.back]), default=each.taken)
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
