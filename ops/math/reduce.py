"""These are the reductions along axes other than the plain sum; `reduction` says how their partial results combine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import BOOL, INT64, TensorType, Type
from mspc.ops.bases import require_float
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Div, Mul
from mspc.ops.math.comparison import Equal
from mspc.ops.math.integer import TruncateDiv
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RequestedSharding, sample
from mspc.ops.operator_arguments import require_elements
from mspc.ops.tensor.broadcast import REDUCE_SAMPLES, ReduceSum, ReductionOp, broadcast_to
from mspc.ops.tensor.cast import Cast
from mspc.sharding.rules import factor_names

Gradients = Sequence[Value | None]


class ReduceMean(ReductionOp):
    """Mean along `axis`, of integers truncated to one; partial means of equal parts combine by their mean, those of
    integers do not."""

    reduction = "mean"
    closes_chains = True
    linear_in = (0,)

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        if types[0].dtype == BOOL:
            require_float(self.name, *types)
        return inferred

    def rule(self, x: TensorType) -> str:
        names, arrow, out = super().rule(x).partition(" ->")
        if x.dtype.is_float:
            return f"{names}{arrow}{out}"
        axes = self.axes(len(x.shape))
        held = [f"{name}!" if d in axes and name != "1" else name for d, name in enumerate(names.split())]
        return f"{' '.join(held)}{arrow}{out}"

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        (x,) = inputs
        if x.tensor_type.dtype.is_float:
            return None
        total = b.emit(ReduceSum(self.keep_dims, self.axis), b.emit(Cast(dst_type=INT64), x))
        total.in_strategy, total.out_strategy = asked.in_strategy, asked.out_strategy
        mean = b.emit(TruncateDiv(), total, b.constant(self.count(x.shape), INT64))
        return (b.emit(Cast(dst_type=x.tensor_type.dtype), mean),)

    def count(self, shape: Sequence[int]) -> int:
        """How many elements there are to one of the result; 1 where there are none."""
        return math.prod(shape[d] for d in self.axes(len(shape))) or 1

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        share = b.emit(Mul(), self.keep(b, x, dout), b.constant(1 / self.count(x.shape), dout.tensor_type.dtype))
        return (broadcast_to(b, share, x.shape),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        mean, axis, keep = be.xp.mean, self.numpy_axis(), self.keep_dims

        def kernel(x: Any) -> Any:
            if x.dtype.kind in "iu":
                total = be.xp.sum(x, axis, be.xp.int64, None, keep)
                count = self.count(x.shape)
                return ((total - be.xp.fmod(total, count)) // count).astype(x.dtype)
            return mean(x, axis, None, None, keepdims=keep)

        return kernel

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        if inputs[0].dtype.kind in "iu":
            return None
        count = math.prod(inputs[0].shape[d] for d in self.axes(inputs[0].ndim))
        return self.reduction_of(device, "Sum", inputs[0], out, f"total / (A){count}")

    samples = REDUCE_SAMPLES


class _ReduceExtremum(ReductionOp, abstract=True):
    """The gradient is shared equally among equal extrema."""

    def rule(self, x: TensorType) -> str:
        require_elements(self.name, x.shape, self.axes(len(x.shape)), "extremum")
        return super().rule(x)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        dtype = dout.tensor_type.dtype
        winners = b.emit(Cast(dst_type=dtype), b.emit(Equal(), x, self.keep(b, x, out)))
        count = b.emit(ReduceSum(True, self.axes(len(x.shape))), winners)
        return (b.emit(Mul(), winners, b.emit(Div(), self.keep(b, x, dout), count)),)


class ReduceMax(_ReduceExtremum):
    """Maximum along `axis`; its gradient is shared equally among equal maxima."""

    reduction = "max"
    closes_chains = True
    samples = (*REDUCE_SAMPLES, sample((8, 16), axis=(1,), dtypes=("Int32",), gradient=False))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        largest, axis, keep = be.xp.max, self.numpy_axis(), self.keep_dims

        def kernel(x: Any) -> Any:
            return largest(x, axis, None, keepdims=keep)

        return kernel

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        return self.reduction_of(device, "Largest", inputs[0], out)


class ReduceMin(_ReduceExtremum):
    """Minimum along `axis`; its gradient is shared equally among equal minima."""

    reduction = "min"
    samples = (*REDUCE_SAMPLES, sample((8, 16), axis=(1,), dtypes=("Int32",), gradient=False))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        smallest, axis, keep = be.xp.min, self.numpy_axis(), self.keep_dims

        def kernel(x: Any) -> Any:
            return smallest(x, axis, None, keepdims=keep)

        return kernel

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        return self.reduction_of(device, "Smallest", inputs[0], out)


class ReduceProd(ReductionOp):
    """Product along `axis`."""

    reduction = "prod"
    samples = REDUCE_SAMPLES

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        axes = self.axes(len(x.shape))
        return (b.emit(ReduceProdGrad(axes), x, self.keep(b, x, dout)),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        return be.xp.prod(x, self.numpy_axis(), x.dtype, None, self.keep_dims)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        # A product of Bool is Bool: whether all are true.
        return self.reduction_of(device, "Smallest" if inputs[0].dtype == bool else "Product", inputs[0], out)


class ReduceProdGrad(Op):
    """Gradient of ReduceProd: dout times the product of all other elements, which may hold zeros.

    dout has size 1 along `axis`, which must not be sharded.
    """

    axis: tuple[int, ...] = ()
    linear_in = (1,)
    bprop = NotDifferentiable(
        "it is a gradient, and second derivatives of products are not built"
    )
    samples = (sample((8, 16), (8, 1), axis=(1,)), sample((4, 8, 2), (1, 8, 1), axis=(0, 2)))

    def rule(self, x: TensorType, dout: TensorType) -> str:
        names = factor_names(len(x.shape))
        full = " ".join(f"{name}!" if d in self.axis else name for d, name in enumerate(names))
        remaining = " ".join("1" if d in self.axis else name for d, name in enumerate(names))
        return f"{full}, {remaining} -> {full}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        x, dout = inputs
        zero = x == 0
        zeros = xp.sum(zero, axis=self.axis, keepdims=True)
        filled = xp.where(zero, 1, x).astype(x.dtype)
        others = xp.prod(filled, axis=self.axis, keepdims=True, dtype=x.dtype)
        at_plain = xp.where(zeros == 0, others / filled, 0)
        at_zero = xp.where(zeros == 1, others, 0)
        return (dout * xp.where(zero, at_zero, at_plain)).astype(x.dtype)


class _ReduceLogical(ReductionOp, abstract=True):
    bprop = NotDifferentiable("its result is Bool")

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        if types[0].dtype != BOOL:
            raise MspcError(f"{self.name}: input 0 is {types[0].dtype}, not Bool", kind=TypeError)
        return inferred


_BOOL_SAMPLES = tuple(sample(*s.shapes, dtypes=("Bool",), gradient=False, **s.fields) for s in REDUCE_SAMPLES)


class ReduceAll(_ReduceLogical):
    """Whether all elements along `axis` are true."""

    reduction = "all"
    bprop = _ReduceLogical.bprop
    samples = _BOOL_SAMPLES

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.all(inputs[0], axis=self.numpy_axis(), keepdims=self.keep_dims)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        return self.reduction_of(device, "Smallest", inputs[0], out)


class ReduceAny(_ReduceLogical):
    """Whether any element along `axis` is true."""

    reduction = "any"
    bprop = _ReduceLogical.bprop
    samples = _BOOL_SAMPLES

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.any(inputs[0], axis=self.numpy_axis(), keepdims=self.keep_dims)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        return self.reduction_of(device, "Largest", inputs[0], out)
