"""Several graphs of a `.mindir` file as one: what is called stands in the place of the call.

A graph is called by its name, or by that of a node which gives it some of its inputs (`Partial`) or chooses between two
(`Switch`). Input: `%p = Partial(@a, %x)`, `%q = Partial(@b, %x)`, `%s = Switch(%c, %p, %q)`, `%r = %s()`. Output: the
nodes of both graphs, and `%r = Select(%c, result of a, result of b)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mspc.checkpoint.mindir_graph import CALL, SELECT, MindirGraph, MindirNode

MOST_NODES = 2**20
"""A file may say more with few calls of calls."""


class HasLoop(Exception):
    """A graph calls itself."""


@dataclass(frozen=True)
class _Partial:
    """A graph and its first inputs."""

    graph: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class _Choice:
    """The result of one of two calls."""

    condition: str
    calls: tuple[_Partial, _Partial]


def inlined(main: MindirGraph, others: Mapping[str, MindirGraph]) -> MindirGraph:
    """`main` without calls of `others`, graphs by name.

    Raises:
        HasLoop: a graph calls itself. ValueError: a call cannot be followed.
    """
    inlining = _Inlining(others)
    results = inlining.body(main, "", {}, ())
    constants = dict(main.constants)
    for graph in others.values():
        constants |= graph.constants
    return replace(main, constants=constants, nodes=tuple(inlining.nodes), outputs=results)


class _Inlining:
    """What was called so far. nodes: of the one graph."""

    def __init__(self, graphs: Mapping[str, MindirGraph]) -> None:
        self.nodes: list[MindirNode] = []
        self._graphs = graphs
        self._calls = 0

    def body(
        self, graph: MindirGraph, suffix: str, names: dict[str, str], around: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Add a graph's nodes and return its results. suffix: of its nodes' names here. names: of its inputs' values.
        around: the graphs in which it is called."""
        known: dict[str, _Partial | _Choice] = {name: _Partial(name, ()) for name in self._graphs}
        for node in graph.nodes:
            inputs = tuple(names.get(name, name) for name in node.inputs)
            if node.operator == "Partial":
                first = _known(known, inputs[0]) if inputs else None
                if not isinstance(first, _Partial):
                    raise ValueError(f"{node.name} is a part of no graph")
                known[node.name] = _Partial(first.graph, first.inputs + inputs[1:])
            elif node.operator == "Switch":
                known[node.name] = _choice(known, node.name, inputs)
            elif node.operator == CALL:
                names[node.name] = self._called(_known(known, node.inputs[0]), inputs[1:], around)
            else:
                names[node.name] = self._add(node, inputs, suffix)
        return tuple(names.get(name, name) for name in graph.outputs)

    def _add(self, node: MindirNode, inputs: tuple[str, ...], suffix: str) -> str:
        if len(self.nodes) == MOST_NODES:
            raise ValueError(f"its graphs together have more than {MOST_NODES} nodes")
        self.nodes.append(replace(node, name=node.name + suffix, inputs=inputs))
        return node.name + suffix

    def _called(self, call: _Partial | _Choice, inputs: Sequence[str], around: tuple[str, ...]) -> str:
        """The name of a call's result."""
        if isinstance(call, _Choice):
            results = [self._called(each, inputs, around) for each in call.calls]
            self._calls += 1
            name = f"{call.condition}#{self._calls}"
            return self._add(MindirNode(name, SELECT, (), {}), (call.condition, *results), "")
        graph = self._graphs[call.graph]
        if call.graph in around:
            raise HasLoop(call.graph)
        given = (*call.inputs, *inputs)
        if len(given) != len(graph.inputs) or len(graph.outputs) != 1:
            raise ValueError(f"graph {call.graph!r} takes {len(graph.inputs)} inputs, not {len(given)}")
        self._calls += 1
        names = dict(zip(graph.inputs, given, strict=True))
        return self.body(graph, f"#{self._calls}", names, (*around, call.graph))[0]


def _known(known: Mapping[str, _Partial | _Choice], name: str) -> _Partial | _Choice:
    if name not in known:
        raise ValueError(f"there is no graph {name!r}")
    return known[name]


def _choice(known: Mapping[str, _Partial | _Choice], name: str, inputs: Sequence[str]) -> _Choice:
    if len(inputs) != 3:
        raise ValueError(f"{name} does not choose between two graphs")
    one, other = (_known(known, each) for each in inputs[1:])
    if not isinstance(one, _Partial) or not isinstance(other, _Partial):
        raise ValueError(f"{name} does not choose between two graphs")
    return _Choice(inputs[0], (one, other))
