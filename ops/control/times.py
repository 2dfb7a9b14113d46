"""How often a step runs the graphs of a program, and the nodes in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mspc.ir.graph import Graph, Node
from mspc.ops.control.loops import Loop, While
from mspc.ops.control.regions import If


class Times(NamedTuple):
    """How often something runs in a step.

    count: so often, where `known`, else for each turn of the loops whose turns only the run counts. always: no
    condition decides; else it runs so often at most.
    """

    count: int = 1
    known: bool = True
    always: bool = True

    def inside(self, node: Node, number: int) -> Times:
        """Of region `number` of a node that runs so often."""
        if isinstance(node.op, If):
            return self._replace(always=False)
        if not isinstance(node.op, Loop):
            return self
        turns = node.op.known_turns([value.type for value in node.inputs])
        if turns < 0:
            return self._replace(known=False)
        return self._replace(count=self.count * (turns + (isinstance(node.op, While) and number == 0)))

    def __add__(self, other: object) -> Times:  # type: ignore[override]  # never a plain tuple
        """Of what runs at two places."""
        assert isinstance(other, Times)
        return Times(self.count + other.count, self.known and other.known, self.always and other.always)

    @property
    def text(self) -> str:
        """`3 times`, `once a turn`, `at most 2 times`; "" of what runs once."""
        if self == ONCE:
            return ""
        count = "once" if self.count == 1 else f"{self.count} times"
        return f"{'' if self.always else 'at most '}{count}{'' if self.known else ' a turn'}"


ONCE = Times()



def times_of(program: Graph) -> dict[Graph, Times]:
    """How often a step runs each graph of a program, the program itself first."""
    found = {program: ONCE}
    for graph in program.graphs():
        for node in graph.nodes:
            for number, region in enumerate(node.regions):
                times = found[graph].inside(node, number)
                found[region] = found[region] + times if region in found else times
    return found


def nodes_with_times(program: Graph) -> Iterator[tuple[Node, Times]]:
    """Every node of a program and of its graphs once, those that a node runs behind it where it is the first that does,
    and how often a step runs it."""
    times = times_of(program)
    yield from _nodes(program, times, {program})


def _nodes(graph: Graph, times: dict[Graph, Times], seen: set[Graph]) -> Iterator[tuple[Node, Times]]:
    own = times[graph]
    for node in graph.nodes:
        yield node, own
        yield from _inside(node.regions, times, seen)


def _inside(regions: Sequence[Graph], times: dict[Graph, Times], seen: set[Graph]) -> Iterator[tuple[Node, Times]]:
    for region in regions:
        if region not in seen:
            seen.add(region)
            yield from _nodes(region, times, seen)
