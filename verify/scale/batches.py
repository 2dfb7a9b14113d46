"""Says of which operators the first dimension is a batch, whose rows have nothing to do with each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import element_types
from mspc.ir.types import TensorType, Type
from mspc.ops.convolution.convolve import Conv2D, Conv3D
from mspc.ops.convolution.pooling import AvgPool, AvgPool3D, MaxPool, MaxPool3D, MaxPool3DGrad, MaxPoolGrad
from mspc.ops.loss.loss import SoftmaxCrossEntropyWithLogits
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import EmbeddingLookup, Gather, OneHot
from mspc.ops.tensor.scatter import GatherNd
from mspc.ops.tensor.selection import GatherD, GatherDGrad
from mspc.sharding.factors import Rule

ROW_BY_ROW = (
    AvgPool, AvgPool3D, Conv2D, Conv3D, EmbeddingLookup, FlashAttentionScore,
    FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad, Gather,
    GatherD, GatherDGrad, GatherNd, MaxPool, MaxPool3D, MaxPool3DGrad, MaxPoolGrad, OneHot,
    SoftmaxCrossEntropyWithLogits,
)  # fmt: skip
"""Operators whose rows have nothing to do with each other, though on slices ranks run others."""
SAYS_NOTHING: dict[type[Op], tuple[int, ...]] = {FlashAttentionScore: (2,)}
"""Results that stand for what is not made."""


@lru_cache(maxsize=4096)
def batch_of(op: Op, types: tuple[TensorType, ...]) -> tuple[bool, ...] | None:
    """Which operands have the batch as their first dimension; None where there is no batch.

    A rule says how an operator is sharded. Only where ranks run it as it is, on slices alone, does that say that its
    rows have nothing to do with each other.
    """
    kind = type(op)
    if (kind.localize is not Op.localize or kind.expand is not Op.expand) and not issubclass(kind, ROW_BY_ROW):
        return None
    try:
        rule = op.parsed_rule(*types)
    except (MspcError, NotImplementedError):
        return None
    shown = [dims for i, dims in enumerate(rule.outputs) if i not in SAYS_NOTHING.get(kind, ())]
    factor = _first_of_all(rule, shown)
    if factor is None:
        return None
    has = tuple(bool(dims) and dims[0] == (factor,) for dims in rule.inputs)
    elsewhere = any(
        factor in dim for dims, own in zip(rule.inputs, has, strict=True) for dim in (dims[1:] if own else dims)
    )
    if elsewhere or any(factor in dim for dims in shown for dim in dims[1:]):
        return None
    # A batch of another size must give what that says, or the operator knows its batch by an attribute.
    more = [t.with_shape((2 * t.shape[0], *t.shape[1:])) if own else t for t, own in zip(types, has, strict=True)]
    try:
        before, behind = _shapes(op.infer(*types)), _shapes(op.infer(*more))
    except MspcError:
        return None
    same = SAYS_NOTHING.get(kind, ())
    doubled = [shape if i in same else (2 * shape[0], *shape[1:]) for i, shape in enumerate(before)]
    return has if behind == doubled else None


def _first_of_all(rule: Rule, outputs: Sequence[Sequence[tuple[int, ...]]]) -> int | None:
    firsts = {dims[0] if dims else () for dims in outputs}
    if len(firsts) != 1:
        return None
    (first,) = firsts
    return first[0] if len(first) == 1 and first[0] not in rule.frozen else None


def _shapes(type: Type) -> list[tuple[int, ...]]:
    return [t.shape for t in element_types(type)]
