"""These operators add margins that are filled with the tensor's own elements: mirrored, repeated, or continued at the
other end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.operator_arguments import plain
from mspc.ops.tensor.blocks import Pairs, pairs_of
from mspc.ops.tensor.tiling import margins_in
from mspc.sharding.rules import factor_names

Gradients = Sequence[Value | None]
MODES = ("reflect", "symmetric", "edge", "circular")


def source_places(mode: str, size: int, pair: tuple[int, int]) -> Any:
    """Where the elements along a dimension of this size come from, margins included, Int64."""
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

    Class attributes:
        sign: 1 where the result has the margins, -1 where the operand has them.
    """

    sign: ClassVar[int] = 1

    mode: str = "reflect"
    paddings: Any = ()
    linear_in = (0,)

    @property
    def kind(self) -> str:
        """`mode` as `MODES` has it. Raises MspcError for another one."""
        found = self.mode.lower()
        if found not in MODES:
            raise MspcError(f"{self.name}: mode must be one of {', '.join(map(repr, MODES))}, not {self.mode!r}")
        return found

    def pairs(self, shape: Sequence[int]) -> Pairs:
        """The margins of a tensor of this shape. Raises MspcError where it has too few elements to fill them."""
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
        """The rule's sides without and with the margins."""
        pairs, rank = self.pairs(shape), len(shape)
        names, wide = factor_names(rank), factor_names(rank, rank)
        inner = [f"{name}={n}!" if any(pair) else name for name, n, pair in zip(names, shape, pairs, strict=True)]
        outer = [
            f"{new}={n + sum(pair)}!" if any(pair) else name
            for name, new, n, pair in zip(names, wide, shape, pairs, strict=True)
        ]
        return " ".join(inner), " ".join(outer)


class MirrorPad(_Margins):
    """x with margins in which it is mirrored: about its last element (mode "REFLECT") or behind it ("SYMMETRIC").

    Called as `MirrorPad(mode)(x, paddings)`. The mode "EDGE" repeats the last element, "CIRCULAR" continues at the
    other end.
    """

    samples = (
        sample((4, 8), mode="REFLECT", paddings=((0, 0), (2, 3))),
        sample((4, 3, 4), mode="SYMMETRIC", paddings=((0, 0), (3, 0), (1, 1))),
        sample((4, 3), mode="EDGE", paddings=((0, 0), (4, 1))),
        sample((4, 3), mode="CIRCULAR", paddings=((0, 0), (3, 1))),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 2:
            raise MspcError(f"MirrorPad takes 2 arguments (x, paddings), not {len(args)}")
        return replace(self, paddings=plain(args[1])), args[:1]

    def rule(self, x: TensorType) -> str:
        return " -> ".join(self.sides(x.shape))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(MirrorPadGrad(self.mode, self.paddings), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        found = be.xp.array(x)
        for d, (pair, size) in enumerate(zip(self.pairs(x.shape), x.shape, strict=True)):
            if any(pair):
                found = found.take(be.xp.asarray(source_places(self.kind, size, pair)), axis=d)
        return found


class MirrorPadGrad(_Margins):
    """The gradient of what MirrorPad gave margins: every element gets what all its copies got."""

    sign = -1

    samples = (
        sample((4, 13), mode="REFLECT", paddings=((0, 0), (2, 3))),
        sample((4, 6, 6), mode="SYMMETRIC", paddings=((0, 0), (3, 0), (1, 1))),
        sample((4, 8), mode="EDGE", paddings=((0, 0), (4, 1))),
    )

    def inner(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape without margins. Raises MspcError where these are more."""
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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (dout,) = be.xp, inputs
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
