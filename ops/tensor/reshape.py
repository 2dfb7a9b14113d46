"""Views of other shapes, casts, broadcasts and sums over dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import mspc.ops.gpu as gpu  # `from mspc.ops import` would read the index of public names
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Node, Value
from mspc.ir.types import (
    COMPLEX64,
    COMPLEX128,
    EIGHTS,
    FLOAT8_E5M2,
    FLOAT32,
    FLOAT64,
    HALVES,
    DType,
    TensorType,
)
from mspc.ops.bases import Unary
from mspc.ops.control.structural import constrained
from mspc.ops.cpu.blocks import saturated
from mspc.ops.device import Array, Device, Launch, c_type
from mspc.ops.memory_order import DimensionPart, MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Gradients, Op, RankPlacement, RequestedSharding, sample
from mspc.ops.operator_arguments import axes_in, dtype_arg, int_of, ints_of, split_call
from mspc.sharding.rules import factor_names, reshape_rule, sized


class _View(Op, abstract=True):
    """The elements of x in their order, in another shape."""

    takes_complex = True
    linear_in = (0,)
    moves = True
    is_view = True
    reshapes = True

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Reshape(x.shape), dout),)


class Reshape(_View):
    """x in another shape; one -1 is replaced by the remaining size. Called as `Reshape()(x, shape)`."""

    shape: tuple[int, ...] = ()
    follows_neighbours = True

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("shape",))
        return replace(self, shape=ints_of(self.name, "shape", found["shape"])), tensors

    def resolved(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape with its -1 filled in. Raise MspcError if the number of elements differs."""
        size = math.prod(source)
        known = math.prod(n for n in self.shape if n != -1)
        free = self.shape.count(-1)
        if free > 1 or any(n < -1 for n in self.shape):
            raise MspcError(f"Reshape: shape {self.shape} may hold one -1 and no other negative number")
        if (free and (known == 0 or size % known)) or (not free and known != size):
            wanted = f"a multiple of {known}" if free else str(known)
            raise MspcError(
                f"Reshape: shape {self.shape} needs {wanted} elements, input 0 of shape {source} has {size}",
                code="E0309",
            )
        return tuple(size // known if n == -1 else n for n in self.shape)

    def rule(self, x: TensorType) -> str:
        return reshape_rule(x.shape, self.resolved(x.shape))

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        """A strategy says how the operand is sharded; the result's layout follows from it and the operators around."""
        if asked.in_strategy is None:
            return None
        if len(asked.in_strategy) != 1 or asked.out_strategy is not None:
            raise MspcError(f"{self.name}: a strategy says how input 0 is sharded, and nothing else")
        entry, (x,) = asked.in_strategy[0], inputs
        scalar = not x.shape and entry == (1,)
        return (b.emit(self, constrained(b, x, () if scalar else entry)),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0].reshape(self.shape)

    def localize(self, placement: RankPlacement) -> Op:
        return replace(self, shape=placement.out_layouts[0].local_shape(placement.out_types[0].shape))

    samples = (
        sample((8, 16, 8), shape=(128, 8)),
        sample((64, 32), shape=(32, 64)),
        sample((8, 1, 16), shape=(-1, 16)),
        sample((24, 8), shape=(16, 12)),
        sample((8, 8), shape=(64,)),
        sample((), shape=(1, 1)),
    )


class Flatten(_View):
    """x with all dimensions but the first merged: (n, c, h, w) -> (n, c * h * w)."""

    def rule(self, x: TensorType) -> str:
        if not x.shape:
            raise MspcError("Flatten: input 0 is a scalar, which has no dimension to keep")
        return reshape_rule(x.shape, (x.shape[0], math.prod(x.shape[1:])))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        x = inputs[0]
        return x.reshape(x.shape[0], math.prod(x.shape[1:]))

    samples = (sample((8, 16)), sample((8, 4, 2, 8)), sample((16,)))


class ExpandDims(_View):
    """x with a dimension of size 1 inserted at `axis`. Called as `ExpandDims()(x, axis)`."""

    axis: int = 0
    settings = (("axis", int_of),)

    def rule(self, x: TensorType) -> str:
        (axis,) = axes_in(self.name, (self.axis,), len(x.shape) + 1)
        return reshape_rule(x.shape, (*x.shape[:axis], 1, *x.shape[axis:]))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.expand_dims(inputs[0], self.axis)

    samples = (sample((8, 16), axis=0), sample((8, 16), axis=1), sample((8, 16), axis=-1))


class Squeeze(_View):
    """x without the dimensions `axis`, all of size 1; without all dimensions of size 1 when `axis` is ()."""

    axis: int | tuple[int, ...] = ()

    def axes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the dimensions that are removed, counted from 0."""
        given = ints_of(self.name, "axis", self.axis)
        return axes_in(self.name, given, len(shape)) if given else tuple(d for d, n in enumerate(shape) if n == 1)

    def rule(self, x: TensorType) -> str:
        axes = self.axes(x.shape)
        for d in axes:
            if x.shape[d] != 1:
                raise MspcError(f"Squeeze: dimension {d} of input 0 is {x.shape[d]}, not 1")
        return reshape_rule(x.shape, tuple(n for d, n in enumerate(x.shape) if d not in axes))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.squeeze(inputs[0], self.axis if self.axis != () else None)

    def localize(self, placement: RankPlacement) -> Op:
        # A slice may have size 1 while the global tensor has not: name the dimensions.
        shape = placement.in_types[0].shape
        axes = self.axes(shape)
        return replace(self, axis=axes) if axes else Reshape(placement.out_layouts[0].local_shape(shape))

    samples = (
        sample((8, 1, 16)),
        sample((8, 16, 1), axis=-1),
        sample((1, 8, 1), axis=(0, 2)),
        sample((8, 16)),
    )


class Cast(Unary):
    """x with the element type `dst_type`; of a complex number the real part becomes a real one; Float8 saturates.
    Called as `Cast()(x, dtype)`."""

    takes_complex = True
    dst_type: DType = FLOAT32
    follows_neighbours = True
    widens = False

    @property
    def linear_in(self) -> tuple[int, ...]:  # type: ignore[override]  # depends on the target
        # Rounding to integers or halves is not linear.
        return (0,) if self.dst_type in (FLOAT32, FLOAT64, COMPLEX64, COMPLEX128) else ()

    @property
    def number_type(self) -> DType | None:
        """The type that a Python number has as the operand: Float32 would round one that becomes Float64."""
        return FLOAT64 if self.dst_type == FLOAT64 else None

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("dtype",))
        return replace(self, dst_type=dtype_arg(self.name, "dtype", found["dtype"])), tensors

    def result_dtype(self, *types: TensorType) -> DType:
        return self.dst_type

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        source = x.tensor_type.dtype
        if source.has_gradient and not self.dst_type.has_gradient:
            return (None,)
        return (b.emit(Cast(dst_type=source), dout),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        dtype = self.dst_type.numpy
        if self.dst_type in EIGHTS:
            return lambda x: saturated(x, self.dst_type)
        return lambda x: (x.real if x.dtype.kind == "c" and dtype.kind != "c" else x).astype(dtype)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on dst_type
        return f"wide(narrow<{c_type(self.dst_type)}>({{0}}))" if self.dst_type in (*HALVES, *EIGHTS) else "{0}"

    samples = (
        sample((8, 16), dst_type=FLOAT32, gradient=False),
        sample((8, 16), dst_type=FLOAT64),
        sample((8,), dst_type=FLOAT64, dtypes=("Int32",)),
        sample((8, 16), dst_type=FLOAT8_E5M2, gradient=False),
    )


def as_shape(b: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    """Return `value` in a shape; itself if it has it."""
    return value if value.shape == shape else b.emit(Reshape(shape), value)


def as_dtype(b: Builder, value: Value, dtype: DType) -> Value:
    """Return `value` in an element type; itself if it has it."""
    return value if value.tensor_type.dtype == dtype else b.emit(Cast(dst_type=dtype), value)


# Broadcasting and sums over dimensions ----------------------------------------------------------------
# These operators broadcast, or do the reverse, the sum, in which gradients of broadcast operands end.


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
