"""When values leave for the host and come back: by the rates of a machine no operator waits for a copy, where there is
time enough; copies one way come one behind the other."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

from mspc.analysis.cost.nodes import seconds
from mspc.ir.graph import WORK, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.tensor.host_memory import ToHost
from mspc.passes.communication.schedule_communication import ONE_HOST
from mspc.passes.per_rank.host_marks import AUTO

SAME = 1 - 1e-9
"""Times that are added up in another order may differ by so much."""


@dataclass(frozen=True, eq=False)
class HostCopies:
    """What is copied together. place: of the node behind which it leaves, or ahead of which it is wanted back.
    earliest: the place ahead of which its memory is free, or it is fetched, at the earliest. distance: how many
    operators of the main stream are between, `AUTO` where times say it."""

    values: tuple[Value, ...]
    place: int
    earliest: int = 0
    distance: int = AUTO

    @property
    def length(self) -> float:
        """Seconds that the copies take."""
        return sum(seconds(Node(ToHost(), [value], value.type), ONE_HOST) for value in self.values)


class HostTimes:
    """When the nodes of a graph begin and end, and which of them run on the main stream. later: by how much each begins
    later than its spans say; () for no time."""

    def __init__(
        self, graph: Graph, spans: Mapping[Node, tuple[float, float]], later: Sequence[float] = ()
    ) -> None:  # fmt: skip
        self._count = len(graph.nodes)
        later = later or [0.0] * self._count
        places = [place for place, node in enumerate(graph.nodes) if node in spans]
        self._ends = {place: later[place] + sum(spans[graph.nodes[place]]) for place in places}
        self._main = [place for place in self._ends if "stream" not in graph.nodes[place].attrs]
        self._begins = [later[place] + spans[graph.nodes[place]][0] for place in self._main]
        self._free = [0.0, *(self._ends[place] for place in self._main[:-1])]
        """When what the main stream runs ahead of each of its nodes is over."""
        self._works = [i for i, place in enumerate(self._main) if WORK in graph.nodes[place].attrs]
        self._backward = max((i for i in self._main if graph.nodes[i].phase == "backward"), default=0)

    def left(self, copies: Iterable[HostCopies]) -> dict[HostCopies, int]:
        """Ahead of which place the memory of each is free: that of the first node that begins behind the copy."""
        found: dict[HostCopies, int] = {}
        over = 0.0
        for each in sorted(copies, key=lambda copy: copy.place):
            over = max(over, self._ends[each.place]) + each.length
            number = self._first_behind(over * SAME)
            if each.distance != AUTO:
                number = bisect_right(self._main, each.place) + each.distance
            number = max(number, bisect_left(self._main, each.earliest))
            found[each] = self._main[number] if number < len(self._main) else self._count
        return found

    def _first_behind(self, time: float) -> int:
        """Which node of the main stream begins behind a time. Ahead of work on a micro-batch others may be that wait
        for nothing: what is fetched in time for the work is not to wait behind them."""
        number = bisect_left(self._begins, time)
        work = bisect_left(self._works, number)
        if work == len(self._works):
            return number
        return max(number, min(bisect_left(self._free, time), self._works[work]))

    def fetched(self, copies: Iterable[HostCopies]) -> dict[HostCopies, int]:
        """Ahead of which place each begins to come back: so that it is there when it is wanted."""
        found: dict[HostCopies, int] = {}
        due = math.inf
        for each in sorted(copies, key=lambda copy: -copy.place):
            reader = min(bisect_left(self._main, each.place), len(self._main) - 1)
            due = min(due, self._begins[reader]) - each.length
            number = bisect_right(self._free, due) - 1 if each.distance == AUTO else reader - each.distance
            number = min(reader, max(0, number, bisect_left(self._main, each.earliest)))
            if each.place > self._backward:  # what is fetched behind all gradients takes none of the time before
                due = max(due, self._begins[number])
            found[each] = min(self._main[number], each.place)
        return found
