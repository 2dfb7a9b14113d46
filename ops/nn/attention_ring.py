"""The ring of ranks that have slices of both sequences of an attention: what a rank works on, and what it sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT64, TensorType
from mspc.ops.collective.collectives import NeighborExchange
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.nn.attention_base import ENDS, AttentionOp
from mspc.ops.nn.attention_pairs import Pairs, pairs_of
from mspc.ops.op import RankPlacement
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.groups import group_name

SEQUENCE = {"BSH": 1, "BNSD": 2, "BSND": 1, "SBH": 0}
"""The dimension of the sequence, by layout."""
HEADS = {"BSH": 2, "BNSD": 1, "BSND": 2, "SBH": 2}
"""The dimension of the heads."""
Part = tuple[int, int]
"""A part of a slice of the keys: (which, of how many)."""
WHOLE, FIRST, SECOND = (0, 1), (0, 2), (1, 2)
_GO = "slices of the sequence go to where pairs of them are worked on"


def ring_axes(op: AttentionOp, layouts: Sequence[Layout]) -> tuple[int, ...]:
    """The mesh axes along which queries and keys are sharded; () where keys are whole."""
    return layouts[1].dims[SEQUENCE[op.input_layout]] if op.context else ()


def ring_pairs(op: AttentionOp, types: Sequence[TensorType], layouts: Sequence[Layout]) -> Pairs:
    """Where ranks work on their pairs, for operands of these types (global) and layouts."""
    ranks = layouts[1].size_of(ring_axes(op, layouts))
    shape = op.sizes(types)
    row = (shape.depth + shape.value_depth) * types[0].dtype.itemsize
    statistic = 8 if types[0].dtype == FLOAT64 else 4
    ratio = shape.heads * shape.queries * (row + statistic) / (shape.key_heads * shape.keys * row)
    named = op.named(types)
    by_query = any(t.rank > 1 and t.shape[-2] > 1 for name, t in named.items() if name not in ENDS)
    lengths = shape.queries // ranks, shape.keys // ranks
    return pairs_of(ranks, lengths, op.window(shape), ratio, not by_query)


def ring_bytes(op: AttentionOp, types: Sequence[TensorType], layouts: Sequence[Layout], ways: int) -> float:
    """Bytes that a rank sends in the mean; ways: 1 forward, 2 for gradients."""
    if not ring_axes(op, layouts):
        return 0.0
    shape = op.sizes(types)
    q, k, v = (t.with_shape(layouts[i].local_shape(t.shape)).nbytes for i, t in enumerate(types[:3]))
    return ring_pairs(op, types, layouts).sent(ways * (k + v), ways * q * (1 + shape.value_depth / shape.depth))


@dataclass(frozen=True, slots=True)
class RingStep:
    """What a rank has to do with the one that is `on` in the ring, and the one that is as far `back`, by their places.

    goes, comes: which part of its keys is sent, and of those of the other received, to be worked on where queries are.
    leaves: whether its queries are sent to the first one's keys. arrives: the part of its keys at which queries of the
    other one look here.
    """

    on: int
    back: int
    goes: Part | None
    comes: Part | None
    leaves: bool
    arrives: Part | None


@dataclass(frozen=True, slots=True)
class Ring:
    """The ring of a rank. op: as it works on its own slices. ranks: in the order of their slices. place: this rank's
    among them. lengths: of a slice of the queries and one of the keys. masks: the
    operands that may be left out."""

    b: Builder
    op: AttentionOp
    ranks: tuple[int, ...]
    place: int
    pairs: Pairs
    lengths: tuple[int, int]
    masks: tuple[Value, ...]

    @staticmethod
    def of(b: Builder, op: AttentionOp, placement: RankPlacement, masks: Sequence[Value]) -> Ring:
        """The ring of a rank whose keys are a slice."""
        layouts, types = placement.in_layouts, placement.in_types
        ranks = layouts[1].group(ring_axes(op, layouts), placement.rank)
        shape, local = op.sizes(types), op.localize(placement)
        assert isinstance(local, AttentionOp)
        local = replace(local, all_queries=shape.queries, key_slice=(0, shape.keys))
        lengths = shape.queries // len(ranks), shape.keys // len(ranks)
        place = ranks.index(placement.rank)
        return Ring(b, local, ranks, place, ring_pairs(op, types, layouts), lengths, tuple(masks))

    def rounds(self) -> Iterator[RingStep]:
        """What there is to do, over one distance after the other."""
        me, pairs = self.place, self.pairs

        def at_queries(i: int, j: int) -> Part | None:
            return WHOLE if (i, j) in pairs.by_queries else SECOND if (i, j) in pairs.halved else None

        def at_keys(i: int, j: int) -> Part | None:
            return WHOLE if (i, j) in pairs.by_keys else FIRST if (i, j) in pairs.halved else None

        for distance in pairs.distances:
            on, back = (me + distance) % len(self.ranks), (me - distance) % len(self.ranks)
            leaves = at_keys(me, on) is not None
            yield RingStep(on, back, at_queries(on, me), at_queries(me, back), leaves, at_keys(back, me))

    def emit(self, i: int, j: int, part: Part, ahead: Sequence[Value], behind: Sequence[Value] = ()) -> Value:
        """What slice i of the queries and a part of slice j of the keys give; ahead, behind: operands around masks."""
        size = self.lengths[1] // part[1]
        first, key = i * self.lengths[0], j * self.lengths[1] + part[0] * size
        begin = self.op.begin and (*self.op.begin[:2], first, 0)
        op = replace(self.op, first_query=first, key_slice=(key, self.op.key_slice[1]), begin=begin)
        masks: list[Value] = []
        for name, mask in zip(op.optional, self.masks, strict=True):
            every = name in ENDS or mask.shape[-1] == 1
            masks.append(mask if every else self._sliced(mask, len(mask.shape) - 1, key, size))
        return self.b.emit(op, *ahead, *masks, *behind)

    def keys(self, x: Value, part: Part) -> Value:
        """A part of a slice of keys or values."""
        size = self.lengths[1] // part[1]
        return self._sliced(x, SEQUENCE[self.op.input_layout], part[0] * size, size)

    def type_of(self, x: Value, part: Part) -> TensorType:
        """The type of such a part."""
        axis, shape = SEQUENCE[self.op.input_layout], x.shape
        return x.tensor_type.with_shape((*shape[:axis], shape[axis] // part[1], *shape[axis + 1 :]))

    def items(self, node: Value, *numbers: int) -> list[Value]:
        """Elements of a tuple."""
        return [self.b.emit(TupleGetItem(i), node) for i in numbers]

    def start(self, turn: RingStep, keys: Sequence[Value], queries: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        """(keys and values that come, what belongs to queries and comes), empty where none do."""
        sent: list[Value] = [] if turn.goes is None else [self.keys(x, turn.goes) for x in keys]
        come: list[TensorType] = [] if turn.comes is None else [self.type_of(x, turn.comes) for x in keys]
        count = len(come)
        if turn.leaves:
            sent += queries
        if turn.arrives is not None:
            come += [x.tensor_type for x in queries]
        found = self.exchange(turn.on, sent, turn.back, come, _GO)
        return found[:count], found[count:]

    def exchange(
        self, to: int, sent: Sequence[Value], of: int, come: Sequence[TensorType], reason: str
    ) -> list[Value]:
        """What comes from one place of the ring, for what goes to another: an exchange for each element type."""
        found: dict[int, Value] = {}
        for dtype in dict.fromkeys([v.tensor_type.dtype for v in sent] + [t.dtype for t in come]):
            goes = [v for v in sent if v.tensor_type.dtype == dtype]
            comes = [i for i, t in enumerate(come) if t.dtype == dtype]
            op = NeighborExchange(
                send_rank_ids=(self.ranks[to],) * len(goes),
                recv_rank_ids=(self.ranks[of],) * len(comes),
                recv_shapes=tuple(come[i].shape for i in comes),
                recv_type=dtype,
                group=group_name(self.ranks),
                rank_list=self.ranks,
            )
            received = self.b.emit(op, *goes)
            received.attrs["reason"] = reason
            found |= {i: self.b.emit(TupleGetItem(n), received) for n, i in enumerate(comes)}
        return [found[i] for i in range(len(come))]

    def _sliced(self, x: Value, axis: int, begin: int, size: int) -> Value:
        if size == x.shape[axis]:
            return x
        begins, ends = [0] * len(x.shape), list(x.shape)
        begins[axis], ends[axis] = begin, begin + size
        return self.b.emit(StridedSlice(begin=tuple(begins), end=tuple(ends), strides=(1,) * len(begins)), x)
