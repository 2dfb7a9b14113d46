"""Blocks of places become channels or images here, and the reverse: elements only change their places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.convolution.window import listed
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.operator_arguments import describe, plain

Gradients = Sequence[Value | None]
Pairs = tuple[tuple[int, int], ...]


def pairs_of(name: str, what: str, value: Any, count: int) -> Pairs:
    """`count` pairs of integers not below 0. Raises MspcError for anything else."""
    found = plain(value)
    pairs = cast("tuple[Any, ...]", found) if isinstance(found, tuple) else ()
    fits = all(isinstance(pair, tuple) for pair in pairs)
    if not fits or len(pairs) != count or not all(len(pair) == 2 and all(_valid(n, 0) for n in pair) for pair in pairs):
        raise MspcError(f"{name}: {what} must be {count} pairs of integers not below 0, not {describe(value)}")
    return pairs


def _valid(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _image(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) != 4:
        raise MspcError(f"{name}: the image must have 4 dimensions, but its shape is {shape}")
    return shape


class _ChannelBlocks(Op, abstract=True):
    """block_size: places of a block along height and along width."""

    block_size: int = 2
    linear_in = (0,)

    def size(self) -> int:
        if not _valid(self.block_size, 2):
            raise MspcError(f"{self.name}: block_size must be an integer above 1, not {self.block_size!r}")
        return self.block_size


class DepthToSpace(_ChannelBlocks):
    """Images whose channels, in groups of block_size * block_size, are blocks of places; a block's place is the more
    significant part of a channel's number."""

    samples = (sample((2, 8, 4, 2), block_size=2), sample((2, 9, 1, 4), block_size=3))

    def rule(self, x: TensorType) -> str:
        size, shape = self.size(), _image(self.name, x.shape)
        if shape[1] % size**2:
            raise MspcError(f"{self.name}: {shape[1]} channels cannot be shared out to blocks of {size} x {size}")
        return f"n (r={size}! s={size}! c) h w -> n c (h r) (w s)"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(SpaceToDepth(self.block_size), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,), size = inputs, self.block_size
        n, channels, h, w = x.shape
        parts = x.reshape(n, size, size, channels // size**2, h, w).transpose(0, 3, 4, 1, 5, 2)
        return be.xp.array(parts).reshape(n, channels // size**2, h * size, w * size)


class SpaceToDepth(_ChannelBlocks):
    """The reverse of DepthToSpace: every block of places becomes channels of one place."""

    samples = (sample((2, 4, 8, 4), block_size=2), sample((2, 2, 3, 9), block_size=3))

    def rule(self, x: TensorType) -> str:
        size, shape = self.size(), _image(self.name, x.shape)
        if shape[2] % size or shape[3] % size:
            raise MspcError(f"{self.name}: an image of {shape[2]} x {shape[3]} has no full blocks of {size} x {size}")
        return f"n c (h r={size}!) (w s={size}!) -> n (r! s! c) h w"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(DepthToSpace(self.block_size), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,), size = inputs, self.block_size
        n, channels, h, w = x.shape
        parts = x.reshape(n, channels, h // size, size, w // size, size).transpose(0, 3, 5, 1, 2, 4)
        return be.xp.array(parts).reshape(n, channels * size**2, h // size, w // size)


class _BatchBlocks(Op, abstract=True):
    """block_shape: places of a block along each of the last dimensions; one integer for height and width."""

    block_shape: Any = 2
    linear_in = (0,)

    def sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        found = listed(self.block_shape, 2)
        if not found or not all(_valid(n, 1) for n in found):
            raise MspcError(f"{self.name}: block_shape must be positive integers, not {self.block_shape!r}")
        if len(shape) <= len(found):
            raise MspcError(
                f"{self.name}: blocks {found} need more than {len(found)} dimensions, but the shape is {tuple(shape)}"
            )
        return found

    def margins(self, value: Any, shape: Sequence[int], what: str) -> Pairs:
        return pairs_of(self.name, what, value, len(self.sizes(shape)))


class SpaceToBatchND(_BatchBlocks):
    """Places with `paddings` of zeros around them, whose places within a block become images of the batch; a block's
    place is the more significant part of an image's number."""

    paddings: Any = ()
    samples = (
        sample((2, 4, 4, 2), block_shape=(2, 2), paddings=((0, 0), (1, 1))),
        sample((4, 2, 6), block_shape=(3,), paddings=((0, 0),)),
    )

    def rule(self, x: TensorType) -> str:
        sizes = self.sizes(x.shape)
        pairs = self.margins(self.paddings, x.shape, "paddings")
        first = len(x.shape) - len(sizes)
        wide = [n + sum(pair) for n, pair in zip(x.shape[first:], pairs, strict=True)]
        if 0 in x.shape[first:]:
            raise MspcError(f"{self.name}: an image of shape {x.shape} is empty")
        for d, (n, size) in enumerate(zip(wide, sizes, strict=True)):
            if n % size:
                raise MspcError(
                    f"{self.name}: dimension {first + d} has {n} places with its paddings, no full blocks of {size}"
                )
        others = [f"k{d}" for d in range(first - 1)]
        ins = [f"p{d}!" for d in range(len(sizes))]
        outs = [f"q{d}={n // size}!" for d, (n, size) in enumerate(zip(wide, sizes, strict=True))]
        blocks = " ".join(f"b{d}={size}!" for d, size in enumerate(sizes))
        return f"{' '.join(['n', *others, *ins])} -> {' '.join([f'({blocks} n)', *others, *outs])}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(BatchToSpaceND(self.block_shape, self.paddings), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        sizes, pairs = self.sizes(x.shape), self.margins(self.paddings, x.shape, "paddings")
        first = len(x.shape) - len(sizes)
        wide = be.xp.pad(x, ((0, 0),) * first + pairs)
        split = wide.reshape(*wide.shape[:first], *(m for n, s in zip(wide.shape[first:], sizes, strict=True)
                                                    for m in (n // s, s)))  # fmt: skip
        places = [first + 2 * d for d in range(len(sizes))]
        order = (*(p + 1 for p in places), *range(first), *places)
        parts = be.xp.array(split.transpose(order))
        images = math.prod(sizes) * x.shape[0]
        return parts.reshape(images, *wide.shape[1:first], *(split.shape[p] for p in places))


class BatchToSpaceND(_BatchBlocks):
    """The reverse of SpaceToBatchND; `crops` are the places that are left out at the sides."""

    crops: Any = ()
    samples = (
        sample((8, 4, 2, 2), block_shape=(2, 2), crops=((0, 0), (1, 1))),
        sample((6, 2, 4), block_shape=(3,), crops=((0, 1),)),
    )

    def rule(self, x: TensorType) -> str:
        sizes = self.sizes(x.shape)
        pairs = self.margins(self.crops, x.shape, "crops")
        first, total = len(x.shape) - len(sizes), 1
        for size in sizes:
            total *= size
        if x.shape[0] % total:
            raise MspcError(f"{self.name}: {x.shape[0]} images cannot be shared out to blocks {sizes}")
        left = [n * size - sum(pair) for n, size, pair in zip(x.shape[first:], sizes, pairs, strict=True)]
        if any(n < 1 for n in left):
            raise MspcError(
                f"{self.name}: crops {pairs} leave nothing of an image of {x.shape[first:]} in blocks {sizes}"
            )
        others = [f"k{d}" for d in range(first - 1)]
        ins = [f"p{d}!" for d in range(len(sizes))]
        blocks = " ".join(f"b{d}={size}!" for d, size in enumerate(sizes))
        outs = [f"q{d}={n}!" for d, n in enumerate(left)]
        return f"{' '.join([f'({blocks} n)', *others, *ins])} -> {' '.join(['n', *others, *outs])}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(SpaceToBatchND(self.block_shape, self.crops), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        sizes, pairs = self.sizes(x.shape), self.margins(self.crops, x.shape, "crops")
        count, first = len(sizes), len(x.shape) - len(sizes)
        split = x.reshape(*sizes, x.shape[0] // math.prod(sizes), *x.shape[1:])
        order = [*range(count, count + first)]
        for d in range(count):
            order += [count + first + d, d]
        joined = split.transpose(order)
        joined = joined.reshape(*joined.shape[:first], *(n * s for n, s in zip(x.shape[first:], sizes, strict=True)))
        crop = [slice(a, n - z) for (a, z), n in zip(pairs, joined.shape[first:], strict=True)]
        return be.xp.array(joined[(..., *crop)])
