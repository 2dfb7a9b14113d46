"""States that live on the host are fetched for their updates, one update after the other, and put back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import FROM_HOST, OFFLOAD, TO_HOST, Graph, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.tensor.host_memory import AssignOnHost, AwaitHost, FromHost
from mspc.passes.per_rank.host_times import HostCopies
from mspc.passes.per_rank.insertions import FETCH, LEAVE, WAIT, Insertions

AHEAD = 2
"""How many updates ahead of its own a state is fetched at the earliest: each is under way while another is used."""
BEHIND = 1
"""How many updates later the memory of what was put back is free at the latest, ahead of the next states fetched."""


@dataclass(eq=False)
class _Unit:
    """Updates whose states are fetched together. first, last: places of the nodes that read them. there, back: the
    copies."""

    first: int
    last: int
    states: list[Parameter] = field(default_factory=list[Parameter])
    there: HostCopies | None = None
    back: HostCopies | None = None

    @property
    def ahead(self) -> int:
        return max(int(state.attrs[OFFLOAD]) or AHEAD for state in self.states)


class HostStates:
    """The states of a graph that live on the host."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        for state in (p for p in graph.results if isinstance(p, Parameter)):
            state.attrs.pop(OFFLOAD, None)  # who reads results reads them on the device
        self._written = Updates(graph).numbers
        self._units = _units(graph)
        for number, unit in enumerate(self._units):
            earliest = self._units[number - unit.ahead].last + 1 if number >= unit.ahead else 0
            written = tuple(state for state in unit.states if state in self._written)
            unit.back = HostCopies(tuple(unit.states), unit.first, min(earliest, unit.first))
            unit.there = HostCopies(written, unit.last, unit.last + 1)

    @property
    def leaving(self) -> list[HostCopies]:
        """What is put back."""
        return [unit.there for unit in self._units if unit.there is not None]

    @property
    def fetched(self) -> list[HostCopies]:
        """What is fetched."""
        return [unit.back for unit in self._units if unit.back is not None]

    def insert(self, insertions: Insertions, left: Mapping[HostCopies, int], fetched: Mapping[HostCopies, int]) -> None:
        """Insert the copies. left, fetched: ahead of which places memory is free, and states are fetched."""
        nodes = self._graph.nodes
        begins = [fetched[unit.back] for unit in self._units if unit.back is not None]
        for number, unit in enumerate(self._units):
            assert unit.there is not None
            like, own = nodes[unit.first], dict[Value, Value]()
            for state in unit.states:
                begin = begins[number]
                own[state] = insertions.put(begin, FromHost(), [state], state.type, like, "update", FROM_HOST, FETCH)
            for node in nodes[unit.first : unit.last + 1]:
                node.inputs = [own.get(value, value) for value in node.inputs]
            later = number + BEHIND + unit.ahead
            free = min(left[unit.there], begins[later] if later < len(begins) else len(nodes))
            for state in unit.there.values:
                inputs, behind, like = [state, own[state]], unit.last + 1, nodes[unit.last]
                made = insertions.put(behind, AssignOnHost(), inputs, state.type, like, "update", TO_HOST, LEAVE)
                if free < len(nodes):
                    insertions.put(max(free, behind), AwaitHost(), [made], state.type, like, "update", order=WAIT)


def _units(graph: Graph) -> Sequence[_Unit]:
    """Spans of nodes that read states, none within another, in their order."""
    spans: dict[Parameter, tuple[int, int]] = {}
    reached: dict[Value, Iterable[Parameter]] = {}
    for place, node in enumerate(graph.nodes):
        for value in node.inputs:
            held = (value,) if isinstance(value, Parameter) and OFFLOAD in value.attrs else reached.get(value, ())
            for state in held:
                spans[state] = spans.get(state, (place, place))[0], place
            if held and node.op.is_view:
                reached[node] = held
    units: list[_Unit] = []
    for state, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if units and first <= units[-1].last:
            units[-1].last = max(units[-1].last, last)
        else:
            units.append(_Unit(first, last))
        units[-1].states.append(state)
    return units
