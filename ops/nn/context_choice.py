"""How ranks with slices of the sequence carry out an attention follows from what its strategy says, and from bytes.

A strategy that shards the sequence of query, key and value alike asks for it. Ranks may exchange slices of the sequence
(a ring, see `context_attention`); or slices of the sequence for heads and back, with every rank's heads complete in
between (Jacobs et al., DeepSpeed-Ulysses, arXiv 2309.14509); or the latter among neighbours, with a ring over groups of
them (Fang and Zhao, USP, arXiv 2405.07719). What sends the fewest bytes forward is taken, of equal ones that with the
shortest ring, unless an attribute says it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.named_layout import NamedLayout
from mspc.ops.control.constraint import constrained
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.mint import RepeatInterleaveInt
from mspc.ops.nn.attention_base import ENDS, AttentionOp
from mspc.ops.nn.attention_kernel import Shape
from mspc.ops.nn.attention_pairs import pairs_of
from mspc.ops.nn.attention_ring import HEADS, SEQUENCE
from mspc.ops.op import RequestedSharding
from mspc.ops.tensor.reshape import Reshape

RING = ("enable_ring_attention", "enable_flash_sp")
"""Attributes that ask for a ring alone."""
DEGREE = "ulysses_degree"
"""The attribute that says among how many ranks slices of the sequence are exchanged for heads: 1 for a ring alone."""
BATCH = {"BSH": 0, "BNSD": 0, "BSND": 0, "SBH": 1}


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a strategy says of query, key and value. matrix: sizes of the axes of a mesh. batch, sequence, heads: axes
    of it, the most significant first; key_heads: those of the heads of key and value."""

    matrix: tuple[int, ...]
    batch: tuple[int, ...]
    sequence: tuple[int, ...]
    heads: tuple[int, ...]
    key_heads: tuple[int, ...]

    def count(self, axes: Sequence[int]) -> int:
        return math.prod(self.matrix[axis] for axis in axes)


def shards_sequence(layout: str, given: Sequence[Any] | None) -> bool:
    """Whether a strategy shards the sequences of query, key and value alike."""
    if given is None or len(given) < 3 or layout not in SEQUENCE:
        return False
    at = SEQUENCE[layout]
    entries = [entry.axes if isinstance(entry, NamedLayout) else entry for entry in given[:3]]
    counts = [entry.strategy if isinstance(entry, NamedLayout) else entry for entry in given[:3]]
    if any(not isinstance(entry, tuple) or len(entry) <= at for entry in entries):
        return False
    return len({entry[at] for entry in entries}) == 1 and counts[0][at] != 1


def names_dimensions(strategy: Sequence[Any] | None, inputs: Sequence[Value]) -> bool:
    """Whether the entries of a strategy, as far as it has any, are for as many dimensions as the operands have."""
    counts = [len(entry.axes if isinstance(entry, NamedLayout) else entry) for entry in strategy or ()]
    return all(count == len(x.shape) for count, x in zip(counts[:3], inputs, strict=False))


def in_context(b: Builder, op: AttentionOp, asked: RequestedSharding, inputs: Sequence[Value]) -> list[Value] | None:
    """The results of `op` over sequences of which every rank has a slice; None where the strategy says nothing of it,
    where it is another mistake, which others report, and with an addend that slices of keys do not take: beside numbers
    as -1e9 the logarithms of sums are too coarse for gradients.

    Raises:
        MspcError: the attributes ask for what cannot be.
    """
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
    """Among how many ranks slices of the sequence are exchanged for heads."""
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
        """Elements that a rank sends in the mean forward and for gradients, for one place of the batch."""
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
    """The same with every axis of the sequence wholly over groups of `degree` neighbours, or within them:
    (read, axes over them, axes within)."""
    matrix, over = list(read.matrix), list(read.sequence)
    within: list[int] = []
    left = degree
    while left > 1:
        axis = over.pop()
        size = math.gcd(matrix[axis], left)
        if matrix[axis] > size:  # an axis of its own for what stays over the groups, ahead of the other
            matrix[axis : axis + 1] = [matrix[axis] // size, size]
            read = _shifted(read, axis)
            over = [a + (a > axis) for a in over] + [axis]
            within = [a + 1 for a in within]
            axis += 1
        within.insert(0, axis)
        left //= size
    return replace(read, matrix=tuple(matrix)), tuple(over), tuple(within)


def _shifted(read: _Asked, axis: int) -> _Asked:
    """The axes behind one that became two."""

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
    """Keys or values with every head so many times, one after the other, so that every rank has one."""
    if op.input_layout in ("BNSD", "BSND"):
        return b.emit(RepeatInterleaveInt(times, HEADS[op.input_layout]), x)
    first, second, hidden = x.shape
    apart = b.emit(Reshape((first, second, heads, hidden // heads)), x)
    return b.emit(Reshape((first, second, hidden * times)), b.emit(RepeatInterleaveInt(times, 2), apart))


def _entries(
    op: AttentionOp, read: _Asked, inputs: Sequence[Value], sequence: tuple[int, ...], heads: tuple[int, ...],
    key_heads: tuple[int, ...],
) -> Sequence[NamedLayout]:  # fmt: skip
    """The layout of every operand whose sequence and heads are along these axes."""
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
