"""This module finds which integers an input of a graph may hold: places in a table, classes, segments. Operators
declare how many there are (`Op.index_limits`), and the input is followed to them through the operators between.
"""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import TensorType


def index_limits(graph: Graph, computed: bool = False) -> dict[Parameter, int]:
    """For inputs that hold places: how many there are, the fewest where several operators read them.

    The integers lie in [0, limit) where only operators that move elements are between; with `computed` those inputs
    are found too from which the places are computed.
    """
    held: dict[Value, frozenset[Parameter]] = {p: frozenset((p,)) for p in graph.parameters if p.kind == "input"}
    found: dict[Parameter, int] = {}
    _look(graph, held, found, computed)
    return found


def _look(
    graph: Graph, held: dict[Value, frozenset[Parameter]], found: dict[Parameter, int], computed: bool
) -> None:  # fmt: skip
    """Look for limits in a graph of whose parameters `held` says which inputs they hold, and in the graphs that its
    nodes run."""
    for node in graph.nodes:
        if computed or _only_moves(node):
            held[node] = frozenset(p for value in node.inputs for p in held.get(value, ()))
        for number, region in enumerate(node.regions):
            places = node.op.places(number, [v.type for v in node.inputs])  # type: ignore[attr-defined]  # runs graphs
            for value, inside in zip(node.inputs, places, strict=True):
                for place in inside if value in held else ():
                    held[region.parameters[place]] = held[value]
            _look(region, held, found, computed)
        types = [value.type for value in node.inputs if isinstance(value.type, TensorType)]
        if len(types) < len(node.inputs):
            continue
        for index, limit in node.op.index_limits(*types).items():
            for parameter in held.get(node.inputs[index], ()):
                found[parameter] = min(limit, found.get(parameter, limit))


def distributions(graph: Graph) -> set[Parameter]:
    """The inputs whose rows sum to 1, as an operator that reads them says (`Op.distributions`)."""
    shown: dict[Value, Parameter] = {p: p for p in graph.parameters if p.kind == "input"}
    found: set[Parameter] = set()
    for node in graph.nodes:
        read = [node.inputs[index] for index in node.op.distributions]
        found.update(shown[value] for value in read if value in shown)
        source = node.inputs[0] if node.inputs else None
        if source in shown and _only_moves(node) and getattr(node.type, "shape", None) == source.shape:
            shown[node] = shown[source]
    return found


def _only_moves(node: Node) -> bool:
    return node.op.is_view or node.op.may_alias or node.op.follows_neighbours
