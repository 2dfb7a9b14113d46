"""Random masks that depend on the seed, the step and the place of an element alone, not on the ranks.

A counter-based generator: the bits of element i are the i-th output of SplitMix64 (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", 2014), started from a key made of seeds and step. A rank
computes its slice from where it begins, so that a sharded run equals the whole one bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.types import BOOL, TensorType, TupleType
from mspc.ops.bases import Elementwise, require_float
from mspc.ops.op import ArrayBackend, Op, Placement, sample
from mspc.ops.rules import same_rule
from mspc.ops.structural import TupleGetItem

Gradients = Sequence[Value | None]
_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def mixed(word: int) -> int:
    """SplitMix64's output function of one Python integer."""
    for shift, factor in _MIX:
        word = (word ^ (word >> shift)) * factor % _WORD
    return word


def key_of(*words: int) -> int:
    """One 64-bit key out of several integers; each of them changes all its bits."""
    key = 0
    for word in words:
        key = mixed((key + word + _GOLDEN) % _WORD)
    return key


def random_words(xp: Any, key: int, shape: Sequence[int], begin: Sequence[int], local: Sequence[int]) -> Any:
    """64 random bits for every element of the slice of `local` sizes that begins at `begin` of a tensor of
    `shape`.
    """
    places = xp.zeros((1,) * len(shape), xp.uint64)
    stride = 1
    for d in reversed(range(len(shape))):
        along = (xp.arange(begin[d], begin[d] + local[d], dtype=xp.uint64) * xp.uint64(stride)).reshape(
            (-1,) + (1,) * (len(shape) - d - 1)
        )
        places = places + along
        stride *= shape[d]
    words = xp.array(places * xp.uint64(_GOLDEN) + xp.uint64((key + _GOLDEN) % _WORD), ndmin=1)
    for shift, factor in _MIX:
        words ^= words >> xp.uint64(shift)
        if factor != 1:
            words *= xp.uint64(factor)
    return words.reshape(tuple(local))


class Dropout(Op):
    """x / keep_prob where a random mask keeps it, 0 elsewhere, and the mask: a tuple of two.

    The mask depends on Seed0, Seed1, the backend's step and the element's place in the whole tensor. shape,
    begin: the whole shape and where this rank's slice begins, () where it holds all.
    """

    keep_prob: float = 0.5
    Seed0: int = 0
    Seed1: int = 0
    shape: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()
    samples: ClassVar[Any] = (
        sample((8, 16), keep_prob=0.7, Seed0=1),
        sample((2, 4, 8), keep_prob=0.25, Seed1=2),
        sample((8,), keep_prob=1.0),
    )

    def rule(self, x: TensorType) -> str:
        if not 0 < self.keep_prob <= 1:
            raise MspcError(f"Dropout: keep_prob is {self.keep_prob}, not above 0 and at most 1")
        return same_rule(x.shape, 1, 2)

    def infer(self, *types: Any) -> Any:
        super().infer(*types)
        require_float(self.name, *types)
        x = types[0]
        return TupleType((x, TensorType(BOOL, x.shape)))

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        if dout[0] is None:
            return (None,)
        mask = b.emit(TupleGetItem(1), out)
        return (b.emit(DropoutGrad(self.keep_prob), dout[0], mask),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        key = key_of(self.Seed0, self.Seed1, getattr(be, "step", 0))
        begin = self.begin or (0,) * x.ndim
        words = random_words(xp, key, self.shape or x.shape, begin, x.shape)
        mask = words <= xp.uint64(min(_WORD - 1, int(self.keep_prob * _WORD)))
        return x * mask * (1 / self.keep_prob), mask

    def localize(self, placement: Placement) -> Op:
        shape = placement.in_types[0].shape
        here = placement.in_layouts[0].slices_for(placement.rank, shape)
        return replace(self, shape=shape, begin=tuple(s.start for s in here))


class DropoutGrad(Elementwise):
    """dout / keep_prob where the mask keeps it, 0 elsewhere."""

    keep_prob: float = 0.5
    linear_in: ClassVar[tuple[int, ...]] = (0,)
    samples: ClassVar[Any] = (sample((8, 16), (8, 16), dtypes=("Float64", "Bool"), keep_prob=0.75),)

    def rule(self, dout: TensorType, mask: TensorType) -> str:
        return same_rule(dout.shape, 2)

    def check(self, *types: TensorType) -> None:
        require_float(self.name, types[0])

    def bprop(self, b: Builder, dy: Value, mask: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(DropoutGrad(self.keep_prob), dout, mask), None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        dout, mask = inputs
        return dout * mask * (1 / self.keep_prob)
