"""Cross entropy of logits as single operators, also of classes of which every rank has a slice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, FLOAT64, TensorType, dtype_of
from mspc.ops.bases import require_float, require_same
from mspc.ops.control.structural import MakeTuple, items
from mspc.ops.cuda.row_kernels import RowPass, Rows
from mspc.ops.cuda.source import Operand, accumulating_type
from mspc.ops.device import Array, Device, Launch, in_order
from mspc.ops.math.arithmetic import Mul, Neg, Sub
from mspc.ops.math.elementwise import Exp
from mspc.ops.nn.sharded_rows import log_softmax_of_rows, ranks_of_rows, sent_bytes
from mspc.ops.op import ArrayBackend, Op, RankPlacement, sample
from mspc.ops.operator_arguments import require_elements
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.cast import as_dtype
from mspc.ops.tensor.embedding import require_integer
from mspc.ops.tensor.one_hot import OneHot, require_classes
from mspc.ops.tensor.reshape import ExpandDims

Gradients = Sequence[Value | None]


def log_softmax(xp: Any, logits: Any) -> Any:
    """The logarithm of softmax along the last axis, in a new array."""
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    shifted -= xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))
    return shifted


_MOST = RowPass((("most", "Largest", "x"),))
_LOG_SOFTMAX = (_MOST, RowPass((("total", "Sum", "exp_of(x)"),), "x = x - most;", "total = log_of(total);"))


class SoftmaxCrossEntropyWithLogits(Op):
    """Cross entropy of every row of logits[n, c] with labels[n, c], and its derivative in the logits:
    (loss[n], [n, c]).

    Where the classes are sharded, ranks exchange the largest and the sum of every row, and have parts of its loss. The
    labels of a row sum to 1 and get no gradient, as in MindSpore.
    """

    distributions = (1,)
    samples = (sample((8, 16), (8, 16), low=0.05, high=1.0, gradient=False),)

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, *types)
        require_same(self.name, *types)
        return inferred

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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        logits, labels = inputs
        logs = log_softmax(xp, logits)
        return -xp.sum(labels * logs, axis=-1), xp.exp(logs) - labels

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        logits, labels = inputs
        loss, slope = out
        rows, columns = logits.shape
        stages = (*_LOG_SOFTMAX, RowPass((("loss", "Sum", "y * x"),), "x = x - total;"))
        return Rows(
            "cross_entropy", rows, columns, dtype_of(logits.dtype), stages,
            [Operand("x", logits), Operand("y", labels)],
            results=[(slope, "exp_of(x) - y")], row_results=[(loss, "-loss")],
        ).launch(device)  # fmt: skip


class SparseSoftmaxCrossEntropyWithLogits(Op):
    """The mean cross entropy of logits[n, c] with the classes labels[n]; with is_grad its derivative in the
    logits.

    batch: the global number of rows, 0 where this rank has all. Where the classes are sharded, ranks exchange the
    largest and the sum of every row.
    """

    is_grad: bool = False
    batch: int = 0
    reduction = "mean"
    samples = (
        sample((8, 16), (8,), dtypes=("Float64", "Int32"), low=0, high=16),
        sample((8, 16), (8,), dtypes=("Float64", "Int32"), low=0, high=16, is_grad=True, gradient=False),
    )

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, types[0])
        require_integer(self.name, 1, types[1])
        return inferred

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: types[0].shape[1]}

    def rule(self, logits: TensorType, labels: TensorType) -> str:
        require_elements(self.name, logits.shape, range(1, len(logits.shape)), "class")
        return "a c, a -> a c" if self.is_grad else "a c, a -> "

    def bprop(self, b: Builder, logits: Value, labels: Value, out: Value, dout: Value) -> Gradients:
        if self.is_grad:
            raise MspcError(f"{self.name} has no gradient: it is a gradient already (is_grad)")
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
            # The mean over ranks will divide by those of a row, too, of which one alone has the row's class.
            total = b.emit(ReduceSum(False, (0, 1)), b.emit(Mul(), chosen, logs))
            mean = -len(ranks) / logits.shape[0] if logits.shape[0] else math.nan
            found = b.emit(Mul(), total, b.constant(mean, kind))
        return as_dtype(b, found, logits.tensor_type.dtype)

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        return sent_bytes(types[0], layouts[0], (1,), 2)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        logits, labels = inputs
        require_classes(xp, labels, logits.shape[1])
        logs = log_softmax(xp, logits)
        places = (xp.arange(labels.shape[0]), labels)
        if not self.is_grad:
            return -xp.mean(logs[places])
        grad = xp.exp(logs)
        grad[places] -= 1
        grad /= self.batch or labels.shape[0]
        return grad

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        logits, labels = inputs
        rows, columns = logits.shape
        if not rows * columns:
            return None
        dtype = dtype_of(logits.dtype)
        full, by_row = [Operand("x", logits)], [Operand("label", labels)]
        before = "const int target = (int)label + (label < 0 ? (int)COLUMNS : 0);"
        if self.is_grad:
            stages = (
                _MOST,
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
            "sparse_cross_entropy", rows, columns, dtype, (_MOST, RowPass(totals, "x = x - most;")), full, by_row,
            row_results=[(losses, "log_of(total) - chosen")], before=before,
        )  # fmt: skip
        second = Rows("mean_cross_entropy", 1, rows, mean_type, (RowPass((("total", "Sum", "x"),)),),
                      [Operand("x", losses)], row_results=[(out, "total / COLUMNS")])  # fmt: skip
        return in_order(first.launch(device), second.launch(device))

    def localize(self, placement: RankPlacement) -> Op:
        return replace(self, batch=placement.in_types[0].shape[0]) if self.is_grad else self
