"""Update only the indexed rows of a parameter if its gradient is a sum of rows and an update changes nothing
for a gradient of 0.

Input:  `%8 = GatherGrad(%5, %1) {size: 40}`, `%9 = FusedUpdate(%w, %8, %rate) {body: ("Mul(x1, x2)", "Sub(x0, t0)")}`
Output: `%9 = GroupedRowUpdate(%w, %5, %1, %rate) {update: "FusedUpdate(...)", gradient: 1, sums: ("GatherGrad(...)")}`

The gradient is never in memory, and only indexed rows of the table are read and written. A sum that others read, as a
collective does, stays. Members of groups are taken one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph, Node, Value, element_types, operand_types
from mspc.ir.types import TensorType, TupleType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.grouped_rows import GroupedRowSums, GroupedRowUpdate
from mspc.ops.fused.updates import FusedUpdate, GroupedUpdate, member_of, unchanged_at_zero
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import RowSums
from mspc.passes.base import Pass
from mspc.passes.fusion.fusion_groups import looked_at
from mspc.passes.fusion.rewriter import Rewriter, element, node_like


class UpdateRows(Pass):
    def run(self, graph: Graph) -> bool:
        if not any(isinstance(node.op, RowSums | GroupedRowSums) for node in graph.nodes):
            return False
        found = _RowUpdates(graph)
        for node in graph.nodes:
            update = member_of(node.op)
            if isinstance(update, FusedUpdate):  # it consists of lines
                found.look_at(node, update)
        return found.apply()


class _Sum(NamedTuple):
    """A sum of rows. node: the operator that makes it, as result `index` of several."""

    node: Node
    index: int
    op: RowSums
    operands: Sequence[Value]


class _RowUpdates:
    """The updates that become those of rows. used: of every operator that makes sums those that are not needed."""

    def __init__(self, graph: Graph) -> None:
        self.rewriter, self.updates = Rewriter(graph), Updates(graph)
        self.numbers = {node: number for number, node in enumerate(graph.nodes)}
        self.used: dict[Node, set[int]] = {}

    def look_at(self, node: Node, update: FusedUpdate) -> None:
        """Put an update of rows beside the node, or in its place."""
        if not self._is_taken_apart(node):
            return
        members = _members(node)
        for gradient in range(len(update.writes), len(update.operands)):
            if gradient in update.numbers or not unchanged_at_zero(update, gradient):
                continue
            sums = {m: made for m, own in enumerate(members) if (made := self._sum(node, own, gradient)) is not None}
            if sums:
                self._put(node, update, gradient, sums)
                return

    def apply(self) -> bool:
        """Change the graph; sums that nobody reads any more go."""
        for node, used in self.used.items():
            self._without(node, used)
        return self.rewriter.apply()

    def _is_taken_apart(self, node: Node) -> bool:
        return isinstance(node.type, TensorType) or (
            node not in self.rewriter.results
            and all(isinstance(reader.op, TupleGetItem) for reader in self.rewriter.readers(node))
        )

    def _sum(self, node: Node, operands: Sequence[Value], gradient: int) -> _Sum | None:
        """Return the sum of rows that only this update reads, as operand `gradient`."""
        value = operands[gradient]
        if not isinstance(value, Node) or self.rewriter.only_reader(value) is not node:
            return None
        source = value.inputs[0] if isinstance(value.op, TupleGetItem) else value
        if not isinstance(source, Node):
            return None
        if isinstance(source.op, GroupedRowSums) and isinstance(value.op, TupleGetItem):
            if not self._is_taken_apart(source):
                return None
            index = value.op.index
            op, own = source.op.members(source.inputs)[index]
        elif isinstance(source.op, RowSums) and source is value:
            index, op, own = 0, looked_at(source.op), source.inputs
        else:
            return None
        assert isinstance(op, RowSums)
        lookup = op.lookup(*[v.shape for v in own])
        if lookup.batch != 1 or lookup.middle != 1:
            return None
        if self.updates.between(own, self.numbers[source], self.numbers[node]):
            return None
        return _Sum(source, index, op, own)

    def _put(self, node: Node, update: FusedUpdate, gradient: int, sums: Mapping[int, _Sum]) -> None:
        members = _members(node)
        rest = [m for m in range(len(members)) if m not in sums]
        inputs: list[Value] = []
        for m, found in sums.items():
            inputs += [*members[m][:gradient], *found.operands, *members[m][gradient + 1 :]]
            self.used.setdefault(found.node, set()).add(found.index)
        rows = self._made(node, GroupedRowUpdate.of(update, gradient, [s.op for s in sums.values()]), inputs, [*sums])
        places = {m: (rows, place) for place, m in enumerate(sums)}
        nodes = [rows]
        if rest:
            others = self._made(node, GroupedUpdate.of(update, len(rest)), [v for m in rest for v in members[m]], rest)
            places |= {m: (others, place) for place, m in enumerate(rest)}
            nodes.insert(0, others)
        each = len(update.writes)
        elements: list[Node] = []
        for reader, m, output in self._results(node, each):
            made, place = places[m]
            elements.append(element(made, place * each + output, node))
            self.rewriter.replace(reader, elements[-1])
        self.rewriter.put(node, [*nodes, *elements])

    def _made(self, node: Node, op: Op, inputs: list[Value], members: Sequence[int]) -> Node:
        """Return a node for some of a node's members, with their attributes."""
        count = len(_members(node))
        made = node_like(node, op, inputs, node.type)
        made.type = op.infer(*operand_types(made))
        for key, facts in node.attrs.items():
            if isinstance(facts, tuple) and isinstance(node.op, GroupedUpdate) and len(facts) == count:
                made.attrs[key] = tuple(facts[m] for m in members)
            elif key == "fused" or isinstance(node.op, FusedUpdate):
                made.attrs[key] = facts
        return made

    def _results(self, node: Node, each: int) -> list[tuple[Node, int, int]]:
        """Return (node, member, output) for each read of a node's results."""
        if isinstance(node.type, TensorType):
            return [(node, 0, 0)] if node in self.rewriter.results or self.rewriter.readers(node) else []
        found: list[tuple[Node, int, int]] = []
        for reader in self.rewriter.readers(node):
            assert isinstance(reader.op, TupleGetItem)
            found.append((reader, *divmod(reader.op.index, each)))
        return found

    def _without(self, node: Node, used: set[int]) -> None:
        self.rewriter.gone.add(node)
        if not isinstance(node.op, GroupedRowSums):
            return
        readers = [(reader, reader.op.index) for reader in self.rewriter.readers(node)
                   if isinstance(reader.op, TupleGetItem)]  # fmt: skip
        self.rewriter.gone.update(reader for reader, index in readers if index in used)
        if len(used) == len(node.op.sums):
            return
        left = [index for index in range(len(node.op.sums)) if index not in used]
        members = node.op.members(node.inputs)
        op = GroupedRowSums.of([members[index][0] for index in left])
        types = tuple(element_types(node.type)[index] for index in left)
        made = node_like(node, op, [v for index in left for v in members[index][1]], TupleType(types))
        made.attrs = {
            key: tuple(fact[i] for i in left) if isinstance(fact, tuple) and len(fact) > max(left) else fact
            for key, fact in node.attrs.items()
        }
        self.rewriter.put(node, [made])
        for reader, index in readers:
            if index in left:
                reader.op = TupleGetItem(left.index(index))
                reader.inputs[:] = [made]


def _members(node: Node) -> Sequence[Sequence[Value]]:
    return node.op.members(node.inputs) if isinstance(node.op, GroupedUpdate) else [node.inputs]
