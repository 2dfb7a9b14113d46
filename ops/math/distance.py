"""These operators compute distances, norms and tests of rows that are not sharded."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.types import TensorType
from mspc.ops.bases import Binary, Unary
from mspc.ops.math.arithmetic import Div, Equal, Mul, Select, Sub, constant, gradients, scaled
from mspc.ops.math.elementwise import Abs, Pow, Sign
from mspc.ops.op import Gradients, NotDifferentiable, Op, sample
from mspc.ops.tensor.reshape import ExpandDims, ReduceSum
from mspc.sharding.rules import factor_names


class Cdist(Op):
    """The p-norm of every x[..., i, :] - y[..., j, :]: [..., m, k], [..., n, k] -> [..., m, n].

    p = 0 counts the elements that differ, p = inf is the largest difference.
    """

    p: float = 2.0
    float_only = True
    one_type = True
    samples = (
        sample((8, 3), (4, 3)),
        sample((2, 4, 3), (2, 8, 3), p=3.0),
        sample((8, 2), (4, 2), p=1.0),
        sample((8, 2), (4, 2), p=0.5),
        sample((8, 3), (4, 3), p=math.inf),
        sample((8, 3), (4, 3), p=0.0),
    )

    def rule(self, x: TensorType, y: TensorType) -> str:
        rank = len(x.shape)
        if rank < 2 or len(y.shape) != rank:
            raise MspcError(f"Cdist needs two tensors of the same 2 or 3 dimensions, not {x.shape} and {y.shape}")
        if not self.p >= 0:
            raise MspcError(f"Cdist: p is {self.p}, not a number from 0 to inf")
        lead = " ".join(factor_names(rank - 2))
        return f"{lead} m_ k_!, {lead} n_ k_! -> {lead} m_ n_"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        if self.p == 0:
            return None, None
        rank = len(x.shape)
        apart = b.emit(Sub(), b.emit(ExpandDims(rank - 1), x), b.emit(ExpandDims(rank - 2), y))
        steep, share = self.slopes(b, apart, out, dout)
        parts = b.emit(Mul(), steep, b.emit(ExpandDims(rank), share))
        dx = b.emit(ReduceSum(axis=(rank - 1,)), parts)
        return dx, scaled(b, -1, b.emit(ReduceSum(axis=(rank - 2,)), parts))

    def slopes(self, b: Builder, apart: Value, out: Value, dout: Value) -> tuple[Value, Value]:
        """Return (contribution of a difference, its factor): their product is its gradient."""
        zero, size = constant(b, 0, out), b.emit(Abs(), apart)
        if self.p == math.inf:
            largest = b.emit(Equal(), size, b.emit(ExpandDims(len(out.shape)), out))
            return b.emit(Select(), largest, b.emit(Sign(), apart), zero), dout
        power = constant(b, self.p - 1, out)
        base = b.emit(Select(), b.emit(Equal(), out, zero), constant(b, 1, out), out)
        steep = b.emit(Mul(), b.emit(Sign(), apart), b.emit(Pow(), size, power))
        if self.p < 1:
            steep = b.emit(Select(), b.emit(Equal(), apart, zero), zero, steep)
        return steep, b.emit(Div(), dout, b.emit(Pow(), base, power))

    def compute(self, xp: Any, x: Any, y: Any) -> Any:
        apart = xp.abs(x[..., :, None, :] - y[..., None, :, :])
        if self.p == 0:
            return xp.minimum(xp.ceil(apart), 1).sum(-1)  # NaN counts as NaN
        if self.p == math.inf:
            return apart.max(-1, initial=0).astype(x.dtype)
        return (apart**self.p).sum(-1) ** (1 / self.p)


class Hypot(Binary):
    """The square root of x^2 + y^2."""

    float_only = True
    array_function = "hypot"
    cuda = "hypot({0}, {1})"
    samples = (sample((8, 16), (8, 16), low=0.5), sample((8, 16), (16,), low=0.5))

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        share = b.emit(Div(), dout, out)
        return gradients(b, x, y, b.emit(Mul(), share, x), b.emit(Mul(), share, y))


class Invert(Unary):
    """Every bit inverted."""

    array_function = "invert"
    cuda = "~{0}"
    bprop = NotDifferentiable("its result is an integer")
    samples = (sample((8, 16), dtypes=("Int32",), gradient=False),)

    def check(self, *types: TensorType) -> None:
        if not types[0].dtype.is_integer:
            raise MspcError(
                f"{self.name}: input 0 is {types[0].dtype}, not an integer tensor", kind=TypeError, code="E0304"
            )
