"""Closes a graph that `opened_graphs.py` has opened: every region gets its own nodes, parameters and results again.

What a pass has put into a region is part of it by its place in the list; what nodes of a region read from outside
becomes an operand of the node that runs it: first what was one before, in that order, then the rest as it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from mspc.ir.builder import Builder
from mspc.ir.compare import difference
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import TupleType
from mspc.ops.control.borders import Back, Border, Decide, Enter, Handed, Joined, Keep, Leave, StandIn, Turn
from mspc.ops.control.loops import Loop, MakeStack
from mspc.ops.control.regions import If, with_effects
from mspc.ops.control.structural import TupleGetItem

COPY = "/copy"
"""In the name of a graph: behind it is the number of the node that it was copied for."""
_MARKS = (Handed, StandIn, Enter, Turn, Decide, Leave, Back, Keep)


@dataclass
class _Parts:
    """A node with regions that is being read: the nodes of each region, and what passes their borders.

    entered: by number, all that turns differ in. results: by number, of the last region; left: of the first.
    """

    border: Border | None = None
    hands: Node | None = None
    handed: list[Value] = field(default_factory=list[Value])
    lists: list[list[Node]] = field(default_factory=list[list[Node]])
    given: list[Node] = field(default_factory=list[Node])
    entered: dict[int, Node] = field(default_factory=dict[int, Node])
    turn: Node | None = None
    conditions: list[Node] = field(default_factory=list[Node])
    left: dict[int, Node] = field(default_factory=dict[int, Node])
    backs: dict[int, Node] = field(default_factory=dict[int, Node])
    kept: dict[int, Node] = field(default_factory=dict[int, Node])


def close_regions(graph: Graph) -> None:
    """Give the graph's nodes their regions back; a graph that is not open stays as it is."""
    if not any(isinstance(node.op, Joined) for node in graph.nodes):
        return
    closer = _Closer(graph)
    for node in graph.nodes:
        if isinstance(node.op, MakeStack):
            _lie_alike(node)
        closer.take(node)
    assert len(closer.lists) == 1, "a region has no end"
    graph.nodes = closer.lists[0]
    graph.results = [closer.outer.get(value, value) for value in graph.results]
    for each in graph.graphs():
        for node in each.nodes:
            if node.forward in closer.operands:
                node.forward, node.forward_input = closer.operands[node.forward][node.forward_input]
    _share_again(graph)


def _lie_alike(stack: Node) -> None:
    """What stands for others has its layout for all of them."""
    layout = stack.inputs[0].layout
    if isinstance(layout, Layout):
        for value in (stack, *stack.inputs):
            value.layout = layout
        stack.in_layouts = None


class _Closer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.is_sliced = "rank" in graph.attrs
        self.lists: list[list[Node]] = [[]]
        """Of the graph, then of every region that is open, the innermost last."""
        self.parts: dict[Node, _Parts] = {}
        self.outer: dict[Value, Value] = {}
        """For what a border hands out the element of the node's tuple."""
        self.operands: dict[Node, list[tuple[Node, int]]] = {}
        """For every mark, by the number of its operand, the node, and which of its operands that is."""
        self.read_directly = {
            value for node in graph.nodes if not isinstance(node.op, (*_MARKS, Joined)) for value in node.inputs
        } | set(graph.results)

    def take(self, node: Node) -> None:
        op = node.op
        node.inputs = [self.outer.get(value, value) for value in node.inputs]
        if isinstance(op, Border):
            self.pass_border(op)
        elif isinstance(op, Joined):
            self.finish(node, self.parts.pop(op.owner))
        elif isinstance(op, _MARKS):
            self.note(node, self.parts.setdefault(op.owner, _Parts()))
        else:
            self.lists[-1].append(node)

    def pass_border(self, border: Border) -> None:
        parts = self.parts.setdefault(border.owner, _Parts())
        if border.region:
            self.lists.pop()
        parts.border = border
        if not border.is_end:
            parts.lists.append([])
            self.lists.append(parts.lists[-1])

    def note(self, node: Node, parts: _Parts) -> None:
        op = node.op
        if isinstance(op, Decide):
            (parts.conditions if parts.lists else parts.given).append(node)
        elif isinstance(op, Handed):
            parts.hands, parts.handed = node, node.inputs
        elif isinstance(op, Enter | StandIn):
            parts.entered[op.number] = node
        elif isinstance(op, Leave):
            parts.left[op.number] = node
        elif isinstance(op, Back):
            parts.backs[op.number] = node
        elif isinstance(op, Keep):
            parts.kept[op.number] = node
        elif isinstance(op, Turn) and not op.is_count:
            parts.turn = node

    # The node ------------------------------------------------------------------------------------------------

    def finish(self, node: Node, parts: _Parts) -> None:
        """Make the node of its parts, and append it."""
        border = parts.border
        assert border is not None, f"{node.label} has no regions"
        op = border.op
        results = _results(border, parts)
        marks = [parts.entered[number] for number in sorted(parts.entered)]
        entered = [mark.inputs[1] if isinstance(mark.op, StandIn) else mark for mark in marks]
        turn = [parts.turn] if parts.turn is not None else []
        captured = _captured(parts, results, {*entered, *turn})
        lead = len(parts.given) + len(entered)
        for number, mark in enumerate((*parts.given, *marks)):
            self.operands[mark] = [(node, number)]
        if parts.hands is not None:
            places = {value: lead + place for place, value in enumerate(captured)}
            self.operands[parts.hands] = [(node, places.get(value, -1)) for value in parts.handed]
        handed_out = list(node.inputs)
        node.inputs = [*(mark.inputs[0] for mark in (*parts.given, *marks)), *captured]
        node.type = TupleType(tuple(value.tensor_type for value in handed_out))
        layouts = [value.layout for value in handed_out if isinstance(value.layout, Layout)]
        node.layout = tuple(layouts) if len(layouts) == len(handed_out) else None
        regions: list[Graph] = []
        for number, region in enumerate(border.regions):
            first = turn if number == len(border.regions) - 1 else []
            names = _names(region, len(first) + len(entered), parts.handed, captured)
            made = _closed(region.name, parts.lists[number], results[number])
            made.attrs, made.returns_tuple = dict(region.attrs), region.returns_tuple
            _add_parameters(made, [*first, *entered, *captured], names, self.is_sliced)
            regions.append(made)
        node.op = with_effects(op, node.inputs, regions)  # type: ignore[assignment]  # see RegionOp
        node.regions = tuple(regions)
        self.lists[-1].append(node)
        self.hand_out(node, handed_out)

    def hand_out(self, node: Node, made: Sequence[Value]) -> None:
        """Append elements of the node for those who read what a border made."""
        for number, value in enumerate(made):
            if value not in self.read_directly or value in self.outer:
                continue
            b = Builder(self.graph, self.lists[-1]).like(node)
            b.phase = node.phase
            item = self.outer[value] = b.emit(TupleGetItem(number), node, name=value.name)
            item.layout = value.layout


def _results(border: Border, parts: _Parts) -> list[list[Value]]:
    """What every region returns."""
    backs = [parts.backs[number].inputs[1] for number in sorted(parts.backs)]
    if isinstance(border.op, Loop):
        kept = [parts.kept[number].inputs[0] for number in sorted(parts.kept)]
        return [*([mark.inputs[0]] for mark in parts.conditions), [*backs, *kept]]
    left = [parts.left[number].inputs[0] for number in sorted(parts.left)]
    return [left, backs] if isinstance(border.op, If) else [left]


def _captured(parts: _Parts, results: Sequence[Sequence[Value]], inside: set[Value]) -> list[Value]:
    """What the regions read from outside: what was handed in before, if it is still read, then the rest."""
    read: dict[Value, None] = {}
    for nodes, returned in zip(parts.lists, results, strict=True):
        made: set[Value] = {*inside, *nodes}
        for value in (*(value for node in nodes for value in node.inputs), *returned):
            if value not in made and not isinstance(value, Constant):
                read.setdefault(value)
    before = [value for value in dict.fromkeys(parts.handed) if value in read]
    known = set(before)
    return [*before, *(value for value in read if value not in known)]


def _names(region: Graph, lead: int, handed: Sequence[Value], captured: Sequence[Value]) -> list[str]:
    """Names of a region's parameters, each once: those that it had, or those of what is handed in."""
    had = dict(zip(handed, (parameter.name for parameter in region.parameters[lead:]), strict=False))
    found = dict.fromkeys(parameter.name for parameter in region.parameters[:lead])
    for value in captured:
        wanted = name = had.get(value) or value.name or "value"
        number = 1
        while name in found:
            number += 1
            name = f"{wanted}_{number}"
        found[name] = None
    return list(found)


def _closed(name: str, nodes: list[Node], results: Sequence[Value]) -> Graph:
    """A region with these nodes and results, which still reads what is outside."""
    made = Graph(name)
    made.nodes, made.results = nodes, list(results)
    return made


def _add_parameters(region: Graph, read: Sequence[Value], names: Sequence[str], is_sliced: bool) -> None:
    """Let parameters stand for what a region reads; those of a rank's graph have no layouts, as its nodes have none."""
    of: dict[Value, Value] = {}
    for value, name in zip(read, names, strict=True):
        layout = value.layout if isinstance(value.layout, Layout) and not is_sliced else None
        of[value] = parameter = Parameter(name, value.type, layout=layout)
        region.parameters.append(parameter)
    region.replace(of)


def _share_again(graph: Graph) -> None:
    """Let nodes whose graphs were copies of one run one, where they are still equal."""
    variants: dict[str, list[Graph]] = {}
    for node in graph.nodes:
        node.regions = tuple(_shared(region, variants) for region in node.regions)


def _shared(region: Graph, variants: dict[str, list[Graph]]) -> Graph:
    """The first of the graphs that are equal to a region but for the name, and copies of one graph with it."""
    for node in region.nodes:
        node.regions = tuple(_shared(inner, variants) for inner in node.regions)
    base, _, number = region.name.partition(COPY)
    known = variants.setdefault(base, [])
    if number:
        for other in known:
            if _equal(other, region):
                return other
    known.append(region)
    return region


def _equal(one: Graph, other: Graph) -> bool:
    own, other.name = other.name, one.name
    same = not difference(one, other)
    other.name = own
    return same
