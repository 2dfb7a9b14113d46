"""Put equal lookups of rows by integers into one operator, and sums of rows, as their gradients are.

Input:  `%3 = Gather(%t, %1)`, `%4 = Gather(%u, %2)`, `%5 = Cast(%3) {dst_type: BFloat16}`, the same of `%4`
Output: `%3 = GroupedLookups(%t, %1, %u, %2) {lookups: ("Gather(...)", "Gather(...)"), dst_type: BFloat16}` and
elements of its result; of sums likewise `GroupedRowSums(...) {sums: ("GatherGrad(size=40, ...)", ...)}`

On a GPU each is one or some small kernels, and those of a group are the kernels of one. Alike are lookups and sums of
as many rows, of as many elements, in the same types; the tables may differ in size. A group takes the place of its last
member. A cast that alone reads a lookup becomes part of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from mspc.ir.graph import Graph, Node, operand_types
from mspc.ir.types import FLOAT32, HALVES, DType, TensorType, TupleType
from mspc.ops.fused.grouped_rows import GroupedLookups, GroupedRowSums
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import RowsByIntegers, RowSums
from mspc.ops.tensor.reshape import Cast
from mspc.passes.base import Pass
from mspc.passes.fusion.fusion_groups import looked_at
from mspc.passes.fusion.rewriter import Rewriter, groups_of_alike, node_like, parts_of, successor


class GroupLookups(Pass):
    def run(self, graph: Graph) -> bool:
        if sum(isinstance(node.op, RowsByIntegers | RowSums) for node in graph.nodes) < 2:
            return False
        rewriter = Rewriter(graph)
        casts = {node: cast for node in graph.nodes if (cast := _cast_of(rewriter, node)) is not None}
        for members in groups_of_alike(graph, lambda node: _key(node, casts), casts):
            _join(rewriter, members, casts)
        return rewriter.apply()


def _cast_of(rewriter: Rewriter, node: Node) -> Node | None:
    """Return the only reader of a lookup if it is a cast between Float32 and a half."""
    reader = rewriter.only_reader(node) if isinstance(node.op, RowsByIntegers) else None
    if reader is None or not isinstance(reader.op, Cast) or reader.phase != node.phase:
        return None
    types = {node.tensor_type.dtype, reader.op.dst_type}
    return reader if FLOAT32 in types and not types.isdisjoint(HALVES) else None


def _dtype(node: Node, casts: Mapping[Node, Node]) -> DType | None:
    """Return the dtype that looked-up rows are cast to, or None."""
    return casts[node].tensor_type.dtype if node in casts else None


def _key(node: Node, casts: Mapping[Node, Node]) -> Hashable:
    """Return a key equal for nodes that one set of kernels can do, or None."""
    op = node.op
    if not isinstance(op, RowsByIntegers | RowSums):
        return None
    rows, ids = operand_types(node)
    lookup = op.lookup(rows.shape, ids.shape)
    sizes = lookup.batch, lookup.middle, lookup.inner, lookup.count
    return isinstance(op, RowSums), rows.dtype, ids.dtype, sizes, node.phase, _dtype(node, casts)


def _join(rewriter: Rewriter, members: list[Node], casts: Mapping[Node, Node]) -> None:
    last = members[-1]
    ops = [looked_at(member.op) for member in members if isinstance(member.op, Op)]
    sums = [op for op in ops if isinstance(op, RowSums)]
    lookups = [op for op in ops if isinstance(op, RowsByIntegers)]
    op = GroupedRowSums.of(sums) if sums else GroupedLookups.of(lookups, _dtype(last, casts))
    made_by = [casts.get(member, member) for member in members]
    types = tuple(type for node in made_by if isinstance(type := node.type, TensorType))
    inputs = [value for member in members for value in member.inputs]
    grouped = node_like(last, op, inputs, TupleType(types))
    parts = [part for member in members for part in parts_of(member)]
    parts += [part for member in members if member in casts for part in parts_of(casts[member])]
    grouped.attrs = {"fused": tuple(parts)}
    elements = [successor(grouped, index, node) for index, node in enumerate(made_by)]
    for node, element in zip(made_by, elements, strict=True):
        rewriter.replace(node, element)
    rewriter.gone.update(members, made_by)
    rewriter.put(last, [grouped, *elements])
