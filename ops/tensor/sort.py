"""Sort sorts along a dimension, and gives the places as Int32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.graph import Node, Value, element_types
from mspc.ir.types import INT32, TensorType, TupleType
from mspc.ops.control.structural import items
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.operator_arguments import axis_in
from mspc.ops.tensor.ordering import ascending, descending
from mspc.ops.tensor.selection import GatherDGrad, along


class Sort(Op):
    """x in order along `axis`, and the places that the elements come from: a tuple of two. Equal ones keep their order,
    what is no number stands behind all others, or before them where the order is `descending`."""

    axis: int = -1
    descending: bool = False
    samples = (sample((8, 16)), sample((4, 8, 2), axis=1, descending=True))

    def rule(self, x: TensorType) -> str:
        names, _ = along(self.name, len(x.shape), self.axis)
        return f"{' '.join(names)} -> {', '.join([' '.join(names)] * 2)}"

    def infer(self, *types: Any) -> Any:
        value, _ = element_types(super().infer(*types))
        return TupleType((value, TensorType(INT32, value.shape)))

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Sequence[Value | None]:
        if dout[0] is None:
            return (None,)
        axis = axis_in(self.name, self.axis, len(x.shape))
        return (b.emit(GatherDGrad(axis, x.shape[axis]), items(b, out, 2)[1], dout[0]),)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.sorted_lines import sort_lines  # late: only a GPU needs it

        (x,), (values, places) = inputs, out
        return sort_lines(device, x, axis_in(self.name, self.axis, x.ndim), self.descending, values, places)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        places = (descending if self.descending else ascending)(xp, x, self.axis)
        return xp.take_along_axis(x, places, axis=self.axis), places.astype(xp.int32)
