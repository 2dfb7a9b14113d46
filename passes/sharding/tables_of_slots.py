"""Rows of tables without a spare one, for graphs that have any of it."""

from __future__ import annotations

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.named_layout import NamedLayout, spread
from mspc.ops.collective.known_zeros import is_all_zero
from mspc.ops.math.arithmetic import Add
from mspc.ops.math.comparison import Less, Select
from mspc.ops.nn.expert_rows import AddRows, SetRows, TakeRows
from mspc.ops.tensor.embedding import Gather, UnsortedSegmentSum
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import ExpandDims, Reshape
from mspc.ops.tensor.scatter import TensorScatterAdd, TensorScatterUpdate
from mspc.ops.tensor.slicing import StridedSlice


def route_slots(graph: Graph) -> bool:
    """What the pass does; whether anything has changed."""
    ranks = int(graph.attrs.get("strategies_for", graph.attrs.get("ranks", 1)))
    if ranks < 2 or not any(node.in_strategy is not None for node in graph.nodes):
        return False
    nodes: list[Node] = []
    builder = Builder(graph, nodes)
    replaced: dict[Value, Value] = {}
    for node in graph.nodes:
        node.inputs = [replaced.get(value, value) for value in node.inputs]
        builder.like(node).phase = node.phase
        made = _taken(builder, node, ranks) or _put(builder, node)
        if made is None:
            nodes.append(node)
        else:
            made.name = node.name or made.name
            replaced[node] = made
    graph.nodes = nodes
    graph.results = [replaced.get(value, value) for value in graph.results]
    return bool(replaced)


def _taken(b: Builder, node: Node, ranks: int) -> Node | None:
    """What is looked up of a table, behind which rows of zeros stand, without them; a share of it by each rank, as
    whoever has the tokens wants the rows, not whoever has the table."""
    op = node.op
    if not isinstance(op, Gather) or op.batch_dims or op.axis % len(node.inputs[0].shape):
        return None
    table, places = node.inputs
    if not isinstance(table, Node) or not isinstance(table.op, Concat) or table.op.axis % len(table.shape):
        return None
    rows, *spare = table.inputs
    if not spare or not all(map(is_all_zero, spare)) or not _is_sharded(rows):
        return None
    total = b.constant(table.shape[0], places.tensor_type.dtype)
    below = b.emit(Less(), places, b.constant(0, places.tensor_type.dtype))
    from_end = b.emit(Select(), below, b.emit(Add(), places, total), places)
    made = b.emit(TakeRows(limit=table.shape[0]), rows, from_end)
    if places.shape and places.shape[0] % ranks == 0:
        made.in_strategy = ((1,) * len(rows.shape), (ranks, *[1] * (len(places.shape) - 1)))
    return made


def _is_sharded(value: Value) -> bool:
    """Whether what a value is made of, operand 0 after operand 0, comes from an operator with a strategy, the first of
    which shards its first dimension."""
    while isinstance(value, Node) and value.in_strategy is None and value.inputs:
        value = value.inputs[0]
    given = spread(value.in_strategy or ()) if isinstance(value, Node) else []
    first = given[0] if given else ()
    counts = first.strategy if isinstance(first, NamedLayout) else first
    return bool(counts) and counts[0] > 1


def _put(b: Builder, node: Node) -> Node | None:
    """The first rows of a table of zeros into which rows are put, or to which they are added."""
    table, size = node, node.shape[0] if hasattr(node.type, "shape") and node.tensor_type.shape else 0
    if isinstance(node.op, StridedSlice) and isinstance(node.inputs[0], Node) and size:
        cuts = node.op.cuts(node.inputs[0].shape)
        first = cuts[0]
        is_first_rows = first.dim == 0 and first.size == size and first.start == 0 and first.step == 1
        if not is_first_rows or not all(cut.takes_all for cut in cuts[1:]):
            return None
        table = node.inputs[0]
    elif not isinstance(node.op, TensorScatterUpdate):
        return None
    op, limit = table.op, table.shape[0]
    if isinstance(op, SetRows):
        return b.emit(SetRows(size, limit=op.limit), *table.inputs)
    if isinstance(op, UnsortedSegmentSum) and not op.offset and table is not node:
        rows, places = table.inputs
        return b.emit(AddRows(size), rows, places) if len(places.shape) == 1 else None
    if type(op) not in (TensorScatterUpdate, TensorScatterAdd) or getattr(op, "dims", ()):
        return None
    zeros, indices, rows = table.inputs
    if not is_all_zero(zeros) or len(indices.shape) != 2 or indices.shape[1] != 1 or table.in_strategy is not None:
        return None
    places = _line(b, indices)
    if isinstance(op, TensorScatterAdd):
        return b.emit(AddRows(size), rows, places)
    return b.emit(SetRows(size, limit=limit), rows, places)


def _line(b: Builder, indices: Value) -> Value:
    """Integers [rows, 1] as [rows]."""
    if isinstance(indices, Node) and isinstance(indices.op, (ExpandDims, Reshape)):
        (found,) = indices.inputs
        if found.shape == indices.shape[:1]:
            return found
    return b.emit(Reshape(indices.shape[:1]), indices)
