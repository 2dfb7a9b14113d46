"""Gradients that are rows or columns of a larger matrix, as products with one operand are one product, or a part of a
vector, and that an update alone reads: a GPU's kernel reads them where they are, and need not have them side by side,
or wider, first.

    %8 = MatMul(%6, %7)  of BFloat16, [1024, 3072]
    %9 = StridedSlice(%8) {begin: (0, 1024), end: (1024, 2048)}, %10 = Cast(%9) {dst_type: Float32}, in one kernel
    %11 = ApplyMomentum(%w, %m, %rate, %10, %momentum)
"""

from __future__ import annotations

from collections.abc import Iterator

from mspc.ir.graph import OFFLOAD, Graph, Node, Parameter, Value, operand_types
from mspc.ir.types import FLOAT32, HALVES, TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.fused.updates import gradient_index, member_of
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Split
from mspc.ops.tensor.reshape import Cast
from mspc.ops.tensor.slicing import StridedSlice
from mspc.runtime.memory import GradientPart, GradientSlices

_PACK = 8
"""Elements that a kernel loads at once at most: parts of rows begin and end at a multiple."""
_MOST = (1 << 32) - 1
"""Elements that a kernel counts rows by."""


def gradient_slices(graph: Graph) -> GradientSlices:
    """Of all updates of a graph those gradients."""
    found = {value: part for node in graph.nodes for value, part in _parts(node)}
    if not found:
        return GradientSlices()
    users, results = graph.users(), set[Value](graph.results)
    parts = {value: part for value, part in found.items() if len(users[value]) == 1 and value not in results}
    taken = {value.inputs[0] for value in parts if isinstance(value.op, TupleGetItem)}
    splits = frozenset[Node](
        split for split in taken
        if isinstance(split, Node) and split not in results and all(reader in parts for reader, _ in users[split])
    )  # fmt: skip
    made = {v: part for v, part in parts.items() if not isinstance(v.op, TupleGetItem) or v.inputs[0] in splits}
    return GradientSlices(dict[Value, GradientPart](made), splits)


def _parts(node: Node) -> Iterator[tuple[Node, GradientPart]]:
    """The gradients of an update on the GPU that are parts, which its kernel can read as they are."""
    op = member_of(node.op)
    index = gradient_index(op) if op is not None else None
    if op is None or index is None or index in (*op.mutates, *op.scalars):
        return
    if any(isinstance(value, Parameter) and OFFLOAD in value.attrs for value in node.inputs):
        return
    width, types = len(op.operands), operand_types(node)
    if any(type.size > _MOST for type in types):
        return
    for start in range(0, len(node.inputs), width):
        value, own = node.inputs[start + index], types[start : start + width]
        part = _part_of(value) if isinstance(value, Node) and own[0].shape == own[index].shape else None
        if part is None:
            continue
        dtypes = [type.dtype for type in own]
        dtypes[index] = part.source.tensor_type.dtype
        if op.statements(dtypes):
            yield value, part


def _part_of(value: Node) -> GradientPart | None:
    """The part that a node makes of what another makes, and does no more than to widen it."""
    op: Op | object = value.op
    if isinstance(op, TupleGetItem):
        split = value.inputs[0]
        if not isinstance(split, Node) or not isinstance(split.op, Split):
            return None
        op, value = split.op.single_result(op.index, *operand_types(split)), split
    elif isinstance(op, FusedElementwise):
        steps = steps_of(op) if len(value.inputs) == 1 and op.returns == (len(op.body) - 1,) else ()
        if not 1 <= len(steps) <= 2 or [step.operands for step in steps] != [(("x", 0),), (("t", 0),)][: len(steps)]:
            return None
        widens = operand_types(value)[0].dtype in HALVES and value.tensor_type.dtype == FLOAT32
        if len(steps) == 2 and not (widens and isinstance(steps[1].op, Cast)):
            return None
        op = steps[0].op
    source = value.inputs[0] if value.inputs else None
    if not isinstance(op, StridedSlice) or not isinstance(source, Node) or not isinstance(source.type, TensorType):
        return None
    made = source.inputs[0] if isinstance(source.op, TupleGetItem) else source
    if not isinstance(made, Node) or made.op.is_view or made.op.mutates or made.regions:
        return None
    if len(source.shape) not in (1, 2):
        return None
    ranges = op.ranges(source.shape)
    if ranges is None or any(n % _PACK for n in (*ranges[-1], source.shape[-1])):
        return None
    return GradientPart(source, ranges)
