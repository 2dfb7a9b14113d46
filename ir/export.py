"""Graph -> networkx and Graphviz, for drawing and for questions about paths. The storage stays `Graph`.

networkx is imported where it is needed, because it costs a tenth of a second at start-up.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.text.values import element_text, layouts_text, type_text
from mspc.ir.types import TensorType

if TYPE_CHECKING:
    import networkx

Cost = Callable[[Node], float]
_NODE_STYLE = {
    "forward": 'shape=ellipse, style=filled, fillcolor="#ffffff"',
    "backward": 'shape=ellipse, style=filled, fillcolor="#e8eef7"',
    "update": 'shape=ellipse, style=filled, fillcolor="#e9f5e6"',
}
_COLLECTIVE_STYLE = 'shape=hexagon, style=filled, fillcolor="#f7b267"'
_PARAMETER_STYLE = 'shape=box, style=filled, fillcolor="#f0f0f0"'


def to_networkx(graph: Graph) -> networkx.DiGraph[Value]:
    """One vertex per parameter and node, one edge from every value to every node that reads it.

    Edges hold `operands`, the operand indices. Constants are left out. Vertices come in run order.
    """
    import networkx

    found: networkx.DiGraph[Value] = networkx.DiGraph(name=graph.name)
    found.add_nodes_from(graph.values())
    for node in graph.nodes:
        for index, value in enumerate(node.inputs):
            if isinstance(value, Parameter | Node):
                operands = found.edges[value, node]["operands"] if found.has_edge(value, node) else ()
                found.add_edge(value, node, operands=(*operands, index))
    return found


def find_cycle(graph: Graph) -> list[Value]:
    """Values that depend on each other in a ring, [] for a sound graph, whatever the order of its nodes."""
    import networkx

    try:
        edges = cast(Any, networkx).find_cycle(to_networkx(graph))
        return [edge[0] for edge in edges]
    except networkx.NetworkXNoCycle:
        return []


def critical_path(graph: Graph, cost: Cost = lambda node: 1.0) -> tuple[float, list[Node]]:
    """The costliest chain of dependent nodes, and its cost; a node costs 1 unless `cost` says otherwise."""
    best: dict[Value, tuple[float, Node | None]] = {}
    for node in graph.nodes:
        before = [value for value in node.inputs if isinstance(value, Node)]
        last = max(before, key=lambda value: best[value][0], default=None)
        best[node] = (cost(node) + (best[last][0] if last is not None else 0.0), last)
    end = max(graph.nodes, key=lambda node: best[node][0], default=None)
    total = best[end][0] if end is not None else 0.0
    path: list[Node] = []
    while end is not None:
        path.append(end)
        end = best[end][1]
    return total, path[::-1]


def is_collective(node: Node) -> bool:
    """Whether ranks talk to each other here: the operator has a list of ranks."""
    return hasattr(node.op, "rank_list") or "rank_list" in node.op.attributes()


def to_dot(graph: Graph) -> str:
    """The graph in Graphviz's language: parameters as boxes, collectives coloured, one edge per operand.

    Vertices are named as in the printed text: `para1`, `n0`.
    """
    names: dict[Value, str] = {p: f"para{i}" for i, p in enumerate(graph.parameters, 1)}
    names |= {node: f"n{i}" for i, node in enumerate(graph.nodes)}
    lines = [f"digraph {_quoted(graph.name)} {{", "  rankdir=TB;", '  node [fontname="monospace"];']
    for parameter in graph.parameters:
        label = _quoted(f"{parameter.name}\n{_shape(parameter)}")
        lines.append(f"  {names[parameter]} [label={label}, {_PARAMETER_STYLE}];")
    for number, node in enumerate(graph.nodes):
        style = _NODE_STYLE.get(node.phase, _NODE_STYLE["forward"])
        if is_collective(node):
            style = _COLLECTIVE_STYLE
        title = f"%{number} {node.op.name}" + (f" {node.instance}" if node.instance else "")
        constants = [_constant(v) for v in node.inputs if isinstance(v, Constant)]
        label = _quoted("\n".join([title, _shape(node), *constants]))
        lines.append(f"  {names[node]} [label={label}, {style}];")
        lines += [f"  {names[v]} -> {names[node]};" for v in node.inputs if v in names]
    for index, value in enumerate(graph.results):
        lines.append(f'  out{index} [label="result {index}", shape=plaintext];')
        if value in names:
            lines.append(f"  {names[value]} -> out{index};")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _shape(value: Value) -> str:
    text = type_text(value.type).strip("<>").replace("Tensor[", "").replace("], (", " (")
    return f"{text}\n{layouts_text(value.layout)}" if value.layout is not None else text


def _constant(constant: Constant) -> str:
    tensor = constant.type
    if isinstance(tensor, TensorType) and tensor.size == 1:
        return element_text(constant.value.reshape(-1)[0], tensor.dtype)
    return f"constant {_shape(constant)}"
