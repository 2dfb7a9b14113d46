"""Gradients that are rows or columns of a larger matrix, as products with one operand are one product, or a part of a
vector, and that an update alone reads: a GPU's kernel reads them where they are, and need not have them side by side,
or wider, first.

    %8 = MatMul(%6, %7)  of BFloat16, [1024, 3072]
    %9 = StridedSlice(%8) {begin: (0, 1024), end: (1024, 2048)}, %10 = Cast(%9) {dst_type: Float32}, in one kernel
    %11 = ApplyMomentum(%w, %m, %rate, %10, %momentum)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mspc.ir.graph import OFFLOAD, Graph, Node, Parameter, Value, operand_types
from mspc.ir.types import FLOAT32, HALVES, DType, TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.fused.grouped_update import GroupedUpdate, gradient_index
from mspc.ops.op import Op
from mspc.ops.optim.optimizer import Update
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.moving import Split
from mspc.ops.tensor.slicing import StridedSlice
from mspc.runtime.memory import GradientPart, GradientSlices

_PACK = 8
"""Elements that a kernel loads at once at most: parts of rows begin and end at a multiple."""
_MOST = (1 << 32) - 1
"""Elements that a kernel counts rows by."""


def gradient_slices(graph: Graph) -> GradientSlices:
    """Of all updates of a graph those gradients."""
    users: Mapping[Value, Sequence[tuple[Node, int]]] | None = None
    results = set[Value](graph.results)
    parts: dict[Value, GradientPart] = {}
    for node in graph.nodes:
        for value, narrow in _gradients(node):
            found = _part_of(value)
            if found is None:
                continue
            users = users or graph.users()
            source, kept = found.source.tensor_type.dtype, value.tensor_type.dtype
            if len(users[value]) == 1 and value not in results and (source == kept or source == narrow):
                parts[value] = found
    splits = {value.inputs[0] for value in parts if isinstance(value, Node) and isinstance(value.op, TupleGetItem)}
    whole = frozenset[Node](
        split for split in splits
        if isinstance(split, Node) and split not in results and users
        and all(reader in parts for reader, _ in users[split])
    )  # fmt: skip
    left = {
        value: found for value, found in parts.items()
        if not (isinstance(value, Node) and isinstance(value.op, TupleGetItem)) or value.inputs[0] in whole
    }  # fmt: skip
    return GradientSlices(left, whole)


def _gradients(node: Node) -> Iterator[tuple[Node, DType | None]]:
    """The gradients of an update on the GPU, each with the element type that it may have beside its own."""
    op = node.op.member if isinstance(node.op, GroupedUpdate) else node.op
    index = gradient_index(op) if isinstance(op, Update) else None
    if not isinstance(op, Update) or index is None or index in (*op.mutates, *op.scalars):
        return
    if any(isinstance(value, Parameter) and OFFLOAD in value.attrs for value in node.inputs):
        return
    width, types = len(op.operands), operand_types(node)
    if any(type.size > _MOST for type in types):
        return
    for start in range(0, len(node.inputs), width):
        value = node.inputs[start + index]
        if not isinstance(value, Node) or types[start].shape != types[start + index].shape:
            continue
        dtypes = [type.dtype for type in types[start : start + width]]
        if not op.statements(dtypes):
            continue
        narrow = _narrow(value)
        dtypes[index] = narrow or dtypes[index]
        yield value, narrow if narrow is not None and op.statements(dtypes) else None


def _narrow(value: Node) -> DType | None:
    """The halves of which a node makes Float32."""
    made = operand_types(value)[0].dtype if value.inputs and isinstance(value.op, FusedElementwise) else None
    return made if made in HALVES and value.tensor_type.dtype == FLOAT32 else None


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
        if len(steps) == 2 and (not isinstance(steps[1].op, Cast) or steps[1].op.dst_type != FLOAT32):
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
    cuts = op.cuts(source.shape)
    if [cut.dim for cut in cuts] != [*range(len(source.shape))] or any(c.step != 1 or c.size <= 0 for c in cuts):
        return None
    ranges = tuple((cut.start, cut.start + cut.size) for cut in cuts)
    return None if any(n % _PACK for n in (*ranges[-1], source.shape[-1])) else GradientPart(source, ranges)
