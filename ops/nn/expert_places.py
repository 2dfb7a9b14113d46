"""This operator says which rows are brought to which experts, and where they stand there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import INT32, INT64, TensorType, TupleType, Type
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RankPlacement, sample
from mspc.ops.tensor.embedding import require_integer


class ExpertPlaces(Op):
    """Places of rows in the order of their experts, in blocks: see `ops/math/expert_product.py`.

    ends [experts]: where the rows of each expert end; rows behind the last end belong to none, and stand behind those
    of the last block's experts. source [rows]: where in the batch each row is from. The batch is shared by `outer`
    groups of ranks, so that each has as many rows as any other: those of the smallest sources are of the first. Within
    a group `parts` ranks share the experts. A block has `room` rows, or room for all rows of its group; where more go
    to its experts, the step ends with an error.

    Results:
        of every place [outer * parts * room] the row's source, and its number among the rows; -1 where no row
        stands;
        of every row [rows] its place;
        of every block the ends of its experts' rows [outer, parts, experts / parts].

    own: of a rank that makes a slice of the results, its first group and how many, its first part and how many.
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
        """Rows of all blocks."""
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

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.expert_places import Blocks, place_rows  # late: only a GPU needs it

        ends, source = inputs
        size = self.room or source.shape[0] // self.outer
        counts = device.empty((self.outer * self.parts,), "int32")
        blocks = Blocks(self.outer, self.parts, size, self._own)
        places = place_rows(device, blocks, ends, source, tuple(out), counts)

        def check(counts: Any, ends: Any) -> None:
            _require_within(ends, source.shape[0])
            self._require_room(counts, size)

        return None if places is None else device.asking([counts, ends], check, ahead=places)

    def _require_room(self, counts: Any, size: int) -> None:
        """Raises IndexError where more rows want to go to a block than it has room for."""
        if not counts.size or counts.max() <= size:
            return
        worst = int(counts.argmax())
        raise IndexError(
            f"{counts[worst]} rows of part {worst // self.parts} of the batch go to the experts of rank "
            f"{worst % self.parts} of {self.parts}, and most_rows leaves room for {size}"
        )

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (ends, source) = be.xp, inputs
        rows, experts = source.shape[0], ends.shape[0]
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
    """Raises IndexError where an expert's rows end where there are none."""
    if ends.size and not 0 <= ends.min() <= ends.max() <= rows:
        wrong = ends[(ends < 0) | (ends > rows)][0]
        raise IndexError(f"an expert's rows end at {wrong}, but there are {rows} rows")
