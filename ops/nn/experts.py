"""Mixture of experts: routing of tokens, positions of their rows, and grouped matmuls of each expert's rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.types import INT32, INT64, TensorType, TupleType, Type
from mspc.ops import gpu
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Equal, Select
from mspc.ops.math.matmul import ENDS, EntryByGroup, OuterByGroup, ProductByGroup, RowsByGroup, SumsByGroup
from mspc.ops.op import Gradients, NotDifferentiable, Op, RankPlacement, require_integer, sample
from mspc.ops.operator_arguments import int_of, size_of, split_call
from mspc.ops.tensor.creation import Range
from mspc.ops.tensor.embedding import EmbeddingLookup, UnsortedSegmentSum


class ExpertPlaces(Op):
    """Positions of rows sorted by expert, in blocks.

    ends [experts]: the ends of each expert's rows; rows after the last end belong to no expert, and are placed after
    those of the last block's experts. source [rows]: index in the batch of each row. The batch is shared by `outer`
    groups of ranks with equally many rows, in the order of `source`. Within a group `parts` ranks share the experts. A
    block has space for `room` rows, or for all rows of its group; if its experts get more, the step fails.

    Results: for every position [outer * parts * room] the row's source, and the row's number; -1 for an empty position.
    For every row [rows] its position. For every block the ends of its experts' rows [outer, parts, experts / parts].

    own: for a rank that makes a slice of the results: (first group, number of groups, first part, number of parts).
    """

    outer: int = 1
    parts: int = 1
    room: int = 0
    own: tuple[int, ...] = ()
    omitted = ("room", "own")
    follows_neighbours = True
    waits = True
    bprop = NotDifferentiable("its results are places")
    samples = (
        sample((4,), (8,), dtypes=("Int64", "Int32"), low=0, high=8, outer=2, parts=2, gradient=False),
        sample((4,), (8,), dtypes=("Int64", "Int32"), low=0, high=8, parts=4, gradient=False),
        sample((2,), (8,), dtypes=("Int64", "Int32"), low=2, high=4, parts=2, room=6, gradient=False),
    )

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {0: types[1].shape[0] + 1}

    def rule(self, ends: TensorType, source: TensorType) -> str:
        for index, operand in enumerate((ends, source)):
            require_integer(self.name, index, operand)
            if len(operand.shape) != 1:
                raise MspcError(f"{self.name}: input {index} has shape {operand.shape}, not one dimension")
        experts, rows = ends.shape[0], source.shape[0]
        if self.outer < 1 or rows % self.outer:
            raise MspcError(f"{self.name}: {self.outer} groups of ranks do not divide {rows} rows")
        if self.parts < 1 or experts % self.parts:
            raise MspcError(f"{self.name}: {self.parts} ranks do not divide {experts} experts")
        _, groups, _, parts = self._own
        places = f"(d={groups} p={parts} b={self.room or rows // self.outer}!)"
        return f"e!, r! -> {places}, {places}, r!, d p f={experts // self.parts}!"

    @property
    def _own(self) -> tuple[int, ...]:
        return self.own or (0, self.outer, 0, self.parts)

    def _blocks_of(self, rows: int) -> int:
        """Return the number of rows of all blocks."""
        return self.outer * self.parts * (self.room or rows // self.outer)

    def infer(self, *types: Any) -> Type:
        found, ends = self.parsed_rule(*types), types[0]
        many = self._blocks_of(types[1].size) >= 2**31
        first, second, third, fourth = found.output_shapes()
        places = TensorType(INT64 if many else INT32, third)
        return TupleType((places.with_shape(first), places.with_shape(second), places, ends.with_shape(fourth)))

    def localize(self, placement: RankPlacement) -> Op:
        shape, layout = placement.out_types[3].shape, placement.out_layouts[3]
        groups, parts, _ = layout.slices_for(placement.rank, shape)
        own = (groups.start, groups.stop - groups.start, parts.start, parts.stop - parts.start)
        return self if own == (0, self.outer, 0, self.parts) else replace(self, own=own)

    def launch(self, device: Device, out: Any, ends: Array, source: Array) -> Launch | None:
        size = self.room or source.shape[0] // self.outer
        counts = device.empty((self.outer * self.parts,), "int32")
        blocks = gpu.expert_rows.Blocks(self.outer, self.parts, size, self._own)
        places = gpu.expert_rows.place_rows(device, blocks, ends, source, tuple(out), counts)

        def check(counts: Any, ends: Any) -> None:
            _require_within(ends, source.shape[0])
            self._require_room(counts, size)

        return None if places is None else device.host_query([counts, ends], check, ahead=places)

    def _require_room(self, counts: Any, size: int) -> None:
        """Raise IndexError if more rows go to a block than it has room for."""
        if not counts.size or counts.max() <= size:
            return
        worst = int(counts.argmax())
        raise IndexError(
            f"{counts[worst]} rows of part {worst // self.parts} of the batch go to the experts of rank "
            f"{worst % self.parts} of {self.parts}, and most_rows leaves room for {size}"
        )

    def compute(self, xp: Any, ends: Any, source: Any) -> Any:
        rows, experts = source.shape[0], ends.shape[0]
        if xp.__name__ == "numpy":
            _require_within(ends, rows)
        dtype = xp.int64 if self._blocks_of(rows) >= 2**31 else xp.int32
        each, share = experts // self.parts, rows // self.outer
        size = self.room or share
        expert = xp.searchsorted(xp.sort(ends), xp.arange(rows), side="right")
        group = xp.empty(rows, xp.int64)
        group[xp.argsort(source, kind="stable")] = xp.arange(rows) // max(share, 1)
        blocks = self.outer * self.parts
        block = group * self.parts + xp.minimum(expert // each, self.parts - 1)
        order = xp.argsort(block, kind="stable")  # rows of one block stay in the order of their experts
        counts = xp.bincount(block, minlength=blocks)
        if xp.__name__ == "numpy":
            self._require_room(counts, size)
        starts = xp.cumsum(counts) - counts
        within = xp.empty(rows, xp.int64)
        within[order] = xp.arange(rows) - starts[block[order]]
        slots = (block * size + within).astype(dtype)
        first, groups, begin, parts = self._own
        numbers = xp.full(blocks * size, -1, dtype)
        numbers[slots] = xp.arange(rows, dtype=dtype)
        own = numbers.reshape(self.outer, self.parts, size)[first : first + groups, begin : begin + parts].reshape(-1)
        sources = xp.where(own < 0, -1, source[own]) if rows else own
        of_experts = xp.bincount((group * experts + expert)[expert < experts], minlength=self.outer * experts)
        block_ends = xp.cumsum(of_experts.reshape(self.outer, self.parts, each), -1)
        mine = block_ends[first : first + groups, begin : begin + parts]
        return sources.astype(dtype), own, slots, mine.astype(ends.dtype)


def _require_within(ends: Any, rows: int) -> None:
    """Raise IndexError if the end of an expert's rows is not between 0 and the number of rows."""
    if ends.size and not 0 <= ends.min() <= ends.max() <= rows:
        wrong = ends[(ends < 0) | (ends > rows)][0]
        raise IndexError(f"an expert's rows end at {wrong}, but there are {rows} rows")


def require_below(xp: Any, places: Any, limit: int) -> None:
    """Raise IndexError, on the CPU, if an index is `limit` or more; 0 for no limit."""
    if limit and xp.__name__ == "numpy" and places.size and places.max() >= limit:
        raise IndexError(f"place {places.max()} is named, but there are {limit}")


class TakeRows(EmbeddingLookup):
    """Rows of a table [n, ...] at indices of any shape; zeros for invalid indices. limit: exclusive upper bound of the
    indices, 0 if unknown. share: mean share of the rows that are sent between ranks: some indices are invalid, and some
    rows are local."""

    offset: int = 0
    limit: int = 0
    share: float = 1.0
    exchanged = (0,)
    omitted = ("offset", "limit", "share")
    samples = (
        sample((16, 8), (8, 4), dtypes=("Float64", "Int32"), low=-2, high=18),
        sample((16,), (8,), dtypes=("Float64", "Int32"), low=0, high=16),
    )

    def exchanged_bytes(self, held: float, made: float) -> float:
        return made * self.share

    def compute(self, xp: Any, *inputs: Any) -> Any:
        require_below(xp, inputs[1], self.limit)
        return super().compute(xp, *inputs)

    def bprop(self, b: Builder, params: Value, ids: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(AddRows(params.shape[0], share=self.share), dout, ids), None


class AddRows(UnsortedSegmentSum):
    """Table of `num_segments` rows, the sums of the rows [m, ...] per index [m]; rows with invalid indices are dropped.
    share: as in TakeRows."""

    num_segments: int = 0
    offset: int = 0
    share: float = 1.0
    exchanged = (0,)
    omitted = ("offset", "share")
    samples = (sample((8, 4), (8,), dtypes=("Float64", "Int32"), low=-2, high=9, num_segments=8),)

    def exchanged_bytes(self, held: float, made: float) -> float:
        return held * self.share

    def bprop(self, b: Builder, x: Value, segment_ids: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(TakeRows(share=self.share), dout, segment_ids), None


class SetRows(Op):
    """Table of `size` rows of zeros with the rows [m, ...] at their indices [m]; the last of equal indices counts. Rows
    with invalid indices are dropped. limit: exclusive upper bound, 0 if unknown. offset: start of a rank's slice of the
    table."""

    size: int = 0
    limit: int = 0
    offset: int = 0
    linear_in = (0,)
    exchanged = (0,)
    omitted = ("limit", "offset")
    samples = (
        sample((8, 4), (8,), dtypes=("Float64", "Int32"), low=-2, high=9, size=8),
        sample((6, 2), (6,), dtypes=("Float64", "Int32"), low=0, high=5, size=4, limit=5),
    )

    def exchanged_bytes(self, held: float, made: float) -> float:
        return held

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: self.limit or self.size}

    def rule(self, rows: TensorType, places: TensorType) -> str:
        require_integer(self.name, 1, places)
        if len(places.shape) != 1 or rows.shape[:1] != places.shape:
            raise MspcError(f"{self.name}: places {places.shape} are not those of rows {rows.shape}")
        rest = " ".join(f"r{d}" for d in range(1, len(rows.shape)))
        return f"m! {rest}, m! -> s={self.size} {rest}"  # the last row of a place is known to whom has all of them

    def localize(self, placement: RankPlacement) -> Op:
        here = placement.out_layouts[0].slices_for(placement.rank, placement.out_types[0].shape)[0]
        return replace(self, size=here.stop - here.start, offset=self.offset + here.start)

    def bprop(self, b: Builder, rows: Value, places: Value, out: Value, dout: Value) -> Gradients:
        """Return the gradient, zero for overwritten rows: each row checks the number of the row stored at its index."""
        count = rows.shape[0]
        if not count:
            return b.emit(TakeRows(), dout, places), None
        numbers = b.emit(Range(maxlen=count, start=1, limit=count + 1))
        stands = b.emit(TakeRows(), b.emit(SetRows(self.size), numbers, places), places)
        none = b.constant(-1, places.tensor_type.dtype)
        shown = b.emit(Select(), b.emit(Equal(), stands, numbers), places, none)
        return b.emit(TakeRows(), dout, shown), None

    def compute(self, xp: Any, rows: Any, places: Any) -> Any:
        require_below(xp, places, self.limit)
        own = places - self.offset
        inside = (own >= 0) & (own < self.size)
        made = xp.zeros((self.size, *rows.shape[1:]), rows.dtype)
        made[own[inside]] = rows[inside]
        return made


class _Blocks(RowsByGroup, abstract=True):
    """Rows in blocks: `ends` [outer, parts, experts / parts] has the end of each expert's rows in every block."""

    waits = True
    family = "Expert"

    def names(self, ends: TensorType) -> tuple[str, str, str]:
        if len(ends.shape) != 3:
            raise MspcError(f"{self.name}: ends of shape {ends.shape} are not [outer, parts, experts]")
        outer, parts, experts = ends.shape
        if not ends.size:
            raise MspcError(f"{self.name}: there are no blocks and experts, ends have shape {ends.shape}")
        return f"(d={outer} p={parts} b!)", f"(p={parts} e={experts}!)", "d p e!"

    def local_groups(self, ends: Any) -> int:
        return ends.shape[1] * ends.shape[2]

    def slices(self, ends: Any, rows: int) -> Iterator[tuple[int, slice]]:
        outer, parts, experts = ends.shape
        size = rows // (outer * parts)
        for block, borders in enumerate(ends.reshape(outer * parts, experts).tolist()):
            start = 0
            for e, end in enumerate(borders):
                yield block % parts * experts + e, slice(block * size + start, block * size + end)
                start = end

    def pieces(self, xp: Any, ends: Any, rows: int) -> Iterator[tuple[int, Any]]:
        if xp.__name__ != "stablehlo":
            yield from self.slices(ends, rows)
            return
        outer, parts, experts = ends.shape
        block, within = np.divmod(np.arange(rows), rows // (outer * parts))
        borders = xp.concatenate([xp.zeros_like(ends[..., :1]), ends], -1).reshape(outer * parts, experts + 1)[block]
        for part, e in product(range(parts), range(experts)):
            mine = (borders[:, e] <= within) & (within < borders[:, e + 1]) & (block % parts == part)
            yield part * experts + e, mine[:, None]

    def grouping(self, rows: int, ends: Array) -> gpu.expert_rows.Grouping:
        outer, parts, experts = ends.shape
        blocks = outer * parts
        return gpu.expert_rows.Grouping(blocks, parts, experts, rows // blocks, 0, 0, parts * experts, True)


class _FilledBlocks(_Blocks, abstract=True):
    """filled: rows of a block that belong to experts if these share them evenly, for estimates; 0 for all."""

    filled: int = 0
    omitted = ("filled",)

    def own_rows(self, rows: TensorType, ends: TensorType) -> float:
        return ends.shape[0] * ends.shape[1] * self.filled if self.filled else rows.shape[0]

    def relative(self, name: str, **fields: Any) -> Any:
        return super().relative(name, filled=self.filled, **fields)


class ExpertProduct(_FilledBlocks, ProductByGroup):
    """x [rows, k] by the matrix of every row's expert in w [experts, k, n], or [experts, n, k] transposed: [rows, n].
    Rows that belong to no expert give zeros."""

    samples = (
        sample((8, 4), (4, 4, 6), (2, 2, 2), dtypes=ENDS, low=0, high=3),
        sample((8, 6), (4, 4, 6), (2, 2, 2), transpose_b=True, dtypes=ENDS, low=0, high=3),
    )


class ExpertOuter(_FilledBlocks, OuterByGroup):
    """For every expert the matmul of the transposed rows of x [rows, k] with those of y [rows, n], of its rows in all
    blocks: [experts, k, n]."""

    samples = (sample((8, 4), (8, 2), (2, 2, 2), dtypes=ENDS, low=0, high=3),)


class ExpertRows(_Blocks, EntryByGroup):
    """For every row the row of its expert in b [experts, n]; as many rows as `like` [rows, m] has, zeros if there is no
    expert."""

    samples = (sample((8, 4), (4, 4), (2, 2, 2), dtypes=ENDS, low=0, high=3, gradient=False),)


class ExpertSums(_Blocks, SumsByGroup):
    """The sums of the rows of every expert in all blocks of x [rows, n]: [experts, n]."""

    samples = (sample((8, 4), (2, 2, 2), dtypes=ENDS[1:], low=0, high=3, gradient=False),)


class TopKRouter(Op):
    """(the tokens of every expert [batch, expert_num, capacity], counted from 1, 0 if there is none; the place of every
    choice among all experts' [batch, tokens, k], of input's type). Called as `TopKRouter()(input, capacity, expert_num,
    drop_type)`; input [batch, tokens, k], Int32 or Int64, names the experts that a token chose.

    A choice below 0 is none. Place n, counted from 1, of an expert is expert * (capacity + 1) + n, and n is 0 for a
    choice that found no room. With drop_type 0 all choices of a token come before those of the next one, with 1 the
    first choices of all tokens before the second ones.
    """

    capacity: int = 1
    expert_num: int = 1
    drop_type: int = 0
    bprop = NotDifferentiable("its results are places")
    samples = (
        sample((2, 6, 2), dtypes=("Int32",), low=0, high=4, capacity=2, expert_num=4, gradient=False),
        sample((2, 4, 3), dtypes=("Int64",), low=0, high=2, capacity=3, expert_num=2, drop_type=1, gradient=False),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("capacity", "expert_num", "drop_type"), optional=1)
        sizes = {name: size_of(self.name, name, found[name]) for name in ("capacity", "expert_num")}
        drop_type = int_of(self.name, "drop_type", found.get("drop_type", 0))
        return replace(self, **sizes, drop_type=drop_type), tensors

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {0: self.expert_num}

    def rule(self, input: TensorType) -> str:
        require_integer(self.name, 0, input)
        if len(input.shape) != 3:
            raise MspcError(f"{self.name}: input has shape {input.shape}, not [batch, tokens, choices]")
        for name in ("capacity", "expert_num"):
            if getattr(self, name) < 1:
                raise MspcError(f"{self.name}: {name} is {getattr(self, name)}, not a positive number")
        if self.drop_type not in (0, 1):
            raise MspcError(f"{self.name}: drop_type must be 0 or 1, not {self.drop_type}")
        return f"b s! k! -> b e={self.expert_num}! c={self.capacity}!, b s! k!"

    def infer(self, *types: Any) -> Type:
        shapes = self.parsed_rule(*types).output_shapes()
        return TupleType(tuple(TensorType(types[0].dtype, shape) for shape in shapes))

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        tables, places = out
        return gpu.expert_rows.route_tokens(device, inputs[0], tables, places, self.drop_type == 0)

    def compute(self, xp: Any, experts: Any) -> Any:
        batch, tokens, k = experts.shape
        if xp.__name__ == "numpy" and experts.max(initial=-1) >= self.expert_num:
            raise IndexError(f"{self.name}: expert {experts.max()} is chosen, there are {self.expert_num}")
        wanted = (experts >= 0) & (experts < self.expert_num)
        order = (0, 1, 2) if self.drop_type == 0 else (0, 2, 1)
        turns = experts.transpose(order).reshape(batch, tokens * k)
        mine = wanted.transpose(order).reshape(batch, tokens * k)
        token = xp.broadcast_to(xp.arange(tokens)[None, :, None], experts.shape).transpose(order).reshape(turns.shape)
        asks = (turns[:, :, None] == xp.arange(self.expert_num)) & mine[:, :, None]
        number = xp.where(asks, xp.cumsum(asks, axis=1), 0).sum(-1)  # among those that ask the same expert, from 1
        number = xp.where(number <= self.capacity, number, 0)
        places = turns * (self.capacity + 1) + number
        of_experts = xp.zeros((batch, self.expert_num, self.capacity), experts.dtype)
        row, at = xp.nonzero(number)
        of_experts[row, turns[row, at], number[row, at] - 1] = token[row, at] + 1
        shape = (batch, tokens, k) if self.drop_type == 0 else (batch, k, tokens)
        return of_experts, places.reshape(shape).transpose(order).astype(experts.dtype)
