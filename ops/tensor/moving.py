"""Transposes, joins, splits, tiles and pads: operators that move elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.types import TensorType, TupleType, dtype_of
from mspc.ops import gpu
from mspc.ops.device import Array, Device, Launch
from mspc.ops.index_map import IndexBlock, IndexMap, along, copies_of, padded
from mspc.ops.memory_order import DimensionPart, MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Gradients, Op, RankPlacement, sample
from mspc.ops.operator_arguments import axis_in, ints_of, require_elements, sequence_of
from mspc.ops.tensor.reshape import ReduceSum, Reshape, as_shape, zeros
from mspc.ops.tensor.slicing import MovingOp, StridedSlice, part_of, take_part
from mspc.sharding.rules import Rule, factor_names


class Transpose(MovingOp):
    """x with its dimensions in the order `perm`: dimension d of the result is dimension perm[d] of x.

    Called as `Transpose()(x, perm)`.
    """

    takes_complex = True
    perm: tuple[int, ...] = ()
    may_alias = True
    kernel_name = "transpose"
    linear_in = (0,)
    settings = (("perm", ints_of),)

    def order(self, rank: int) -> tuple[int, ...]:
        """Return `perm` counted from 0. Raise MspcError unless it is a permutation of the dimensions."""
        if sorted(p % rank if -rank <= p < rank else -1 for p in self.perm) != list(range(rank)):
            raise MspcError(f"Transpose: perm {self.perm} is no permutation of the {rank} dimensions of input 0")
        return tuple(p % rank for p in self.perm)

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        return Reordered(None, tuple(orders), (orders[0].transposed(self.order(types[0].rank)),))

    def index_map(self, *types: TensorType) -> IndexMap:
        order = self.order(types[0].rank)
        source = tuple(along(order.index(d)) for d in range(len(order)))
        return IndexMap(tuple(types[0].shape[p] for p in order), (IndexBlock(0, source),))

    def rule(self, x: TensorType) -> str:
        names = factor_names(len(x.shape))
        return f"{' '.join(names)} -> {' '.join(names[p] for p in self.order(len(x.shape)))}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        order = self.order(len(x.shape))
        return (b.emit(Transpose(tuple(order.index(d) for d in range(len(order)))), dout),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        perm = self.perm
        return lambda x: x.transpose(perm)

    samples = (
        sample((8, 16), perm=(1, 0)),
        sample((2, 8, 4, 8), perm=(0, 2, 1, 3)),
        sample((2, 4, 8), perm=(-1, 0, 1)),
    )


def _leading(types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> MemoryOrder | None:
    """Return the order of the largest operand; None if one of that size is in the order of its shape."""
    most = max(type.size for type in types)
    largest = [order for type, order in zip(types, orders, strict=True) if type.size == most]
    return None if any(order.is_plain for order in largest) else largest[0]


class _Joined(MovingOp, abstract=True):
    """Tensors of one element type put together along `axis`; they may come as one tuple."""

    takes_complex = True
    axis: int = 0
    joins = "beside"
    additive = True
    promotes: ClassVar[str] = "common"
    one_type = True

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        return self, sequence_of(self.name, args)


class Concat(_Joined):
    """The tensors concatenated along `axis`, which must not be sharded. Called as `Concat(axis)((a, b))`."""

    kernel_name = "concat"

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        axis, order = axis_in(self.name, self.axis, types[0].rank), _leading(types, orders)
        place = None if order is None else order.place(axis)
        if order is None or place is None:
            return None
        parts = tuple(order.resized(axis, type.shape[axis]) for type in types)
        return Reordered(Concat(place), parts, (order.resized(axis, sum(type.shape[axis] for type in types)),))

    def index_map(self, *types: TensorType) -> IndexMap:
        shape = types[0].shape
        axis = axis_in(self.name, self.axis, len(shape))
        pieces: list[IndexBlock] = []
        end = 0
        for number, type in enumerate(types):
            begin, end = end, end + type.shape[axis]
            source = tuple(along(d, 1, -begin if d == axis else 0) for d in range(len(shape)))
            pieces.append(IndexBlock(number, source, ((axis, begin, end),)))
        return IndexMap((*shape[:axis], end, *shape[axis + 1 :]), tuple(pieces))

    def rule(self, *types: TensorType) -> str:
        if not types:
            raise MspcError("Concat needs at least one tensor")
        rank = len(types[0].shape)
        axis = axis_in(self.name, self.axis, rank)
        for index, operand in enumerate(types):
            if len(operand.shape) != rank:
                raise MspcError(
                    f"Concat needs {rank} dimensions in input {index}, whose shape is {operand.shape}", code="E0303"
                )
        names = factor_names(rank)
        parts = factor_names(len(types) + 1, rank)
        total = sum(operand.shape[axis] for operand in types)
        tokens = [*(f"{part}!" for part in parts[:-1]), f"{parts[-1]}={total}!"]
        sides = [" ".join((*names[:axis], token, *names[axis + 1 :])) for token in tokens]
        return f"{', '.join(sides[:-1])} -> {sides[-1]}"

    def bprop(self, b: Builder, *values: Value) -> Gradients:
        *inputs, _, dout = values
        axis = axis_in(self.name, self.axis, len(dout.shape))
        grads: list[Value | None] = []
        begin = 0
        for value in inputs:
            grads.append(take_part(b, dout, axis, begin, begin + value.shape[axis]))
            begin += value.shape[axis]
        return grads

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        concatenate, axis = be.xp.concatenate, self.axis
        return lambda *inputs: concatenate(inputs, axis)

    samples = (
        sample((4, 8), (8, 8)),
        sample((8, 4), (8, 4), axis=1),
        sample((8, 4, 8), (8, 2, 8), (8, 2, 8), axis=-2),
        sample((8,)),
    )


class TensorParts(Op, abstract=True):
    """The parts of x along a dimension, a tuple."""

    linear_in = (0,)
    moves = True
    may_alias = True

    def pieces(self, shape: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Return (dimension, sizes of the parts). Raise MspcError if they do not fit."""
        raise NotImplementedError

    def infer(self, *types: Any) -> Any:
        return as_tuple(super().infer(*types))

    def single_result(self, number: int, *types: TensorType) -> StridedSlice:
        axis, sizes = self.pieces(types[0].shape)
        begin = sum(sizes[:number])
        return part_of(types[0].shape, axis, begin, begin + sizes[number])

    def bprop(self, b: Builder, x: Value, out: Value, dout: Any) -> Gradients:
        axis, sizes = self.pieces(x.shape)
        found: list[Value] = []
        for size, grad in zip(sizes, dout, strict=True):
            shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            found.append(zeros(b, TensorType(x.tensor_type.dtype, shape)) if grad is None else grad)
        return (b.emit(Concat(axis), *found),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        axis, sizes = self.pieces(inputs[0].shape)
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
        return tuple(xp.split(inputs[0], ends, axis=axis))


class Split(TensorParts):
    """`output_num` equal parts along `axis`, which must not be sharded; a tuple."""

    takes_complex = True
    axis: int = 0
    output_num: int = 1

    def pieces(self, shape: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        axis = axis_in(self.name, self.axis, len(shape))
        return axis, (shape[axis] // self.output_num,) * self.output_num

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        axis = axis_in(self.name, self.axis, types[0].rank)
        place = orders[0].place(axis)
        if place is None:
            return None
        piece = orders[0].resized(axis, types[0].shape[axis] // self.output_num)
        return Reordered(Split(place, self.output_num), tuple(orders), (piece,) * self.output_num)

    def rule(self, x: TensorType) -> str:
        rank = len(x.shape)
        axis = axis_in(self.name, self.axis, rank)
        if self.output_num < 1 or x.shape[axis] % self.output_num:
            raise MspcError(
                f"Split: dimension {axis} of input 0 is {x.shape[axis]}, which does not split into "
                f"{self.output_num} equal parts"
            )
        names = factor_names(rank + 1)
        part = f"{names[-1]}={x.shape[axis] // self.output_num}!"
        operand = [*names[:axis], f"{names[axis]}!", *names[axis + 1 : -1]]
        piece = [*names[:axis], part, *names[axis + 1 : -1]]
        return f"{' '.join(operand)} -> {', '.join([' '.join(piece)] * self.output_num)}"

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        return _launch_parts(device, self, x, out, "split")

    samples = (
        sample((8, 16), axis=1, output_num=2),
        sample((8, 16), axis=0, output_num=4),
        sample((8, 4, 8), axis=-2, output_num=2),
        sample((8, 4)),
    )


class Stack(_Joined):
    """The tensors stacked along a new dimension `axis`. Called as `Stack(axis)((a, b))`."""

    kernel_name = "stack"

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        axis, order = axis_in(self.name, self.axis, types[0].rank + 1), _leading(types, orders)
        if order is None:
            return None
        parts = (DimensionPart(axis, 0, len(types)), *(p._replace(dim=p.dim + (p.dim >= axis)) for p in order.parts))
        return Reordered(Stack(0), (order,) * len(types), (MemoryOrder(parts, order.rank + 1),))

    def index_map(self, *types: TensorType) -> IndexMap:
        shape = types[0].shape
        axis = axis_in(self.name, self.axis, len(shape) + 1)
        source = tuple(along(d + (d >= axis)) for d in range(len(shape)))
        pieces = tuple(IndexBlock(number, source, ((axis, number, number + 1),)) for number in range(len(types)))
        return IndexMap((*shape[:axis], len(types), *shape[axis:]), pieces)

    def rule(self, *types: TensorType) -> str:
        if not types:
            raise MspcError("Stack needs at least one tensor")
        names = factor_names(len(types[0].shape) + 1)
        new = f"{names.pop()}={len(types)}!"
        axis = axis_in(self.name, self.axis, len(names) + 1)
        side = " ".join(names)
        return f"{', '.join([side] * len(types))} -> {' '.join((*names[:axis], new, *names[axis:]))}"

    def bprop(self, b: Builder, *values: Value) -> Gradients:
        *inputs, _, dout = values
        axis = axis_in(self.name, self.axis, len(dout.shape))
        return [b.emit(Reshape(value.shape), take_part(b, dout, axis, i, i + 1)) for i, value in enumerate(inputs)]

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.stack(inputs, axis=self.axis)

    samples = (
        sample((8, 16), (8, 16)),
        sample((8, 4), (8, 4), (8, 4), axis=-1),
        sample((8,), axis=1),
    )


class Unstack(Op):
    """The slices of x along `axis` without that dimension, a tuple; `num` is their number when given."""

    takes_complex = True
    axis: int = 0
    num: int | None = None
    may_alias = True
    follows_neighbours = True
    moves = True
    linear_in = (0,)

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        axis = axis_in(self.name, self.axis, types[0].rank)
        place = orders[0].place(axis)
        if place is None:
            return None
        return Reordered(Unstack(place, self.num), tuple(orders), (orders[0].without([axis]),) * types[0].shape[axis])

    def single_result(self, number: int, *types: TensorType) -> StridedSlice:
        axis = axis_in(self.name, self.axis, types[0].rank)
        return replace(part_of(types[0].shape, axis, number, number + 1), shrink_axis_mask=1 << axis)

    def rule(self, x: TensorType) -> str:
        axis = axis_in(self.name, self.axis, len(x.shape))
        require_elements(self.name, x.shape, [axis], "slice")
        if self.num is not None and self.num != x.shape[axis]:
            raise MspcError(f"Unstack: dimension {axis} of input 0 is {x.shape[axis]}, not num {self.num}")
        names = factor_names(len(x.shape))
        operand = [*names[:axis], f"{names[axis]}!", *names[axis + 1 :]]
        piece = " ".join((*names[:axis], *names[axis + 1 :]))
        return f"{' '.join(operand)} -> {', '.join([piece] * x.shape[axis])}"

    def infer(self, *types: Any) -> Any:
        return as_tuple(super().infer(*types))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Any) -> Gradients:
        axis = axis_in(self.name, self.axis, len(x.shape))
        shape = tuple(n for d, n in enumerate(x.shape) if d != axis)
        part = TensorType(x.tensor_type.dtype, shape)
        return (b.emit(Stack(axis), *[zeros(b, part) if value is None else value for value in dout]),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return tuple(xp.moveaxis(inputs[0], self.axis, 0))

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        return _launch_parts(device, self, x, out, "unstack")

    samples = (sample((2, 8)), sample((8, 3, 4), axis=1, num=3), sample((1, 8)))


def _launch_parts(device: Device, op: Split | Unstack, x: Array, out: Sequence[Array], name: str) -> Launch | None:
    """Return the launch that fills all results of an operator, each of which is a slice of x."""
    type = TensorType(dtype_of(x.dtype), x.shape)
    slices = [op.single_result(i, type).index_map(type) for i in range(len(out))]
    copies = [copy for each, part in zip(slices, out, strict=True) for copy in copies_of(each, [x], part)]
    return gpu.moves.move(device, name, copies)


def as_tuple(inferred: Any) -> Any:
    """Return the type of an operator whose result is a tuple even when it has one element."""
    return TupleType((inferred,)) if isinstance(inferred, TensorType) else inferred


class Tile(MovingOp):
    """x repeated `multiples[d]` times along every dimension d, aligned at the right. Called as `Tile()(x,
    multiples)`.

    A repeated dimension is (repetitions, x's own), so that the repetitions can be sharded.
    """

    takes_complex = True
    multiples: tuple[int, ...] = ()
    linear_in = (0,)
    kernel_name = "tile"
    entries_from_right: ClassVar[bool] = True
    """Whether a strategy with one entry per input dimension, fewer than there are multiples, applies to the last
    dimensions."""

    settings = (("multiples", ints_of),)

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
        """Return (multiples, shape), both with leading ones to the same length."""
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
        """Return the dimensions for MindSpore's strategy of Tile, which has one entry per multiple; if that is above 1
        it shards the repetitions."""
        return (tuple(dim[:1] for dim in rule.outputs[0]),)

    def layout_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the dimensions of the input, to which a Layout applies."""
        return rule.inputs

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        multiples, shape = self.aligned(x.shape)
        pairs = tuple(n for m, s in zip(multiples, shape, strict=True) for n in (m, s))
        axes = tuple(2 * d for d, m in enumerate(multiples) if m > 1)
        grad: Value = dout
        if axes:
            grad = b.emit(ReduceSum(axis=axes), b.emit(Reshape(pairs), dout))
        return (as_shape(b, grad, x.shape),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.tile(inputs[0], self.multiples)

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
    """Return the margins of the stored tensor of a value of this shape with these margins, and the order of the value
    with them, or without them if sign is -1; None if a dimension with a margin has several parts."""
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

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.pad(inputs[0], self.paddings)

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        cuts = [(before, 1, n) for (before, _), n in zip(self.paddings, x.shape, strict=True)]
        return gpu.moves.put_inside(device, "pad", x, out, cuts)

    samples = (
        sample((8, 16), paddings=((0, 0), (2, 1))),
        sample((8, 4, 8), paddings=((0, 0), (1, 0), (0, 0))),
    )
