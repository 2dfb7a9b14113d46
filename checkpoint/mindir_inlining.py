"""This module makes one graph of the several of a `.mindir` file: the called graph takes the place of the call.

A graph is called by its name, or by that of a node which gives it some of its inputs (`Partial`) or chooses between two
(`Switch`). Input: `%p = Partial(@a, %x)`, `%q = Partial(@b, %x)`, `%s = Switch(%c, %p, %q)`, `%r = %s()`. Output: the
nodes of both graphs, and `%r = Select(%c, result of a, result of b)`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.checkpoint.mindir_graph import CALL, SELECT, MindirGraph, MindirNode, is_scalar, scalar_result
from mspc.checkpoint.mindir_operators import ORDER
from mspc.ir.late_dataclass import dataclass

MOST_NODES = 2**20
"""A file may say more with few calls of calls."""
MOST_CALLS = 2**13
"""A loop may never end."""


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
    """`main` without calls of `others`, graphs by name. A loop that known scalars count is written out step by step.

    Raises:
        HasLoop: a graph calls itself, by what is not known before it runs. ValueError: a call cannot be followed.
    """
    constants = dict(main.constants)
    for graph in others.values():
        constants |= graph.constants
    inlining = _Inlining(others, constants)
    results = inlining.main(main)
    return replace(main, constants=constants, nodes=tuple(inlining.nodes), outputs=results)


_Steps = Generator["_Steps", Any, Any]
"""Work that hands over what has to be done first, and is handed its result: loops are deeper than Python's stack."""


@dataclass(frozen=True)
class _Around:
    """Graphs in which one is called. direct: since the last choice. choosing: by choices that are not known."""

    direct: tuple[str, ...] = ()
    choosing: tuple[str, ...] = ()


class _Inlining:
    """What was called so far. nodes: of the one graph. constants: of all graphs, and what follows from scalars."""

    def __init__(self, graphs: Mapping[str, MindirGraph], constants: dict[str, Any]) -> None:
        self.nodes: list[MindirNode] = []
        self.constants = constants
        self._graphs = graphs
        self._calls = 0

    def main(self, graph: MindirGraph) -> tuple[str, ...]:
        """Add everything that a graph calls, and return its results."""
        waiting: list[_Steps] = [self._body(graph, "", {}, _Around())]
        given: Any = None
        while True:
            try:
                waiting.append(waiting[-1].send(given))
                given = None
            except StopIteration as ended:
                given = ended.value
                waiting.pop()
                if not waiting:
                    return given

    def _body(self, graph: MindirGraph, suffix: str, names: dict[str, str], around: _Around) -> _Steps:
        """Add a graph's nodes and return its results. suffix: of its nodes' names here. names: of its inputs' values.
        around: the graphs in which it is called."""
        known: dict[str, _Partial | _Choice] = {}
        for node in graph.nodes:
            inputs = tuple(names.get(name, name) for name in node.inputs)
            if node.operator == "Partial":
                first = self._known(known, inputs[0]) if inputs else None
                if not isinstance(first, _Partial):
                    raise ValueError(f"{node.name} is a part of no graph")
                known[node.name] = _Partial(first.graph, first.inputs + inputs[1:])
            elif node.operator == "Switch":
                known[node.name] = self._choice(known, node.name, inputs)
            elif node.operator == CALL:
                call = self._known(known, node.inputs[0])
                names[node.name] = yield self._called(call, inputs[1:], graph.name, around)
            else:
                names[node.name] = self._add(node, inputs, suffix)
        return tuple(names.get(name, name) for name in graph.outputs)

    def _add(self, node: MindirNode, inputs: tuple[str, ...], suffix: str) -> str:
        """The name of a node's result; of known scalars that is a constant."""
        name = node.name + suffix
        known = [self.constants.get(each) for each in inputs]
        if node.operator in ORDER and known and is_scalar(known[0]):
            return inputs[0]
        value = scalar_result(node.operator, known) if all(map(is_scalar, known)) else None
        if value is not None:
            self.constants[name] = value
            return name
        if len(self.nodes) == MOST_NODES:
            raise ValueError(f"its graphs together have more than {MOST_NODES} nodes")
        self.nodes.append(replace(node, name=name, inputs=inputs))
        return name

    def _called(self, call: _Partial | _Choice, inputs: Sequence[str], caller: str, around: _Around) -> _Steps:
        """The name of a call's result."""
        if isinstance(call, _Choice):
            condition = self.constants.get(call.condition)
            if is_scalar(condition):
                chosen = call.calls[0 if condition else 1]
                return (yield self._followed(chosen, inputs, _Around((), around.choosing)))
            inside = _Around((), (*around.choosing, caller))
            results: list[str] = []
            for each in call.calls:
                results.append((yield self._followed(each, inputs, inside)))
            self._calls += 1
            name = f"{call.condition}#{self._calls}"
            return self._add(MindirNode(name, SELECT, (), {}), (call.condition, *results), "")
        return (yield self._followed(call, inputs, _Around((*around.direct, caller), around.choosing)))

    def _followed(self, call: _Partial, inputs: Sequence[str], around: _Around) -> _Steps:
        """The name of what a graph gives."""
        graph = self._graphs[call.graph]
        if call.graph in around.direct or call.graph in around.choosing:
            raise HasLoop(call.graph)
        given = (*call.inputs, *inputs)
        if len(given) != len(graph.inputs) or len(graph.outputs) != 1:
            raise ValueError(f"graph {call.graph!r} takes {len(graph.inputs)} inputs, not {len(given)}")
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise ValueError(f"its graphs call each other more than {MOST_CALLS} times")
        names = dict(zip(graph.inputs, given, strict=True))
        results = yield self._body(graph, f"#{self._calls}", names, around)
        return results[0]

    def _known(self, known: Mapping[str, _Partial | _Choice], name: str) -> _Partial | _Choice:
        if name in known:
            return known[name]
        if name in self._graphs:
            return _Partial(name, ())
        raise ValueError(f"there is no graph {name!r}")

    def _choice(self, known: Mapping[str, _Partial | _Choice], name: str, inputs: Sequence[str]) -> _Choice:
        if len(inputs) != 3:
            raise ValueError(f"{name} does not choose between two graphs")
        one, other = (self._known(known, each) for each in inputs[1:])
        if not isinstance(one, _Partial) or not isinstance(other, _Partial):
            raise ValueError(f"{name} does not choose between two graphs")
        return _Choice(inputs[0], (one, other))
