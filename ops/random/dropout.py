"""Dropout, its masks, and draws from distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, ClassVar

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Node, Value
from mspc.ir.types import BOOL, FLOAT32, TensorType, dtype_of
from mspc.ops.bases import Elementwise, operator
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.cuda.moves import put_values
from mspc.ops.cuda.text import address, definitions, grid_of, index_type, number
from mspc.ops.device import Array, Device, Launch, computing_type, source_text
from mspc.ops.fused.dropout_mask import DropoutMask
from mspc.ops.op import ArrayBackend, Gradients, NotDifferentiable, Op, RankPlacement, require_float, sample
from mspc.ops.operator_arguments import shape_of
from mspc.ops.random.words import (
    DrawnByPlace,
    before_step,
    device_keeps,
    device_key,
    device_word,
    keep_mask,
    key_of,
    number_of_run,
    place_of_rows,
    random_words,
)
from mspc.ops.tensor.creation import shape_rule
from mspc.sharding.rules import same_rule


class UniformReal(DrawnByPlace):
    """Float32 numbers drawn evenly from [0, 1). Called as `UniformReal(seed, seed2)(shape)`. shape: of the global
    result. begin, local: start of this rank's slice and its sizes, () for all; if every rank has rows of its own, shape
    is a rank's until the layout is known."""

    shape: tuple[int, ...] = field(default=(), kw_only=True)
    begin: tuple[int, ...] = field(default=(), kw_only=True)
    local: tuple[int, ...] = field(default=(), kw_only=True)
    seed: int = 0
    seed2: int = 0
    follows_neighbours = True
    omitted = ("begin", "local", "rows")
    seeds = ("seed", "seed2")
    bprop = NotDifferentiable("its result is drawn, not computed")
    settings = (("shape", shape_of),)
    result_dtypes = (FLOAT32,)
    strategy_of = (-1,)  # as in MindSpore
    samples = (sample(shape=(8, 16), seed=1, gradient=False), sample(shape=(16,), gradient=False))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the result."""
        local = self.local or self.shape
        if not (self.rows and self.local):
            return local
        dimension = self.rows[0]  # two dimensions of the draws are one of the result
        return (*local[:dimension], local[dimension] * local[dimension + 1], *local[dimension + 2 :])

    @property
    def part(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """(global shape, start of this rank's slice, its sizes) of the draws."""
        return self.shape, self.begin or (0,) * len(self.shape), self.local or self.shape

    def localize(self, placement: RankPlacement) -> Op:
        if self.rows and not self.local:
            ranks = placement.out_layouts[0].ranks
            shape, begin, local = place_of_rows(self.shape, self.rows, placement.rank, ranks)
            rows = self.rows if len(local) > len(self.shape) else ()
            return replace(self, shape=shape, begin=begin, local=local, rows=rows)
        here = placement.out_layouts[0].slices_for(placement.rank, self.shape)
        begin, local = tuple(s.start for s in here), tuple(s.stop - s.start for s in here)
        return replace(self, begin=begin, local=local)

    def rule(self) -> str:
        return shape_rule(self.sizes)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        words = random_words(xp, key_of(self.seed, self.seed2, number_of_run(be)), *self.part).reshape(self.sizes)
        return (words >> xp.uint64(40)).astype(xp.float32) * xp.float32(2.0**-24)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        word, number = device_word(*self.part), "(float)(word >> 40) * 5.9604644775390625e-08f"
        each = f"[&] {{ const u64 word = {word}; return {number}; }}()"
        return put_values(device, "random", out, each, [("step", device.step)], device_key(self.seed, self.seed2))


class Dropout(DrawnByPlace):
    """x / keep_prob if a random mask is true, else 0, and the mask, as a tuple. The mask depends on Seed0, Seed1, the
    backend's step and the element's position in the global tensor. shape, begin, local: global shape, start of this
    rank's slice and its sizes, () for all."""

    keep_prob: float = 0.5
    Seed0: int = 0
    Seed1: int = 0
    shape: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()
    local: tuple[int, ...] = ()
    seeds = ("Seed0", "Seed1")
    omitted = ("local", "rows")
    float_only = True
    result_dtypes = (None, BOOL)
    samples = (
        sample((8, 16), keep_prob=0.7, Seed0=1),
        sample((2, 4, 8), keep_prob=0.25, Seed1=2),
        sample((8,), keep_prob=1.0),
    )

    def rule(self, x: TensorType) -> str:
        if not 0 < self.keep_prob <= 1:
            raise MspcError(f"{self.name}: keep_prob is {self.keep_prob}, not above 0 and at most 1")
        return same_rule(x.shape, 1, 2)

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        if dout[0] is None:
            return (None,)
        mask = b.emit(TupleGetItem(1), out)
        return (b.emit(DropoutGrad(self.keep_prob), dout[0], mask),)

    def random_dims(self, rank: int) -> int:
        """Return how many leading dimensions of an operand of rank `rank` have independent draws; elements along the
        others share one."""
        return rank

    def part(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return (global shape, beginning of this rank's slice, its sizes) of all draws for an operand of this
        shape."""
        local = self.local or shape
        random_dims = len(local) - len(shape) + self.random_dims(len(shape))
        begin = self.begin or (0,) * random_dims
        return (self.shape or shape)[:random_dims], begin[:random_dims], local[:random_dims]

    def mask(self, shape: tuple[int, ...]) -> DropoutMask:
        """Return the mask of an operand of this shape."""
        return DropoutMask(self.keep_prob, self.Seed0, self.Seed1, shape, *self.part(shape))

    def run(self, be: ArrayBackend, x: Any) -> Any:
        xp = be.xp
        part = self.part(x.shape)
        draws = keep_mask(xp, key_of(self.Seed0, self.Seed1, number_of_run(be)), *part, self.keep_prob)
        if not x.size:
            return xp.empty_like(x), xp.empty(x.shape, bool)
        rows = xp.broadcast_to(draws.reshape(-1, 1), (draws.size, x.size // draws.size))  # a row for every draw
        keep = xp.ascontiguousarray(rows).reshape(x.shape)
        return x * keep * x.dtype.type(1 / self.keep_prob), keep

    def as_lines(self, b: Builder, *inputs: Value) -> Sequence[Value] | None:
        shape = inputs[0].tensor_type.shape
        if self.random_dims(len(shape)) < len(shape):  # a draw is for several elements
            return None
        mask = b.emit(self.mask(shape))
        return b.emit(DropoutGrad(self.keep_prob), inputs[0], mask), mask

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        y, mask = out
        if not x.size:
            return None
        dtype = dtype_of(x.dtype)
        lanes = 16 // dtype.itemsize
        while lanes > 1 and (x.size % lanes or any(address(a) % (a.dtype.itemsize * lanes) for a in (x, y, mask))):
            lanes //= 2
        random_dims = self.random_dims(x.ndim)
        place = "at" if random_dims == x.ndim else f"(at / {math.prod(x.shape[random_dims:])})"
        keeps = device_keeps(*self.part(x.shape), self.keep_prob, place)
        index = index_type(x.size + 256 * lanes)
        source = definitions(T=dtype, A=computing_type(dtype), Index=index, SIZE=x.size, V=lanes)
        source += source_text("ops/random/dropout.cu", factor=repr(1 / self.keep_prob), keeps=keeps)
        kernel = device.kernel(source, "dropout")
        grid = grid_of(-(-x.size // (256 * lanes)))
        seed = np.uint64(before_step(self.Seed0, self.Seed1))
        return lambda: kernel(grid, 256, [x, device.step, seed, y, mask])

    def localize(self, placement: RankPlacement) -> Op:
        shape = placement.in_types[0].shape
        if self.rows and self.rows[0] < self.random_dims(len(shape)):
            ranks = placement.in_layouts[0].ranks
            all_sizes, begin, local = place_of_rows(shape, self.rows, placement.rank, ranks)
            return replace(self, shape=all_sizes, begin=begin, local=local if len(local) > len(shape) else (), rows=())
        here = placement.in_layouts[0].slices_for(placement.rank, shape)
        return replace(self, shape=shape, begin=tuple(s.start for s in here))


class _ChannelDropout(Dropout, abstract=True):
    """Dropout of entire channels. Class attribute: rank: how many dimensions x has, [n, c] and those of an image."""

    rank: ClassVar[int] = 4

    def random_dims(self, rank: int) -> int:
        return 2

    def rule(self, x: TensorType) -> str:
        if len(x.shape) != self.rank:
            raise MspcError(f"{self.name}: the input of shape {x.shape} must have {self.rank} dimensions")
        return super().rule(x)


Dropout2D = operator(
    "Dropout2D", "x / keep_prob with entire channels of [n, c, h, w] set to 0 at random, and its mask: a tuple of 2.",
    _ChannelDropout, samples=(sample((4, 8, 2, 2), keep_prob=0.7, Seed0=1), sample((2, 4, 3, 1), Seed1=2)),
)  # fmt: skip
Dropout3D = operator(
    "Dropout3D", "Dropout2D of [n, c, d, h, w].", _ChannelDropout, rank=5,
    samples=(sample((4, 2, 2, 2, 3), keep_prob=0.25, Seed0=1),),
)  # fmt: skip


class DropoutGrad(Elementwise):
    """dout / keep_prob if the mask is true, else 0."""

    keep_prob: float = 0.5
    linear_in = (0,)
    samples = (sample((8, 16), (8, 16), dtypes=("Float64", "Bool"), keep_prob=0.75),)

    def rule(self, dout: TensorType, mask: TensorType) -> str:
        return same_rule(dout.shape, 2)

    def check(self, *types: TensorType) -> None:
        require_float(self.name, types[0])

    def bprop(self, b: Builder, dy: Value, mask: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(DropoutGrad(self.keep_prob), dout, mask), None

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on keep_prob
        return f"{{0}} * T({{1}}) * {number(1 / self.keep_prob)}"

    def compute(self, xp: Any, dout: Any, mask: Any) -> Any:
        return dout * mask * (1 / self.keep_prob)
