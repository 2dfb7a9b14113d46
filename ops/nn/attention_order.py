"""How attention works on operands by head that lie in memory by the places of the sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mspc.ir.types import TensorType
from mspc.ops.memory_order import MemoryOrder

HEADS_BEHIND = (0, 2, 1, 3)
"""From (batch, sequence, heads, depth) to (batch, heads, sequence, depth) and back."""


class ByLayout(NamedTuple):
    """Which operands and results of an attention lie as its `input_layout` says."""

    operands: tuple[int, ...]
    results: tuple[int, ...]


def orders_by_place(
    where: ByLayout, types: Sequence[TensorType], orders: Sequence[MemoryOrder], results: Sequence[TensorType]
) -> tuple[tuple[MemoryOrder, ...], tuple[MemoryOrder, ...]] | None:
    """The orders of operands and results of layout "BNSD" that are of layout "BSND" as they are stored; None where
    query, key and value, the first three, do not lie so."""
    wanted = [MemoryOrder.of(type.shape) for type in types]
    made = [MemoryOrder.of(type.shape) for type in results]
    for found, places in ((wanted, where.operands), (made, where.results)):
        for place in places:
            found[place] = MemoryOrder.of(found[place].shape, HEADS_BEHIND)
    if any(own.memory != order.memory for own, order in zip(wanted[:3], orders, strict=False)):
        return None
    return tuple(wanted), tuple(made)
