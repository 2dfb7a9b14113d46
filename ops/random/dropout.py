"""Dropout: random masks that depend on seeds, step and the place of an element alone, not on the ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.types import BOOL, TensorType, TupleType, dtype_of
from mspc.ops.bases import Elementwise, require_float
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.cpu.blocks import elementwise
from mspc.ops.cuda.math import number
from mspc.ops.cuda.random import RANDOM
from mspc.ops.cuda.source import address, constants, grid_of, index_type
from mspc.ops.device import Array, Device, Launch, c_type, computing_type
from mspc.ops.fused.dropout_mask import DropoutMask
from mspc.ops.op import ArrayBackend, Op, RankPlacement, sample
from mspc.ops.random.keep_mask import device_keeps, keep_mask
from mspc.ops.random.row_offsets import DrawnByPlace, place_of_rows
from mspc.ops.random.words import before_step, key_of, number_of_run
from mspc.sharding.rules import same_rule

Gradients = Sequence[Value | None]


class Dropout(DrawnByPlace):
    """x / keep_prob where a random mask keeps it, 0 elsewhere, and the mask: a tuple of two.

    The mask depends on Seed0, Seed1, the backend's step and the element's place in the global tensor. shape,
    begin, local: the global shape, where this rank's slice begins and its sizes, () where it holds all.
    """

    keep_prob: float = 0.5
    Seed0: int = 0
    Seed1: int = 0
    shape: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()
    local: tuple[int, ...] = ()
    seeds = ("Seed0", "Seed1")
    omitted = ("local", "rows")
    samples = (
        sample((8, 16), keep_prob=0.7, Seed0=1),
        sample((2, 4, 8), keep_prob=0.25, Seed1=2),
        sample((8,), keep_prob=1.0),
    )

    def rule(self, x: TensorType) -> str:
        if not 0 < self.keep_prob <= 1:
            raise MspcError(f"{self.name}: keep_prob is {self.keep_prob}, not above 0 and at most 1")
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

    def random_dims(self, rank: int) -> int:
        """Of an operand of so many dimensions how many leading ones have draws of their own; what lies behind them is
        stored or dropped together."""
        return rank

    def part(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """(global shape, where this rank's slice begins, its sizes) of all draws for an operand of this shape."""
        local = self.local or shape
        random_dims = len(local) - len(shape) + self.random_dims(len(shape))
        begin = self.begin or (0,) * random_dims
        return (self.shape or shape)[:random_dims], begin[:random_dims], local[:random_dims]

    def mask(self, shape: tuple[int, ...]) -> DropoutMask:
        """The mask of an operand of this shape."""
        return DropoutMask(self.keep_prob, self.Seed0, self.Seed1, shape, *self.part(shape))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        part = self.part(x.shape)
        draws = keep_mask(xp, key_of(self.Seed0, self.Seed1, number_of_run(be)), *part, self.keep_prob)
        if not x.size:
            return xp.empty_like(x), xp.empty(x.shape, bool)
        rows = xp.broadcast_to(draws.reshape(-1, 1), (draws.size, x.size // draws.size))  # a row for every draw
        out, keep = xp.empty(x.shape, x.dtype), xp.ascontiguousarray(rows).reshape(x.shape)

        def work(block: Any, _: Any, x: Any, keep: Any) -> None:
            xp.multiply(x, keep, out=block)
            xp.multiply(block, 1 / self.keep_prob, out=block)

        elementwise(xp, work, out, [x, keep])
        return out, keep

    def as_lines(self, b: Builder, *inputs: Value) -> Sequence[Value] | None:
        shape = inputs[0].tensor_type.shape
        if self.random_dims(len(shape)) < len(shape):  # a draw is for several elements
            return None
        mask = b.emit(self.mask(shape))
        return b.emit(DropoutGrad(self.keep_prob), inputs[0], mask), mask

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        (x,) = inputs
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
        source = RANDOM + f"typedef {c_type(dtype)} T;\ntypedef {computing_type(dtype)} A;\n"
        source += f"typedef {index_type(x.size + 256 * lanes)} Index;\n" + constants(SIZE=x.size, V=lanes) + f"""
extern "C" __global__ void __launch_bounds__(256) dropout(
    const T* x, const long long* step, u64 seed, T* y, bool* mask) {{
    const Index begin = ((Index)blockIdx.x * 256 + threadIdx.x) * V;
    if (begin >= SIZE) return;
    const u64 key = mixed(seed + (u64)*step);
    const A factor = (A)wide(narrow<T>((A){1 / self.keep_prob}));
    const Pack<T, V> given = *(const Pack<T, V>*)(x + begin);
    Pack<T, V> made;
    Pack<bool, V> kept;
    #pragma unroll
    for (int j = 0; j < V; ++j) {{
        const Index at = begin + j;
        kept.at[j] = {keeps};
        made.at[j] = narrow<T>((A)wide(given.at[j]) * (kept.at[j] ? 1 : 0) * factor);
    }}
    *(Pack<T, V>*)(y + begin) = made;
    *(Pack<bool, V>*)(mask + begin) = kept;
}}
"""
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


class Dropout2D(_ChannelDropout):
    """x / keep_prob with entire channels of [n, c, h, w] set to 0 at random, and its mask: a tuple of 2."""

    samples = (sample((4, 8, 2, 2), keep_prob=0.7, Seed0=1), sample((2, 4, 3, 1), Seed1=2))


class Dropout3D(_ChannelDropout):
    """Dropout2D of [n, c, d, h, w]."""

    rank = 5
    samples = (sample((4, 2, 2, 2, 3), keep_prob=0.25, Seed0=1),)


class DropoutGrad(Elementwise):
    """dout / keep_prob where the mask keeps it, 0 elsewhere."""

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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        dout, mask = inputs
        return dout * mask * (1 / self.keep_prob)
