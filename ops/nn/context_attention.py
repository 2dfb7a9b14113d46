"""Attention over sequences that ranks share: rings, gathered keys, and the choice between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout, NamedLayout, slice_counts, with_axes
from mspc.ir.types import FLOAT64, TensorType, TupleType, Type
from mspc.ops.collective.collectives import NeighborExchange
from mspc.ops.control.structural import MakeTuple, TupleGetItem, constrained
from mspc.ops.cuda.attention_kernels import launch_join
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Add
from mspc.ops.math.mint import RepeatInterleaveInt
from mspc.ops.nn.attention_base import ENDS, AttentionOp, Pairs, pairs_of
from mspc.ops.nn.attention_kernel import Shape, by_head
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RankPlacement, RequestedSharding, sample
from mspc.ops.tensor.creation import Fill
from mspc.ops.tensor.moving import Pad
from mspc.ops.tensor.reshape import Reshape, as_dtype
from mspc.ops.tensor.slicing import take_part
from mspc.sharding.groups import group_name


class JoinAttention(Op):
    """(attention_out, softmax_max) of a query that looks at the keys of both operands' (attention_out, softmax_max):
    of (out, statistics, other out, other statistics). Attentions are in `input_layout`, the statistics [batch, heads,
    queries, 1] the logarithms of the sums of exp(score). The result has the statistics' element type. Milakov and
    Gimelshein, Online normalizer calculation for softmax, arXiv 1805.02867.
    """

    input_layout: str = "BSH"
    bprop = NotDifferentiable("it is of a rank's own graph, whose gradients are there")
    samples = (
        sample((2, 4, 8), (2, 2, 4, 1), (2, 4, 8), (2, 2, 4, 1), gradient=False),
        sample((2, 2, 4, 3), (2, 2, 4, 1), (2, 2, 4, 3), (2, 2, 4, 1), gradient=False, input_layout="BNSD"),
        sample((2, 4, 2, 3), (2, 2, 4, 1), (2, 4, 2, 3), (2, 2, 4, 1), gradient=False, input_layout="BSND"),
        sample((4, 2, 8), (2, 2, 4, 1), (4, 2, 8), (2, 2, 4, 1), gradient=False, input_layout="SBH"),
    )

    def rule(self, *types: TensorType) -> str:
        if len(types) != 4 or len(types[1].shape) != 4:
            raise MspcError(f"{self.name} takes two attentions, each with its statistics [batch, heads, queries, 1]")
        count = types[1].shape[1]
        heads = f"h={count}"
        hidden = f"({heads} d!)" if count else "d!"
        out = {"BSH": f"b s {hidden}", "SBH": f"s b {hidden}", "BNSD": f"b {heads} s d!"}
        text = f"{out.get(self.input_layout, f'b s {heads} d!')}, b {heads} s 1"
        return f"{text}, {text} -> {text}"

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        assert isinstance(inferred, TupleType)
        return TupleType(tuple(TensorType(types[1].dtype, t.shape) for t in inferred.elements))

    def compute(self, xp: Any, one: Any, of_one: Any, other: Any, of_other: Any) -> Any:
        top = xp.maximum(of_one, of_other)
        top = xp.where(top == -xp.inf, 0, top)  # neither has a key
        left, right = xp.exp(of_one - top), xp.exp(of_other - top)
        total = left + right
        some = total != 0
        safe = xp.where(some, total, 1)
        joined = xp.empty(one.shape, of_one.dtype)
        if joined.size:
            a, b, c = (by_head(x, self.input_layout, of_one.shape[1]) for x in (one, other, joined))
            c[...] = a * (left / safe) + b * (right / safe)
        return joined, xp.where(some, top + xp.log(safe), -xp.inf).astype(of_one.dtype)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return launch_join(device, self.input_layout, inputs, out)

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        def into(*inputs: Any, out: Sequence[Any]) -> Any:
            for target, made in zip(out, self.run(be, *inputs), strict=True):
                target[...] = made
            return out

        return into

SEQUENCE = {"BSH": 1, "BNSD": 2, "BSND": 1, "SBH": 0}
"""The dimension of the sequence, by layout."""
HEADS = {"BSH": 2, "BNSD": 1, "BSND": 2, "SBH": 2}
"""The dimension of the heads."""
Part = tuple[int, int]
"""A part of a slice of the keys: (which, of how many)."""
WHOLE, FIRST, SECOND = (0, 1), (0, 2), (1, 2)
_GO = "slices of the sequence go to where pairs of them are worked on"


def ring_axes(op: AttentionOp, layouts: Sequence[Layout]) -> tuple[int, ...]:
    """Return the mesh axes along which queries and keys are sharded; () if keys are whole."""
    return layouts[1].dims[SEQUENCE[op.input_layout]] if op.context else ()


def ring_pairs(op: AttentionOp, types: Sequence[TensorType], layouts: Sequence[Layout]) -> Pairs:
    """Return the pairs of ranks and the rank that computes each, for operands of these types (global) and layouts."""
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
    """Return the bytes that a rank sends in the mean; ways: 1 forward, 2 for gradients."""
    if not ring_axes(op, layouts):
        return 0.0
    shape = op.sizes(types)
    q, k, v = (t.with_shape(layouts[i].local_shape(t.shape)).nbytes for i, t in enumerate(types[:3]))
    return ring_pairs(op, types, layouts).sent(ways * (k + v), ways * q * (1 + shape.value_depth / shape.depth))


@dataclass(frozen=True, slots=True)
class RingStep:
    """Exchange of a rank with the ranks `on` positions ahead and `back` positions behind in the ring. goes, comes: part
    of its keys that is sent, and part of the other's keys that is received, for use on the queries' rank. leaves: its
    queries are sent to the first rank's keys. arrives: part of its keys that the other rank's queries attend to
    here."""

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
        """Return the ring of a rank whose keys are a slice."""
        layouts, types = placement.in_layouts, placement.in_types
        ranks = layouts[1].group(ring_axes(op, layouts), placement.rank)
        shape, local = op.sizes(types), op.localize(placement)
        assert isinstance(local, AttentionOp)
        local = replace(local, all_queries=shape.queries, key_slice=(0, shape.keys))
        lengths = shape.queries // len(ranks), shape.keys // len(ranks)
        place = ranks.index(placement.rank)
        return Ring(b, local, ranks, place, ring_pairs(op, types, layouts), lengths, tuple(masks))

    def rounds(self) -> Iterator[RingStep]:
        """Yield the steps, by distance."""
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
        """Emit the attention of slice i of the queries and a part of slice j of the keys. ahead, behind: operands
        before and after the masks."""
        size = self.lengths[1] // part[1]
        first, key = i * self.lengths[0], j * self.lengths[1] + part[0] * size
        begin = self.op.begin and (*self.op.begin[:2], first, 0)
        op = replace(self.op, first_query=first, key_slice=(key, self.op.key_slice[1]), begin=begin)
        masks: list[Value] = []
        for name, mask in zip(op.optional, self.masks, strict=True):
            every = name in ENDS or mask.shape[-1] == 1
            masks.append(mask if every else take_part(self.b, mask, len(mask.shape) - 1, key, key + size))
        return self.b.emit(op, *ahead, *masks, *behind)

    def keys(self, x: Value, part: Part) -> Value:
        """Return a part of a slice of keys or values."""
        size = self.lengths[1] // part[1]
        return take_part(self.b, x, SEQUENCE[self.op.input_layout], part[0] * size, (part[0] + 1) * size)

    def type_of(self, x: Value, part: Part) -> TensorType:
        """Return the type of such a part."""
        axis, shape = SEQUENCE[self.op.input_layout], x.shape
        return x.tensor_type.with_shape((*shape[:axis], shape[axis] // part[1], *shape[axis + 1 :]))

    def items(self, node: Value, *numbers: int) -> list[Value]:
        """Return elements of a tuple."""
        return [self.b.emit(TupleGetItem(i), node) for i in numbers]

    def start(self, turn: RingStep, keys: Sequence[Value], queries: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        """Emit the exchange of a step and return (received keys and values, received queries), empty if there are
        none."""
        sent: list[Value] = [] if turn.goes is None else [self.keys(x, turn.goes) for x in keys]
        come: list[TensorType] = [] if turn.comes is None else [self.type_of(x, turn.comes) for x in keys]
        count = len(come)
        if turn.leaves:
            sent += queries
        if turn.arrives is not None:
            come += [x.tensor_type for x in queries]
        found = self.exchange(turn.on, sent, turn.back, come, _GO)
        return found[:count], found[count:]

    def exchange(self, to: int, sent: Sequence[Value], of: int, come: Sequence[TensorType], reason: str) -> list[Value]:
        """Emit the exchange that sends values to one place of the ring and receives values from another, one for each
        element type; return the received values."""
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

_RESULTS = "what queries find in other ranks' keys comes back"
_GRADIENTS = "gradients of slices of the sequence come back from where pairs were worked on"


def context_forward(b: Builder, op: AttentionOp, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
    """Return the results of FlashAttentionScore on a rank that has slices of both sequences; None if keys are whole."""
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
    """Return the results of FlashAttentionScoreGrad on such a rank."""
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
        """Add a gradient of the query."""
        self._add(0, found)

    def add_keys(self, found: Sequence[Value], part: Part) -> None:
        """Add gradients of a part of key and value."""
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

RING = ("enable_ring_attention", "enable_flash_sp")
"""Attributes that ask only for a ring."""
DEGREE = "ulysses_degree"
"""The attribute with the number of ranks among which slices of the sequence are exchanged for heads: 1 for only a
ring."""
BATCH = {"BSH": 0, "BNSD": 0, "BSND": 0, "SBH": 1}


@dataclass(frozen=True, slots=True)
class _Asked:
    """The strategy of query, key and value. matrix: sizes of the axes of a mesh. batch, sequence, heads: axes of it,
    the most significant first; key_heads: those of the heads of key and value."""

    matrix: tuple[int, ...]
    batch: tuple[int, ...]
    sequence: tuple[int, ...]
    heads: tuple[int, ...]
    key_heads: tuple[int, ...]

    def count(self, axes: Sequence[int]) -> int:
        return math.prod(self.matrix[axis] for axis in axes)


def shards_sequence(layout: str, given: Sequence[Any] | None) -> bool:
    """Return whether a strategy shards the sequences of query, key and value in the same way."""
    if given is None or len(given) < 3 or layout not in SEQUENCE:
        return False
    at = SEQUENCE[layout]
    entries = [entry.axes if isinstance(entry, NamedLayout) else entry for entry in given[:3]]
    counts = [slice_counts(entry) for entry in given[:3]]
    if any(not isinstance(entry, tuple) or len(entry) <= at for entry in entries):
        return False
    return len({entry[at] for entry in entries}) == 1 and counts[0][at] != 1


def names_dimensions(strategy: Sequence[Any] | None, inputs: Sequence[Value]) -> bool:
    """Return whether the entries of a strategy, as far as it has any, are for as many dimensions as the operands
    have."""
    counts = [len(entry.axes if isinstance(entry, NamedLayout) else entry) for entry in strategy or ()]
    return all(count == len(x.shape) for count, x in zip(counts[:3], inputs, strict=False))


def in_context(b: Builder, op: AttentionOp, asked: RequestedSharding, inputs: Sequence[Value]) -> list[Value] | None:
    """Return the results of `op` over sequences that are sharded over ranks. None if the strategy does not shard them,
    has another mistake that is reported elsewhere, or for an addend that sharded keys do not support: next to values
    such as -1e9 the logarithms of sums are too inaccurate for gradients. Raise MspcError if the attributes are
    impossible."""
    if not shards_sequence(op.input_layout, asked.in_strategy):
        return None
    read = _read(op, asked)
    shape = op.sizes([x.tensor_type for x in inputs])
    if read is None:
        return None
    ranks = read.count(read.sequence)
    _check_lengths(op, ranks, {"query": shape.queries, "key": shape.keys})
    degree = _degree(op, asked, shape, read)
    if "real_shift" in op.optional and degree != ranks:
        return None
    if degree == 1:
        found = b.emit(replace(op, context=ranks), *inputs)
        key_heads = read.heads  # a head of keys goes with the heads of queries that look at it
        while shape.key_heads % read.count(key_heads):
            key_heads = key_heads[:-1]
        found.in_strategy = tuple(_entries(op, read, inputs, read.sequence, read.heads, key_heads))
        found.out_strategy = asked.out_strategy
        return [b.emit(TupleGetItem(i), found) for i in range(4)]
    found = _by_heads(b, op, inputs, _parted(read, degree))
    if asked.out_strategy is not None and len(asked.out_strategy) == 4:
        found[3] = constrained(b, found[3], asked.out_strategy[3])
    return found


def _check_lengths(op: AttentionOp, slices: int, lengths: Mapping[str, int]) -> None:
    for name, length in lengths.items():
        if length % slices:
            legal = [n for n in range(1, length + 1) if length % n == 0]
            raise MspcError(
                f"{op.name}: the strategy shards the sequence of {name} into {slices} slices, which do not divide its "
                f"{length} places",
                notes=[f"pad it to {-(-length // slices) * slices}, or use {', '.join(map(str, legal[:8]))} slices"],
                kind=ValueError,
            )


def _read(op: AttentionOp, asked: RequestedSharding) -> _Asked | None:
    given = asked.in_strategy or ()
    query, key = given[:2]
    layout = op.input_layout
    places = BATCH[layout], SEQUENCE[layout], HEADS[layout]
    if isinstance(query, NamedLayout):
        batch, sequence, heads = (query.axes[d] for d in places)
        matrix, of_key = query.device_matrix, key.axes[HEADS[layout]]
        if key.device_matrix != matrix or key.axes[BATCH[layout]] != batch or of_key not in ((), heads):
            return None
        return _Asked(matrix, batch, sequence, heads, of_key)
    counts = [query[d] for d in places]
    if not all(isinstance(n, int) and n > 0 for n in counts) or key[BATCH[layout]] != counts[0]:
        return None
    if asked.ranks % math.prod(counts) or key[HEADS[layout]] not in (1, counts[2]):
        return None
    matrix = [1] * len(query)
    for d, count in zip(places, counts, strict=True):
        matrix[d] = count
    batch, sequence, heads = ((d,) for d in places)
    of_key = heads if key[HEADS[layout]] == counts[2] else ()
    return _Asked((*matrix, asked.ranks // math.prod(counts)), batch, sequence, heads, of_key)


def _degree(op: AttentionOp, asked: RequestedSharding, shape: Shape, read: _Asked) -> int:
    """Return the number of ranks among which slices of the sequence are exchanged for heads."""
    ranks = read.count(read.sequence)
    heads, key_heads = shape.heads // read.count(read.heads), shape.key_heads // read.count(read.key_heads)
    legal = [n for n in range(1, ranks + 1) if ranks % n == 0 and _fits(n, heads, key_heads)]
    given = asked.attrs.get(DEGREE)
    if given is not None:
        if given not in legal:
            raise MspcError(
                f"{op.name}: {DEGREE} is {given}, but {ranks} ranks share the sequence and each has {heads} heads of "
                f"query and {key_heads} of key",
                notes=[f"it may be {', '.join(map(str, legal))}"],
                kind=ValueError,
            )
        return int(given)
    if any(asked.attrs.get(name) for name in RING):
        return 1
    if "real_shift" in op.optional:
        return legal[-1]
    lengths = shape.queries // ranks, shape.keys // ranks
    row = shape.depth + shape.value_depth

    def sent(degree: int) -> float:
        """Return the elements that a rank sends in the mean, forward and for gradients, for one place of the batch."""
        ring = ranks // degree
        all_keys = max(key_heads, degree)
        exchanged = (heads * lengths[0] + all_keys * lengths[1]) * row * (degree - 1) / degree
        keys, queries = all_keys * lengths[1] * row, heads * lengths[0] * row
        pairs = pairs_of(ring, (lengths[0] * degree, lengths[1] * degree), op.window(shape), queries / keys, True)
        return 2 * exchanged + 3 * pairs.sent(keys, queries)  # keys go for gradients once more, and theirs come back

    return min(legal, key=lambda degree: (sent(degree), -degree))


def _fits(degree: int, heads: int, key_heads: int) -> bool:
    return heads % degree == 0 and (key_heads % degree == 0 or degree % key_heads == 0)


def _parted(read: _Asked, degree: int) -> tuple[_Asked, tuple[int, ...], tuple[int, ...]]:
    """Return the same with every axis of the sequence wholly over groups of `degree` neighbours, or within them: (read,
    axes over them, axes within)."""
    matrix, over = list(read.matrix), list(read.sequence)
    within: list[int] = []
    left = degree
    while left > 1:
        axis = over.pop()
        size = math.gcd(matrix[axis], left)
        if matrix[axis] > size:  # a separate leading axis for the part that shards the groups
            matrix[axis : axis + 1] = [matrix[axis] // size, size]
            read = _shifted(read, axis)
            over = [a + (a > axis) for a in over] + [axis]
            within = [a + 1 for a in within]
            axis += 1
        within.insert(0, axis)
        left //= size
    return replace(read, matrix=tuple(matrix)), tuple(over), tuple(within)


def _shifted(read: _Asked, axis: int) -> _Asked:
    """Renumber the axes after one that became two."""

    def moved(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(b for a in axes for b in ((a, a + 1) if a == axis else (a + (a > axis),)))

    return replace(
        read, batch=moved(read.batch), sequence=moved(read.sequence), heads=moved(read.heads),
        key_heads=moved(read.key_heads),
    )  # fmt: skip


def _by_heads(
    b: Builder, op: AttentionOp, inputs: Sequence[Value], parted: tuple[_Asked, tuple[int, ...], tuple[int, ...]]
) -> list[Value]:
    read, over, within = parted
    ring = read.count(over)
    stored = list(_entries(op, read, inputs, read.sequence, read.heads, read.key_heads))
    operands = [constrained(b, x, entry) for x, entry in zip(inputs[:3], stored, strict=False)]
    heads = (*read.heads, *within)
    key_heads = op.sizes([x.tensor_type for x in inputs]).key_heads
    again = math.lcm(key_heads, read.count(heads)) // key_heads
    values: list[Value] = [operands[0]]
    for operand, entry in zip(operands[1:], stored[1:3], strict=True):
        values.append(operand if again == 1 else constrained(b, _repeated(b, op, operand, key_heads, again), entry))
    masks = inputs[3:]
    found = b.emit(replace(op, context=ring if ring > 1 else 0), *values, *masks)
    found.in_strategy = tuple(_entries(op, read, [*values, *masks], over, heads, heads))
    result = b.emit(TupleGetItem(3), found)
    return [*(b.emit(TupleGetItem(i), found) for i in range(3)), constrained(b, result, stored[0])]


def _repeated(b: Builder, op: AttentionOp, x: Value, heads: int, times: int) -> Node:
    """Return keys or values with every head repeated, one after the other, so that every rank has one."""
    if op.input_layout in ("BNSD", "BSND"):
        return b.emit(RepeatInterleaveInt(times, HEADS[op.input_layout]), x)
    first, second, hidden = x.shape
    apart = b.emit(Reshape((first, second, heads, hidden // heads)), x)
    return b.emit(Reshape((first, second, hidden * times)), b.emit(RepeatInterleaveInt(times, 2), apart))


def _entries(
    op: AttentionOp, read: _Asked, inputs: Sequence[Value], sequence: tuple[int, ...], heads: tuple[int, ...],
    key_heads: tuple[int, ...],
) -> Sequence[NamedLayout]:  # fmt: skip
    """Return the layout of every operand whose sequence and heads are along these axes."""
    layout = op.input_layout
    found: list[NamedLayout] = []
    for index, x in enumerate(inputs):
        dims: list[tuple[int, ...]] = [()] * len(x.shape)
        if index < 3:
            dims[BATCH[layout]], dims[SEQUENCE[layout]] = read.batch, sequence
            dims[HEADS[layout]] = key_heads if index else heads
        elif op.optional[index - 3] not in ENDS:
            roles = (read.batch, heads, sequence, ())[4 - len(x.shape) :]
            dims = [axes if size > 1 else () for axes, size in zip(roles, x.shape, strict=True)]
        last = len(read.matrix) - 1
        places = tuple(tuple(last - axis for axis in axes) if axes else -1 for axes in dims)
        names = tuple(f"axis{i}" for i in range(len(read.matrix)))
        found.append(NamedLayout(read.matrix, names, tuple(p[0] if isinstance(p, tuple) and len(p) == 1 else p
                                                           for p in places)))  # fmt: skip
    return found


def keys_gathered(
    b: Builder, op: Op, layout: str, asked: RequestedSharding, inputs: Sequence[Value], *, sequence: bool = True,
    key_heads: int = 0,
) -> Node | None:
    """Return `op` of (query, key, value, ...) with keys and values that are stored as the strategy says and read
    otherwise; None if the strategy stores them as they are read.

    sequence: they are gathered along the sequence. key_heads: their number, if it is not 0; they are then read with the
    sharding of their queries.
    """
    given = asked.in_strategy
    if given is None or layout not in SEQUENCE or len(given) != len(inputs):
        return None
    read = given[1:3]
    if key_heads:
        read = tuple(_matching_query_heads(given[0], entry, HEADS[layout], key_heads) for entry in read)
    if sequence:
        read = tuple(with_axes(entry, SEQUENCE[layout]) for entry in read)
    if read == given[1:3]:
        return None
    stored = [constrained(b, value, entry) for value, entry in zip(inputs[1:3], given[1:3], strict=True)]
    found = b.emit(op, inputs[0], *stored, *inputs[3:])
    found.in_strategy, found.out_strategy = (given[0], *read, *given[3:]), asked.out_strategy
    return found


def _matching_query_heads(query: Any, entry: Any, heads: int, key_heads: int) -> Any:
    """Return a Layout of keys with heads sharded over the axes that shard the queries' heads: the leading ones that
    shard the `key_heads` groups, because a group's queries are contiguous. Unchanged with another number of slices, a
    mistake that is reported elsewhere."""
    if not (isinstance(query, NamedLayout) and isinstance(entry, NamedLayout)):
        return entry
    if entry.device_matrix != query.device_matrix or max(len(query.axes), len(entry.axes)) <= heads:
        return entry
    axes = query.axes[heads]
    while math.prod(query.device_matrix[axis] for axis in axes) > key_heads:
        axes = axes[:-1]
    slice_count = math.prod(query.device_matrix[axis] for axis in axes)
    return with_axes(entry, heads, axes) if entry.strategy[heads] == slice_count else entry
