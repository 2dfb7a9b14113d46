"""Sends what a stage tells the others behind its work as soon as it is known.

A result of the network, as the loss, is made by the last forward of one stage, and all ranks have it. It stands behind
the loop over micro-batches: sent there, the others, which look at losses before their updates, would wait for gradients
that the stage computes meanwhile. What needs results of the last work, as a norm of gradients, stays where it is, and
what is large: its receiver comes to it behind its own work, for which a communicator may let the sender wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.analysis.aliasing import updated_parameters
from mspc.ir.graph import WORK, Graph, Node
from mspc.ops.collective.stage_messages import ReceiveFromStage, SendToStage

SMALL = 1 << 11
"""Bytes of a message that leaves before its receiver has come to it, by any communicator."""


def sent_when_known(graph: Graph) -> list[Node]:
    """The nodes of a stage in another order: results and what makes them right behind the work that they come from."""
    nodes = graph.nodes
    last = max((number for number, node in enumerate(nodes) if WORK in node.attrs), default=-1)
    places = {node: number for number, node in enumerate(nodes)}
    fixed = _fixed(graph)
    moved: dict[Node, int] = {}
    for node in nodes[last + 1 :]:
        if not isinstance(node.op, SendToStage) or node.inputs[0].type.nbytes > SMALL:
            continue
        made = _made_behind(node, places, last)
        behind = max((places[v] for each in made for v in _operands(each) if places[v] <= last), default=-1)
        if not fixed.isdisjoint(made) or behind < 0:
            continue
        behind = _before_next(nodes, behind)
        if behind < last:
            for each in made:  # what several messages need stands where the first of them needs it
                moved[each] = min(behind, moved.get(each, behind))
    return _placed(nodes, moved)


def _fixed(graph: Graph) -> set[Node]:
    """What stays: messages that are received, updates, and what reads a parameter that is updated."""
    updates = updated_parameters(graph)
    written = {parameter for parameters in updates.values() for parameter in parameters}
    return {
        node for number, node in enumerate(graph.nodes)
        if isinstance(node.op, ReceiveFromStage) or number in updates or not written.isdisjoint(node.inputs)
    }  # fmt: skip


def _operands(node: Node) -> list[Node]:
    return [value for value in node.inputs if isinstance(value, Node)]


def _made_behind(node: Node, places: dict[Node, int], last: int) -> set[Node]:
    """A node and all behind place `last` that it needs."""
    found, ahead = {node}, [node]
    while ahead:
        for value in _operands(ahead.pop()):
            if places[value] > last and value not in found:
                found.add(value)
                ahead.append(value)
    return found


def _before_next(nodes: Sequence[Node], place: int) -> int:
    """The last place behind what a call makes and sends: others wait for that first."""
    while place + 1 < len(nodes):
        node = nodes[place + 1]
        if not (node.op.is_view or isinstance(node.op, SendToStage) or node.inputs[:1] == [nodes[place]]):
            break
        place += 1
    return place


def _placed(nodes: Sequence[Node], moved: dict[Node, int]) -> list[Node]:
    following: dict[int, list[Node]] = {}
    for node in nodes:
        if node in moved:
            following.setdefault(moved[node], []).append(node)
    found: list[Node] = []
    for place, node in enumerate(nodes):
        if node not in moved:
            found.append(node)
        found += following.get(place, ())
    return found
