"""Parts of tensors, blocks of images, and margins filled with other elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Value
from mspc.ir.types import TensorType
from mspc.ops.device import Array, Device, Launch
from mspc.ops.index_map import IndexBlock, IndexMap, padded
from mspc.ops.math.arithmetic import Sub
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Gradients, Op, RankPlacement, sample
from mspc.ops.operator_arguments import axis_in, constant_of, describe, int_of, ints_of, plain
from mspc.ops.tensor.moving import Pad, TensorParts, margins_in
from mspc.ops.tensor.reshape import ReduceSum
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.rules import factor_names


class Slice(Op):
    """x[begin : begin + size] in every dimension; a size of -1 takes the rest. `Slice()(x, begin, size)`."""

    takes_complex = True
    begin: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    may_alias = True
    moves = True
    linear_in = (0,)
    settings = (("begin", ints_of), ("size", ints_of))

    def strided(self, shape: Sequence[int]) -> StridedSlice:
        """Return the same slice with ends. Raise MspcError if it leaves the tensor."""
        if not len(self.begin) == len(self.size) == len(shape):
            raise MspcError(
                f"Slice: begin {self.begin} and size {self.size} must name all dimensions of {tuple(shape)}"
            )
        ends: list[int] = []
        for d, (start, count, n) in enumerate(zip(self.begin, self.size, shape, strict=True)):
            end = n if count == -1 else start + count
            if not 0 <= start < end <= n:
                raise MspcError(f"Slice: begin {start} and size {count} leave dimension {d} of size {n}")
            ends.append(end)
        return StridedSlice(begin=self.begin, end=tuple(ends), strides=(1,) * len(ends))

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        return self.strided(types[0].shape).reordered(types, orders)

    def index_map(self, *types: TensorType) -> IndexMap:
        return self.strided(types[0].shape).index_map(*types)

    def rule(self, x: TensorType) -> str:
        return self.strided(x.shape).rule(x)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return self.strided(x.shape).bprop(b, x, out, dout)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.strided(inputs[0].shape).run(be, *inputs)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return self.strided(inputs[0].shape).launch(device, out, *inputs)

    def localize(self, placement: RankPlacement) -> Op:
        return self.strided(placement.in_types[0].shape).localize(placement)

    samples = (
        sample((8, 16), begin=(0, 4), size=(8, 8)),
        sample((8, 4, 16), begin=(2, 0, 0), size=(-1, 4, 16)),
    )


class _Parts(TensorParts, abstract=True):
    """Parts of sizes of their own."""

    def rule(self, x: TensorType) -> str:
        axis, sizes = self.pieces(x.shape)
        least = int(x.shape[axis] > 0)
        if any(size < least for size in sizes) or sum(sizes) != x.shape[axis]:
            raise MspcError(
                f"{self.name}: dimension {axis} of input 0 is {x.shape[axis]}, but the parts are {tuple(sizes)}"
            )
        names = factor_names(len(x.shape))
        parts = factor_names(len(sizes), len(names))
        operand = (*names[:axis], f"{names[axis]}!", *names[axis + 1 :])
        outs = [
            " ".join((*names[:axis], f"{part}={size}!", *names[axis + 1 :]))
            for part, size in zip(parts, sizes, strict=True)
        ]
        return f"{' '.join(operand)} -> {', '.join(outs)}"


class SplitWithSize(_Parts):
    """Split into parts of the given sizes. Called as `SplitWithSize()(input, split_sizes, dim)`."""

    split_sizes: tuple[int, ...] = ()
    dim: int = 0
    settings = (("split_sizes", ints_of), ("dim", int_of))
    optional_settings = 1
    samples = (sample((8, 16), split_sizes=(4, 12), dim=-1), sample((3, 8), split_sizes=(1, 2)))

    def pieces(self, shape: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        return axis_in(self.name, self.dim, len(shape)), self.split_sizes


class SplitTensor(_Parts):
    """Parts of `split_size`, the last one smaller if it does not divide.

    Called as `SplitTensor()(input, split_size, dim)`.
    """

    split_size: int = 1
    dim: int = 0
    settings = (("split_size", int_of), ("dim", int_of))
    optional_settings = 1
    samples = (sample((8, 16), split_size=4, dim=1), sample((8, 4), split_size=3))

    def pieces(self, shape: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        axis = axis_in(self.name, self.dim, len(shape))
        if self.split_size < 1:
            raise MspcError(f"SplitTensor: split_size is {self.split_size}, not at least 1")
        count, rest = divmod(shape[axis], self.split_size)
        return axis, (self.split_size,) * count + ((rest,) if rest or not count else ())


class PadV3(Op):
    """x with a margin of one value. Called as `PadV3()(x, paddings, value)`.

    paddings holds (before, after) pairs, the last dimension first; dimensions that get a margin are not sharded.
    Only the mode "constant" is supported.
    """

    mode: str = "constant"
    paddings_contiguous: bool = True
    paddings: tuple[int, ...] = ()
    one_type = True
    samples = (
        sample((8, 16), (), paddings=(2, 1)),
        sample((8, 4, 8), (), paddings=(0, 0, 1, 3)),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if self.mode != "constant" or not self.paddings_contiguous:
            raise MspcError(
                f"PadV3: mode {self.mode!r} with paddings_contiguous={self.paddings_contiguous} is not supported",
                notes=["only 'constant' with contiguous paddings is"],
            )
        if not 2 <= len(args) <= 3:
            raise MspcError(f"PadV3 takes 2 to 3 arguments (x, paddings, value), not {len(args)}", code="E0301")
        paddings = args[1].value.tolist() if isinstance(args[1], Constant) else args[1]
        value = args[2] if len(args) == 3 and args[2] is not None else 0.0
        return replace(self, paddings=ints_of(self.name, "paddings", paddings)), (args[0], value)

    def strategy_dims(self, rule: Any) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the dimensions with an entry for the paddings, as in MindSpore's strategy; they are no tensor here."""
        return (rule.inputs[0], ((),), ())

    def padding(self, rank: int) -> Pad:
        """Return the same margins for all dimensions in order. Raise MspcError if they do not fit."""
        count = len(self.paddings)
        if count % 2 or count > 2 * rank:
            raise MspcError(f"PadV3: paddings {self.paddings} are no pairs for at most {rank} dimensions")
        pairs = [(self.paddings[i], self.paddings[i + 1]) for i in range(0, count, 2)]
        return Pad(tuple([(0, 0)] * (rank - len(pairs)) + pairs[::-1]))

    def index_map(self, *types: TensorType) -> IndexMap:
        inside = padded(types[0].shape, self.padding(types[0].rank).paddings)
        return IndexMap(inside.dims, (*inside.pieces, IndexBlock(1, ())))

    def rule(self, x: TensorType, value: TensorType) -> str:
        left, _, right = self.padding(len(x.shape)).rule(x).partition("->")
        return f"{left},  ->{right}"

    def bprop(self, b: Builder, x: Value, value: Value, out: Value, dout: Value) -> Gradients:
        (dx,) = self.padding(len(x.shape)).bprop(b, x, out, dout)
        assert dx is not None
        total, inner = b.emit(ReduceSum(), dout), b.emit(ReduceSum(), dx)
        return dx, b.emit(Sub(), total, inner)

    def compute(self, xp: Any, x: Any, value: Any) -> Any:
        pairs = self.padding(x.ndim).paddings
        shape = [n + before + after for n, (before, after) in zip(x.shape, pairs, strict=True)]
        out = xp.full(shape, value, x.dtype)
        out[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, pairs, strict=True))] = x
        return out

Pairs = tuple[tuple[int, int], ...]


def pairs_of(name: str, what: str, value: Any, count: int) -> Pairs:
    """Return `count` pairs of integers not below 0. Raise MspcError for anything else."""
    found = plain(value)
    pairs = cast("tuple[Any, ...]", found) if isinstance(found, tuple) else ()
    fits = len(pairs) == count and all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs)
    if not fits or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for pair in pairs for n in pair):
        raise MspcError(f"{name}: {what} must be {count} pairs of integers not below 0, not {describe(value)}")
    return pairs


MODES = ("reflect", "symmetric", "edge", "circular")


def source_places(mode: str, size: int, pair: tuple[int, int]) -> Any:
    """Return the source places of the elements along a dimension of this size, margins included, Int64."""
    places = np.arange(-pair[0], size + pair[1])
    if mode == "edge":
        return places.clip(0, size - 1)
    if mode == "circular":
        return places % size
    if mode == "symmetric":
        turned = places % (2 * size)
        return np.minimum(turned, 2 * size - 1 - turned)
    return size - 1 - np.abs(size - 1 - np.abs(places))


class _Margins(Op, abstract=True):
    """paddings: (before, after) of every dimension; those that get a margin are not sharded.

    Class attributes: sign: 1 if the result has the margins, -1 if the operand has them.
    """

    sign: ClassVar[int] = 1

    mode: str = "reflect"
    paddings: Any = ()
    linear_in = (0,)

    @property
    def kind(self) -> str:
        """`mode` as `MODES` has it. Raise MspcError for another one."""
        found = self.mode.lower()
        if found not in MODES:
            raise MspcError(f"{self.name}: mode must be one of {', '.join(map(repr, MODES))}, not {self.mode!r}")
        return found

    def pairs(self, shape: Sequence[int]) -> Pairs:
        """Return the margins of a tensor of this shape. Raise MspcError if it has too few elements to fill them."""
        pairs = pairs_of(self.name, "paddings", self.paddings, len(shape))
        for d, (pair, size) in enumerate(zip(pairs, shape, strict=True)):
            most = {"reflect": size - 1, "edge": max(pair) if size else 0}.get(self.kind, size)
            if max(pair) > max(most, 0):
                raise MspcError(
                    f"{self.name}: dimension {d} of size {size} cannot have the margins {pair} in mode {self.mode!r}"
                )
        return pairs

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        pairs = pairs_of(self.name, "paddings", self.paddings, types[0].rank)
        margins, result = margins_in(orders[0], pairs, types[0].shape, self.sign)
        return None if result is None else Reordered(replace(self, paddings=margins), tuple(orders), (result,))

    def sides(self, shape: Sequence[int]) -> tuple[str, str]:
        """Return the rule's sides without and with the margins."""
        pairs, rank = self.pairs(shape), len(shape)
        names, wide = factor_names(rank), factor_names(rank, rank)
        inner = [f"{name}={n}!" if any(pair) else name for name, n, pair in zip(names, shape, pairs, strict=True)]
        outer = [
            f"{new}={n + sum(pair)}!" if any(pair) else name
            for name, new, n, pair in zip(names, wide, shape, pairs, strict=True)
        ]
        return " ".join(inner), " ".join(outer)


class MirrorPad(_Margins):
    """x padded by reflection: about its last element (mode "REFLECT") or its edge ("SYMMETRIC"). Called as
    `MirrorPad(mode)(x, paddings)`. The mode "EDGE" repeats the last element, "CIRCULAR" wraps around."""

    settings = (("paddings", constant_of),)
    samples = (
        sample((4, 8), mode="REFLECT", paddings=((0, 0), (2, 3))),
        sample((4, 3, 4), mode="SYMMETRIC", paddings=((0, 0), (3, 0), (1, 1))),
        sample((4, 3), mode="EDGE", paddings=((0, 0), (4, 1))),
        sample((4, 3), mode="CIRCULAR", paddings=((0, 0), (3, 1))),
    )

    def rule(self, x: TensorType) -> str:
        return " -> ".join(self.sides(x.shape))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(MirrorPadGrad(self.mode, self.paddings), dout),)

    def compute(self, xp: Any, x: Any) -> Any:
        found = xp.array(x)
        for d, (pair, size) in enumerate(zip(self.pairs(x.shape), x.shape, strict=True)):
            if any(pair):
                found = found.take(xp.asarray(source_places(self.kind, size, pair)), axis=d)
        return found


class MirrorPadGrad(_Margins):
    """The gradient of MirrorPad: every element gets the sum of the gradients of its copies."""

    sign = -1

    samples = (
        sample((4, 13), mode="REFLECT", paddings=((0, 0), (2, 3))),
        sample((4, 6, 6), mode="SYMMETRIC", paddings=((0, 0), (3, 0), (1, 1))),
        sample((4, 8), mode="EDGE", paddings=((0, 0), (4, 1))),
    )

    def inner(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape without margins. Raise MspcError if these are more."""
        pairs = pairs_of(self.name, "paddings", self.paddings, len(shape))
        found = tuple(n - sum(pair) for n, pair in zip(shape, pairs, strict=True))
        if min(found, default=0) < 0:
            raise MspcError(f"{self.name}: a gradient of shape {tuple(shape)} has no margins {pairs}")
        return found

    def rule(self, dout: TensorType) -> str:
        inner, outer = self.sides(self.inner(dout.shape))
        return f"{outer} -> {inner}"

    def bprop(self, b: Builder, dout: Value, out: Value, second: Value) -> Gradients:
        return (b.emit(MirrorPad(self.mode, self.paddings), second),)

    def compute(self, xp: Any, dout: Any) -> Any:
        sizes = self.inner(dout.shape)
        found = xp.array(dout)
        for d, (pair, size) in enumerate(zip(self.pairs(sizes), sizes, strict=True)):
            if not any(pair):
                continue
            transposed = xp.moveaxis(found, d, 0)
            total = xp.zeros((size, *transposed.shape[1:]), dout.dtype)
            xp.add.at(total, xp.asarray(source_places(self.kind, size, pair)), transposed)
            found = xp.moveaxis(total, 0, d)
        return xp.ascontiguousarray(found)
