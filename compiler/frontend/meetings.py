"""Where values of several equal cells meet in one, as in the norm of all gradients: what meets there is brought
together for every cell first, so that the rest of it is a reduction over the cells.

Input:  `%5 = Square(%g0)`, `%6 = Square(%g1)`, .., `%9 = AddN(%5, %6, %7, %8)`, of which %5 and %6 are of cell 0
Output: `%5`, .., `%9 = AddN(%5, %6)`, `%10 = AddN(%7, %8)`, `%11 = AddN(%9, %10)`, a meeting of the parts %9 and %10

That is done with operators whose result over all operands is a reduction of their results over groups of these
(`Op.joins`). A sum is then added up in another order, and so it is rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import field
from typing import Any

from mspc.compiler.frontend.values import Unrolled
from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.regions import MakeStack
from mspc.ops.control.structural import Depend, Gradient
from mspc.ops.math.arithmetic import AddN, LogicalAnd, LogicalOr, Maximum, Minimum, Mul
from mspc.ops.math.reduce import ReduceAll, ReduceAny, ReduceMax, ReduceMin, ReduceProd
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.moving import Concat, Stack
from mspc.ops.tensor.reshape import Reshape

BESIDE = "beside"
JOINED = {
    "sum": (AddN, ReduceSum), "prod": (Mul, ReduceProd), "max": (Maximum, ReduceMax), "min": (Minimum, ReduceMin),
    "all": (LogicalAnd, ReduceAll), "any": (LogicalOr, ReduceAny),
}  # fmt: skip
"""By the names that `Op.joins` has: the operator that joins operands, and that which joins what lies along a
dimension."""


@dataclass
class MergeNode:
    """A node in which values of all cells meet.

    node: it. parts: of every cell, what it brings. others: what belongs to no cell, joined. joins: see `Op.joins`.
    behind: others that lie behind the cells, where all lie beside each other.
    """

    node: Node
    parts: list[Value]
    others: list[Value]
    joins: str
    behind: list[Value] = field(default_factory=list[Value])

    def over_stack(self, b: Builder, stacked: Value) -> None:
        """Let the node join the parts of all cells, which lie along the first dimension of `stacked`, with the others;
        nodes that it needs are appended."""
        if self.joins == BESIDE:
            _, each, *rest = stacked.shape
            row = Reshape((len(self.parts) * each, *rest))
            if not (self.others or self.behind):
                self.node.op, self.node.inputs = row, [stacked]
                return
            self.node.op, self.node.inputs = Concat(0), [*self.others, b.emit(row, stacked), *self.behind]
            return
        join, reduce = JOINED[self.joins]
        if not self.others:
            self.node.op, self.node.inputs = reduce(axis=(0,)), [stacked]
            return
        operands = [*self.others, b.emit(reduce(axis=(0,)), stacked)]
        while len(operands) > 2 and join is not AddN:
            operands = [b.emit(join(), *operands[:2]), *operands[2:]]
        self.node.op, self.node.inputs = join(), operands


@dataclass
class Grouped:
    """A graph whose meetings were found. cell_of: the cell of every value of one. meetings: by their nodes, in run
    order."""

    cell_of: dict[Value, int]
    meetings: dict[Node, MergeNode]


def grouped(graph: Graph, cells: int, known: Mapping[Value, int]) -> Grouped:
    """Find the cell to which every node belongs, and bring together what each of them hands to a meeting.

    known: the cells of parameters and gradients. Parameters that are read for one cell alone, as states of optimizers
    are, belong to that cell, too.

    Raises:
        Unrolled: values of several cells meet in another way.
    """
    looked = _Look(graph, known)
    while states := looked.states():
        others = (node for node in graph.nodes if node not in looked.cell_of and not isinstance(node.op, MakeStack))
        if all(states.keys().isdisjoint(node.inputs) for node in others):
            looked.cell_of |= states
            break
        looked = _Look(graph, looked.known | states)
    found = Grouped(looked.cell_of, {})
    nodes: list[Node] = []
    dropped = {node for _, inner in looked.meetings.values() for node in inner}
    for node in graph.nodes:
        if node in dropped:
            continue
        if node in looked.meetings:
            found.meetings[node] = _meeting(graph, nodes, node, looked.meetings[node][0], found.cell_of, cells)
        nodes.append(node)
    graph.nodes = nodes
    return found


class _Look:
    """Goes through a graph to see what belongs to which cell, of which some is known.

    cell_of: the cells of values. meetings: nodes that read values of several cells, with what they join, and with nodes
    ahead of them that join some of it.
    """

    def __init__(self, graph: Graph, known: Mapping[Value, int]) -> None:
        self.graph = graph
        self.known = dict(known)
        self.cell_of = dict(known)
        self.meetings: dict[Node, tuple[list[Value], list[Node]]] = {}
        readers: dict[Value, list[Node]] = {node: [] for node in graph.nodes if _is_tree(node.op)}
        for node in graph.nodes if readers else ():
            for value in node.inputs:
                if value in readers:
                    readers[value].append(node)
        returned = set(graph.results)
        trees: dict[Value, tuple[list[Value], list[Node]]] = {}
        """What is joined by nodes that another one of their kind alone reads, as in `meetings`."""
        for node in graph.nodes:
            if isinstance(node.op, MakeStack) or (isinstance(node.op, Depend) and node.inputs[0] not in self.cell_of):
                continue
            leaves, inner = node.inputs, list[Node]()
            if trees and not trees.keys().isdisjoint(leaves):
                inner = [each for value in leaves if value in trees for each in trees[value][1]]
                leaves = [leaf for value in leaves for leaf in (trees[value][0] if value in trees else [value])]
            own_readers = readers.get(node, ())
            if len(own_readers) == 1 and node not in returned and _is_part(node, own_readers[0]):
                trees[node] = leaves, [*inner, node]
                continue
            of = {self.cell_of[leaf] for leaf in leaves if leaf in self.cell_of}
            if len(of) > 1:
                self.meetings[node] = leaves, inner
            elif of:
                self.cell_of |= dict.fromkeys((*inner, node), *of)

    def states(self) -> dict[Value, int]:
        """Parameters of which nothing was known, and which are read for one cell alone."""
        readers: dict[Value, set[int]] = {}
        for node in self.graph.nodes:
            if node in self.cell_of:
                for value in node.inputs:
                    if isinstance(value, Parameter) and value not in self.known:
                        readers.setdefault(value, set()).add(self.cell_of[node])
        return {value: cell for value, (cell, *others) in readers.items() if not others}


def _meeting(
    graph: Graph, nodes: list[Node], node: Node, leaves: Sequence[Value], cell_of: dict[Value, int], cells: int
) -> MergeNode:
    op = node.op
    joins = _joins(op)
    if joins == BESIDE:
        return _row_of_cells(graph, nodes, node, leaves, cell_of, cells)
    if not joins or (_is_tree(op) and any(leaf.type != node.type for leaf in leaves)):
        raise Unrolled
    join, _ = JOINED[joins]
    b = Builder(graph, nodes).like(node)
    b.phase = node.phase

    def joined(values: Sequence[Value]) -> Value:
        if not _is_tree(op):
            assert isinstance(op, Op)
            return b.emit(op, *values)
        if join is AddN:
            return values[0] if len(values) == 1 and isinstance(values[0], Node) else b.emit(AddN(), *values)
        made = values[0]
        for value in values[1:]:
            made = b.emit(join(), made, value)
        return made

    of_cells: list[list[Value]] = [[] for _ in range(cells)]
    others: list[Value] = []
    for leaf in leaves:
        (of_cells[cell_of[leaf]] if leaf in cell_of else others).append(leaf)
    if not all(of_cells):
        raise Unrolled
    parts: list[Value] = []
    for cell, values in enumerate(of_cells):
        first = len(nodes)
        part = joined(values)
        cell_of |= dict.fromkeys(nodes[first:], cell)
        parts.append(part)
    if others and not _is_tree(op):
        others = [joined(others)]
    return MergeNode(node, parts, others, joins)


def _row_of_cells(
    graph: Graph, nodes: list[Node], node: Node, leaves: Sequence[Value], cell_of: dict[Value, int], cells: int
) -> MergeNode:
    """What lies beside each other, one cell behind the other. Raises Unrolled where it does not."""
    op = node.op
    assert isinstance(op, Concat | Stack)
    of = [cell_of.get(leaf, -1) for leaf in leaves]
    first = next(i for i, cell in enumerate(of) if cell >= 0)
    each = of.count(0)
    last = first + cells * each
    if op.axis not in (0, -node.tensor_type.rank) or of != [-1] * first + [
        cell for cell in range(cells) for _ in range(each)
    ] + [-1] * (len(of) - last):
        raise Unrolled
    b = Builder(graph, nodes).like(node)
    b.phase = node.phase
    parts: list[Value] = []
    for cell in range(cells):
        parts.append(b.emit(op, *leaves[first + cell * each : first + (cell + 1) * each]))
        cell_of[parts[-1]] = cell
    before, behind = ([b.emit(op, *part)] if part else [] for part in (leaves[:first], leaves[last:]))
    return MergeNode(node, parts, [*before], BESIDE, [*behind])


def _joins(op: object) -> str:
    return op.joins if isinstance(op, Op) else ""


def _is_part(node: Node, reader: Node) -> bool:
    """Whether a node joins a part of what its only reader joins."""
    return _is_tree(reader.op) and _joins(reader.op) == _joins(node.op) and reader.type == node.type


def _is_tree(op: object) -> bool:
    """Whether it joins its operands themselves, so that those of another one of its kind may be its own."""
    return isinstance(op, Op) and op.joins not in ("", BESIDE) and not op.operandwise


@iterative
def is_alike(one: Value, other: Value, changing: Collection[Value]) -> Generator[Any, bool, bool]:
    """Whether both are one value: the same, constants of one, or computed alike, without an effect, of what does not
    change meanwhile. changing: what does."""
    if one is other:
        return one not in changing
    if isinstance(one, Constant) and isinstance(other, Constant):
        return one.type == other.type and one.value.tobytes() == other.value.tobytes()
    if not (isinstance(one, Node) and isinstance(other, Node)) or one.regions or other.regions:
        return False
    if one.op.has_side_effect or one.op.mutates or isinstance(one.op, Gradient):
        return False
    if (one.op, one.type, one.phase, len(one.inputs)) != (other.op, other.type, other.phase, len(other.inputs)):
        return False
    for a, b in zip(one.inputs, other.inputs, strict=True):
        if not (yield a, b, changing):
            return False
    return True


def without_unread(nodes: Sequence[Node], results: Sequence[Value], doubtful: Collection[Value]) -> list[Node]:
    """The nodes without those among the doubtful ones, and what is computed for these alone, that nobody reads any
    more."""
    read: set[Value] = {*results}
    doubted = set(doubtful)
    found: list[Node] = []
    for node in reversed(nodes):
        if node in doubted and node not in read and not node.op.has_side_effect and not node.op.mutates:
            doubted.update(node.inputs)
            continue
        read.update(node.inputs)
        found.append(node)
    return found[::-1]
