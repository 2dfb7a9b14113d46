"""Tile and Pad repeat elements, or put some around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.cuda.move import Move, move, put_inside, strides_of
from mspc.ops.device import Array, Device, Launch
from mspc.ops.index_map import IndexBlock, IndexMap, along, padded
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Op, RankPlacement, sample
from mspc.ops.operator_arguments import ints_of, split_call
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.moving import Gradients
from mspc.ops.tensor.reshape import Reshape
from mspc.ops.tensor.slicing import take_part
from mspc.sharding.factors import Rule
from mspc.sharding.rules import factor_names


class Tile(Op):
    """x repeated `multiples[d]` times along every dimension d, aligned at the right. Called as `Tile()(x,
    multiples)`.

    A repeated dimension is (repetitions, x's own), so that the repetitions can be sharded.
    """

    takes_complex = True
    multiples: tuple[int, ...] = ()
    linear_in = (0,)
    moves = True
    entries_from_right: ClassVar[bool] = True
    """A strategy with as many entries as the input has dimensions, fewer than there are multiples, is of the last."""

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("multiples",))
        return replace(self, multiples=ints_of(self.name, "multiples", found["multiples"])), tensors

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        (order,) = orders
        multiples, shape = self.aligned(types[0].shape)
        own = order.permuted(multiples) if len(shape) == order.rank else None
        if own is None:
            return None
        result = order
        for d, n in enumerate(shape):
            result = result.resized(d, n * multiples[d])
        return Reordered(Tile(own), (order,), (result,))

    def index_map(self, *types: TensorType) -> IndexMap:
        multiples, shape = self.aligned(types[0].shape)
        dims = tuple(n for pair in zip(multiples, shape, strict=True) for n in pair)
        source = tuple(along(2 * d + 1) for d in range(len(shape) - types[0].rank, len(shape)))
        return IndexMap(dims, (IndexBlock(0, source),))

    def aligned(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(multiples, shape), both with leading ones to the same length."""
        if any(m < 1 for m in self.multiples):
            raise MspcError(f"Tile: multiples {self.multiples} must be positive")
        rank = max(len(shape), len(self.multiples))
        lead = (1,) * rank
        return (*lead[len(self.multiples) :], *self.multiples), (*lead[len(shape) :], *shape)

    def rule(self, x: TensorType) -> str:
        multiples, shape = self.aligned(x.shape)
        names, repeats = factor_names(len(shape)), factor_names(len(shape), len(shape))
        lead = len(shape) - len(x.shape)
        outs = [
            ("1" if d < lead else name) if m == 1 else f"{r}={m}" if d < lead else f"({r}={m} {name})"
            for d, (m, name, r) in enumerate(zip(multiples, names, repeats, strict=True))
        ]
        return f"{' '.join(names[lead:])} -> {' '.join(outs)}"

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """MindSpore's strategy of Tile has one entry per multiple; where that is above 1 it shards the repetitions."""
        return (tuple(dim[:1] for dim in rule.outputs[0]),)

    def layout_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """A Layout speaks of the input."""
        return rule.inputs

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        multiples, shape = self.aligned(x.shape)
        pairs = tuple(n for m, s in zip(multiples, shape, strict=True) for n in (m, s))
        axes = tuple(2 * d for d, m in enumerate(multiples) if m > 1)
        grad: Value = dout
        if axes:
            grad = b.emit(ReduceSum(axis=axes), b.emit(Reshape(pairs), dout))
        return (grad if grad.shape == x.shape else b.emit(Reshape(x.shape), grad),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.tile(inputs[0], self.multiples)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        (x,) = inputs
        multiples, shape = self.aligned(x.shape)
        sizes = tuple(n for pair in zip(multiples, shape, strict=True) for n in pair)
        source = tuple(n for stride in strides_of(shape) for n in (0, stride))
        return move(device, "tile", [Move(x, out, sizes, source, strides_of(sizes))])

    def localize(self, placement: RankPlacement) -> Op:
        local = placement.out_layouts[0].local_shape(placement.out_types[0].shape)
        _, shape = self.aligned(placement.in_layouts[0].local_shape(placement.in_types[0].shape))
        repeats = zip(local, shape, self.aligned(shape)[0], strict=True)
        return replace(self, multiples=tuple(n // s if s else m for n, s, m in repeats))

    samples = (
        sample((8, 4), multiples=(1, 2)),
        sample((4,), multiples=(8, 2)),
        sample((1, 8), multiples=(8, 1)),
        sample((2, 8), multiples=(2,)),
    )


def margins_in(
    order: MemoryOrder, margins: Sequence[tuple[int, int]], shape: Sequence[int], sign: int = 1
) -> tuple[tuple[tuple[int, int], ...], MemoryOrder | None]:
    """The margins of the stored tensor of a value of this shape with these margins, and the order of the value with
    them, or without them where sign is -1; None where a dimension with a margin has several parts."""
    places = [order.place(d) for d in range(len(shape))]
    if any(any(pair) and place is None for pair, place in zip(margins, places, strict=True)):
        return (), None
    result = order
    for d, (pair, n) in enumerate(zip(margins, shape, strict=True)):
        result = result.resized(d, n + sign * sum(pair)) if any(pair) else result
    return tuple(margins[part.dim] if places[part.dim] is not None else (0, 0) for part in order.parts), result


class Pad(Op):
    """x with zeros around it: paddings[d] = (before, after) in dimension d. Padded dimensions are not sharded."""

    takes_complex = True
    paddings: tuple[tuple[int, int], ...] = ()
    linear_in = (0,)

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        margins, result = margins_in(orders[0], self.paddings, types[0].shape)
        return None if result is None else Reordered(Pad(margins), tuple(orders), (result,))

    def index_map(self, *types: TensorType) -> IndexMap:
        return padded(types[0].shape, self.paddings)

    def rule(self, x: TensorType) -> str:
        rank = len(x.shape)
        if len(self.paddings) != rank or any(len(pair) != 2 or min(pair) < 0 for pair in self.paddings):
            raise MspcError(
                f"Pad: paddings {self.paddings} must be {rank} pairs of numbers not below 0, "
                f"one for each dimension of input 0"
            )
        names, wide = factor_names(rank), factor_names(rank, rank)
        ins: list[str] = []
        outs: list[str] = []
        for name, new, n, (before, after) in zip(names, wide, x.shape, self.paddings, strict=True):
            ins.append(f"{name}!" if before or after else name)
            outs.append(f"{new}={before + n + after}!" if before or after else name)
        return f"{' '.join(ins)} -> {' '.join(outs)}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        grad: Value = dout
        for axis, (before, _) in enumerate(self.paddings):
            grad = take_part(b, grad, axis, before, before + x.shape[axis])
        return (grad,)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.pad(inputs[0], self.paddings)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        (x,) = inputs
        cuts = [(before, 1, n) for (before, _), n in zip(self.paddings, x.shape, strict=True)]
        return put_inside(device, "pad", x, out, cuts)

    samples = (
        sample((8, 16), paddings=((0, 0), (2, 1))),
        sample((8, 4, 8), paddings=((0, 0), (1, 0), (0, 0))),
    )
