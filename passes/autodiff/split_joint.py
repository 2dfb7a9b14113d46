"""Differentiates a region: the region and its gradient are first one graph, which then is split at the border between
them.

What the gradient reads of the region is what the two graphs have to agree about: the forward one returns it behind its
own results, and the other gets it as a parameter. What is cheap, or is marked, or is too much to be saved, the gradient
computes again (`saved_values.py` decides that). Both graphs read what the node captures from outside.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mspc.ir.builder import Builder
from mspc.ir.copies import copied_graph, copied_region
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import StackType, TupleType
from mspc.ops.control.regions import overwritten_parameters
from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.passes.autodiff.earlier_values import keep_overwritten
from mspc.passes.autodiff.recompute import copy_for_gradients
from mspc.passes.autodiff.reverse_mode import Differentiate, Terms, add_term, backpropagate, depends_on, summed
from mspc.passes.autodiff.stacks import zeros_like


@dataclass(frozen=True, eq=False)
class Joint:
    """A region, copied, and its gradient as one graph.

    graph: its nodes are those of `forward` and then those of `backward`. overwritten: parameters that the region
    overwrites. given: the gradients of results, by the result's number. grads: the gradients of parameters, by the
    parameter's number.
    """

    graph: Graph
    forward: list[Node]
    backward: list[Node]
    overwritten: frozenset[Value]
    given: Mapping[int, Parameter]
    grads: Mapping[int, Value]


def joint_of(region: Graph, wanted: Sequence[int], seeds: Sequence[int], differentiate: Differentiate) -> Joint:
    """The region with the gradients of its parameters `wanted`, for gradients of its results `seeds`."""
    graph = copied_graph(region)
    parameters = [graph.parameters[number] for number in wanted]
    overwritten = frozenset(graph.parameters[number] for number in overwritten_parameters(graph))
    if overwritten:
        keep_overwritten(graph, overwritten, depends_on(graph.nodes, parameters))
    forward = list(graph.nodes)
    own: set[Value] = set(forward)
    given = {number: Parameter(f"gradient_{number}", graph.results[number].type) for number in seeds}
    terms: Terms = {}
    for number, parameter in given.items():
        add_term(terms, graph.results[number], parameter)
    b = Builder(graph)
    b.phase = "backward"
    backpropagate(b, list(forward), terms, parameters, differentiate)
    b.forward = None
    grads = {n: summed(b, terms[graph.parameters[n]]) for n in wanted if terms.get(graph.parameters[n])}
    backward: list[Node] = []
    for node in graph.nodes[len(forward) :]:
        source = node.inputs[0] if isinstance(node.op, TupleGetItem) else None
        if isinstance(source, Node) and source in own:
            _move_ahead(node, source)
            forward.append(node)
            own.add(node)
        else:
            backward.append(node)
    graph.nodes = [*forward, *backward]
    return Joint(graph, forward, _live(backward, grads.values()), overwritten, given, grads)


def _move_ahead(item: Node, source: Node) -> None:
    """An element that the gradient reads of a node of the region is one of the region's own nodes."""
    item.phase, item.scope, item.forward, item.forward_input = source.phase, source.scope, None, -1
    if "recompute" in source.attrs:
        item.attrs["recompute"] = source.attrs["recompute"]


def _live(nodes: Sequence[Node], results: Collection[Value]) -> list[Node]:
    live: set[Value] = set(results)
    found: list[Node] = []
    for node in reversed(nodes):
        if node in live or node.op.has_side_effect:
            live.update(node.inputs)
            found.append(node)
    return found[::-1]


def read_from(joint: Joint, again: Collection[Value]) -> dict[Value, None]:
    """What the gradient reads of the region's parameters and nodes, where it computes those of `again` itself."""
    own = {*joint.graph.parameters, *joint.forward}
    wanted = {value for node in joint.backward for value in node.inputs if value in own}
    wanted |= {value for value in joint.grads.values() if value in own}
    for node in reversed(joint.forward):
        if node in wanted and node in again:
            wanted.update(value for value in node.inputs if value in own)
    saved = wanted.difference(again)
    return {value: None for value in (*joint.graph.parameters, *joint.forward) if value in saved}


class Split:
    """The two graphs of a joint one, of which the nodes are used up.

    forward: the region, to whose results whoever makes the node adds what is saved. nodes: of the gradient. reads: the
    parameters of the gradient that stand for values of the region. grads: by number of a parameter.
    """

    def __init__(self, joint: Joint, again: Collection[Value]) -> None:
        self.forward = joint.graph
        self.forward.nodes = list(joint.forward)
        self.given = joint.given
        self.nodes: list[Node] = []
        self.reads: dict[Value, Parameter] = {}
        self._again = again
        self._own: set[Value] = {*joint.graph.parameters, *joint.forward}
        self._inside: dict[Value, Value] = {}
        self._copies: dict[Graph, Graph] = {}
        for node in joint.backward:
            node.inputs = [self._pulled(value) for value in node.inputs]
            self.nodes.append(node)
        self.grads = {number: self._pulled(value) for number, value in joint.grads.items()}

    def placeholder(self, value: Value) -> Parameter:
        """The parameter of the gradient that stands for a value of the region, made where there is none yet."""
        if value not in self.reads:
            name = value.name or f"saved_{len(self.reads)}"
            parameter = self.reads[value] = Parameter(name, value.type)
            if isinstance(value, Parameter):
                parameter.attrs = dict(value.attrs)
        return self.reads[value]

    def gradient(self, number: int) -> Value:
        """The gradient of a parameter, zeros where nothing comes from it."""
        if number in self.grads:
            return self.grads[number]
        parameter = self.forward.parameters[number]
        like = self.placeholder(parameter) if isinstance(parameter.type, StackType) else parameter
        return zeros_like(self.builder(), like)

    def builder(self) -> Builder:
        """For further nodes of the gradient."""
        b = Builder(self.forward, self.nodes)
        b.phase, b.scope = "backward", f"Gradients/{b.scope}"
        return b

    def _pulled(self, value: Value) -> Value:
        """What the gradient has in the place of a value."""
        waiting = [value]
        while waiting:
            here = waiting[-1]
            if here not in self._own or here in self._inside:
                waiting.pop()
            elif not isinstance(here, Node) or here not in self._again:
                self._inside[here] = self._saved(here)
                waiting.pop()
            elif missing := [v for v in here.inputs if v in self._own and v not in self._inside]:
                waiting += missing
            else:
                copy = copy_for_gradients(here, [self._inside.get(v, v) for v in here.inputs])
                copy.regions = tuple(self._own_region(region) for region in here.regions)
                here.attrs.pop("saved", None)
                self._inside[here] = copy
                self.nodes.append(copy)
                waiting.pop()
        return self._inside.get(value, value)

    def _own_region(self, region: Graph) -> Graph:
        """A copy of what a node runs again, of which more results are read than of the first time."""
        return copied_region(region, known=self._copies)

    def _saved(self, value: Value) -> Value:
        """The parameter for a value; for a tuple one for each of its elements."""
        if not isinstance(value.type, TupleType):
            return self.placeholder(value)
        assert isinstance(value, Node)
        b = Builder(self.forward).like(value)
        elements = [b.emit(TupleGetItem(index), value) for index in range(len(value.type.elements))]
        return self.builder().emit(MakeTuple(), *map(self.placeholder, elements))

    def backward(self, parameters: Sequence[Parameter], results: Sequence[Value]) -> Graph:
        """The graph of the gradient, with parameters and results in the order that the node needs."""
        graph = Graph(f"{self.forward.name}_gradient")
        graph.parameters = list(parameters)
        _name_apart(graph.parameters)
        graph.nodes = self.nodes
        graph.results, graph.returns_tuple = list(results), True
        return graph


def _name_apart(parameters: Sequence[Parameter]) -> None:
    taken: set[str] = set()
    for parameter in parameters:
        name, number = parameter.name, 1
        while parameter.name in taken:
            number += 1
            parameter.name = f"{name}_{number}"
        taken.add(parameter.name)
