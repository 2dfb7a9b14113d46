"""States that live on the host are fetched for their updates, one update after the other, and put back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import FROM_HOST, OFFLOAD, TO_HOST, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.tensor.host_memory import AssignOnHost, AwaitHost, FromHost
from mspc.passes.per_rank.insertions import Insertions

AHEAD = 2
"""How many updates ahead of its own a state is fetched: one is under way while the one before it is worked on."""
BEHIND = 1
"""How many updates later the memory of what was put back is free: its copy runs beside that update."""


@dataclass
class _Unit:
    """Updates that are fetched together. first, last: places of the nodes that read their states."""

    first: int
    last: int
    states: list[Parameter] = field(default_factory=list[Parameter])
    assigned: list[Node] = field(default_factory=list[Node])

    @property
    def ahead(self) -> int:
        return max(int(state.attrs[OFFLOAD]) or AHEAD for state in self.states)


def fetch_states(graph: Graph) -> bool:
    """Insert the copies of a graph's parameters that live on the host."""
    states = [p for p in graph.parameters if OFFLOAD in p.attrs]
    if not states:
        return False
    for state in (p for p in states if p in graph.results):
        del state.attrs[OFFLOAD]  # who reads results reads them on the device
    units = _units(graph)
    insertions = Insertions(graph)
    written = Updates(graph).numbers
    for number, unit in enumerate(units):
        earlier = units[number - BEHIND - unit.ahead] if number >= BEHIND + unit.ahead else None
        begin = units[number - unit.ahead].last + 1 if number >= unit.ahead else _begin(units, number, unit.ahead)
        begin = min(begin, unit.first)
        if earlier is not None:
            _await(graph, insertions, begin, earlier)
        like = graph.nodes[unit.first]
        fetched: dict[Value, Value] = {}
        for state in unit.states:
            fetched[state] = insertions.put(begin, FromHost(), [state], state.type, like, "update", FROM_HOST)
        for node in graph.nodes[unit.first : unit.last + 1]:
            node.inputs = [fetched.get(value, value) for value in node.inputs]
        like, behind = graph.nodes[unit.last], unit.last + 1
        for state in (each for each in unit.states if each in written):
            inputs = [state, fetched[state]]
            made = insertions.put(behind, AssignOnHost(), inputs, state.type, like, "update", TO_HOST)
            unit.assigned.append(made)
    insertions.apply()
    return True


def _begin(units: list[_Unit], number: int, ahead: int) -> int:
    """Where the first updates of all are fetched, ahead of which there are not as many others: as many nodes ahead."""
    return max(0, units[0].first - (ahead - number))


def _await(graph: Graph, insertions: Insertions, place: int, unit: _Unit) -> None:
    for node in unit.assigned:
        insertions.put(place, AwaitHost(), [node], node.type, graph.nodes[unit.last], "update")


def _units(graph: Graph) -> list[_Unit]:
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
