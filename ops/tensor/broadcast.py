"""These operators broadcast, or do the reverse, the sum, in which gradients of broadcast operands end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Node, Value
from mspc.ir.types import TensorType
from mspc.ops import gpu
from mspc.ops.device import Array, Device, Launch
from mspc.ops.memory_order import DimensionPart, MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Gradients, Op, RankPlacement, sample
from mspc.ops.operator_arguments import axes_in, ints_of, split_call
from mspc.ops.tensor.reshape import Reshape, as_shape
from mspc.sharding.rules import factor_names, sized

Axis = int | tuple[int, ...]


class ReductionOp(Op, abstract=True):
    """The elements along `axis` combined; all of them if it is (). Called as `Op(keep_dims)(x, axis)`.

    Bool and integer results keep the element type of x.

    Class attributes:
        closes_chains: the operator may be the last of a fused chain of elementwise operators.
    """

    keep_dims: bool = False
    axis: Axis = ()
    closes_chains: ClassVar[bool] = False
    operand_names = ("x", "axis")

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("axis",), optional=1)
        axis = found.get("axis", ())
        axis = ints_of(self.name, "axis", () if axis is None else axis)
        if getattr(tensors[0], "shape", None) == ():
            axis = axes_in(self.name, axis, 0)
        return replace(self, axis=axis), tensors

    def axes(self, rank: int) -> tuple[int, ...]:
        """Return the reduced axes counted from 0."""
        return axes_in(self.name, ints_of(self.name, "axis", self.axis), rank)

    def rule(self, x: TensorType) -> str:
        names = [name if n != 1 else "1" for name, n in zip(factor_names(len(x.shape)), x.shape, strict=True)]
        axes = self.axes(len(x.shape))
        out = ["1" if d in axes else name for d, name in enumerate(names) if self.keep_dims or d not in axes]
        return f"{' '.join(names)} -> {' '.join(out)}"

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        (order,) = orders
        axes = self.axes(types[0].rank) or tuple(range(types[0].rank))
        places = order.places(axes)
        if not places:
            return None
        result = order.ones(axes) if self.keep_dims else order.without(axes)
        return Reordered(replace(self, axis=places), (order,), (result,))

    def numpy_axis(self) -> tuple[int, ...] | None:
        """Return the axis as array functions take it."""
        return ints_of(self.name, "axis", self.axis) or None

    def keep(self, b: Builder, x: Value, value: Value) -> Value:
        """Return `value`, a result of this operator or its gradient, with the reduced dimensions of x as size 1."""
        axes = self.axes(len(x.shape))
        shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
        return as_shape(b, value, shape)

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        how, axes = gpu.reductions.how_of(self.reduction, x.dtype == bool), self.axes(x.ndim)
        after = f"total / (A){math.prod(x.shape[d] for d in axes)}" if self.reduction == "mean" else "total"
        reduction = gpu.reductions.Reduction("reduce", how, "x", after)
        return gpu.reductions.reduce(device, reduction, x.shape, axes, [gpu.text.Operand("x", x)], out)


REDUCE_SAMPLES = (
    sample((8, 16)),
    sample((8, 16), axis=(0,)),
    sample((8, 16), axis=-1, keep_dims=True),
    sample((8, 4, 16), axis=(0, 2)),
    sample((8, 4, 16), axis=(1,), keep_dims=True),
)


class ReduceSum(ReductionOp):
    """Sum along `axis`."""

    takes_complex = True
    closes_chains = True
    linear_in = (0,)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (broadcast_to(b, self.keep(b, x, dout), x.shape),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        total, axis, keep = be.xp.sum, self.numpy_axis(), self.keep_dims
        return lambda x: total(x, axis, x.dtype, None, keep)

    samples = (*REDUCE_SAMPLES, sample((8, 16), axis=(1,), dtypes=("Int32",), gradient=False))


class BroadcastTo(Op):
    """x repeated to `shape`, aligned at the right; -1 keeps the size of x."""

    takes_complex = True
    shape: tuple[int, ...] = ()
    may_alias = True
    moves = True
    linear_in = (0,)
    cuda = "{0}"
    settings = (("shape", ints_of),)
    optional_settings = 1

    def as_broadcast(self, *types: TensorType) -> tuple[Op, tuple[tuple[int, ...], ...]]:
        return self, (types[0].shape,)

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        shape = cast(TensorType, self.infer(*types)).shape
        lead = len(shape) - types[0].rank
        parts = [DimensionPart(d, 0, shape[d]) for d in range(lead)]
        for part in orders[0].parts:
            repeated = types[0].shape[part.dim] == 1
            if repeated and orders[0].place(part.dim) is None:
                return None
            parts.append(DimensionPart(part.dim + lead, part.number, shape[part.dim + lead] if repeated else part.size))
        found = MemoryOrder(tuple(parts), len(shape))
        return Reordered(BroadcastTo(found.stored), (orders[0],), (found,)) if found.shape == shape else None

    def made_in(self, order: MemoryOrder, types: Sequence[TensorType]) -> Reordered | None:
        operand = order.operand(types[0].shape) if types[0].size < math.prod(order.stored) else None
        return None if operand is None else Reordered(BroadcastTo(order.stored), (operand,), (order,))

    def rule(self, x: TensorType) -> str:
        lead = len(self.shape) - len(x.shape)
        if lead < 0:
            raise MspcError(f"BroadcastTo: input 0 of shape {x.shape} has more dimensions than {self.shape}")
        if any(size < 0 for size in self.shape[:lead]):
            raise MspcError(
                f"BroadcastTo: shape {self.shape} has a negative size, and input 0 has no such dimension", code="E0311"
            )
        names = factor_names(len(self.shape))
        ins: list[str] = []
        outs = [sized(name, n) for name, n in zip(names[:lead], self.shape[:lead], strict=True)]
        for d, (n, size) in enumerate(zip(x.shape, self.shape[lead:], strict=True)):
            name = names[lead + d]
            if size not in (-1, n) and n != 1:
                raise MspcError(f"BroadcastTo: dimension {d} of input 0 is {n}, which does not broadcast to {size}")
            ins.append("1" if n == 1 else name)
            outs.append(sized(name, size if size != -1 else 1) if n == 1 else name)
        return f"{' '.join(ins)} -> {' '.join(outs)}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (sum_to_shape(b, dout, x.shape),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        broadcast, shape = be.xp.broadcast_to, self.shape
        if -1 in shape:
            return super().kernel(be)
        return lambda x: broadcast(x, shape)

    def compute(self, xp: Any, x: Any) -> Any:
        lead = len(self.shape) - x.ndim
        shape = tuple(x.shape[d - lead] if n == -1 else n for d, n in enumerate(self.shape))
        return xp.broadcast_to(x, shape)

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        from mspc.ops.cuda.moves import Move, move, strides_of  # late: only a GPU needs it

        lead = out.ndim - x.ndim
        own = (0 if n == 1 else s for n, s in zip(x.shape, strides_of(x.shape), strict=True))
        strides = (*(0,) * lead, *own)
        return move(device, "broadcast", [Move(x, out, out.shape, strides, strides_of(out.shape))])

    def localize(self, placement: RankPlacement) -> Op:
        return replace(self, shape=placement.out_layouts[0].local_shape(placement.out_types[0].shape))

    samples = (
        sample((8, 1), shape=(8, 16)),
        sample((16,), shape=(8, 16)),
        sample((), shape=(8, 16)),
        sample((1, 8), shape=(4, -1, 8), gradient=True),
    )


def broadcast_to(b: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    """Return `value` broadcast to `shape`, or itself if it has that shape."""
    return value if value.shape == shape else b.emit(BroadcastTo(shape), value)


def filled(b: Builder, value: float, type: TensorType) -> Value:
    """Return a tensor of one number, which takes no memory."""
    scalar = b.constant(value, type.dtype)
    return b.emit(BroadcastTo(type.shape), scalar) if type.shape else scalar


def is_filled(value: Value, number: float) -> bool:
    """Return whether all elements of a value are known to be this number."""
    while isinstance(value, Node) and isinstance(value.op, BroadcastTo | Reshape):
        value = value.inputs[0]
    if isinstance(value, Constant):
        return bool((value.value == number).all())
    return isinstance(value, Node) and isinstance(value.op, Op) and value.op.uniform() == number


def sum_to_shape(b: Builder, gradient: Value, shape: tuple[int, ...]) -> Value:
    """Return the gradient of an operand of `shape` that was broadcast to the shape of `gradient`."""
    if gradient.shape == shape:
        return gradient
    lead = len(gradient.shape) - len(shape)
    axes = tuple(d for d, n in enumerate(gradient.shape) if d < lead or (shape[d - lead] == 1 and n != 1))
    total: Value = b.emit(ReduceSum(axis=axes), gradient) if axes else gradient
    return as_shape(b, total, shape)


def zeros(b: Builder, type: TensorType) -> Value:
    """Return a tensor of zeros."""
    return filled(b, 0, type)
