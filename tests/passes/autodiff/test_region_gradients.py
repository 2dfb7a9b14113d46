"""Gradients through nodes that run graphs, compared with finite differences."""

from __future__ import annotations

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Value
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT64, TensorType
from mspc.ops.control.regions import For
from mspc.ops.control.structural import Gradient, TupleGetItem
from mspc.ops.math.arithmetic import Mul
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.reshape import Cast
from mspc.passes.autodiff.grad import Grad
from tests.passes.autodiff.differentiated import COUNT, checked, graph, region, run


def test_turns_add_up_gradients_of_narrow_weights_in_float32() -> None:
    """Each of 4,096 turns adds 1/16 to 256 at the end, which Float16 and BFloat16 would lose."""
    for dtype in (FLOAT16, BFLOAT16):
        body = graph("body", [COUNT, TensorType(dtype, ())], lambda b, _, w: [b.emit(Mul(), w, w)])

        def main(b: Builder, w: Value, body: Graph = body) -> list[Value]:
            (each,) = region(b, For(turns=4096, stacked=1), [w], body)
            total = b.emit(ReduceSum(), b.emit(Cast(FLOAT64), each))
            return [b.emit(TupleGetItem(0), b.emit(Gradient(), total, w))]

        made = graph("main", [TensorType(dtype, ())], main)
        Grad().run(made)
        (found,) = run(checked(made), [np.array(1 / 32, dtype.numpy)])
        assert found.dtype == dtype.numpy
        assert float(found) == 256.0
