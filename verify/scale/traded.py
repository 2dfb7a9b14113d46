"""The dimensions of what ranks of several kinds send each other in exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.verify.scale.dimensions import Product
from mspc.verify.scale.kinds import RankKind

Dims = Sequence[list[Product]]
Pair = tuple[int, int]


@dataclass
class Traded:
    """What one rank has sent another: by how many it has sent before. A tensor is met twice, by both ends."""

    _counts: dict[tuple[Pair, bool], int] = field(default_factory=dict[tuple[Pair, bool], int])
    _dims: dict[tuple[Pair, int], list[Product]] = field(default_factory=dict[tuple[Pair, int], list[Product]])

    def same(
        self, ops: Sequence[Any], operands: Dims, made: Dims, kind: RankKind
    ) -> Iterator[tuple[list[Product], list[Product]]]:
        """Dimensions at both ends that are the same, as the kind comes to an exchange. ops: as every rank has it, or
        one for all. Nothing is said of an exchange within the kind, of which all dimensions are the same."""
        if all(rank in kind.place for op in ops for rank in (*op.send_rank_ids, *op.recv_rank_ids)):
            return
        for place, rank in enumerate(kind.ranks):
            op = ops[place if len(ops) > 1 else 0]
            ends = [(dims, (rank, to), True) for dims, to in zip(operands, op.send_rank_ids, strict=True)]
            ends += [(dims, (of, rank), False) for dims, of in zip(made, op.recv_rank_ids, strict=True)]
            for dims, pair, sends in ends:
                number = self._counts[pair, sends] = self._counts.get((pair, sends), -1) + 1
                other = self._dims.setdefault((pair, number), dims)
                if other is not dims and len(other) == len(dims):
                    yield other, dims
