"""What gradients read of marked cells waits for them on the host.

A value leaves right behind the node that makes it. Its memory is free once the copy is over, at a place where by the
rates of a machine that is so, or as many operators later as the script says; in the same way it is fetched. What would
be wanted back before it has left stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Mapping
from typing import Any

from mspc.ir.copies import copied_node
from mspc.ir.graph import FROM_HOST, TO_HOST, Graph, Node, Value
from mspc.ir.iterative import iterative
from mspc.ops.tensor.host_memory import AwaitHost, FromHost, ToHost
from mspc.passes.per_rank.host_marks import AUTO, distance, marked_cells
from mspc.passes.per_rank.host_times import HostCopies
from mspc.passes.per_rank.insertions import FETCH, FETCH_AT_ONCE, LEAVE, READ, WAIT, Insertions
from mspc.passes.per_rank.stage_clock import StageClock
from mspc.passes.per_rank.stored_values import StoredValue, StoredValues
from mspc.passes.pipelining.timeline import Timeline

LONGER = 5e-3
"""The share by which copies may make the step of a pipeline longer."""
MOST = 1 / 2
"""The share of what the bus could bring from which on forwards wait for it, so that memory is free early."""


class HostValues:
    """What is to wait on the host, of values of a graph. """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._tuples: dict[tuple[int, int], dict[int, Node]] = {}
        cells: dict[str, str] = {}
        for each in graph.graphs():
            cells |= marked_cells(each)
        self._chosen: list[tuple[StoredValue, HostCopies, HostCopies]] = []
        for value in StoredValues(graph):
            ahead = distance(value.maker, cells)
            if ahead is not None:
                ahead = AUTO if value.is_called else ahead  # calls are no operators: times say it
                last = max((reading.place for reading in value.readers[: value.back]), default=value.taken)
                there = HostCopies((value.value,), value.made, last + 1, ahead)
                self._chosen.append((value, there, HostCopies((value.value,), value.wanted, 0, ahead)))

    @property
    def leaving(self) -> list[HostCopies]:
        """What leaves."""
        return [there for _, there, _ in self._chosen]

    @property
    def fetched(self) -> list[HostCopies]:
        """What comes back."""
        return [back for _, _, back in self._chosen]

    def stay_in_time(self, clock: StageClock) -> Timeline:
        """Of what calls of a stage make leave as much as takes no time of a step, the first values of each call; the
        timeline of all stages then.

        Where most of that may leave as early as may be, forwards wait for it. Else nothing waits.
        """
        lengths: dict[Node, list[float]] = {}
        number: list[int] = []
        for value, there, _ in self._chosen:
            own = lengths.setdefault(self._graph.nodes[value.made], [])
            number.append(len(own))
            own.append(there.length)
        most = max(map(len, lengths.values()), default=0)
        seconds = [{c: sum(own[:n]) for c, own in lengths.items() if c in clock.leaving} for n in range(most + 1)]
        idle = clock.line(seconds[0])
        longest = idle.makespan * (1 + LONGER)

        def in_time(waits: bool) -> int:
            return bisect_left(range(1, most + 1), True, key=lambda n: clock.line(seconds[n], waits).makespan > longest)

        count, paced = max(1, in_time(False)), in_time(True)  # of the first some leave in time at least
        found = idle
        if most and sum(seconds[paced].values()) >= MOST * sum(seconds[min(count, most)].values()):
            found, count = clock.line(seconds[paced]), paced
        self._chosen = [
            each for each, place in zip(self._chosen, number, strict=True)
            if place < count and self._graph.nodes[each[0].made] in clock.leaving
        ]  # fmt: skip
        return found

    def insert(self, insertions: Insertions, left: Mapping[HostCopies, int], fetched: Mapping[HostCopies, int]) -> None:
        """Insert the copies. left, fetched: ahead of which places memory is free, and values are fetched."""
        for value, there, back in self._chosen:
            if left[there] < fetched[back]:
                self._keep(insertions, value, left[there], fetched[back])
        for (place, operand), elements in self._tuples.items():
            reader = self._graph.nodes[place]
            whole = reader.inputs[operand]
            assert isinstance(whole, Node)
            own = copied_node(whole, [elements.get(i, value) for i, value in enumerate(whole.inputs)])
            insertions.add(place, own, READ)
            reader.inputs[operand] = own

    def _keep(self, insertions: Insertions, each: StoredValue, free: int, begin: int) -> None:
        nodes, value, type, like = self._graph.nodes, each.value, each.value.type, each.maker
        host = insertions.put(each.taken + 1, ToHost(), [value], type, like, "forward", TO_HOST, LEAVE)
        host = insertions.put(free, AwaitHost(), [host], type, like, "forward", order=WAIT)
        reader = nodes[each.wanted]
        order = FETCH_AT_ONCE if each.is_called else FETCH
        back = insertions.put(begin, FromHost(), [host], type, reader, "backward", FROM_HOST, order)
        again: dict[Value, Node] = {value: back}

        @iterative
        def shown(value: Value) -> Generator[Any, Node, Node]:
            """A view of what has been fetched, as a value is one of what has left."""
            if value not in again:
                assert isinstance(value, Node)
                again[value] = copied_node(value, [(yield (value.inputs[0],))])
                again[value].phase = "backward"
                insertions.add(begin, again[value], order)
            return again[value]

        for place, operand, element in each.readers[each.back :]:
            read = nodes[place].inputs[operand]
            if element < 0:
                nodes[place].inputs[operand] = shown(read)
            else:
                assert isinstance(read, Node)
                self._tuples.setdefault((place, operand), {})[element] = shown(read.inputs[element])
