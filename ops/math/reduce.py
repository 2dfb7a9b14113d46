"""Reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.types import BOOL, INT64, TensorType
from mspc.ops.bases import operator
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Div, Equal, Mul, TruncateDiv
from mspc.ops.math.scans import CumProd
from mspc.ops.op import ArrayBackend, Gradients, NotDifferentiable, RequestedSharding, require_float, sample
from mspc.ops.operator_arguments import require_elements
from mspc.ops.tensor.reshape import REDUCE_SAMPLES, Cast, ReduceSum, ReductionOp, broadcast_to


class ReduceMean(ReductionOp):
    """Mean along `axis`, of integers truncated to one; partial means of equal parts combine by their mean, those of
    integers do not."""

    reduction = "mean"
    closes_chains = True
    linear_in = (0,)

    def check(self, *types: TensorType) -> None:
        super().check(*types)
        if types[0].dtype == BOOL:
            require_float(self.name, *types)

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
        """Return the number of elements per result; 1 if there are none."""
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

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        return None if x.dtype.kind in "iu" else super().launch(device, out, x)

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

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        extremum, axis, keep = getattr(be.xp, self.reduction), self.numpy_axis(), self.keep_dims
        return lambda x: extremum(x, axis, None, keepdims=keep)


_EXTREMUM_SAMPLES = (*REDUCE_SAMPLES, sample((8, 16), axis=(1,), dtypes=("Int32",), gradient=False))
ReduceMax = operator(
    "ReduceMax", "Maximum along `axis`; its gradient is shared equally among equal maxima.", _ReduceExtremum,
    reduction="max", closes_chains=True, samples=_EXTREMUM_SAMPLES,
)  # fmt: skip
ReduceMin = operator(
    "ReduceMin", "Minimum along `axis`; its gradient is shared equally among equal minima.", _ReduceExtremum,
    reduction="min", samples=_EXTREMUM_SAMPLES,
)  # fmt: skip


class ReduceProd(ReductionOp):
    """Product along `axis`."""

    reduction = "prod"
    samples = REDUCE_SAMPLES

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        found = self.keep(b, x, dout)
        for axis in self.axes(len(x.shape)):
            sides = (b.emit(CumProd(True, reverse, axis), x) for reverse in (False, True))
            found = b.emit(Mul(), found, b.emit(Mul(), *sides))
            x = b.emit(ReduceProd(True, (axis,)), x)
        return (found,)

    def compute(self, xp: Any, x: Any) -> Any:
        return xp.prod(x, self.numpy_axis(), x.dtype, None, self.keep_dims)


class _ReduceLogical(ReductionOp, abstract=True):
    bprop = NotDifferentiable("its result is Bool")

    def check(self, *types: TensorType) -> None:
        if types[0].dtype != BOOL:
            raise MspcError(f"{self.name}: input 0 is {types[0].dtype}, not Bool", kind=TypeError, code="E0304")

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return getattr(xp, self.reduction)(inputs[0], axis=self.numpy_axis(), keepdims=self.keep_dims)


_BOOL_SAMPLES = tuple(sample(*s.shapes, dtypes=("Bool",), gradient=False, **s.fields) for s in REDUCE_SAMPLES)
ReduceAll = operator(
    "ReduceAll", "Whether all elements along `axis` are true.", _ReduceLogical, reduction="all", samples=_BOOL_SAMPLES
)
ReduceAny = operator(
    "ReduceAny", "Whether any element along `axis` is true.", _ReduceLogical, reduction="any", samples=_BOOL_SAMPLES
)
