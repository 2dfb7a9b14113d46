"""Describes the sizes of operators: which of their numbers are along which dimensions, and which dimensions are the
same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, fields, replace
from typing import Any, NamedTuple

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import NeighborExchange
from mspc.ops.collective.exchange import PasteSlices
from mspc.ops.collective.point_to_point import Receive, ReceiveFromStage
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.ops.math.matmul import GroupedOuter, GroupedProduct, GroupedRows, GroupedSums
from mspc.ops.math.mint import RepeatInterleaveInt
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad
from mspc.ops.nn.batch_norm import BatchNormStep, ChannelStatistics, JoinStatistics
from mspc.ops.nn.experts import ExpertPlaces
from mspc.ops.nn.softmax import LogSoftmax, Softmax
from mspc.ops.op import Op
from mspc.ops.random.dropout import Dropout, UniformReal
from mspc.ops.tensor.creation import Eye, Fill, Ones, Range, Tril, Triu, Zeros
from mspc.ops.tensor.embedding import EmbeddingLookup, Gather, GatherGrad, OneHot, UnsortedSegmentSum
from mspc.ops.tensor.moving import Concat, Pad, Split, Stack, Tile
from mspc.ops.tensor.parts import PadV3, Slice, SplitTensor, SplitWithSize
from mspc.ops.tensor.reshape import BroadcastTo, Reshape
from mspc.ops.tensor.selection import GatherD, GatherDGrad, TopK
from mspc.ops.tensor.slicing import StridedSlice, StridedSliceGrad

Types = Sequence[TensorType]


class Dim(NamedTuple):
    """A dimension of an operand, or of a result."""

    of_result: bool
    tensor: int
    dimension: int


class Number(NamedTuple):
    """A number in a field, the whole of it or an entry of tuples in each other. along: the dimension of which it is a
    size, a place or a distance; last: it is the last place there; over: the dimensions of which it makes that one, by
    repeating them."""

    field: str
    entry: tuple[int, ...]
    along: Dim
    value: int
    last: bool = False
    over: tuple[Dim, ...] = ()


WHOLE: tuple[int, ...] = ()
"""The entry of a field that is one number."""


@dataclass
class Row:
    """The sizes of an operator. same: dimensions that are one though their sizes differ. frozen: those that keep their
    sizes. by_rule: the rest follows its rule."""

    numbers: list[Number] = field(default_factory=list[Number])
    same: list[tuple[Dim, Dim]] = field(default_factory=list[tuple[Dim, Dim]])
    frozen: list[Dim] = field(default_factory=list[Dim])
    by_rule: bool = True
    least: list[tuple[Dim, int, int]] = field(default_factory=list["tuple[Dim, int, int]"])
    """A dimension, a size along it, and how much of that must be left at least."""
    room: list[tuple[Dim, int, Dim, int, int]] = field(default_factory=list["tuple[Dim, int, Dim, int, int]"])
    """(dimension, size along it, dimension, size, number of ways): the first must keep room for the entries of the
    second that are routed there."""
    sizes: list[tuple[Dim, int]] = field(default_factory=list["tuple[Dim, int]"])
    """Sizes along dimensions that are in no field."""
    cuts: list[tuple[Dim, Dim, int, int]] = field(default_factory=list["tuple[Dim, Dim, int, int]"])
    """(dimension, that of a slice of it, start, size)."""
    joined: tuple[Dim, list[tuple[Dim, int]]] | None = None
    """A dimension, and in order those that it is made of, with their sizes."""


def in_dim(tensor: int, dimension: int) -> Dim:
    return Dim(False, tensor, dimension)


def out_dim(dimension: int, tensor: int = 0) -> Dim:
    return Dim(True, tensor, dimension)


def whole_numbers(op: Any, along: Dim, *names: str) -> list[Number]:
    return [Number(name, WHOLE, along, getattr(op, name)) for name in names]


def shape_numbers(op: Any, name: str, dims: Sequence[Dim]) -> list[Number]:
    """Return the entries of a field that are the sizes of these dimensions."""
    return [Number(name, (i,), dim, n) for i, (dim, n) in enumerate(zip(dims, getattr(op, name), strict=True)) if n > 0]


def out_dims(results: Types) -> list[Dim]:
    return [out_dim(d) for d in range(len(results[0].shape))]


# Operators that choose rows, and route them to their places and back.


def _fetched(op: FetchRows, operands: Types, results: Types) -> Row:
    table, places = operands
    count = len(places.shape)
    same = [(in_dim(1, d), out_dim(d)) for d in range(count)]
    same += [(in_dim(0, d), out_dim(count + d - 1)) for d in range(1, len(table.shape))]
    return Row([n for n in whole_numbers(op, in_dim(0, 0), "total", "limit") if n.value], same, by_rule=False)


def _sent(op: SendRows, operands: Types, results: Types) -> Row:
    rows, places = operands
    count = len(places.shape)
    same = [(in_dim(1, d), in_dim(0, d)) for d in range(count)]
    same += [(in_dim(0, d), out_dim(d - count + 1)) for d in range(count, len(rows.shape))]
    return Row([n for n in whole_numbers(op, out_dim(0), "size", "total", "limit") if n.value], same, by_rule=False)


def _best(op: TopK, operands: Types, results: Types) -> Row:
    """Return the best of some: one more is left if there are more."""
    last = len(operands[0].shape) - 1
    same = [(in_dim(0, d), out_dim(d, i)) for i in range(2) for d in range(last)]
    count = operands[0].shape[last]
    least = min(op.k + 1, count)
    return Row(
        same=same, frozen=[out_dim(last, i) for i in range(2)], least=[(in_dim(0, last), count, least)], by_rule=False
    )


def _expert_places(op: ExpertPlaces, operands: Types, results: Types) -> Row:
    """Few rows are not routed as evenly as many, so that blocks of small sizes have more room than `most_rows` says."""
    ends, source = operands
    share = source.shape[0] // op.outer
    row = Row(
        same=[(out_dim(0, 0), out_dim(0, 1)), (in_dim(1, 0), out_dim(0, 2)), (in_dim(0, 0), out_dim(2, 3))],
        by_rule=False,
    )
    row.frozen = [out_dim(0, 3), out_dim(1, 3)]
    row.sizes = [(in_dim(1, 0), share), (in_dim(0, 0), ends.shape[0] // op.parts)]
    if op.room:
        row.numbers = whole_numbers(op, out_dim(0, 0), "room")
        row.room = [(out_dim(0, 0), op.room, in_dim(1, 0), share, op.parts)]
    else:
        row.same.append((out_dim(0, 0), in_dim(1, 0)))
    return row


def _grouped(op: Op, operands: Types, results: Types) -> Row:
    """All groups and all of their matrices: there may be fewer of both. The operators' rules do not say that an end
    belongs to a matrix, as ranks need all ends."""
    if getattr(op, "count", 0):
        return Row()
    if isinstance(op, GroupedProduct):
        inner, outer = (2, 1) if op.transpose_b else (1, 2)
        same = [(in_dim(0, 0), out_dim(0)), (in_dim(0, 1), in_dim(1, inner)), (in_dim(1, outer), out_dim(1)),
                (in_dim(1, 0), in_dim(2, 0))]  # fmt: skip
    elif isinstance(op, GroupedOuter):
        same = [(in_dim(0, 0), in_dim(1, 0)), (in_dim(0, 1), out_dim(1)), (in_dim(1, 1), out_dim(2)),
                (in_dim(2, 0), out_dim(0))]  # fmt: skip
    elif isinstance(op, GroupedRows):
        same = [(in_dim(0, 0), out_dim(0)), (in_dim(0, 1), out_dim(1)), (in_dim(1, 1), out_dim(1)),
                (in_dim(1, 0), in_dim(2, 0))]  # fmt: skip
    else:
        same = [(in_dim(0, 1), out_dim(1)), (in_dim(1, 0), out_dim(0))]
    return Row(whole_numbers(op, in_dim(0, 0), "first"), same=same, by_rule=False)


ROUTED: dict[type[Op], Callable[[Any, Types, Types], Row]] = {
    FetchRows: _fetched,
    SendRows: _sent,
    ExpertPlaces: _expert_places,
    TopK: _best,
    GroupedProduct: _grouped,
    GroupedOuter: _grouped,
    GroupedRows: _grouped,
    GroupedSums: _grouped,
}


# Says of operators which of their whole numbers are sizes or places along which dimensions, and which dimensions stay
# the same dimension though their sizes differ, as of a slice.
#
# One row of `ROWS` a class; an operator without a row has its rule, and none of its fields may be a whole number but
# those of `NO_SIZES`, else its dimensions keep their sizes.


NO_SIZES = frozenset(
    "axis axes dim dims perm index indices batch_dims begin_norm_axis begin_params_axis output_num count returns "
    "writes numbers split_count split_dim concat_dim root_rank sr_tag stage distance micro_batch dest_rank src_rank "
    "rank_list mesh mutates carried scanned stacked turns Seed0 Seed1 seed seed2 alpha value p mode cos_format "
    "gradient first_part axis1 axis2 inner_precise ignored sparse_mode repeats filled".split()
)
"""Fields whose numbers are no sizes: axes, counts of tensors, ranks, seeds, numbers to compute with, and estimates of
costs."""


def _made(op: Any, operands: Types, results: Types) -> Row:
    return Row(shape_numbers(op, "shape", out_dims(results)))


def _strided(op: Any, source: TensorType, whole: Callable[[int], Dim], part: Callable[[int], Dim]) -> Row:
    """Return the row of a slice, or its gradient. whole, part: the dimensions of the operand, and of the slice."""
    row = Row(by_rule=False)
    dims, _ = op.part_dims(source.shape)
    entries = _entries(op, len(source.shape))
    for cut in op.cuts(source.shape):
        if cut.dim < 0:
            continue
        size, along, entry = source.shape[cut.dim], whole(cut.dim), entries.get(cut.dim)
        if cut.size < 0:
            assert entry is not None
            if 0 < cut.start == size - 1:
                row.numbers += [Number("begin", (entry,), along, size, True), Number("end", (entry,), along, size)]
            elif cut.start:
                row.frozen.append(along)
            continue
        other = part(dims[cut.dim][0])
        if cut.takes_all:
            row.same.append((along, other))
            if entry is not None:
                row.numbers += _bounds(op, entry, along, cut, size)
        elif cut.step != 1 or (cut.size == 1 and cut.start) or cut.size == 0:
            row.frozen += [along, other]
        elif cut.size == 1:
            row.frozen.append(other)
        else:
            row.cuts.append((along, other, cut.start, cut.size))
            assert entry is not None
            row.numbers += _bounds(op, entry, along, cut, size)
    return row


def _bounds(op: Any, entry: int, along: Dim, cut: Any, size: int) -> list[Number]:
    found: list[Number] = []
    if not op.begin_mask >> entry & 1:
        found.append(Number("begin", (entry,), along, cut.start))
    if not op.end_mask >> entry & 1:
        found.append(Number("end", (entry,), along, min(cut.start + cut.size, size)))
    return found


def _entries(op: Any, rank: int) -> dict[int, int]:
    """Return, for each dimension of the source, the index of its entry in begin, end and strides."""
    found: dict[int, int] = {}
    special = op.ellipsis_mask | op.new_axis_mask
    used = sum(1 for i in range(len(op.begin)) if not special >> i & 1)
    dimension = 0
    for i in range(len(op.begin)):
        if op.ellipsis_mask >> i & 1:
            dimension += rank - used
        elif not op.new_axis_mask >> i & 1:
            found[dimension] = i
            dimension += 1
    return found


def _slice_grad(op: Any, operands: Types, results: Types) -> Row:
    row = _strided(op, results[0], out_dim, lambda d: in_dim(0, d))
    row.numbers += shape_numbers(op, "shape", out_dims(results))
    return row


def _part(op: Any, operands: Types, results: Types) -> Row:
    row = Row(by_rule=False)
    for d, (n, begin, size) in enumerate(zip(operands[0].shape, op.begin, op.size, strict=True)):
        if size == 1 and n > 1:
            row.frozen.append(in_dim(0, d))
            continue
        row.cuts.append((in_dim(0, d), out_dim(d), begin, size if size >= 0 else n - begin))
        row.numbers.append(Number("begin", (d,), in_dim(0, d), begin))
        row.numbers += [Number("size", (d,), in_dim(0, d), size)] if size >= 0 else []
    return row


def _joined(op: Any, operands: Types, results: Types) -> Row:
    axis = op.axis % len(results[0].shape)
    same = [(in_dim(i, d), out_dim(d)) for i, t in enumerate(operands) for d in range(len(t.shape)) if d != axis]
    joined = (out_dim(axis), [(in_dim(i, axis), t.shape[axis]) for i, t in enumerate(operands)])
    return Row(same=same, by_rule=False, joined=joined)


def _split(op: Any, operands: Types, results: Types) -> Row:
    same = [(in_dim(0, d), out_dim(d, i)) for i, t in enumerate(results) for d in range(len(t.shape))]
    row = Row(same=same, by_rule=False)
    name = next((n for n in ("size_splits", "split_sizes", "split_size") if hasattr(op, n)), "")
    if name:
        axis = getattr(op, "split_dim", getattr(op, "dim", 0)) % len(operands[0].shape)
        given = getattr(op, name)
        sizes = given if isinstance(given, tuple) else (given,)
        row.numbers = [
            Number(name, (i,) if isinstance(given, tuple) else WHOLE, in_dim(0, axis), n)
            for i, n in enumerate(sizes)
            if n > 0
        ]
    return row


def _tiled(op: Any, operands: Types, results: Types) -> Row:
    row = Row(by_rule=False)
    ahead = len(op.multiples) - len(operands[0].shape)
    for entry, times in enumerate(op.multiples):
        own = operands[0].shape[entry - ahead] if entry >= ahead else 1
        if own == 1:
            row.numbers.append(Number("multiples", (entry,), out_dim(entry), times))
        else:
            row.same.append((in_dim(0, entry - ahead), out_dim(entry)))
    return row


def _repeated(op: Any, operands: Types, results: Types) -> Row:
    rank = len(operands[0].shape)
    dims = range(rank) if op.dim is None else (op.dim % rank,)
    made = out_dim(0 if op.dim is None else op.dim % rank)
    return Row([Number("repeats", WHOLE, made, op.repeats, over=tuple(in_dim(0, d) for d in dims))])


def _along(of_result: bool, axis: str, *names: str) -> Callable[[Any, Types, Types], Row]:
    """Return the row of operators whose numbers are along the dimension that their field `axis` names."""

    def row(op: Any, operands: Types, results: Types) -> Row:
        rank = len((results if of_result else operands)[0].shape)
        return Row(whole_numbers(op, Dim(of_result, 0, getattr(op, axis) % rank), *names))

    return row


def _places(op: Any, operands: Types, results: Types) -> Row:
    if op.delta != 1 or not all(isinstance(n, int) for n in (op.start, op.limit)):
        return Row(frozen=out_dims(results))
    return Row([n for n in whole_numbers(op, out_dim(0), "start", "limit", "first", "count") if n.value > 0])


def _eye(op: Any, operands: Types, results: Types) -> Row:
    row = Row([*whole_numbers(op, out_dim(0), "n"), *whole_numbers(op, out_dim(1), "m")])
    if op.k:
        row.same.append((out_dim(0), out_dim(1)))
        row.numbers += whole_numbers(op, out_dim(0), "k")
    return row


def _triangle(op: Any, operands: Types, results: Types) -> Row:
    if op.diagonal in (-1, 0, 1):
        return Row()
    last = len(operands[0].shape) - 1
    return Row(whole_numbers(op, in_dim(0, last), "diagonal"), same=[(in_dim(0, last - 1), in_dim(0, last))])


def _dropped(op: Any, operands: Types, results: Types) -> Row:
    dims = out_dims(results)
    if op.rows or (op.shape and len(op.shape) != len(dims)):
        return Row(frozen=dims)
    return Row([n for name in ("shape", "begin", "local") if getattr(op, name) for n in shape_numbers(op, name, dims)])


def _channels(op: Any, operands: Types, results: Types) -> Row:
    """Parts of a batch norm: tensors of one dimension are of the channels, others as the first operand. How many
    elements a channel has is said; of these the rows of the batch may be fewer."""
    row = Row(whole_numbers(op, in_dim(0, 0), "count") if op.count > 1 else [], by_rule=False)
    row.frozen += [in_dim(0, d) for d in range(2, len(operands[0].shape))]
    for is_result, types in ((False, operands), (True, results)):
        for tensor, type in enumerate(types):
            dims = [1] if len(type.shape) == 1 else range(len(type.shape))
            row.same += [(in_dim(0, to), Dim(is_result, tensor, d)) for d, to in enumerate(dims)]
    return row


def _attention(op: Any, operands: Types, results: Types) -> Row:
    places = {"BNSD": (0, 1, 2), "BSND": (0, 2, 1)}.get(op.input_layout)
    longest = max(op.all_queries, *op.key_slice, *(n for t in operands[:2] for n in t.shape))
    limited = any(0 < n < longest for n in (op.pre_tokens, op.next_tokens))
    if places is None or op.packed or op.rows or limited or op.sparse_mode not in (0, 1, 2, 3):
        return Row(frozen=[in_dim(i, d) for i, t in enumerate(operands) for d in range(len(t.shape))])
    batch, heads, queries = (in_dim(0, d) for d in places)
    keys = in_dim(1, places[2])
    row = Row([*whole_numbers(op, heads, "head_num"), *whole_numbers(op, queries, "first_query", "all_queries")])
    row.numbers += [Number("key_slice", (i,), keys, n) for i, n in enumerate(op.key_slice)]
    if not op.key_slice:
        row.least = [(keys, n, min(n, 2)) for n in (operands[1].shape[places[2]],) if n]  # as of a softmax
    if op.sparse_mode in (2, 3):  # places of queries and keys are compared
        row.same.append((queries, keys))
    for name in ("shape", "begin", "local"):
        if getattr(op, name):
            row.numbers += shape_numbers(op, name, (batch, heads, queries, keys))
    return row


def _softmax(op: Any, operands: Types, results: Types) -> Row:
    """Keep two elements: the softmax of one is 1, and its gradient 0 whatever the ranks compute."""
    axes = op.axis if isinstance(op.axis, tuple) else (op.axis,)
    shape = operands[0].shape
    return Row(least=[(in_dim(0, axis % len(shape)), n, min(n, 2)) for axis in axes if (n := shape[axis])])


def _with_margins(op: Any, operands: Types, results: Types) -> Row:
    rank = len(operands[0].shape)
    margins = op.padding(rank).paddings if isinstance(op, PadV3) else op.paddings
    wider = [d for d, margin in enumerate(margins) if any(margin)]
    return Row(frozen=[dim for d in wider for dim in (in_dim(0, d), out_dim(d))])


def _pasted(op: Any, operands: Types, results: Types) -> Row:
    same = [(in_dim(i, d), out_dim(d)) for i, t in enumerate(operands) for d in range(len(t.shape))]
    places = [Number("begins", (i, d), out_dim(d), n) for i, begin in enumerate(op.begins) for d, n in enumerate(begin)]
    return Row([*shape_numbers(op, "shape", out_dims(results)), *places], same, by_rule=False)


def _exchanged(op: Any, operands: Types, results: Types) -> Row:
    sides = (("recv_shapes", True), ("send_shapes", False))
    return Row([Number(name, (i, d), Dim(is_result, i, d), n) for name, is_result in sides
                for i, shape in enumerate(getattr(op, name)) for d, n in enumerate(shape)], by_rule=False)  # fmt: skip


ROWS: dict[type[Op], Callable[[Any, Types, Types], Row]] = {
    **dict.fromkeys((Reshape, BroadcastTo, Fill, Zeros, Ones, ReceiveFromStage, Receive), _made),
    **dict.fromkeys((Pad, PadV3), _with_margins),
    PasteSlices: _pasted,
    **ROUTED,
    NeighborExchange: _exchanged,
    StridedSlice: lambda op, operands, results: _strided(op, operands[0], lambda d: in_dim(0, d), out_dim),
    StridedSliceGrad: _slice_grad,
    Slice: _part,
    Concat: _joined,
    Stack: lambda op, operands, results: Row(frozen=[out_dim(op.axis % len(results[0].shape))]),
    **dict.fromkeys((Split, SplitWithSize, SplitTensor), _split),
    Tile: _tiled,
    RepeatInterleaveInt: _repeated,
    Gather: _along(False, "axis", "offset", "total"),
    GatherGrad: _along(True, "axis", "size", "offset", "total"),
    UnsortedSegmentSum: lambda op, operands, results: Row(whole_numbers(op, out_dim(0), "num_segments", "offset")),
    EmbeddingLookup: lambda op, operands, results: Row(whole_numbers(op, in_dim(0, 0), "offset")),
    GatherD: _along(False, "dim", "offset", "total"),
    GatherDGrad: _along(True, "dim", "size", "offset", "total"),
    OneHot: _along(True, "axis", "depth", "offset", "classes"),
    Range: _places,
    Eye: _eye,
    Tril: _triangle,
    Triu: _triangle,
    **dict.fromkeys((Dropout, UniformReal), _dropped),
    BatchNormStep: _channels,
    ChannelStatistics: lambda op, operands, results: Row(same=[(in_dim(0, op.axis), out_dim(2))], by_rule=False),
    JoinStatistics: lambda op, operands, results: Row(
        same=[(in_dim(0, 2), out_dim(0, number)) for number in range(len(results))], by_rule=False
    ),
    **dict.fromkeys((Softmax, LogSoftmax), _softmax),
    **dict.fromkeys((FlashAttentionScore, FlashAttentionScoreGrad), _attention),
}


def row_of(op: Op, operands: Types, results: Types) -> Row:
    """Return the row of an operator with operands and results of these types."""
    made = next((ROWS[base] for base in type(op).__mro__ if base in ROWS), None)
    if made is not None:
        return made(op, operands, results)
    if not any(_is_number(getattr(op, f.name)) for f in fields(op) if f.name not in NO_SIZES):  # type: ignore[arg-type]  # operators are dataclasses
        return Row()
    sides = ((False, operands), (True, results))
    return Row(
        frozen=[Dim(out, i, d) for out, types in sides for i, t in enumerate(types) for d in range(len(t.shape))]
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_is_number, value))
    return isinstance(value, int) and not isinstance(value, bool)


# Puts smaller numbers into the fields of an operator.


def resized(op: Any, numbers: Sequence[Number], small: Callable[[Number], int]) -> Any:
    """Return the operator with its numbers for divided dimensions. small: raises ValueError if one does not divide."""
    changed: dict[str, Any] = {}
    for number in numbers:
        value = small(number) - number.last
        if value != number.value:
            changed[number.field] = _replaced(changed.get(number.field, getattr(op, number.field)), number.entry, value)
    return replace(op, **changed) if changed else op


def _replaced(given: Any, entry: tuple[int, ...], value: int) -> Any:
    if not entry:
        return value
    first, *rest = entry
    return (*given[:first], _replaced(given[first], tuple(rest), value), *given[first + 1 :])
