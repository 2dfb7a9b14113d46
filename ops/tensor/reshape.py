"""Views of other shapes, and casts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
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
from mspc.ops.device import c_type
from mspc.ops.op import ArrayBackend, Gradients, Op, RankPlacement, RequestedSharding, sample
from mspc.ops.operator_arguments import axes_in, dtype_arg, int_of, ints_of, split_call
from mspc.sharding.rules import reshape_rule


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
