"""Graphs whose regions are opened into one list of nodes, and closed again."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from itertools import count
from typing import cast

from mspc.ir.compare import difference
from mspc.ir.graph import (
    Builder,
    Constant,
    Graph,
    Layouts,
    Node,
    Parameter,
    TypedOp,
    Value,
    copied_node,
    copied_region,
    element_types,
)
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import TupleType
from mspc.ops.control.regions import If, Loop, MakeStack, RegionOp, is_stack_of_parameters, with_effects
from mspc.ops.control.structural import (
    Back,
    Decide,
    Enter,
    Handed,
    IterationNumber,
    Joined,
    Keep,
    Leave,
    RegionBoundary,
    StandIn,
    TupleGetItem,
)
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import BroadcastTo

# Passes that decide on the layouts of all operators together work on the opened graph: a region's outside values are
# read in place, and carried, scanned, stacked or selected values go through operators of their own
# (`ops/control/structural.py`), whose rules say how layouts pass the boundary. A graph that several nodes run is
# opened as a copy for each but the first, since their layouts may differ; copies that are equal after the pass become
# one graph again.


@contextmanager
def opened(graph: Graph) -> Generator[Graph]:
    """Work on a graph whose regions are open; one without regions stays as it is."""
    if not any(node.regions for node in graph.nodes):
        yield graph
        return
    open_regions(graph)
    try:
        yield graph
    finally:
        close_regions(graph)


def open_regions(graph: Graph) -> None:
    """Put the nodes of all regions into the list of the graph's own."""
    unshare_regions(graph)
    opener = _Opener(graph)
    for node in graph.nodes:
        opener.take(node)
    graph.nodes = opener.nodes
    for node in graph.nodes:
        if node.forward in opener.marks and node.forward_input >= 0:
            node.forward, node.forward_input = opener.marks[node.forward][node.forward_input]
    take_zeros_apart(graph)


def unshare_regions(graph: Graph) -> None:
    """Give every node with regions graphs of its own."""
    taken: set[Graph] = set()
    names = {each.name for each in graph.graphs()}

    def free(name: str) -> str:
        base = name.partition(COPY)[0]
        found = next(f"{base}{COPY}{i}" for i in count(1) if f"{base}{COPY}{i}" not in names)
        names.add(found)
        return found

    def unshare(graph: Graph) -> None:
        for node in graph.nodes:
            node.regions = tuple(copied_region(region, free) if region in taken else region for region in node.regions)
            for region in node.regions:
                taken.add(region)
                unshare(region)

    unshare(graph)


class _Opener:
    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.builder = Builder(graph, self.nodes)
        self.scalar = Layout.replicated(int(graph.attrs.get("ranks", 1)), 0)
        self.outside: dict[Value, Value] = {}
        """The values that replace parameters of regions that are open."""
        self.marks: dict[Node, list[tuple[Node, int]]] = {}
        """For every node that is open, by the number of an operand, the mark that reads it, and as which operand."""

    def take(self, node: Node) -> None:
        """Append a node of the graph or of a region, with its regions."""
        node.inputs = [self.outside.get(value, value) for value in node.inputs]
        if not node.regions:
            self.nodes.append(node)
            return
        op = node.op
        assert isinstance(op, RegionOp)
        changed = tuple(stands_for(node.inputs[index]) for index in op.mutates)
        varying = tuple(stands_for(value) for value in node.inputs if is_stack_of_parameters(value))
        border = RegionBoundary(node, op, node.regions, 0, changed, varying)
        self.builder.like(node).phase = node.phase
        results = self.loop(node, op, border) if isinstance(op, Loop) else self.branches(node, op, border)
        node.op, node.regions, node.in_layouts = Joined(node), (), None
        node.inputs = list(results)
        self.nodes.append(node)

    def branches(self, node: Node, op: RegionOp, border: RegionBoundary) -> list[Value]:
        given = node.inputs
        if isinstance(op, If):
            self.read(node, self.emit(Decide(node), self.scalar if node.layout is not None else None, given[0]))
            given = given[1:]
        self.hand(node, given)
        found: list[Value] = []
        kind = op.name
        for number, region in enumerate(border.regions):
            self.border(border, number)
            self.outside |= dict(zip(region.parameters, given, strict=True))
            for place, value in enumerate(self.region(region)):
                layout = _element(node.layout, place)
                if number:
                    found[place] = self.emit(Back(node, kind, place, False), layout, found[place], value)
                else:
                    found.append(self.emit(Leave(node, kind, place), layout, value))
        self.border(border, len(border.regions))
        return found

    def loop(self, node: Node, op: Loop, border: RegionBoundary) -> list[Value]:
        if op.first:
            self.read(node, self.emit(Decide(node), self.scalar if node.layout is not None else None, node.inputs[0]))
        body = border.regions[-1]
        entered = [self.enter(node, op, body, i) for i in (*op.carried_operands, *op.scanned_operands)]
        self.hand(node, node.inputs[op.scanned_operands.stop :])
        for region in border.regions:
            lead = op.leading if region is body else 0
            if lead:
                self.outside[region.parameters[0]] = self.emit(IterationNumber(node), self.scalar)
            read = [*entered, *node.inputs[op.scanned_operands.stop :]]
            self.outside |= dict(zip(region.parameters[lead:], read, strict=True))
        self.border(border, 0)
        for number, region in enumerate(border.regions[:-1]):
            (condition,) = self.region(region)
            self.emit(Decide(node), self.scalar if node.layout is not None else None, condition)
            self.border(border, number + 1)
        results = self.region(body)
        found: list[Value] = []
        for number in range(op.carried):
            back = Back(node, op.name, number, True)
            layout = entered[number].layout
            layout = layout if isinstance(layout, Layout) else None
            found.append(self.emit(back, layout, entered[number], results[number]))
        turns = op.known_iterations([value.type for value in node.inputs])
        counts = len(element_types(node.type)) - op.carried - op.stacked
        kept: list[Node] = []
        for i, value in enumerate(results[op.carried :]):
            layout = _element(node.layout, op.carried + counts + i)
            kept.append(self.emit(Keep(node, op.name, i, turns), layout, value))
        self.border(border, len(border.regions))
        counted = [self.emit(IterationNumber(node, True), self.scalar) for _ in range(counts)]
        return [*found, *counted, *kept]

    def enter(self, node: Node, op: Loop, body: Graph, operand: int) -> Value:
        number = operand - op.first
        value = node.inputs[operand]
        if is_stack_of_parameters(value):
            made = self.builder.emit(StandIn(node, number), value, stands_for(value))
            made.layout = ()
            self.marks.setdefault(node, []).append((made, 0))
            return stands_for(value)
        parameter = body.parameters[cast(int, op.inside(0, operand))]
        enter = Enter(node, op.name, number, operand in op.scanned_operands)
        made = self.emit(enter, parameter.layout, node.inputs[operand])
        made.name = parameter.name
        self.read(node, made)
        return made

    def region(self, region: Graph) -> list[Value]:
        """Append the nodes of a region whose parameters are known, and return its results."""
        b = self.builder
        before = b.scope, b.frames, b.phase
        for node in region.nodes:
            self.take(node)
        b.scope, b.frames, b.phase = before
        return [self.outside.get(value, value) for value in region.results]

    def hand(self, node: Node, captured: Sequence[Value]) -> None:
        made = self.builder.emit(Handed(node), *captured)
        made.layout = ()
        self.read(node, made)

    def read(self, node: Node, mark: Node) -> None:
        """Note that a mark reads the next operands of a node."""
        self.marks.setdefault(node, []).extend((mark, number) for number in range(len(mark.inputs)))

    def border(self, border: RegionBoundary, number: int) -> None:
        made = self.builder.emit(replace(border, region=number))
        made.layout = ()

    def emit(self, op: TypedOp, layout: Layouts, *inputs: Value) -> Node:
        made = self.builder.emit(op, *inputs)
        made.layout = layout
        if isinstance(layout, Layout) and inputs:
            dims = layout.dims
            if isinstance(op, Enter) and op.scanned and len(inputs[0].shape) > len(dims):
                dims = ((), *dims)
            elif isinstance(op, Keep) and len(dims) > len(inputs[0].shape):
                dims = dims[1:]
            needed = Layout.of(layout.mesh, dims, layout.partial, layout.reduction or "sum")
            made.in_layouts = (needed,) * len(inputs)
        return made


def stands_for(value: Value) -> Value:
    """Return the operand that represents a value in a region that scans it: of a stack of parameters the first."""
    return value.inputs[0] if is_stack_of_parameters(value) else value


def _element(layout: Layouts, number: int) -> Layout | None:
    return layout[number] if isinstance(layout, tuple) and layout else None


# Closing: nodes that a pass has put into a region belong to it by their place in the list; outside values of a region
# become operands of the node that runs it: first the former ones, in their order, then the rest in the order of
# reading.


COPY = "/copy"
"""In the name of a graph: after it is the number of the node that it was copied for."""
_MARKS = (Handed, StandIn, Enter, IterationNumber, Decide, Leave, Back, Keep)


@dataclass
class _Parts:
    """A node with regions that is being read: the nodes of each region, and the values at their boundaries. entered: by
    number, values that differ between iterations. results: by number, of the last region; left: of the first."""

    border: RegionBoundary | None = None
    hands: Node | None = None
    handed: list[Value] = field(default_factory=list[Value])
    lists: list[list[Node]] = field(default_factory=list[list[Node]])
    given: list[Node] = field(default_factory=list[Node])
    turn: Node | None = None
    conditions: list[Node] = field(default_factory=list[Node])
    entered: dict[int, Node] = field(default_factory=dict[int, Node])
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
            layout = node.inputs[0].layout
            if isinstance(layout, Layout):  # all values that a stack represents have its layout
                for value in (node, *node.inputs):
                    value.layout = layout
                node.in_layouts = None
        closer.take(node)
    assert len(closer.lists) == 1, "a region has no end"
    graph.nodes = closer.lists[0]
    graph.results = [closer.outer.get(value, value) for value in graph.results]
    for node in graph.all_nodes():
        if node.forward in closer.operands:
            node.forward, node.forward_input = closer.operands[node.forward][node.forward_input]
    _share_again(graph, {})


class _Closer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.is_sliced = "rank" in graph.attrs
        self.lists: list[list[Node]] = [[]]
        """Nodes of the graph, then of every region that is open, the innermost last."""
        self.parts: dict[Node, _Parts] = {}
        self.outer: dict[Value, Value] = {}
        """The element of the node's tuple for each value that a boundary hands out."""
        self.operands: dict[Node, list[tuple[Node, int]]] = {}
        """For every mark, by the number of its operand, the node, and which of its operands that is."""
        self.read_directly = {
            value for node in graph.nodes if not isinstance(node.op, (*_MARKS, Joined)) for value in node.inputs
        } | set(graph.results)

    def take(self, node: Node) -> None:
        op = node.op
        node.inputs = [self.outer.get(value, value) for value in node.inputs]
        if isinstance(op, RegionBoundary):
            self.pass_border(op)
        elif isinstance(op, Joined):
            self.finish(node, self.parts.pop(op.owner))
        elif isinstance(op, _MARKS):
            self.note(node, self.parts.setdefault(op.owner, _Parts()))
        else:
            self.lists[-1].append(node)

    def pass_border(self, border: RegionBoundary) -> None:
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
        elif isinstance(op, Enter | StandIn | Leave | Back | Keep):
            of_kind: dict[type, dict[int, Node]] = {Leave: parts.left, Back: parts.backs, Keep: parts.kept}
            of_kind.get(type(op), parts.entered)[op.number] = node
        elif isinstance(op, IterationNumber) and not op.is_count:
            parts.turn = node

    # The node ------------------------------------------------------------------------------------------------

    def finish(self, node: Node, parts: _Parts) -> None:
        border = parts.border
        assert border is not None, f"{node.label} has no regions"
        op = border.op
        results = _results(border, parts)
        marks = [parts.entered[number] for number in sorted(parts.entered)]
        entered = [mark.inputs[1] if isinstance(mark.op, StandIn) else mark for mark in marks]
        turn = [parts.turn] if parts.turn is not None else []
        captured = _captured_values(parts, results, {*entered, *turn})
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
            made = Graph(region.name)
            made.nodes, made.results = parts.lists[number], list(results[number])
            made.attrs, made.returns_tuple = dict(region.attrs), region.returns_tuple
            _add_parameters(made, [*first, *entered, *captured], names, self.is_sliced)
            regions.append(made)
        node.op = with_effects(op, node.inputs, regions)  # type: ignore[assignment]  # see RegionOp
        node.regions = tuple(regions)
        self.lists[-1].append(node)
        for number, value in enumerate(handed_out):  # elements for the readers of a boundary's results
            if value not in self.read_directly or value in self.outer:
                continue
            b = Builder(self.graph, self.lists[-1]).like(node)
            b.phase = node.phase
            item = self.outer[value] = b.emit(TupleGetItem(number), node, name=value.name)
            item.layout = value.layout


def _results(border: RegionBoundary, parts: _Parts) -> list[list[Value]]:
    """Return the results of every region."""
    backs = [parts.backs[number].inputs[1] for number in sorted(parts.backs)]
    if isinstance(border.op, Loop):
        kept = [parts.kept[number].inputs[0] for number in sorted(parts.kept)]
        return [*([mark.inputs[0]] for mark in parts.conditions), [*backs, *kept]]
    left = [parts.left[number].inputs[0] for number in sorted(parts.left)]
    return [left, backs] if isinstance(border.op, If) else [left]


def _captured_values(parts: _Parts, results: Sequence[Sequence[Value]], inside: set[Value]) -> list[Value]:
    """Return the values that the regions read from outside: those handed in before, if they are still read, then the
    rest."""
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
    """Return the names of a region's parameters, each once: their former ones, or those of their operands."""
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


def _add_parameters(region: Graph, read: Sequence[Value], names: Sequence[str], is_sliced: bool) -> None:
    """Replace the outside values of a region by parameters; those of a rank's graph have no layouts, as its nodes have
    none."""
    of: dict[Value, Value] = {}
    for value, name in zip(read, names, strict=True):
        layout = value.layout if isinstance(value.layout, Layout) and not is_sliced else None
        of[value] = parameter = Parameter(name, value.type, layout=layout)
        region.parameters.append(parameter)
    region.replace(of)


def _share_again(graph: Graph, variants: dict[str, list[Graph]]) -> None:
    """Let nodes run one graph again if their graphs were copies of one and are still equal."""
    for node in graph.nodes:
        node.regions = tuple(_shared_graph(region, variants) for region in node.regions)


def _shared_graph(region: Graph, variants: dict[str, list[Graph]]) -> Graph:
    """Return the first of the graphs that are equal to a region except for the name, and copies of one graph with
    it."""
    _share_again(region, variants)
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


# Sums that loops carry begin at zero: zeros have no meaningful layout, so each sum has its own.


def take_zeros_apart(graph: Graph) -> None:
    """Give every sum that begins at zero zeros of its own, as sums of one shape may be carried in different layouts."""
    taken: set[Value] = set()
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node.op, Enter) and is_zero(node.inputs[0]):
            zeros = node.inputs[0]
            if isinstance(zeros, Node) and (zeros in taken or zeros.phase != node.phase):
                zeros = copied_node(zeros, zeros.inputs)
                zeros.phase = node.phase
                nodes.append(zeros)
                node.inputs[0] = zeros
            taken.add(zeros)
        nodes.append(node)
    graph.nodes = nodes


def is_zero(value: Value) -> bool:
    """Return whether a value is a tensor of zeros that is made on the spot."""
    if isinstance(value, Constant):
        return False
    if not isinstance(value, Node) or not isinstance(value.op, Op) or not value.inputs:
        return False
    zero = value.inputs[0]
    made = isinstance(value.op, BroadcastTo) or value.op.follows_neighbours
    return made and isinstance(zero, Constant) and zero.value.size == 1 and not zero.value.any()
