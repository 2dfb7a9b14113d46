"""These operators compute running maxima and minima, and their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.graph import Node, Value
from mspc.ir.types import INT64, TensorType, TupleType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.operator_arguments import axis_in
from mspc.ops.tensor.selection import GatherDGrad, along

Gradients = Sequence[Value | None]


class _Extreme(Op, abstract=True):
    """Along `axis` the extreme element so far and where it is, the last one of several, Int64: a tuple of two. From a
    NaN on it is that."""

    axis: int = 0
    samples = (sample((8, 16)), sample((4, 2, 8), axis=-2))

    def rule(self, x: TensorType) -> str:
        names = " ".join(along(self.name, len(x.shape), self.axis)[0])
        return f"{names} -> {names}, {names}"

    def infer(self, *types: Any) -> Any:
        super().infer(*types)
        return TupleType((types[0], TensorType(INT64, types[0].shape)))

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        if dout[0] is None:
            return (None,)
        axis = axis_in(self.name, self.axis, len(x.shape))
        return (b.emit(GatherDGrad(axis, x.shape[axis]), b.emit(TupleGetItem(1), out), dout[0]),)

    def precedes(self, xp: Any, x: Any, best: Any) -> Any:
        """Where an element takes the place of the one before."""
        raise NotImplementedError

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        x = xp.moveaxis(inputs[0], self.axis, 0)
        values, places = xp.array(x), xp.zeros(x.shape, xp.int64)
        for i in range(1, len(x)):
            taken = self.precedes(xp, x[i], values[i - 1]) | (x[i] != x[i])
            values[i] = xp.where(taken, x[i], values[i - 1])
            places[i] = xp.where(taken, i, places[i - 1])
        back = [xp.ascontiguousarray(xp.moveaxis(array, 0, self.axis)) for array in (values, places)]
        return back[0], back[1]


class Cummax(_Extreme):
    """The greatest element so far along `axis` and its place: a tuple of two. Called as `Cummax(axis)(x)`."""

    samples = _Extreme.samples

    def precedes(self, xp: Any, x: Any, best: Any) -> Any:
        return x >= best


class Cummin(_Extreme):
    """The smallest element so far along `axis` and its place: a tuple of two. Called as `Cummin(axis)(x)`."""

    samples = _Extreme.samples

    def precedes(self, xp: Any, x: Any, best: Any) -> Any:
        return x <= best
