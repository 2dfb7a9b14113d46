"""Conversion of a graph to networkx and Graphviz, for drawing and for questions about paths. The storage remains
`Graph`.

networkx is imported only in the functions that need it, because it costs a tenth of a second at start-up.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from mspc.ir.diagnostics import OWN_FILES
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_layouts, element_types
from mspc.ir.text.printer import strategy_text
from mspc.ir.text.values import element_text, layouts_text, type_text, value_text

if TYPE_CHECKING:
    import networkx

WIDTH = 44
"""Characters of a line of a label, so that long reasons make vertices high, not wide."""
_TUPLE = re.compile(r"\([\d, -]*\)")
_NODE_STYLE = {
    "forward": 'shape=ellipse, style=filled, fillcolor="#ffffff"',
    "backward": 'shape=ellipse, style=filled, fillcolor="#e8eef7"',
    "update": 'shape=ellipse, style=filled, fillcolor="#e9f5e6"',
}
_COLLECTIVE_STYLE = 'shape=hexagon, style=filled, fillcolor="#f7b267"'
_PARAMETER_STYLE = 'shape=box, style=filled, fillcolor="#f0f0f0"'


def to_networkx(graph: Graph) -> networkx.DiGraph[Value]:
    """Return a graph with one vertex per parameter and node, and one edge from every value to every reader.

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
    """Return values that depend on each other in a cycle, or [] if there is none. The order of nodes is irrelevant."""
    import networkx

    try:
        edges = cast(Any, networkx).find_cycle(to_networkx(graph))
        return [edge[0] for edge in edges]
    except networkx.NetworkXNoCycle:
        return []


def is_collective(node: Node) -> bool:
    """Return whether ranks communicate at this node: the operator has a list of ranks."""
    return hasattr(node.op, "rank_list") or "rank_list" in node.op.attributes()


def to_dot(graph: Graph) -> str:
    """Return the graph in Graphviz's language: parameters as boxes, collectives coloured, one edge per operand, a frame
    around the operators of every cell.

    An operator shows its strategy if it has one, a collective its ranks and its reason, a fused one its members, and
    all of them the user's line. Vertices have names as in the printed text: `para1`, `n0`. A region has a dashed
    frame, and the nodes that run it point to its first point; the names of its vertices begin with its number: `g1_n0`.
    """
    lines = [f"digraph {_quoted(graph.name)} {{", "  rankdir=TB;", '  node [fontname="monospace"];']
    graphs = graph.graphs()
    begins = {each: f"g{number}" for number, each in enumerate(graphs)}
    count = [0]
    first = 1
    for number, each in enumerate(graphs):
        drawn = _vertices(each, f"g{number}_" if number else "", first, count, begins)
        first += len(each.parameters)
        if number:
            label = f'label={_quoted("@" + each.name)}; style=dashed; color="#606060"; fontname="monospace";'
            begin = f'{begins[each]} [label="", shape=point];'
            inside = [f"    {label}", f"    {begin}", *("  " + line for line in drawn)]
            drawn = [f"  subgraph cluster_g{number} {{", *inside, "  }"]
        lines += drawn
    return "\n".join([*lines, "}", ""])


def _vertices(graph: Graph, prefix: str, first: int, count: list[int], begins: Mapping[Graph, str]) -> list[str]:
    """Return the lines of one graph. prefix: begins the names of its vertices. first: number of its first parameter.
    count: the number of frames so far, in a list. begins: the vertices that represent regions."""
    names: dict[Value, str] = {p: f"{prefix}para{i}" for i, p in enumerate(graph.parameters, first)}
    names |= {node: f"{prefix}n{i}" for i, node in enumerate(graph.nodes)}
    lines: list[str] = []
    for parameter in graph.parameters:
        label = _quoted(f"{parameter.name}\n{_shape(parameter)}")
        lines.append(f"  {names[parameter]} [label={label}, {_PARAMETER_STYLE}];")
    cells = _Cell()
    for number, node in enumerate(graph.nodes):
        style = _COLLECTIVE_STYLE if is_collective(node) else _NODE_STYLE.get(node.phase, _NODE_STYLE["forward"])
        cells.at(node.scope).append(f"{names[node]} [label={_quoted(_label(number, node))}, {style}];")
    lines += cells.lines("  ", count)
    for node in graph.nodes:
        lines += [f"  {names[v]} -> {names[node]};" for v in node.inputs if v in names]
        lines += [f"  {names[node]} -> {begins[region]} [style=dashed];" for region in node.regions]
    for index, value in enumerate(graph.results):
        lines.append(f'  {prefix}out{index} [label="result {index}", shape=plaintext];')
        if value in names:
            lines.append(f"  {names[value]} -> {prefix}out{index};")
    return lines


class _Cell:
    """A cell of the network with its vertices and its inner cells."""

    def __init__(self) -> None:
        self.vertices: list[str] = []
        self.inside: dict[str, _Cell] = {}

    def at(self, scope: str) -> list[str]:
        """Return the vertices of the cell at `scope`, which is made if it is new."""
        cell = self
        for name in filter(None, scope.split("/")):
            cell = cell.inside.setdefault(name, _Cell())
        return cell.vertices

    def lines(self, indent: str, count: list[int]) -> list[str]:
        """Return its lines without its own frame. A frame that only holds one other frame is merged with it."""
        found = [indent + vertex for vertex in self.vertices]
        for name, cell in self.inside.items():
            while not cell.vertices and len(cell.inside) == 1:
                ((inner, cell),) = cell.inside.items()
                name = f"{name}/{inner}"
            number, count[0] = count[0], count[0] + 1
            found.append(f"{indent}subgraph cluster_{number} {{")
            found.append(f'{indent}  label={_quoted(name)}; color="#a0a0a0"; fontname="monospace";')
            found += [*cell.lines(indent + "  ", count), f"{indent}}}"]
        return found


def _label(number: int, node: Node) -> str:
    """Return the label of a node's vertex, one fact per line."""
    labels = [f"%{number} {node.op.name}" + (f" {node.instance}" if node.instance else ""), _shape(node)]
    for value in node.inputs:
        if isinstance(value, Constant):
            one = value.tensor_type.size == 1
            dtype = value.tensor_type.dtype
            labels.append(element_text(value.value.reshape(-1)[0], dtype) if one else f"constant {_shape(value)}")
    strategy = node.strategy if node.in_strategy is None else node.in_strategy
    if strategy is None and node.in_layouts and not is_collective(node):
        strategy = [part.strategy for each in node.in_layouts for part in element_layouts(each)]
    labels += [] if strategy is None else [strategy_text("in", strategy)]
    if is_collective(node):  # its ranks, or its mesh axes if the graph is still that of all ranks
        group = {name: getattr(node.op, name, None) for name in ("rank_list", "axes", "mesh")}
        group |= dict(node.op.attributes())
        if group["rank_list"]:
            labels.append(f"group {value_text(group['rank_list'])}")
        elif group["axes"]:
            labels.append(f"over axes {value_text(group['axes'])} of mesh {value_text(group['mesh'])}")
    if "fused" in node.attrs:
        labels.append("fused: " + ", ".join(map(str, node.attrs["fused"])))
    if node.attrs.get("reason"):
        labels.append(str(node.attrs["reason"]))
    place = next((f for f in node.frames if not f.file.startswith(OWN_FILES)), None)
    if place is not None:
        labels.append(f"{place.file}:{place.line}")
    return "\n".join(line for fact in labels for line in _wrapped(fact))


def _wrapped(text: str) -> list[str]:
    """Return the text in lines of a label; tuples of numbers are not broken."""
    joined = _TUPLE.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = [line for part in joined.split("\n") for line in textwrap.wrap(part, WIDTH, break_long_words=False)]
    return [line.replace("\0", " ") for line in lines]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _shape(value: Value) -> str:
    types = element_types(value.type)
    shapes = [type_text(type).strip("<>").replace("Tensor[", "").replace("], (", " (") for type in types]
    text = "\n".join(shapes) if types else type_text(value.type).strip("<>")
    return f"{text}\n{layouts_text(value.layout)}" if value.layout is not None else text
