"""Finds the stages of parameters that a step changes outside of micro-batches: weights, states of optimizers, loss
scales, counters.

A stage reads such a parameter where one of its own operators needs it, directly or through what is of no stage. All
that read it must update it. So the moments of a weight are updated on its stage alone, and a loss scale, which every
stage reads, on all of them, though the overflow that changes it is computed on one.
"""

from __future__ import annotations

from collections.abc import Mapping

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.stage_marks import mark_stages
from mspc.ops.control.loops import MakeStack
from mspc.ops.control.structural import Depend

Stages = frozenset[int]


def updated_where_read(
    graph: Graph, of: Mapping[Node, Stages], loop: Node | None, stages: int
) -> dict[Value, Stages]:  # fmt: skip
    """The stages of parameters that are updated on fewer stages than read them; none where that is all stages.

    of: the stages of the operators outside of micro-batches, none of what every stage can compute.
    """
    everyone = frozenset(range(stages))
    reading = _reading(graph, of, loop, everyone)
    found: dict[Value, Stages] = {}
    for value, where in _updating(graph, of, everyone).items():
        both = where | reading.get(value, Stages())
        if both != where:
            found[value] = Stages() if both == everyone else both
    return found


def updated_parameters(node: Node) -> list[Parameter]:
    """The parameters that a node overwrites, those of stacks, too."""
    found: list[Parameter] = []
    for index in node.op.mutates:
        value = node.inputs[index]
        parts = value.inputs if isinstance(value, Node) and isinstance(value.op, MakeStack) else [value]
        found += [part for part in parts if isinstance(part, Parameter)]
    return found


def place_parameters(
    graph: Graph, of: Mapping[Node, Stages], known: Mapping[Value, Stages], loop: Node | None, stages: int
) -> None:  # fmt: skip
    """Note the stages of parameters that not all stages hold: those that read or update them. known: of those that
    micro-batches read."""
    everyone = frozenset(range(stages))
    reading, updating = _reading(graph, of, loop, everyone), _updating(graph, of, everyone)
    for parameter in graph.parameters:
        if parameter.kind != "parameter":
            continue
        found = known.get(parameter, Stages()) | reading.get(parameter, Stages()) | updating.get(parameter, Stages())
        if found and found != everyone:
            mark_stages(parameter.attrs, found)


def _reading(graph: Graph, of: Mapping[Node, Stages], loop: Node | None, everyone: Stages) -> dict[Value, Stages]:
    """The stages that read each value outside of micro-batches, without updates of it."""
    wanted: dict[Value, Stages] = dict.fromkeys(graph.results, everyone)
    for node in reversed(graph.nodes):
        if node is loop:
            continue
        mutated = {node.inputs[index] for index in node.op.mutates}
        own = of[node] or (everyone if mutated else wanted.get(node, Stages()))
        for value in node.inputs[:1] if isinstance(node.op, Depend) else node.inputs:
            if value not in mutated:
                wanted[value] = wanted.get(value, Stages()) | own
    return wanted


def _updating(graph: Graph, of: Mapping[Node, Stages], everyone: Stages) -> dict[Value, Stages]:
    """The stages on which parameters are updated; of several updates those that all of them have."""
    found: dict[Value, Stages] = {}
    for node in graph.nodes:
        for parameter in updated_parameters(node) if node in of else ():  # the loop is in none
            found[parameter] = found.get(parameter, everyone) & (of[node] or everyone)
    return found
