"""This module makes one graph of the several of a `.mindir` file: the called graph takes the place of the call.

A graph is called by its name, or by that of a node which gives it some of its inputs (`Partial`) or chooses between two
(`Switch`). Input: `%p = Partial(@a, %x)`, `%q = Partial(@b, %x)`, `%s = Switch(%c, %p, %q)`, `%r = %s()`. Output: the
nodes of a graph that is called at once, and for a choice a node with a block for each of the two.

A loop whose steps known scalars count is written out; another becomes a node (`mindir_loops`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.checkpoint.mindir_graph import CALL, MindirGraph, MindirNode, is_scalar, scalar_result
from mspc.checkpoint.mindir_loops import CallerGraphs, ConditionalCall, HasLoop, LoopMaker, Partial, Steps
from mspc.checkpoint.mindir_operators import ORDER

MOST_NODES = 2**20
"""A file may say more with few calls of calls."""
MOST_CALLS = 2**13
"""A loop may never end."""


def inlined(main: MindirGraph, others: Mapping[str, MindirGraph]) -> MindirGraph:
    """`main` without calls of `others`, graphs by name.

    Raises:
        HasRecursion: a graph calls itself ahead of its last step, by what is not known before it runs. ValueError: a
            call cannot be followed.
    """
    heads: frozenset[str] = frozenset()
    while True:
        constants = dict(main.constants)
        for graph in others.values():
            constants |= graph.constants
        inlining = _Inlining(others, constants, heads)
        try:
            results = inlining.main(main)
        except HasLoop as error:
            heads |= {str(error)}
            continue
        return replace(main, constants=constants, nodes=tuple(inlining.nodes), outputs=results)


class _Inlining(LoopMaker):
    """What was called so far. nodes: of the one graph, or of a block of it. constants: of all graphs, and what follows
    from scalars."""

    def __init__(self, graphs: Mapping[str, MindirGraph], constants: dict[str, Any], heads: frozenset[str]) -> None:
        super().__init__(graphs, constants, heads)
        self._calls = 0
        self._made = 0

    def main(self, graph: MindirGraph) -> tuple[str, ...]:
        """Add everything that a graph calls, and return its results."""
        waiting: list[Steps] = [self._body(graph, graph.inputs, CallerGraphs(), "")]
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

    def new_name(self, name: str) -> str:
        self._count()
        return f"{name}#{self._made}"

    def known(self, name: str) -> Any:
        value = self.constants.get(name)
        return value if is_scalar(value) else None

    def _count(self) -> None:
        self._made += 1
        if self._made > MOST_NODES:
            raise ValueError(f"its graphs together have more than {MOST_NODES} nodes")

    def _body(self, graph: MindirGraph, given: Sequence[str], around: CallerGraphs, suffix: str) -> Steps:
        """Add a graph's nodes and return its results."""
        names, _ = yield self._nodes(graph, given, around, suffix, "")
        return tuple(names.get(name, name) for name in graph.outputs)

    def add_nodes(self, graph: MindirGraph, given: Sequence[str], around: CallerGraphs, last: str) -> Steps:
        self._count_call()
        return self._nodes(graph, given, around, f"#{self._calls}", last)

    def _nodes(self, graph: MindirGraph, given: Sequence[str], around: CallerGraphs, suffix: str, last: str) -> Steps:
        """As `add_nodes`. suffix: of the nodes' names here. around: the graphs in which it is called."""
        names = dict(zip(graph.inputs, given, strict=True))
        known: dict[str, Partial | ConditionalCall] = {}
        left_out = {last}
        for node in graph.nodes:
            inputs = tuple(names.get(name, name) for name in node.inputs)
            if node.name == last or not left_out.isdisjoint(node.inputs):
                left_out.add(node.name)
            elif node.operator == "Partial":
                first = self.called(known, inputs[0]) if inputs else None
                if not isinstance(first, Partial):
                    raise ValueError(f"{node.name} is a part of no graph")
                known[node.name] = Partial(first.graph, first.inputs + inputs[1:])
            elif node.operator == "Switch":
                known[node.name] = self._choice(known, node.name, inputs)
            elif node.operator == CALL:
                call = self.called(known, node.inputs[0])
                names[node.name] = yield self._result(call, inputs[1:], graph.name, around)
            else:
                names[node.name] = self._add(node, inputs, suffix)
        return names, known

    def _add(self, node: MindirNode, inputs: tuple[str, ...], suffix: str) -> str:
        """The name of a node's result; of known scalars that is a constant."""
        name = node.name + suffix
        known = [self.constants.get(each) for each in inputs]
        if node.operator in ORDER and known and is_scalar(known[0]):
            return inputs[0]
        value = scalar_result(node.operator, known) if all(map(is_scalar, known)) else None
        if value is not None or node.operator == "UpdateState":
            self.constants[name] = value
            return name
        self._count()
        self.nodes.append(replace(node, name=name, inputs=inputs))
        return name

    def _result(
        self, call: Partial | ConditionalCall, inputs: Sequence[str], caller: str, around: CallerGraphs
    ) -> Steps:
        """The name of a call's result."""
        if isinstance(call, ConditionalCall):
            condition = self.known(call.condition)
            if condition is not None:
                chosen = call.calls[0 if condition else 1]
                return (yield self.followed(chosen, inputs, CallerGraphs((), around.choosing)))
            inside = CallerGraphs((), (*around.choosing, caller))
            works = [lambda to=to: self._one(to, inputs, inside) for to in call.calls]
            (result,) = yield self.chosen(call.condition, works)
            return result
        return (yield self.followed(call, inputs, CallerGraphs((*around.direct, caller), around.choosing)))

    def _one(self, call: Partial, inputs: Sequence[str], around: CallerGraphs) -> Steps:
        return ((yield self.followed(call, inputs, around)),)

    def followed(self, call: Partial, inputs: Sequence[str], around: CallerGraphs) -> Steps:
        graph = self.graphs[call.graph]
        given = (*call.inputs, *inputs)
        if len(given) != len(graph.inputs) or len(graph.outputs) != 1:
            raise ValueError(f"graph {call.graph!r} takes {len(graph.inputs)} inputs, not {len(given)}")
        if call.graph in self.heads:
            return (yield self.looped(call.graph, given, None, around))[0]
        if call.graph in around.direct or call.graph in around.choosing:
            raise HasLoop(call.graph)
        self._count_call()
        results = yield self._body(graph, given, around, f"#{self._calls}")
        return results[0]

    def _count_call(self) -> None:
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise ValueError(f"its graphs call each other more than {MOST_CALLS} times")

    def called(self, known: Mapping[str, Partial | ConditionalCall], name: str) -> Partial | ConditionalCall:
        if name in known:
            return known[name]
        if name in self.graphs:
            return Partial(name, ())
        raise ValueError(f"there is no graph {name!r}")

    def _choice(
        self, known: Mapping[str, Partial | ConditionalCall], name: str, inputs: Sequence[str]
    ) -> ConditionalCall:
        if len(inputs) != 3:
            raise ValueError(f"{name} does not choose between two graphs")
        one, other = (self.called(known, each) for each in inputs[1:])
        if not isinstance(one, Partial) or not isinstance(other, Partial):
            raise ValueError(f"{name} does not choose between two graphs")
        return ConditionalCall(inputs[0], (one, other))
