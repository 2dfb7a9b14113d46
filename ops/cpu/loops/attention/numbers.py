"""The numbers that compiled attention is given: sizes, steps in memory, limits, and how work is shared out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ops.cpu.loops.attention.source import DRAWN_DIMS, KEYS, NUMBERS, ROWS
from mspc.ops.nn.attention_kernel import Draws, Scores, Shape
from mspc.ops.random.words import count_of, key_of

PARTS = 16
"""Parts of the work at least, where there are as many blocks of queries."""
_TOGETHER = 6
"""Rows that a product makes at once of a full block, which is better a multiple of them."""
_FAR = 1 << 40
"""A distance that no two places have."""
_LANES = 16
"""Elements that rows are filled up to, at most."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """pairs: of a place in the batch and a head of the keys. pieces: of what looks at each. block: queries of a block.
    """

    pairs: int
    pieces: int
    block: int

    @property
    def parts(self) -> int:
        return self.pairs * self.pieces


def sharing(shape: Shape) -> Sharing:
    """How results and gradients of operands are shared out."""
    block, blocks = _blocks(shape)
    pairs = shape.batch * shape.key_heads
    return Sharing(pairs, min(shape.group * blocks, -(-PARTS // pairs)), block)


def sharing_of_shift(shape: Shape, total: Sequence[int]) -> Sharing:
    """How the gradient of a shift of these four sizes is shared out: by what has elements of its own."""
    block, blocks = _blocks(shape)
    places = total[0] * total[1]
    return Sharing(places, min(blocks, -(-PARTS // places)) if total[2] > 1 else 1, block)


def _blocks(shape: Shape) -> tuple[int, int]:
    """(queries of a block, blocks): of equal length but for the last one."""
    rows = -(-shape.queries // -(-shape.queries // ROWS))
    block = min(ROWS, -(-rows // _TOGETHER) * _TOGETHER)
    return block, -(-shape.queries // block)


def elements_of_sums(shape: Shape, shared: Sharing) -> int:
    """Elements of the memory for sums of pieces."""
    if shared.pieces == 1:
        return 0
    keys = -(-shape.keys // KEYS) * KEYS
    return shared.parts * keys * sum(-(-depth // _LANES) * _LANES for depth in (shape.depth, shape.value_depth))


class Numbers:
    """The numbers in memory, of an attention whose sizes stay."""

    def __init__(self, shape: Shape, shared: Sharing) -> None:
        places: dict[str, int] = {}
        size = 0
        for name, count in NUMBERS.items():
            places[name] = size
            size += count
        self._places = places
        self.memory = np.zeros(size + 2, np.int64)
        self._reals = self.memory[size:].view(np.float64)
        self.put(
            pairs=shape.batch * shape.key_heads, pieces=shared.pieces, block=shared.block, heads=shape.heads,
            key_heads=shape.key_heads, queries=shape.queries, keys=shape.keys, depth=shape.depth,
            value_depth=shape.value_depth, own_batch=1, own_heads=1, own_queries=1,
        )  # fmt: skip

    def put(self, **numbers: int) -> None:
        for name, number in numbers.items():
            self.memory[self._places[name]] = number

    def put_heads(self, arrays: Mapping[str, Any]) -> None:
        """Steps of views [batch, heads, sequence, depth], in elements."""
        for name, array in arrays.items():
            first = self._places[f"{name}_batch"]
            self.memory[first : first + 3] = [stride // array.itemsize for stride in array.strides[:3]]

    def put_added(self, name: str, array: Any) -> None:
        """Steps of what has, along each of four dimensions, one element or all."""
        first = self._places[f"{name}_batch"]
        self.memory[first : first + 4] = [
            0 if size == 1 else stride // array.itemsize
            for size, stride in zip(array.shape, array.strides, strict=True)
        ]

    def put_scores(self, scores: Scores) -> None:
        """What scores are made of, but for arrays."""
        self.put(
            low=-_FAR if scores.low is None else scores.low, high=_FAR if scores.high is None else scores.high,
            has_shift=scores.shift is not None, has_mask=scores.mask is not None, has_draws=scores.draws is not None,
            has_keep=scores.draws is None and scores.keep_mask is not None,
        )  # fmt: skip
        self._reals[:] = scores.scale, 1 / scores.keep_prob
        if scores.draws is not None:
            self._put_draws(scores.draws, scores.step)

    def _put_draws(self, draws: Draws, step: int) -> None:
        dims = len(draws.local) - 1
        self.put(drawn_dims=dims, count=count_of(draws.keep_prob))
        self.memory[self._places["key"] :][:1].view(np.uint64)[0] = key_of(*draws.seeds, step)
        for name, sizes in (("drawn", draws.shape), ("begin", draws.begin), ("local", draws.local)):
            first = self._places[name]
            self.memory[first : first + dims] = sizes[:-1]


def can_be_drawn(dims: int) -> bool:
    """Whether there is room for the numbers of draws whose rows have so many dimensions."""
    return dims <= DRAWN_DIMS
