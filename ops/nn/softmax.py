"""Softmax, its logarithm and their gradients, also of rows that ranks share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.cpu.blocks import written
from mspc.ops.cuda.reductions import RowPass, normalise
from mspc.ops.cuda.text import Operand
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Div, Mul, Neg, Sub
from mspc.ops.math.elementwise import Exp, Log
from mspc.ops.math.reduce import ReduceMax
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.nn.norm import statistics_dtype
from mspc.ops.op import ArrayBackend, Gradients, Op, RankPlacement, sample
from mspc.ops.operator_arguments import axes_in, ints_of
from mspc.ops.tensor.reshape import ReduceSum, as_dtype
from mspc.sharding.rules import factor_names

Ranks = tuple[int, ...]


def ranks_of_rows(placement: RankPlacement, axes: Sequence[int]) -> Ranks:
    """Return the ranks that have a slice of this rank's rows, which are along `axes` of the first operand; only this
    rank if the rows have no elements."""
    layout = placement.in_layouts[0]
    if 0 in (placement.in_types[0].shape[d] for d in axes):
        return (placement.rank,)
    along = [a for d in axes for a in layout.dims[d]]
    return tuple(sorted(layout.group(along, placement.rank))) if along else (placement.rank,)


def sent_bytes(type: TensorType, layout: Layout, axes: Sequence[int], numbers: int) -> float:
    """Return the bytes that a rank sends for this many numbers of each of its rows, of an operand of this (global)
    type."""
    group = layout.size_of(a for d in axes for a in layout.dims[d])
    if group == 1:
        return 0.0
    rows = math.prod(n // layout.strategy[d] for d, n in enumerate(type.shape) if d not in axes)
    return AllReduce.sent_bytes(numbers * rows * statistics_dtype(type.dtype).itemsize, group)


def total_of_rows(b: Builder, ranks: Ranks, axes: tuple[int, ...], value: Value) -> Value:
    """Return the sum of rows with all of their slices, one element each."""
    return _combined(b, ranks, b.emit(ReduceSum(True, axes), value), "sum")


def moved_rows(b: Builder, ranks: Ranks, axes: tuple[int, ...], x: Value) -> tuple[Value, Value, Value]:
    """Return (rows less their largest, the exponential of these, its sum over all slices), wide enough for sums."""
    wide = as_dtype(b, x, statistics_dtype(x.tensor_type.dtype))
    moved = b.emit(Sub(), wide, _combined(b, ranks, b.emit(ReduceMax(True, axes), wide), "max"))
    power = b.emit(Exp(), moved)
    return moved, power, total_of_rows(b, ranks, axes, power)


def log_softmax_of_rows(b: Builder, ranks: Ranks, axes: tuple[int, ...], x: Value) -> Value:
    """Return the logarithm of the softmax of rows, wide enough for sums."""
    moved, _, total = moved_rows(b, ranks, axes, x)
    return b.emit(Sub(), moved, b.emit(Log(), total))


def _combined(b: Builder, ranks: Ranks, value: Value, op: str) -> Value:
    found = b.emit(AllReduce(op).with_ranks(ranks), value)
    found.attrs["reason"] = f"the {_NAMES[op]} of rows, of which each rank has a slice"
    return found


_NAMES = {"sum": "sum", "max": "largest element"}
Axis = int | tuple[int, ...]


class _Normalised(Op, abstract=True):
    """numbers: of every row that ranks exchange if the axis is sharded."""

    numbers: ClassVar[int] = 2
    float_only = True
    one_type = True
    fills = True
    in_place = True

    @property
    def axis_field(self) -> str:
        """The attribute that names the axis."""
        return "dim" if hasattr(self, "dim") else "axis"

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        order = next(order for order in orders if not order.is_plain)
        axes = tuple(order.place(d) for d in self.row_axes(*types))
        if None in axes:
            return None
        axis: Any = axes if isinstance(getattr(self, self.axis_field), tuple) else axes[0]
        changed: dict[str, Any] = {self.axis_field: axis}
        return Reordered(replace(self, **changed), (order,) * len(types), (order,))

    def rule(self, *types: TensorType) -> str:
        self.row_axes(*types)
        side = " ".join(factor_names(types[0].rank))
        return f"{', '.join([side] * len(types))} -> {side}"

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        axes = self.row_axes(placement.in_types[0])
        ranks = ranks_of_rows(placement, axes)
        if len(ranks) == 1:
            return None
        return as_dtype(b, self.of_slices(b, ranks, axes, *inputs), inputs[0].tensor_type.dtype)

    def of_slices(self, b: Builder, ranks: Ranks, axes: tuple[int, ...], *inputs: Value) -> Value:
        """Emit the operators that replace this one if its rows are sharded over ranks."""
        raise NotImplementedError

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        return sent_bytes(types[0], layouts[0], self.row_axes(types[0]), self.numbers)

    def of_rows(self, xp: Any, axes: tuple[int, ...], *operands: Any) -> Any:
        """Return the result of arrays with rows along `axes`."""
        raise NotImplementedError

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        def kernel(*operands: Any, out: Any = None) -> Any:
            axes = axes_in(self.name, ints_of(self.name, "axis", getattr(self, self.axis_field)), operands[0].ndim)
            found = self.of_rows(be.xp, axes, *operands) if operands[0].size else operands[0].copy()
            return found if out is None else written(found, out)

        return kernel

    def row_axes(self, *types: TensorType) -> tuple[int, ...]:
        if not types[0].shape:
            raise MspcError(f"{self.name}: a number has no axis {getattr(self, self.axis_field)}", kind=ValueError)
        axis: Axis = getattr(self, self.axis_field)
        return axes_in(self.name, ints_of(self.name, "axis", axis), types[0].rank)


_ONE = (
    sample((8, 16)),
    sample((4, 8, 8), axis=1),
    sample((8,), axis=0),
    sample((8, 16), low=-900, high=900, gradient=False),
)


class Softmax(_Normalised):
    """exp(x) over its sum along `axis`."""

    axis: Axis = -1
    samples = (*_ONE, sample((8, 4, 4), axis=(1, 2)))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(SoftmaxBackward(self.axis), dout, out),)

    def of_slices(self, b: Builder, ranks: Ranks, axes: tuple[int, ...], *inputs: Value) -> Value:
        _, power, total = moved_rows(b, ranks, axes, inputs[0])
        return b.emit(Div(), power, total)

    row_lines = (
        "ReduceMax(x0, AXES)", "Sub(x0, t0)", "Exp(t1)", "ReduceSum(t2, AXES)", "Reciprocal(t3)", "Mul(t2, t4)",
    )  # fmt: skip

    def of_rows(self, xp: Any, axes: tuple[int, ...], x: Any) -> Any:
        power = xp.exp(x - xp.max(x, axis=axes, keepdims=True))
        return power / xp.sum(power, axis=axes, keepdims=True)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        stages = (
            RowPass((("most", "Largest", "x"),)),
            RowPass((("total", "Sum", "x"),), "x = exp_of(x - most);", "total = 1 / total;"),
        )
        return normalise(device, "softmax", self.axis, [Operand("x", inputs[0])], out, stages, "x * total")


class SoftmaxBackward(_Normalised):
    """Gradient of Softmax: (dout - sum(dout * out)) * out, the sum along `dim`."""

    dim: Axis = -1
    numbers = 1
    linear_in = (0,)
    samples = (sample((8, 16), (8, 16)), sample((4, 8, 8), (4, 8, 8), dim=1))

    def bprop(self, b: Builder, dy: Value, y: Value, out: Value, dout: Value) -> Gradients:
        axes = axes_in(self.name, ints_of(self.name, "dim", self.dim), len(y.shape))
        keep = ReduceSum(True, axes)
        inner = b.emit(keep, b.emit(Mul(), dy, y))
        outer = b.emit(keep, b.emit(Mul(), dout, y))
        # Derivative of sum over i of dout_i (dy_i - inner) y_i in y_j.
        first = b.emit(Mul(), dout, b.emit(Sub(), dy, inner))
        second = b.emit(Mul(), dy, outer)
        return b.emit(SoftmaxBackward(self.dim), dout, y), b.emit(Sub(), first, second)

    def of_slices(self, b: Builder, ranks: Ranks, axes: tuple[int, ...], *inputs: Value) -> Value:
        dout, out = (as_dtype(b, value, statistics_dtype(value.tensor_type.dtype)) for value in inputs)
        product = b.emit(Mul(), dout, out)
        return b.emit(Sub(), product, b.emit(Mul(), out, total_of_rows(b, ranks, axes, product)))

    row_lines = ("Mul(x0, x1)", "ReduceSum(t0, AXES)", "Mul(x1, t1)", "Sub(t0, t2)")

    def of_rows(self, xp: Any, axes: tuple[int, ...], dout: Any, out: Any) -> Any:
        product = dout * out
        return product - out * xp.sum(product, axis=axes, keepdims=True)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        stages = (RowPass((("total", "Sum", "g"),), "g = g * y;"),)
        operands = [Operand("g", inputs[0]), Operand("y", inputs[1])]
        return normalise(device, "softmax_gradient", self.dim, operands, out, stages, "g - y * total")


class LogSoftmax(_Normalised):
    """x minus the logarithm of the sum of exp(x) along `axis`."""

    axis: int = -1
    samples = _ONE

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(LogSoftmaxGrad(self.axis), out, dout),)

    def of_slices(self, b: Builder, ranks: Ranks, axes: tuple[int, ...], *inputs: Value) -> Value:
        return log_softmax_of_rows(b, ranks, axes, inputs[0])

    def as_rows(self, b: Builder, x: Value) -> Sequence[Value]:
        """Emit the operator along rows. The gradient needs two numbers of a row, its largest element and the logarithm
        of its sum, in addition to the row's elements."""
        wide = as_dtype(b, x, statistics_dtype(x.tensor_type.dtype))
        axes = self.row_axes(x.tensor_type)
        below = b.emit(Sub(), wide, b.emit(ReduceMax(True, axes), wide))
        total = b.emit(ReduceSum(True, axes), b.emit(Exp(), below))
        return (as_dtype(b, b.emit(Sub(), below, b.emit(Log(), total)), x.tensor_type.dtype),)

    row_lines = ("ReduceMax(x0, AXES)", "Sub(x0, t0)", "Exp(t1)", "ReduceSum(t2, AXES)", "Log(t3)", "Sub(t1, t4)")

    def of_rows(self, xp: Any, axes: tuple[int, ...], x: Any) -> Any:
        moved = x - xp.max(x, axis=axes, keepdims=True)
        return moved - xp.log(xp.sum(xp.exp(moved), axis=axes, keepdims=True))

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        stages = (
            RowPass((("most", "Largest", "x"),)),
            RowPass((("total", "Sum", "exp_of(x)"),), "x = x - most;", "total = log_of(total);"),
        )
        return normalise(device, "log_softmax", self.axis, [Operand("x", inputs[0])], out, stages, "x - total")


class LogSoftmaxGrad(_Normalised):
    """Gradient of LogSoftmax: dout - exp(out) * sum(dout), the sum along `axis`."""

    axis: int = -1
    numbers = 1
    linear_in = (1,)
    samples = (sample((8, 16), (8, 16)), sample((4, 8, 8), (4, 8, 8), axis=1))

    def bprop(self, b: Builder, out: Value, dy: Value, result: Value, dout: Value) -> Gradients:
        weights = b.emit(Mul(), b.emit(Exp(), out), dout)
        total, along = (b.emit(ReduceSum(True, (self.axis,)), value) for value in (dy, weights))
        return b.emit(Neg(), b.emit(Mul(), weights, total)), b.emit(Sub(), dout, along)

    def of_slices(self, b: Builder, ranks: Ranks, axes: tuple[int, ...], *inputs: Value) -> Value:
        out, dout = (as_dtype(b, value, statistics_dtype(value.tensor_type.dtype)) for value in inputs)
        total = total_of_rows(b, ranks, axes, dout)
        return b.emit(Sub(), dout, b.emit(Mul(), b.emit(Exp(), out), total))

    row_lines = ("ReduceSum(x1, AXES)", "Exp(x0)", "Mul(t1, t0)", "Sub(x1, t2)")

    def of_rows(self, xp: Any, axes: tuple[int, ...], out: Any, dout: Any) -> Any:
        return dout - xp.exp(out) * xp.sum(dout, axis=axes, keepdims=True)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        stages = (RowPass((("total", "Sum", "g"),)),)
        operands = [Operand("y", inputs[0]), Operand("g", inputs[1])]
        return normalise(device, "log_softmax_gradient", self.axis, operands, out, stages, "g - exp_of(y) * total")
