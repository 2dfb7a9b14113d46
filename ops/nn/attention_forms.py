"""Attention has two forms: ranks hold all keys of their heads, or slices of them and work on pairs of slices in a ring.

Which one an operator has says `context`. A search weighs the ring beside all other ways to shard an attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.declared import EVEN, UnevenWork
from mspc.ops.nn.attention_base import AttentionOp
from mspc.ops.nn.attention_pairs import busiest_slice
from mspc.ops.nn.attention_ring import SEQUENCE, ring_axes, ring_pairs


class AttentionForms(AttentionOp, abstract=True):
    """Attention, or its gradients, in either form."""

    def other_form(self, types: Sequence[TensorType], ranks: int) -> Self | None:
        if self.context or not self._may_ring:
            return None
        shape = self.sizes(types)
        slices = math.gcd(ranks, shape.queries, shape.keys)
        return replace(self, context=slices) if slices > 1 else None

    def in_form(self, layouts: Sequence[Layout]) -> Self:
        if not self._may_ring or self.input_layout not in SEQUENCE or len(layouts) < 3:
            return self
        at = SEQUENCE[self.input_layout]
        if any(len(layout.dims) <= at for layout in layouts[:2]):
            return self
        slices = layouts[1].strategy[at]
        context = slices if slices > 1 else 0
        return self if context == self.context else replace(self, context=context)

    def like_forward(self, forward: object) -> Self:
        context = forward.context if isinstance(forward, AttentionForms) else self.context
        return self if context == self.context else replace(self, context=context)

    @property
    def _may_ring(self) -> bool:
        """Whether slices of keys can be apart; see `in_context`."""
        return "real_shift" not in self.optional and not self.packed

    def uneven(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> UnevenWork:
        slices = layouts[0].strategy[SEQUENCE[self.input_layout]]
        if slices == 1:
            return EVEN
        shape, axes, rounds = self.sizes(types), ring_axes(self, layouts), 0
        seen, busiest = busiest_slice(slices, (shape.queries, shape.keys), self.window(shape))
        if axes:
            pairs = ring_pairs(self, types, layouts)
            lengths = shape.queries // slices, shape.keys // slices
            busiest, rounds = pairs.busiest(lengths, self.window(shape)), 2 * len(pairs.distances)
        even = self.operations(types) * seen / math.prod(layouts[0].strategy)
        return UnevenWork(busiest, even * (busiest - 1), layouts[1].mesh, axes, rounds)
