"""Opens a graph with regions, so that all their nodes are in one list; `closed_graphs.py` closes it again.

Passes that decide on the layouts of all operators together work on the opened graph: a value that a region reads from
outside is read there as it is, and what is carried, scanned, kept or chosen goes through operators of its own
(`ops/control/borders.py`), whose rules say how layouts pass the border.

A graph that several nodes run is opened as a copy for each but the first, since their layouts may differ; copies that
are equal behind the pass become one graph again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import cast

from mspc.ir.builder import Builder, TypedOp
from mspc.ir.copies import copied_region
from mspc.ir.graph import Graph, Layouts, Node, Value, element_types
from mspc.ir.layout import Layout
from mspc.ops.control.borders import Back, Border, Decide, Enter, Handed, Joined, Keep, Leave, StandIn, Turn
from mspc.ops.control.loops import Loop, is_stack_of_parameters
from mspc.ops.control.regions import If, RegionOp
from mspc.passes.sharding.closed_graphs import COPY, close_regions
from mspc.passes.sharding.zero_sums import take_zeros_apart


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
    _unshare(graph, set(), {each.name for each in graph.graphs()})


def _unshare(graph: Graph, taken: set[Graph], names: set[str]) -> None:
    def free(name: str) -> str:
        base = name.partition(COPY)[0]
        found = next(f"{base}{COPY}{i}" for i in count(1) if f"{base}{COPY}{i}" not in names)
        names.add(found)
        return found

    for node in graph.nodes:
        node.regions = tuple(copied_region(region, free) if region in taken else region for region in node.regions)
        for region in node.regions:
            taken.add(region)
            _unshare(region, taken, names)


class _Opener:
    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.builder = Builder(graph, self.nodes)
        self.scalar = Layout.replicated(int(graph.attrs.get("ranks", 1)), 0)
        self.outside: dict[Value, Value] = {}
        """For parameters of regions that are open what is read in their place."""
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
        border = Border(node, op, node.regions, 0, changed, varying)
        self.builder.like(node).phase = node.phase
        results = self.loop(node, op, border) if isinstance(op, Loop) else self.branches(node, op, border)
        node.op, node.regions, node.in_layouts = Joined(node), (), None
        node.inputs = list(results)
        self.nodes.append(node)

    def branches(self, node: Node, op: RegionOp, border: Border) -> list[Value]:
        """Of an If or a Call."""
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

    def loop(self, node: Node, op: Loop, border: Border) -> list[Value]:
        if op.first:
            self.read(node, self.emit(Decide(node), self.scalar if node.layout is not None else None, node.inputs[0]))
        body = border.regions[-1]
        entered = [self.enter(node, op, body, i) for i in (*op.carried_operands, *op.scanned_operands)]
        self.hand(node, node.inputs[op.scanned_operands.stop :])
        for region in border.regions:
            lead = op.leading if region is body else 0
            if lead:
                self.outside[region.parameters[0]] = self.emit(Turn(node), self.scalar)
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
            found.append(self.emit(back, _own(entered[number].layout), entered[number], results[number]))
        turns = op.known_turns([value.type for value in node.inputs])
        counts = len(element_types(node.type)) - op.carried - op.stacked
        kept: list[Node] = []
        for i, value in enumerate(results[op.carried :]):
            layout = _element(node.layout, op.carried + counts + i)
            kept.append(self.emit(Keep(node, op.name, i, turns), layout, value))
        self.border(border, len(border.regions))
        counted = [self.emit(Turn(node, True), self.scalar) for _ in range(counts)]
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

    def border(self, border: Border, number: int) -> None:
        made = self.builder.emit(replace(border, region=number))
        made.layout = ()

    def emit(self, op: TypedOp, layout: Layouts, *inputs: Value) -> Node:
        made = self.builder.emit(op, *inputs)
        made.layout = layout
        if isinstance(layout, Layout) and inputs:
            made.in_layouts = _needed(op, layout, inputs)
        return made


def stands_for(value: Value) -> Value:
    """What stands for a value in a region that scans it: of a stack of parameters the first."""
    return value.inputs[0] if is_stack_of_parameters(value) else value


def _needed(op: TypedOp, layout: Layout, inputs: Sequence[Value]) -> tuple[Layout, ...]:
    """How operands of a border lie whose result lies in `layout`."""
    dims = layout.dims
    if isinstance(op, Enter) and op.scanned and len(inputs[0].shape) > len(dims):
        dims = ((), *dims)
    elif isinstance(op, Keep) and len(dims) > len(inputs[0].shape):
        dims = dims[1:]
    needed = Layout.of(layout.mesh, dims, layout.partial, layout.reduction or "sum")
    return (needed,) * len(inputs)


def _own(layout: Layouts) -> Layout | None:
    return layout if isinstance(layout, Layout) else None


def _element(layout: Layouts, number: int) -> Layout | None:
    return layout[number] if isinstance(layout, tuple) and layout else None
