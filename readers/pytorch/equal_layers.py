"""Equal layers of a program: consecutive modules of one list whose nodes differ only in the parameters that they read.

Nodes `[model.layers.0: x1 = f(x0, w0)], [model.layers.1: x2 = f(x1, w1)]` are a loop that carries x and scans w.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

import numpy as np

from mspc.ir.diagnostics import Frames
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.families import name_of_cells
from mspc.mindspore_api.common.parameter import FACTS, Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.readers.pytorch.exported_program import (
    Argument,
    ExportedGraph,
    ExportedNode,
    NodeResult,
    frames_of,
    names_in,
    scope_of,
)
from mspc.readers.pytorch.plans.strategies import LayerPlan

FEWEST_LAYERS = 8
"""Fewest equal layers that become a loop: fewer are as short as the loop, and easier to read."""
MAX_SKIPPED = 4
"""Layers at the beginning of a run that may be apart, as one whose result the caller gets."""
PERIODS = (1, 2, 3, 4, 6)
"""Numbers of layers that may alternate, as those with a window and those without."""


@dataclass(frozen=True)
class EqualLayers:
    """A run of equal layers.

    nodes: of the first layer. count: the number of layers. carried: for each value that a layer gives to the next one,
    its names as the first layer's operand, as the first layer's result and as the last layer's result. members: the
    parameters of all layers by the name of the first layer's. scopes: the names of the modules of all layers, by those
    of the first layer.
    """

    nodes: Sequence[ExportedNode]
    count: int
    carried: Sequence[tuple[str, str, str]]
    members: Mapping[str, Sequence[str]]
    scopes: Mapping[str, str]

    @property
    def size(self) -> int:
        """The number of nodes of all layers."""
        return len(self.nodes) * self.count

    @property
    def frames(self) -> Frames:
        """The lines that lead to all nodes of a layer, the innermost first."""
        found = frames_of(self.nodes[0])
        for node in self.nodes[1:]:
            own = frames_of(node)
            while found and found != own[len(own) - len(found) :]:
                found = found[1:]
        return found


def equal_layers(
    graph: ExportedGraph, held: Mapping[str, Tensor], written: Set[str], plan: LayerPlan | None
) -> dict[int, EqualLayers]:
    """Return the runs of equal layers of a graph, by the places of their first nodes.

    held: parameters, buffers and constants by the names of their values. written: names of values that are overwritten;
    layers that read or make one are not equal. plan: of the layers, or None.
    """
    users: dict[str, list[int]] = defaultdict(list)
    for place, node in enumerate(graph.nodes):
        for name in node.operands:
            users[name].append(place)
    for name in names_in(graph.outputs):
        users[name].append(len(graph.nodes))
    found: dict[int, EqualLayers] = {}
    end = 0
    for starts in sorted(_lists(graph.nodes), key=lambda starts: (starts[0], -starts[-1])):
        if starts[0] < end:
            continue  # modules inside of layers that are a loop
        for period in PERIODS:
            search = _Search(graph.nodes, starts, period, held, written, users, plan)
            own = dict(search.runs())
            if own:
                found |= own
                end = starts[-1]
                break
    return found


def _lists(nodes: Sequence[ExportedNode]) -> Iterator[list[int]]:
    """Yield the places of the first nodes of the modules of each list, and of the node after the last module."""
    first: dict[str, dict[int, int]] = defaultdict(dict)
    last: dict[str, int] = {}
    for place, node in enumerate(nodes):
        parts = node.scope.split(".")
        for depth, part in enumerate(parts):
            if part.isdigit():
                prefix = ".".join(parts[:depth])
                first[prefix].setdefault(int(part), place)
                last[prefix] = place
    for prefix, places in first.items():
        numbers = list(places)
        starts = list(places.values())
        if len(numbers) >= FEWEST_LAYERS and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            yield [*starts, last[prefix] + 1]


class _Layer:
    """The nodes of one layer in a form that is equal for equal layers. others: names of values that are not the
    layer's, in the order in which it reads them. made: (node, result) by the names of the layer's values."""

    def __init__(self, nodes: Sequence[ExportedNode], plan: LayerPlan | None) -> None:
        self.nodes, self.plan = nodes, plan
        self.others: dict[str, int] = {}
        self.made: dict[str, tuple[int, int]] = {}
        self.form = tuple([self._node(place, node) for place, node in enumerate(nodes)])

    def _node(self, place: int, node: ExportedNode) -> Any:
        given = tuple([(name, _form(value, self._name)) for name, value in node.arguments])
        self.made |= {name: (place, number) for number, name in enumerate(node.results)}
        marks = None if self.plan is None else self.plan.node_marks(node)
        return node.target, given, len(node.results), node.types, node.given_by_name, node.reason, marks

    def _name(self, name: str) -> Any:
        return self.made[name] if name in self.made else self.others.setdefault(name, len(self.others))


def _form(value: Argument, named: Callable[[str], Any]) -> Any:
    """Return an argument with numbers for names."""
    if isinstance(value, NodeResult):
        return "name", named(value.name)
    if isinstance(value, tuple):
        return tuple([_form(each, named) for each in value])
    if isinstance(value, ExportedGraph):
        own: dict[str, int] = {name: place for place, (name, _) in enumerate(value.inputs)}

        def inner(name: str) -> int:
            return own.setdefault(name, len(own))

        nodes = tuple([
            (node.target, tuple([(name, _form(each, inner)) for name, each in node.arguments]),
             tuple(map(inner, node.results)), node.types)
            for node in value.nodes
        ])  # fmt: skip
        return nodes, tuple([type for _, type in value.inputs]), _form(value.outputs, inner)
    return type(value).__name__, repr(value)


class _Search:
    """The search for runs of equal layers in one list. period: how many modules are one layer."""

    def __init__(
        self, nodes: Sequence[ExportedNode], starts: Sequence[int], period: int, held: Mapping[str, Tensor],
        written: Set[str], users: Mapping[str, Sequence[int]], plan: LayerPlan | None,
    ) -> None:  # fmt: skip
        self.nodes, self.held, self.written, self.users, self.plan = nodes, held, written, users, plan
        count = (len(starts) - 1) // period
        self.starts = [starts[number * period] for number in range(count + 1)]
        """The places at which layers begin; the last one ends there."""
        self._layers: dict[int, _Layer] = {}

    def _layer(self, number: int) -> _Layer:
        if number not in self._layers:
            self._layers[number] = _Layer(self.nodes[self.starts[number] : self.starts[number + 1]], self.plan)
        return self._layers[number]

    def runs(self) -> Iterator[tuple[int, EqualLayers]]:
        """Yield the place of the first node, and the layers, of each run."""
        sizes = [end - start for start, end in pairwise(self.starts)]
        count, first, skipped = len(sizes), 0, 0
        while first + FEWEST_LAYERS <= count:
            last = first + 1
            while last < count and sizes[last] == sizes[first] and self._layer(last).form == self._layer(first).form:
                last += 1
            # The first layer may read another value than the others do, and others may read values of the last one.
            places = [(first + a, last - b) for a, b in ((0, 0), (0, 1), (1, 0), (1, 1))]
            found = next(filter(None, (self._run(a, b) for a, b in places if b - a >= FEWEST_LAYERS)), None)
            if found is not None:
                yield found
            skipped = 0 if found is not None or last - first < FEWEST_LAYERS else skipped + 1
            first = last if skipped in (0, MAX_SKIPPED) else first + 1

    def _run(self, first: int, end: int) -> tuple[int, EqualLayers] | None:
        """Return the place and the layers from one to before another one; None if they are no loop."""
        layers = [self._layer(number) for number in range(first, end)]
        rows = list(zip(*(layer.others for layer in layers), strict=True))
        members: dict[str, Sequence[str]] = {}
        carried: list[tuple[str, tuple[int, int]]] = []
        for names in rows:
            if not self.written.isdisjoint(names):
                return None
            if len(set(names)) == 1 or self._are_constants(names):
                continue
            if self._are_parameters(names):
                members[names[0]] = names
                continue
            place = layers[0].made.get(names[1])
            if place is None or names[0] in self.held:
                return None
            if any(layer.made.get(name) != place for layer, name in zip(layers, names[1:], strict=False)):
                return None
            carried.append((names[0], place))
        if not carried or not self._are_read_by_next(layers, first, {place for _, place in carried}):
            return None
        own = layers[0].nodes
        named = [(name, own[node].results[k], layers[-1].nodes[node].results[k]) for name, (node, k) in carried]
        scopes: dict[str, str] = {}
        for at, node in enumerate(own):
            scope = scope_of(node)
            if scope not in scopes:
                scopes[scope] = name_of_cells([scope_of(layer.nodes[at]) for layer in layers]) or scope
        return self.starts[first], EqualLayers(own, len(layers), named, members, scopes)

    def _are_constants(self, names: Sequence[str]) -> bool:
        """Return whether names are of equal constants."""
        values = [self.held.get(name) for name in names]
        if any(value is None or isinstance(value, Parameter) for value in values):
            return False
        first, *others = [value for value in values if value is not None]
        return all(
            each.shape == first.shape and each.dtype == first.dtype and np.array_equal(each.asnumpy(), first.asnumpy())
            for each in others
        )

    def _are_parameters(self, names: Sequence[str]) -> bool:
        """Return whether names are of as many parameters that differ in their values and names alone."""
        values = [self.held.get(name) for name in names]
        if not all(isinstance(value, Parameter) for value in values) or len(set(map(id, values))) < len(values):
            return False
        first, *others = [self._facts(value) for value in values if isinstance(value, Parameter)]
        return all(facts == first for facts in others)

    def _facts(self, value: Parameter) -> list[Any]:
        marks = None if self.plan is None else self.plan.parameter_marks(value.name)
        return [value.dtype, value.shape, *[getattr(value, name) for name in FACTS], marks]

    def _are_read_by_next(self, layers: Sequence[_Layer], first: int, carried: Collection[tuple[int, int]]) -> bool:
        """Return whether only the next layer reads a layer's values, and others read the last one's carried values."""
        for number, layer in enumerate(layers):
            end = self.starts[first + number + 1]
            until = end if number + 1 == len(layers) else self.starts[first + number + 2]
            for name, place in layer.made.items():
                latest = max(self.users.get(name, (0,)))
                if name in self.written or (latest >= end and place not in carried):
                    return False
                if number + 1 < len(layers) and latest >= until:
                    return False
        return True
