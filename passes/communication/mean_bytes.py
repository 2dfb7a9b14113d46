"""Counts the bytes that ranks send in a graph of all ranks, whose types are global."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from mspc.analysis.cost.nodes import sent_bytes
from mspc.ir.graph import Node, element_layouts, element_types, operand_types
from mspc.ir.layout import Axes, Layout
from mspc.ir.types import TensorType
from mspc.ops.collective.base import Collective
from mspc.ops.collective.exchange import Exchange
from mspc.ops.collective.regroup import Regroup
from mspc.ops.op import Op
from mspc.passes.sharding.traffic import sent_inside
from mspc.sharding.pieces import missing_elements


def mean_bytes(nodes: Sequence[Node]) -> float:
    """What a rank sends for nodes in the mean over all ranks, inside of operators, too; changes of layout are lowered
    already."""
    return sum(map(_of_collective, nodes)) + sent_inside(nodes)


def _of_collective(node: Node) -> float:
    op = cast(Op, node.op)
    if isinstance(op, (Exchange, Regroup)):
        type = node.tensor_type
        missing, _ = missing_elements(op.source, op.target, type.shape)
        return missing * type.dtype.itemsize / op.source.ranks
    if isinstance(op, Collective) and op.over_mesh:
        mesh, axes = cast("tuple[tuple[int, ...], Axes]", (op.mesh, op.axes))  # type: ignore[attr-defined]  # of all that are over a mesh
        operands = [
            _on_rank((type,), element_layouts(value.layout))
            for type, value in zip(operand_types(node), node.inputs, strict=True)
        ]
        result = _on_rank(element_types(node.type), element_layouts(node.layout))
        return op.sent_bytes(op.travelling(operands, result), math.prod(mesh[a] for a in axes))
    return sent_bytes(node)


def _on_rank(types: Sequence[TensorType], layouts: Sequence[Layout | None]) -> float:
    """Bytes of a rank's slices of a value's tensors."""
    pairs = zip(types, layouts, strict=True)
    return sum(type.nbytes / math.prod(layout.strategy) for type, layout in pairs if layout is not None)
