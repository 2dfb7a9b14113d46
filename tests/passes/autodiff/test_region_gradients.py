"""Gradients through nodes that run graphs, compared with finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Value
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT64, TensorType
from mspc.ops.control.regions import Call, For, If, Scan, While
from mspc.ops.control.structural import Gradient, TupleGetItem
from mspc.ops.math.arithmetic import Add, Less, Mul
from mspc.ops.math.elementwise import Sin
from mspc.ops.math.matmul import MatMul
from mspc.ops.nn.activation import Tanh
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.reshape import Cast
from mspc.passes.autodiff.grad import Grad
from tests.passes.autodiff.differentiated import COUNT, assert_gradients, checked, floats, graph, region, run, total_of


def number(value: float) -> Constant:
    return Constant(value, floats().dtype)


def layer(name: str) -> Graph:
    return graph(name, [floats(2, 3), floats(3, 3)], lambda b, x, w: [b.emit(Tanh(), b.emit(MatMul(), x, w))])


def test_a_call() -> None:
    def make() -> Graph:
        inner = layer("layer")

        def main(b: Builder, x: Value, w: Value, v: Value) -> list[Value]:
            for weight in (w, v, w):
                (x,) = region(b, Call(), [x, weight], inner)
            return [b.emit(ReduceSum(), x)]

        return graph("main", [floats(2, 3), floats(3, 3), floats(3, 3)], main, 2)

    made = assert_gradients(make, [0, 1, 2])
    assert [each.name for each in made.graphs()] == ["main", "layer", "layer_gradient"]


@pytest.mark.parametrize("limit", [0.0, 5.0])
def test_a_choice(limit: float) -> None:
    def make() -> Graph:
        then = graph("then", [floats(3), floats(3)], lambda b, x, w: [b.emit(Mul(), b.emit(Sin(), x), w), x])
        other = graph("else", [floats(3), floats(3)], lambda b, x, w: [b.emit(Mul(), x, b.emit(Tanh(), x)), w])

        def main(b: Builder, x: Value, w: Value) -> list[Value]:
            condition = b.emit(Less(), b.emit(ReduceSum(), x), number(limit))
            one, two = region(b, If(), [condition, x, w], then, other)
            return [b.emit(ReduceSum(), b.emit(Mul(), one, b.emit(Sin(), two)))]

        return graph("main", [floats(3), floats(3)], main, 1)

    assert_gradients(make, [0, 1])


def test_a_loop_that_an_operand_counts() -> None:
    def make() -> Graph:
        def turn(b: Builder, _: Value, x: Value, w: Value) -> list[Value]:
            return [b.emit(Tanh(), b.emit(Mul(), x, w)), b.emit(Sin(), x)]

        types = [COUNT, floats(3), floats(3)]
        return total_of(For(carried=1, stacked=1), types, graph("body", types, turn))

    assert_gradients(make, [1, 2])


def test_a_loop_with_a_condition() -> None:
    def make() -> Graph:
        types = [floats(3), floats(3), floats(3)]

        def turn(b: Builder, x: Value, y: Value, w: Value) -> list[Value]:
            z = b.emit(Mul(), x, b.emit(Add(), w, number(1.5)))
            return [z, b.emit(Add(), y, b.emit(Sin(), z))]

        condition = graph("condition", types, lambda b, x, y, w: [b.emit(Less(), b.emit(ReduceSum(), x), number(20.0))])
        body = graph("body", types, turn)

        def main(b: Builder, x: Value, y: Value, w: Value) -> list[Value]:
            one, two = region(b, While(carried=2), [x, y, w], condition, body)
            return [b.emit(ReduceSum(), b.emit(Mul(), one, two))]

        return graph("main", types, main, 1)

    assert_gradients(make, [0, 1, 2])


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan(reverse: bool) -> None:
    def make() -> Graph:
        def turn(b: Builder, h: Value, x: Value, w: Value) -> list[Value]:
            new = b.emit(Tanh(), b.emit(Add(), b.emit(Mul(), h, w), x))
            return [new, b.emit(Mul(), new, x)]

        body = graph("body", [floats(3), floats(3), floats(3)], turn)

        def main(b: Builder, h: Value, rows: Value, w: Value) -> list[Value]:
            op = Scan(turns=4, carried=1, scanned=1, stacked=1, reverse=reverse)
            last, all_of_them = region(b, op, [h, rows, w], body)
            return [b.emit(ReduceSum(), last), b.emit(ReduceSum(), b.emit(Sin(), all_of_them))]

        return graph("main", [floats(3), floats(4, 3), floats(3)], main, 1)

    assert_gradients(make, [0, 1, 2], 2)


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
