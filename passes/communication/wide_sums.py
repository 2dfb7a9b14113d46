"""Computes the compiler's sums of halves over ranks in Float32, where the script asks for that."""

from __future__ import annotations

from mspc.ir.builder import Builder
from mspc.ir.graph import Node, Value
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, HALVES
from mspc.ops.op import Op
from mspc.ops.tensor.cast import Cast


def emit_collective(b: Builder, op: Op, value: Value, layout: Layout | None, name: str) -> tuple[Node, Node]:
    """Emit a collective, between casts where it adds up halves and `force_fp32_communication` is set. Gives it, and
    what has the value's element type again. layout: the value's."""
    dtype = value.tensor_type.dtype
    adds = getattr(op, "op", "") == "sum"
    if not adds or dtype not in HALVES or not b.graph.attrs.get("force_fp32_communication"):
        node = b.emit(op, value, name=name)
        return node, node
    wide = b.emit(Cast(FLOAT32), value)
    wide.layout = layout
    node = b.emit(op, wide, name=name)
    return node, b.emit(Cast(dtype), node, name=name)
