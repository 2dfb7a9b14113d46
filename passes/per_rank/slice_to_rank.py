"""Makes one rank's own graph: local types, this rank's groups and slice bounds. It knows no operator by name.

Input:  the graph of all ranks with collectives over mesh axes. Output: a new graph for `rank`; the input is unchanged,
so the work of all passes before is done once for any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_layouts, element_types
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import Op, Placement
from mspc.passes.base import Pass
from mspc.passes.sharding.batch import ROWS


@dataclass(frozen=True)
class SliceToRank(Pass):
    """Specialise the graph for `rank`."""

    rank: int = 0

    def apply(self, graph: Graph) -> tuple[Graph, bool]:
        ranks = int(graph.attrs.get("ranks", 1))
        if not 0 <= self.rank < ranks:
            raise MspcError(f"there is no rank {self.rank}; ranks are 0 to {ranks - 1}")
        return _slice(graph, self.rank), True


def _slice(graph: Graph, rank: int) -> Graph:
    local = Graph(graph.name)
    local.attrs = {**graph.attrs, "rank": rank}
    local.returns_tuple = graph.returns_tuple
    mapping: dict[Value, Value] = {}
    for parameter in graph.parameters:
        copy = Parameter(
            parameter.name,
            parameter.type if _is_own(parameter) else local_type(parameter.type, parameter),
            parameter.kind,
            parameter.trainable,
            parameter.layout,
            parameter.global_type or parameter.type,
        )
        copy.attrs = dict(parameter.attrs)
        local.parameters.append(copy)
        mapping[parameter] = copy
    builder = Builder(local)
    ranks = int(graph.attrs.get("ranks", 1))
    for node in graph.nodes:
        mapping[node] = _place(builder, node, rank, ranks, mapping)
    local.results = [mapping.get(v, v) for v in graph.results]
    return local


def _place(b: Builder, node: Node, rank: int, ranks: int, mapping: dict[Value, Value]) -> Value:
    inputs = [_operand(node, i, rank, mapping) for i in range(len(node.inputs))]
    op = node.op
    if isinstance(op, Op) and (type(op).localize is not Op.localize or type(op).expand is not Op.expand):
        placement = Placement(
            rank,
            tuple(t for v in node.inputs for t in element_types(v.type)),
            tuple(layout for i in range(len(node.inputs)) for layout in _in_layouts(node, i, ranks)),
            element_types(node.type),
            _layouts(node, ranks),
        )
        b.like(node).phase = node.phase
        start = len(b.nodes)
        expanded = op.expand(b, placement, inputs)
        if expanded is not None:
            for made in b.nodes[start:]:
                if not isinstance(made.op, TupleGetItem):
                    made.attrs.update(node.attrs)
            return expanded
        op = op.localize(placement)
    copy = Node(op, inputs, local_type(node.type, node), node.name, node.instance, node.scope, node.frames, node.phase)
    copy.in_strategy, copy.out_strategy = node.in_strategy, node.out_strategy
    copy.attrs = {k: v for k, v in node.attrs.items() if k not in ("gradient_for", "strategy_from", ROWS)}
    b.nodes.append(copy)
    return copy


def _operand(node: Node, index: int, rank: int, mapping: dict[Value, Value]) -> Value:
    value = node.inputs[index]
    if not isinstance(value, Constant):
        return mapping[value]
    layout = node.in_layouts[index] if node.in_layouts is not None else None
    if layout is None or not any(layout.dims):
        return value
    return Constant(value.value[layout.slices_for(rank, value.shape)], value.tensor_type.dtype)


def _in_layouts(node: Node, index: int, ranks: int) -> tuple[Layout, ...]:
    value = node.inputs[index]
    if isinstance(value, Constant):
        layout = node.in_layouts[index] if node.in_layouts is not None else None
        return (layout or Layout.replicated(ranks, len(value.shape)),)
    return _layouts(value, ranks)


def _is_own(value: Value) -> bool:
    """Whether a value's type is one rank's already: the graph of all ranks is then each rank's own, and the layout
    says of which global tensor the rank feeds a slice."""
    return isinstance(value, Parameter) and value.global_type is not None


def _layouts(value: Value, ranks: int) -> tuple[Layout, ...]:
    """Layouts of a value's tensors; without sharding every rank has its own whole tensors."""
    found = () if _is_own(value) else element_layouts(value.layout)
    return found or tuple(Layout.replicated(ranks, len(t.shape)) for t in element_types(value.type))


def local_type(type: Type, value: Value) -> Type:
    """The type of one rank's slice; a value without a layout has it already."""
    if value.layout is None:
        return type
    if isinstance(type, TensorType) and isinstance(value.layout, Layout):
        return type.with_shape(value.layout.local_shape(type.shape))
    if isinstance(type, TupleType) and isinstance(value.layout, tuple):
        return TupleType(
            tuple(
                t.with_shape(layout.local_shape(t.shape)) for t, layout in zip(type.elements, value.layout, strict=True)
            )
        )
    return type
