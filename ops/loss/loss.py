"""Losses and their gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Node, Value
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, FLOAT64, TensorType, dtype_of
from mspc.ops.bases import Binary
from mspc.ops.control.structural import MakeTuple, items
from mspc.ops.cuda.moves import put_values
from mspc.ops.cuda.reductions import Reduction, RowPass, Rows, reduce
from mspc.ops.cuda.text import Operand, accumulating_type
from mspc.ops.device import Array, Device, Launch, in_order
from mspc.ops.math.arithmetic import Div, Greater, Maximum, Mul, Neg, Select, Sub, constant, scaled
from mspc.ops.math.elementwise import Abs, Exp, Sign
from mspc.ops.nn.activation import Sigmoid
from mspc.ops.nn.softmax import log_softmax_of_rows, ranks_of_rows, sent_bytes
from mspc.ops.op import Gradients, Op, RankPlacement, RequestedSharding, sample
from mspc.ops.operator_arguments import require_elements
from mspc.ops.tensor.embedding import OneHot, require_classes
from mspc.ops.tensor.reshape import ExpandDims, ReduceSum, as_dtype
from mspc.sharding.rules import factor_names, parse_rule


class SigmoidCrossEntropyWithLogits(Binary):
    """max(x, 0) - x * label + log(1 + exp(-|x|)), the cross entropy of sigmoid(x) with label."""

    float_only = True
    cuda = "softplus({0}) - {0} * {1}"
    samples = (sample((8, 16), (8, 16)),)

    def bprop(self, b: Builder, x: Value, label: Value, out: Value, dout: Value) -> Gradients:
        dx = b.emit(Mul(), dout, b.emit(Sub(), b.emit(Sigmoid(), x), label))
        return dx, b.emit(Neg(), b.emit(Mul(), dout, x))

    def compute(self, xp: Any, x: Any, label: Any) -> Any:
        return xp.maximum(x, 0) - x * label + xp.log1p(xp.exp(-xp.abs(x)))


class L2Loss(Op):
    """Half the sum of the squares of x, a scalar."""

    float_only = True
    samples = (sample((8, 16)), sample((16,)))

    def rule(self, x: TensorType) -> str:
        return f"{' '.join(factor_names(len(x.shape)))} -> "

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), x, dout),)

    def compute(self, xp: Any, x: Any) -> Any:
        return (xp.sum(x * x) * 0.5).astype(x.dtype)

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        half = Reduction("l2_loss", "Sum", "x * x", "total * (A)0.5")
        return reduce(device, half, x.shape, range(x.ndim), [Operand("x", x)], out)


class _ElementLoss(Op, abstract=True):
    """A loss per element, combined by the field `reduction`: "none", "mean" or "sum" over all elements."""

    float_only = True
    one_type = True

    def rule(self, *types: TensorType) -> str:
        if self.reduction not in ("none", "mean", "sum"):
            raise MspcError(f"{self.name}: reduction is {self.reduction!r}, not 'none', 'mean' or 'sum'")
        if not 2 <= len(types) <= 3:
            raise MspcError(f"{self.name} takes 2 or 3 tensors, not {len(types)}")
        names = " ".join(factor_names(len(types[0].shape)))
        out = names if self.reduction == "none" else ""
        return f"{', '.join([names] * len(types))} -> {out}"

    def combine(self, xp: Any, losses: Any) -> Any:
        if self.reduction == "none":
            return losses
        return xp.mean(losses) if self.reduction == "mean" else xp.sum(losses)

    def share(self, b: Builder, x: Value, dout: Value) -> Value:
        """Return the gradient of the loss of one element."""
        return scaled(b, 1 / (math.prod(x.shape) or 1), dout) if self.reduction == "mean" else dout

    def losses(self, device: Device, text: str, inputs: Sequence[Array], out: Array, after: str = "") -> Launch | None:
        """Return the launch of a loss with the C++ `text`, of the operands x, y and w; after: the expression of their
        total."""
        operands = [Operand(name, array) for name, array in zip("xyw", inputs, strict=False)]
        name = f"loss_{self.reduction}"
        if self.reduction == "none":
            kind = accumulating_type(operands[0].dtype)
            values = " ".join(f"const A {o.name} = wide(p_{o.name}[at]);" for o in operands)
            each = f"[&] {{ {values} return narrow<R>((A)({text})); }}()"
            return put_values(device, name, out, each, [(f"p_{o.name}", o.array) for o in operands],
                              common=f"typedef {kind} A;\n")  # fmt: skip
        x = inputs[0]
        after = after or (f"total / (A){x.size}" if self.reduction == "mean" else "total")
        return reduce(device, Reduction(name, "Sum", text, after), x.shape, range(x.ndim), operands, out)


class SmoothL1Loss(_ElementLoss):
    """0.5 d^2 / beta if |d| < beta, else |d| - 0.5 beta, for d = prediction - target."""

    beta: float = 1.0
    reduction: str = "none"  # type: ignore[misc]  # MindSpore's argument; "none" leaves nothing to combine
    samples = (
        sample((8, 16), (8, 16)),
        sample((8, 16), (8, 16), beta=0.5, reduction="mean"),
        sample((16,), (16,), reduction="sum"),
    )

    def bprop(self, b: Builder, prediction: Value, target: Value, out: Value, dout: Value) -> Gradients:
        d = b.emit(Sub(), prediction, target)
        near = b.emit(Greater(), constant(b, self.beta, d), b.emit(Abs(), d))
        slope = b.emit(Select(), near, scaled(b, 1 / self.beta, d), b.emit(Sign(), d))
        dx = b.emit(Mul(), slope, self.share(b, d, dout))
        return dx, b.emit(Neg(), dx)

    def compute(self, xp: Any, prediction: Any, target: Any) -> Any:
        d = xp.abs(prediction - target)
        return self.combine(xp, xp.where(d < self.beta, d * d * (0.5 / self.beta), d - 0.5 * self.beta))

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        d = "magnitude(x - y)"
        beta = f"(A){self.beta}"
        text = f"{d} < {beta} ? {d} * {d} * ((A)0.5 / {beta}) : {d} - (A)0.5 * {beta}"
        return self.losses(device, text, inputs, out)


def _clamped_log(xp: Any, x: Any) -> Any:
    """Return log(x), clamped to at least -100."""
    zero = x == 0
    return xp.maximum(xp.where(zero, -100, xp.log(xp.where(zero, 1, x))), -100)


class BinaryCrossEntropy(_ElementLoss):
    """-(y log(x) + (1 - y) log(1 - x)) for probabilities x and labels y, times an optional weight.

    Logarithms are not below -100. Labels and weights get no gradient.
    """

    reduction: str = "mean"  # type: ignore[misc]  # MindSpore's argument
    samples = (
        sample((8, 16), (8, 16), low=0.1, high=0.9, gradient=False),
        sample((8, 16), (8, 16), (8, 16), low=0.1, high=0.9, reduction="sum", gradient=False),
        sample((16,), (16,), low=0.1, high=0.9, reduction="none", gradient=False),
    )

    def bprop(self, b: Builder, x: Value, y: Value, *rest: Any) -> Gradients:
        *weights, _, dout = rest
        one = constant(b, 1, x)
        spread = b.emit(Mul(), x, b.emit(Sub(), one, x))
        slope: Value = b.emit(Div(), b.emit(Sub(), x, y), b.emit(Maximum(), spread, constant(b, 1e-12, x)))
        if weights:
            slope = b.emit(Mul(), slope, weights[0])
        return b.emit(Mul(), slope, self.share(b, x, dout)), None, *[None] * len(weights)

    def compute(self, xp: Any, x: Any, y: Any, *weights: Any) -> Any:
        yes, no = _clamped_log(xp, x), _clamped_log(xp, 1 - x)
        losses = -(y * yes + (1 - y) * no)
        return self.combine(xp, losses * weights[0] if weights else losses)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        yes, no = (f"Largest::of(log_of({p}), (A)-100)" for p in ("x", "1 - x"))
        weight = " * w" if len(inputs) > 2 else ""
        return self.losses(device, f"-(y * {yes} + (1 - y) * {no}){weight}", inputs, out)


class KLDivLoss(_ElementLoss):
    """y (log(y) - x) for logarithms x and probabilities y; 0 if y is 0. Labels get no gradient. The reduction
    "batchmean" is the sum over the size of dimension 0."""

    reduction: str = "mean"  # type: ignore[misc]  # MindSpore's argument
    samples = (
        sample((8, 16), (8, 16), low=0.1, high=0.9, gradient=False),
        sample((8, 16), (8, 16), low=0.1, high=0.9, reduction="none", gradient=False),
        sample((16,), (16,), low=0.1, high=0.9, reduction="sum", gradient=False),
    )

    def rule(self, *types: TensorType) -> Any:
        if self.reduction != "batchmean":
            return super().rule(*types)
        if not types[0].shape:
            raise MspcError(f"{self.name}: the reduction 'batchmean' takes tensors that have a dimension")
        return parse_rule(replace(self, reduction="sum").rule(*types), [t.shape for t in types], self.name)

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        if self.reduction != "batchmean":
            return None
        total = b.emit(replace(self, reduction="sum"), *inputs)
        total.in_strategy = asked.in_strategy
        return (scaled(b, 1 / (inputs[0].shape[0] or 1), total),)

    def combine(self, xp: Any, losses: Any) -> Any:
        return xp.sum(losses) / len(losses) if self.reduction == "batchmean" else super().combine(xp, losses)

    def share(self, b: Builder, x: Value, dout: Value) -> Value:
        return scaled(b, 1 / (x.shape[0] or 1), dout) if self.reduction == "batchmean" else super().share(b, x, dout)

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(Neg(), b.emit(Mul(), y, self.share(b, x, dout))), None

    def compute(self, xp: Any, x: Any, y: Any) -> Any:
        return self.combine(xp, y * (xp.log(xp.where(y == 0, xp.ones_like(y), y)) - x))

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        after = f"total / (A){inputs[0].shape[0]}" if self.reduction == "batchmean" else ""
        return self.losses(device, "y * (log_of(y == 0 ? (A)1 : y) - x)", inputs, out, after)


def log_softmax(xp: Any, logits: Any) -> Any:
    """Return the logarithm of softmax along the last axis, in a new array."""
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    shifted -= xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))
    return shifted


_ROW_MAX = RowPass((("most", "Largest", "x"),))
_LOG_SOFTMAX = (_ROW_MAX, RowPass((("total", "Sum", "exp_of(x)"),), "x = x - most;", "total = log_of(total);"))


class SoftmaxCrossEntropyWithLogits(Op):
    """Cross entropy of every row of logits[n, c] with labels[n, c], and its derivative in the logits: (loss[n], [n,
    c]).

    If the classes are sharded, ranks exchange the largest and the sum of every row, and have parts of its loss. The
    labels of a row sum to 1 and get no gradient, as in MindSpore.
    """

    distributions = (1,)
    float_only = True
    one_type = True
    samples = (sample((8, 16), (8, 16), low=0.05, high=1.0, gradient=False),)

    def rule(self, logits: TensorType, labels: TensorType) -> str:
        require_elements(self.name, logits.shape, range(1, len(logits.shape)), "class")
        return "a c, a c -> +a, a c"

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        ranks = ranks_of_rows(placement, (1,))
        if len(ranks) == 1:
            return None
        kind = inputs[0].tensor_type.dtype
        logs = log_softmax_of_rows(b, ranks, (1,), inputs[0])
        labels = as_dtype(b, inputs[1], logs.tensor_type.dtype)
        loss = b.emit(Neg(), b.emit(ReduceSum(False, (1,)), b.emit(Mul(), labels, logs)))
        slope = b.emit(Sub(), b.emit(Exp(), logs), labels)
        return b.emit(MakeTuple(), as_dtype(b, loss, kind), as_dtype(b, slope, kind))

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        return sent_bytes(types[0], layouts[0], (1,), 2)

    def bprop(self, b: Builder, logits: Value, labels: Value, out: Node, dout: Any) -> Gradients:
        if dout[0] is None:
            return None, None
        _, slope = items(b, out, 2)
        return b.emit(Mul(), slope, b.emit(ExpandDims(-1), dout[0])), None

    def compute(self, xp: Any, logits: Any, labels: Any) -> Any:
        logs = log_softmax(xp, logits)
        return -xp.sum(labels * logs, axis=-1), xp.exp(logs) - labels

    def launch(self, device: Device, out: Any, logits: Array, labels: Array) -> Launch | None:
        loss, slope = out
        rows, columns = logits.shape
        stages = (*_LOG_SOFTMAX, RowPass((("loss", "Sum", "y * x"),), "x = x - total;"))
        return Rows(
            "cross_entropy", rows, columns, dtype_of(logits.dtype), stages,
            [Operand("x", logits), Operand("y", labels)],
            results=[(slope, "exp_of(x) - y")], row_results=[(loss, "-loss")],
        ).launch(device)  # fmt: skip


class SparseSoftmaxCrossEntropyWithLogits(Op):
    """The mean cross entropy of logits[n, c] with the classes labels[n]; with is_grad its derivative in the logits.

    batch: the global number of rows, 0 if this rank has all. If the classes are sharded, ranks exchange the largest and
    the sum of every row.
    """

    is_grad: bool = False
    batch: int = 0
    reduction = "mean"
    integers = (1,)
    float_only = True
    samples = (
        sample((8, 16), (8,), dtypes=("Float64", "Int32"), low=0, high=16),
        sample((8, 16), (8,), dtypes=("Float64", "Int32"), low=0, high=16, is_grad=True, gradient=False),
    )

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: types[0].shape[1]}

    def rule(self, logits: TensorType, labels: TensorType) -> str:
        require_elements(self.name, logits.shape, range(1, len(logits.shape)), "class")
        return "a c, a -> a c" if self.is_grad else "a c, a -> "

    def bprop(self, b: Builder, logits: Value, labels: Value, out: Value, dout: Value) -> Gradients:
        if self.is_grad:
            raise MspcError(f"{self.name} has no gradient: it is a gradient already (is_grad)", code="E0310")
        return b.emit(Mul(), b.emit(SparseSoftmaxCrossEntropyWithLogits(True), logits, labels), dout), None

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        ranks = ranks_of_rows(placement, (1,))
        if len(ranks) == 1:
            return None
        logits, labels = inputs
        rows, classes = placement.in_types[0].shape
        first = placement.in_layouts[0].slices_for(placement.rank, (rows, classes))[1].start
        logs = log_softmax_of_rows(b, ranks, (1,), logits)
        kind = logs.tensor_type.dtype
        hit = OneHot(depth=logits.shape[1], offset=first, classes=classes)
        chosen = b.emit(hit, labels, b.constant(1.0, kind), b.constant(0.0, kind))
        if self.is_grad:
            slope = b.emit(Sub(), b.emit(Exp(), logs), chosen)
            found = b.emit(Mul(), slope, b.constant(1 / max(rows, 1), kind))
        else:
            # The mean over ranks also divides by the number of ranks of a row, only one of which has the row's class.
            total = b.emit(ReduceSum(False, (0, 1)), b.emit(Mul(), chosen, logs))
            mean = -len(ranks) / logits.shape[0] if logits.shape[0] else math.nan
            found = b.emit(Mul(), total, b.constant(mean, kind))
        return as_dtype(b, found, logits.tensor_type.dtype)

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        return sent_bytes(types[0], layouts[0], (1,), 2)

    def compute(self, xp: Any, logits: Any, labels: Any) -> Any:
        require_classes(xp, labels, logits.shape[1])
        logs = log_softmax(xp, logits)
        places = (xp.arange(labels.shape[0]), labels)
        if not self.is_grad:
            return -xp.mean(logs[places])
        grad = xp.exp(logs)
        grad[places] -= 1
        grad /= self.batch or labels.shape[0]
        return grad

    def launch(self, device: Device, out: Any, logits: Array, labels: Array) -> Launch | None:
        rows, columns = logits.shape
        if not rows * columns:
            return None
        dtype = dtype_of(logits.dtype)
        full, by_row = [Operand("x", logits)], [Operand("label", labels)]
        before = "const int target = (int)label + (label < 0 ? (int)COLUMNS : 0);"
        if self.is_grad:
            stages = (
                _ROW_MAX,
                RowPass((("total", "Sum", "x"),), "x = exp_of(x - most);", "total = 1 / total;"),
            )
            slope = f"(x * total - (A)(column == target)) / (A){self.batch or rows}"
            made = Rows("sparse_cross_entropy_gradient", rows, columns, dtype, stages, full, by_row,
                        results=[(out, slope)], before=before)  # fmt: skip
            return made.launch(device)
        mean_type = FLOAT64 if accumulating_type(dtype) == "double" else FLOAT32
        losses = device.scratch(rows * mean_type.itemsize).view(mean_type.numpy)
        totals = (("total", "Sum", "exp_of(x)"), ("chosen", "Sum", "column == target ? x : (A)0"))
        first = Rows(
            "sparse_cross_entropy", rows, columns, dtype, (_ROW_MAX, RowPass(totals, "x = x - most;")), full, by_row,
            row_results=[(losses, "log_of(total) - chosen")], before=before,
        )  # fmt: skip
        second = Rows("mean_cross_entropy", 1, rows, mean_type, (RowPass((("total", "Sum", "x"),)),),
                      [Operand("x", losses)], row_results=[(out, "total / COLUMNS")])  # fmt: skip
        return in_order(first.launch(device), second.launch(device))

    def localize(self, placement: RankPlacement) -> Op:
        return replace(self, batch=placement.in_types[0].shape[0]) if self.is_grad else self
