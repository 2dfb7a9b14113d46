"""Losses as single operators. Means are over the whole batch: on a rank partial means, or the whole count as
a field.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.types import TensorType
from mspc.ops.activation import Sigmoid
from mspc.ops.arithmetic import Mul, Neg, Sub
from mspc.ops.bases import Binary, require_float, require_same
from mspc.ops.comparison import Greater, Select
from mspc.ops.elementwise import Abs, Sign, constant, scaled
from mspc.ops.embedding import require_integer
from mspc.ops.norm import items
from mspc.ops.op import ArrayBackend, Op, Placement, sample
from mspc.ops.reshape import ExpandDims
from mspc.ops.rules import factor_names

Gradients = Sequence[Value | None]


def log_softmax(xp: Any, logits: Any) -> Any:
    """The logarithm of softmax along the last axis, in a new array."""
    moved = logits - xp.max(logits, axis=-1, keepdims=True)
    moved -= xp.log(xp.sum(xp.exp(moved), axis=-1, keepdims=True))
    return moved


class SoftmaxCrossEntropyWithLogits(Op):
    """Cross entropy of every row of logits[n, c] with labels[n, c], and its derivative in the logits:
    (loss[n], [n, c]).

    The class dimension must stay whole. Labels get no gradient, as in MindSpore.
    """

    samples: ClassVar[Any] = (sample((8, 16), (8, 16), low=0.05, high=1.0, gradient=False),)

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, *types)
        require_same(self.name, *types)
        return inferred

    def rule(self, logits: TensorType, labels: TensorType) -> str:
        return "a c!, a c! -> a, a c!"

    def bprop(self, b: Builder, logits: Value, labels: Value, out: Node, dout: Any) -> Gradients:
        if dout[0] is None:
            return None, None
        _, slope = items(b, out, 2)
        return b.emit(Mul(), slope, b.emit(ExpandDims(-1), dout[0])), None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        logits, labels = inputs
        logs = log_softmax(xp, logits)
        return -xp.sum(labels * logs, axis=-1), xp.exp(logs) - labels


class SparseSoftmaxCrossEntropyWithLogits(Op):
    """The mean cross entropy of logits[n, c] with the classes labels[n]; with is_grad its derivative in the
    logits.

    batch: the whole number of rows, 0 where this rank has all.
    """

    is_grad: bool = False
    batch: int = 0
    reduction: ClassVar[str] = "mean"
    samples: ClassVar[Any] = (
        sample((8, 16), (8,), dtypes=("Float64", "Int32"), low=0, high=16),
        sample((8, 16), (8,), dtypes=("Float64", "Int32"), low=0, high=16, is_grad=True, gradient=False),
    )

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, types[0])
        require_integer(self.name, 1, types[1])
        return inferred

    def rule(self, logits: TensorType, labels: TensorType) -> str:
        return "a c!, a -> a c!" if self.is_grad else "a c!, a -> "

    def bprop(self, b: Builder, logits: Value, labels: Value, out: Value, dout: Value) -> Gradients:
        if self.is_grad:
            raise MspcError(f"{self.name} has no gradient: it is a gradient already (is_grad)")
        return b.emit(Mul(), b.emit(SparseSoftmaxCrossEntropyWithLogits(True), logits, labels), dout), None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        logits, labels = inputs
        logs = log_softmax(xp, logits)
        places = (xp.arange(labels.shape[0]), labels)
        if not self.is_grad:
            return -xp.mean(logs[places])
        grad = xp.exp(logs)
        grad[places] -= 1
        grad /= self.batch or labels.shape[0]
        return grad

    def localize(self, placement: Placement) -> Op:
        return replace(self, batch=placement.in_types[0].shape[0]) if self.is_grad else self


class SigmoidCrossEntropyWithLogits(Binary):
    """max(x, 0) - x * label + log(1 + exp(-|x|)), the cross entropy of sigmoid(x) with label."""

    float_only: ClassVar[bool] = True
    samples: ClassVar[Any] = (sample((8, 16), (8, 16)),)

    def bprop(self, b: Builder, x: Value, label: Value, out: Value, dout: Value) -> Gradients:
        dx = b.emit(Mul(), dout, b.emit(Sub(), b.emit(Sigmoid(), x), label))
        return dx, b.emit(Neg(), b.emit(Mul(), dout, x))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        x, label = inputs
        return xp.maximum(x, 0) - x * label + xp.log1p(xp.exp(-xp.abs(x)))


class L2Loss(Op):
    """Half the sum of the squares of x, a scalar."""

    samples: ClassVar[Any] = (sample((8, 16)), sample((16,)))

    def rule(self, x: TensorType) -> str:
        return f"{' '.join(factor_names(len(x.shape)))} -> "

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), x, dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        return (be.xp.sum(x * x) * 0.5).astype(x.dtype)


class SmoothL1Loss(Op):
    """0.5 d^2 / beta where |d| < beta, |d| - 0.5 beta elsewhere, d = prediction - target.

    reduction: "none", "mean" or "sum" over all elements.
    """

    beta: float = 1.0
    reduction: str = "none"  # type: ignore[misc]  # MindSpore's argument; "none" leaves nothing to combine
    samples: ClassVar[Any] = (
        sample((8, 16), (8, 16)),
        sample((8, 16), (8, 16), beta=0.5, reduction="mean"),
        sample((16,), (16,), reduction="sum"),
    )

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, *types)
        require_same(self.name, *types)
        return inferred

    def rule(self, prediction: TensorType, target: TensorType) -> str:
        if self.reduction not in ("none", "mean", "sum"):
            raise MspcError(f"SmoothL1Loss: reduction is {self.reduction!r}, not 'none', 'mean' or 'sum'")
        names = " ".join(factor_names(len(prediction.shape)))
        return f"{names}, {names} -> {names if self.reduction == 'none' else ''}"

    def bprop(self, b: Builder, prediction: Value, target: Value, out: Value, dout: Value) -> Gradients:
        d = b.emit(Sub(), prediction, target)
        near = b.emit(Greater(), constant(b, self.beta, d), b.emit(Abs(), d))
        slope = b.emit(Select(), near, scaled(b, 1 / self.beta, d), b.emit(Sign(), d))
        if self.reduction == "mean":
            dout = scaled(b, 1 / math.prod(d.shape), dout)
        dx = b.emit(Mul(), slope, dout)
        return dx, b.emit(Neg(), dx)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        prediction, target = inputs
        d = xp.abs(prediction - target)
        loss = xp.where(d < self.beta, d * d * (0.5 / self.beta), d - 0.5 * self.beta)
        if self.reduction == "none":
            return loss
        return xp.mean(loss) if self.reduction == "mean" else xp.sum(loss)
