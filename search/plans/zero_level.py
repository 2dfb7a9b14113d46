"""Derives the level of ZeRO (Rajbhandari et al., 2020) of a compiled plan from the layouts of its weights, gradients
and states, whichever setting or search they come from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from mspc.analysis.aliasing import updated_parameters
from mspc.ir.graph import Graph, Node, Parameter, Value, element_layouts
from mspc.ops.control.regions import nodes_with_times
from mspc.search.plans.weights import WeightValues

STATES, GRADIENTS, WEIGHTS = 1, 2, 3
"""The levels: states are sharded further than operators need the weights; the gradients too; weights are gathered for
each use."""


def zero_level(graph: Graph, weights: WeightValues, outside: Mapping[Value, Value]) -> int:
    """The level that most bytes of the trained parameters have, 0 if they are stored as operators need them."""
    uses = _uses(graph, weights, outside)
    updates: dict[Parameter, Node] = {}
    for number, parameters in updated_parameters(graph).items():
        updates |= {parameter: graph.nodes[number] for parameter in parameters if parameter.trainable}
    levels: Counter[int] = Counter()
    again: Counter[bool] = Counter()
    for parameter, update in updates.items():
        known = uses.get(parameter)
        if not known:
            continue
        nbytes = parameter.tensor_type.nbytes * max(known.values())
        level = _level(parameter, update, min(_parts(value) for _, value in known))
        levels[level] += nbytes
        forward, backward = (
            {gather for each, value in known if each == phase for gather in _gathers(value, outside)}
            for phase in ("forward", "backward")
        )
        if level and backward:
            again[not backward & forward] += nbytes
    most = levels.total()
    found = max((level for level in (STATES, GRADIENTS) if 2 * _from(levels, level) > most), default=0)
    return WEIGHTS if found == GRADIENTS and again[True] > again[False] else found


def _from(levels: Counter[int], level: int) -> int:
    return sum(nbytes for each, nbytes in levels.items() if each >= level)


def _uses(
    graph: Graph, weights: WeightValues, outside: Mapping[Value, Value]
) -> dict[Parameter, dict[tuple[str, Value], int]]:
    """Return, for each weight, the (phase, value) pairs by which operators on activations read it, and their counts."""
    found: dict[Parameter, dict[tuple[str, Value], int]] = {}
    for node, times in nodes_with_times(graph):
        if node.phase == "update" or node.regions or weights.of(node, outside) is not None:
            continue
        for value in node.inputs:
            weight = weights.of(value, outside)
            if weight is not None and value.layout is not None:
                found.setdefault(weight, {})[node.phase, value] = times.count
    return found


def _gathers(value: Value, outside: Mapping[Value, Value]) -> Iterator[Node]:
    """The operators that bring slices of a weight together for a value that is computed from it."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        while value in outside:
            value = outside[value]
        if isinstance(value, Node):
            if _changes_layout(value) and _parts(value) < _parts(value.inputs[0]):
                yield value
            waiting += value.inputs


def _level(parameter: Parameter, update: Node, used: int) -> int:
    stored = _parts(parameter)
    if stored <= used:
        return 0
    whole = any(_parts(value) <= used for value in _gradients(parameter, update))
    return STATES if whole else GRADIENTS


def _gradients(parameter: Parameter, update: Node) -> Iterator[Value]:
    """The complete gradients that an update follows from, before and after each change of layout."""
    seen: set[Value] = set()
    waiting = list(update.inputs)
    while waiting:
        value = waiting.pop()
        if value in seen or not isinstance(value, Node):
            continue
        seen.add(value)
        layouts = element_layouts(value.layout) if value.layout is not None else ()
        same = len(layouts) == 1 and value.type == parameter.type
        if same and not layouts[0].is_partial:
            yield value
        if value.phase == "update" or (same and _changes_layout(value)):
            waiting += value.inputs


def _changes_layout(node: Node) -> bool:
    """Whether a node only moves slices of a tensor between ranks, or adds partial sums up."""
    source = node.inputs[0] if len(node.inputs) == 1 else None
    return source is not None and source.type == node.type and source.layout not in (None, node.layout)


def _parts(value: Value) -> int:
    """The number of slices that a tensor is sharded into."""
    return math.prod(element_layouts(value.layout)[0].strategy)
