"""Attention of which every rank has a slice of the queries and one of the keys: ranks exchange slices and work on pairs
of them, one round of the ring after the other, and join what they find.

Liu et al., Ring Attention with Blockwise Transformers, arXiv 2310.01889, is the model; which rank works on a pair says
`attention_pairs`. Every rank sends its own slice to those that need it, and hands on no other.
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.control.structural import MakeTuple
from mspc.ops.math.arithmetic import Add
from mspc.ops.nn.attention_base import AttentionOp
from mspc.ops.nn.attention_ring import SEQUENCE, WHOLE, Part, Ring, ring_axes
from mspc.ops.nn.join_attention import JoinAttention
from mspc.ops.op import RankPlacement
from mspc.ops.tensor.cast import as_dtype
from mspc.ops.tensor.creation import Fill
from mspc.ops.tensor.tiling import Pad

_RESULTS = "what queries find in other ranks' keys comes back"
_GRADIENTS = "gradients of slices of the sequence come back from where pairs were worked on"


def context_forward(b: Builder, op: AttentionOp, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
    """The results of FlashAttentionScore on a rank that has slices of both sequences; None where keys are whole."""
    if not ring_axes(op, placement.in_layouts):
        return None
    ring = Ring.of(b, op, placement, inputs[3:])
    query, key, value = inputs[:3]
    of_statistics, none, of_result = (
        type.with_shape(layout.local_shape(type.shape))
        for type, layout in zip(placement.out_types[1:], placement.out_layouts[1:], strict=True)
    )

    def work(i: int, j: int, part: Part, q: Value, keys: Sequence[Value]) -> list[Value]:
        return ring.items(ring.emit(i, j, part, [q, *keys]), 3, 0)

    me, own = ring.place, [key, value]
    total = work(me, me, WHOLE, query, own)
    for turn in ring.rounds():
        keys, queries = ring.start(turn, own, [query])
        found = [] if turn.comes is None else [work(me, turn.back, turn.comes, query, keys)]
        made: list[Value] = []
        if turn.arrives is not None:
            made = work(turn.back, me, turn.arrives, queries[0], [ring.keys(x, turn.arrives) for x in own])
        come = [of_result, of_statistics] if turn.leaves else []
        returned = ring.exchange(turn.back, made, turn.on, come, _RESULTS)
        if turn.leaves:
            found.append(returned)
        for other in found:
            total = ring.items(b.emit(JoinAttention(op.input_layout), *total, *other), 0, 1)
    ones = b.emit(Fill(of_statistics.dtype, of_statistics.shape, 1.0))
    placeholder = b.emit(Fill(none.dtype, none.shape, 0.0))
    return b.emit(MakeTuple(), total[1], ones, placeholder, as_dtype(b, total[0], of_result.dtype))


def context_backward(b: Builder, op: AttentionOp, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
    """The results of FlashAttentionScoreGrad on such a rank."""
    if not ring_axes(op, placement.in_layouts):
        return None
    ring = Ring.of(b, op, placement, inputs[4:-2])
    query, key, value, dout = inputs[:4]
    statistics, result = inputs[-2:]

    def work(i: int, j: int, part: Part, queries: Sequence[Value], keys: Sequence[Value]) -> list[Value]:
        q, g, logarithms, out = queries
        return ring.items(ring.emit(i, j, part, [q, *keys, g], [logarithms, out]), 0, 1, 2)

    me, own, mine = ring.place, [key, value], [query, dout, statistics, result]
    sums = _Sums(ring, statistics.tensor_type, work(me, me, WHOLE, mine, own))
    for turn in ring.rounds():
        keys, queries = ring.start(turn, own, mine)
        sent: list[Value] = []
        if turn.comes is not None:
            dq, *sent = work(me, turn.back, turn.comes, mine, keys)
            sums.add_queries(dq)
        if turn.arrives is not None:
            dq, *others = work(turn.back, me, turn.arrives, queries, [ring.keys(x, turn.arrives) for x in own])
            sums.add_keys(others, turn.arrives)
            sent.append(dq)
        come = [] if turn.goes is None else [ring.type_of(x, turn.goes) for x in own]
        come += [query.tensor_type] if turn.leaves else []
        returned = ring.exchange(turn.back, sent, turn.on, come, _GRADIENTS)
        if turn.leaves:
            sums.add_queries(returned.pop())
        if turn.goes is not None:
            sums.add_keys(returned, turn.goes)
    return b.emit(MakeTuple(), *(as_dtype(b, total, query.tensor_type.dtype) for total in sums.totals))


class _Sums:
    """The gradients of query, key and value as far as they have come, in the element type of `type`."""

    def __init__(self, ring: Ring, type: TensorType, first: Sequence[Value]) -> None:
        self.ring, self.dtype = ring, type.dtype
        self.totals = [as_dtype(ring.b, x, self.dtype) for x in first]

    def add_queries(self, found: Value) -> None:
        """A gradient of the query."""
        self._add(0, found)

    def add_keys(self, found: Sequence[Value], part: Part) -> None:
        """Gradients of a part of key and value."""
        axis = SEQUENCE[self.ring.op.input_layout]
        for at, one in enumerate(found, 1):
            if part != WHOLE:
                size = one.shape[axis]
                around = [(0, 0)] * len(one.shape)
                around[axis] = (part[0] * size, (part[1] - 1 - part[0]) * size)
                one = self.ring.b.emit(Pad(paddings=tuple(around)), one)
            self._add(at, one)

    def _add(self, at: int, found: Value) -> None:
        b = self.ring.b
        self.totals[at] = b.emit(Add(), self.totals[at], as_dtype(b, found, self.dtype))
