"""Which operators compute in half precision where a program is to, and where it says so itself (`torch.autocast`)."""

from __future__ import annotations

from mspc.api.nn.precision import Precision
from mspc.ir.types import FLOAT32, DType
from mspc.readers.pytorch.program import ExportedGraph, ExportedNode

NARROW = frozenset((
    "MatMul", "BatchMatMul", "Dense", "Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose", "Conv3DTranspose",
    "FlashAttentionScore",
))  # fmt: skip
"""Operators that take most of a step's time, and add up in Float32 whatever they multiply."""
AUTOCAST = "higher_order.wrap_with_autocast"
AS_THEY_ARE = Precision(FLOAT32)
"""Operators compute in the types of their operands."""


def narrowed(dtype: DType, widens: bool = False) -> Precision:
    """Products in this element type. widens: their results are Float32 again."""
    return Precision(dtype, NARROW, widens=widens)


def precision_in(node: ExportedNode, around: Precision | None) -> Precision | None:
    """How the graph inside of a node computes: as what is around it, or as a block of autocast says.

    The arguments of autocast are the device, the element type, whether it is on, and whether casts are kept.
    """
    if node.target != AUTOCAST:
        return around
    values = [value for _, value in node.arguments]
    settings = values[: next((i for i, value in enumerate(values) if isinstance(value, ExportedGraph)), 0)]
    if len(settings) < 3 or settings[2] is not True:
        return AS_THEY_ARE
    return narrowed(settings[1]) if isinstance(settings[1], DType) else around
