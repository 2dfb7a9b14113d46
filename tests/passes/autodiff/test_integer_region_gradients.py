"""Gradients with respect to integers through nodes that run graphs: the same programs in plain Python, on numbers that
carry their slopes, say what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from mspc.ir.graph import Builder, Constant, Graph, Value
from mspc.ir.types import BOOL, INT32, INT64, TensorType
from mspc.ops.control.regions import Call, For, If, Scan, While
from mspc.ops.math.arithmetic import Add, Greater, Less, LogicalAnd, Mul
from mspc.ops.tensor.reshape import Cast, ReduceSum
from mspc.passes.autodiff.grad import Grad
from mspc.passes.cleanup.simplify import Simplify
from tests.passes.autodiff.differentiated import COUNT, checked, floats, graph, region, run, with_gradients

NUMBER = TensorType(INT32, ())
FLAG = TensorType(BOOL, ())


class Slope(NamedTuple):
    """An integer of plain Python, and how much it grows with the one that is differentiated by."""

    value: int
    slope: int = 0

    def plus(self, other: Slope) -> Slope:
        return Slope(self.value + other.value, self.slope + other.slope)

    def times(self, other: Slope) -> Slope:
        return Slope(self.value * other.value, self.slope * other.value + self.value * other.slope)


def constant(value: int) -> Constant:
    return Constant(value, INT32)


def assert_slopes(
    main: Callable[[Builder, Value, Value], list[Value]], program: Callable[[Slope, Slope], Slope],
    pairs: list[tuple[int, int]],
) -> None:  # fmt: skip
    """The gradients of the graph of two integers are the slopes of the program, as made and simplified."""
    for passes in ([Grad()], [Grad(), Simplify()]):
        made = with_gradients(lambda: graph("main", [NUMBER, NUMBER], main), [0, 1])
        for step in passes:
            step.run(made)
        checked(made)
        for x, y in pairs:
            expected = [program(Slope(x, 1), Slope(y)).slope, program(Slope(x), Slope(y, 1)).slope]
            found = run(made, [np.array(x, np.int32), np.array(y, np.int32)])
            assert [each.dtype for each in found] == [np.int32, np.int32]
            assert [int(each) for each in found] == expected, (x, y)


def test_a_loop_that_stops_within_a_turn() -> None:
    """The flag that is carried, a truth value, decides about the turns alone."""

    def main(b: Builder, x: Value, y: Value) -> list[Value]:
        types = [NUMBER, FLAG, NUMBER]

        def go_on(b: Builder, x: Value, flag: Value, y: Value) -> list[Value]:
            return [b.emit(LogicalAnd(), flag, b.emit(Less(), x, constant(90)))]

        def turn(b: Builder, x: Value, flag: Value, y: Value) -> list[Value]:
            then = graph("stop", [NUMBER] * 2, lambda b, x, y: [b.emit(Mul(), x, constant(7)), Constant(False, BOOL)])
            other = graph("go", [NUMBER] * 2, lambda b, x, y: [b.emit(Mul(), x, y), Constant(True, BOOL)])
            return region(b, If(), [b.emit(Greater(), x, constant(20)), x, y], then, other)

        loops = graph("condition", types, go_on), graph("body", types, turn)
        return region(b, While(carried=2), [x, Constant(True, BOOL), y], *loops)[:1]

    def program(x: Slope, y: Slope) -> Slope:
        while x.value < 90:
            if x.value > 20:
                return x.times(Slope(7))
            x = x.times(y)
        return x

    assert_slopes(main, program, [(2, 3), (30, 2), (100, 5), (10, 9)])


@pytest.mark.parametrize("counted", [False, True])
def test_a_counted_loop_of_calls(counted: bool) -> None:
    """Carried and captured values have gradients; the number of turns has none."""

    def main(b: Builder, x: Value, y: Value) -> list[Value]:
        inner = graph("inner", [NUMBER] * 2, lambda b, x, y: [b.emit(Add(), b.emit(Mul(), x, y), x)])
        body = graph("body", [COUNT, NUMBER, NUMBER], lambda b, i, x, y: region(b, Call(), [x, y], inner))
        count = [b.emit(Cast(INT64), y)] if counted else []
        return region(b, For(carried=1, turns=-1 if counted else 3), [*count, x, y], body)

    def program(x: Slope, y: Slope) -> Slope:
        for _ in range(y.value if counted else 3):
            x = x.times(y).plus(x)
        return x

    assert_slopes(main, program, [(2, 3), (1, 1), (5, 4)])


def test_a_scan() -> None:
    """The gradient of what is scanned is stacked."""
    rows = TensorType(INT32, (4, 2))

    def make() -> Graph:
        entry = TensorType(INT32, (2,))

        def turn(b: Builder, h: Value, x: Value) -> list[Value]:
            new = b.emit(Add(), b.emit(Mul(), h, x), x)
            return [new, b.emit(Mul(), new, new)]

        body = graph("body", [entry, entry], turn)

        def main(b: Builder, h: Value, x: Value) -> list[Value]:
            last, squares = region(b, Scan(carried=1, scanned=1, stacked=1, turns=4), [h, x], body)
            return [b.emit(Add(), b.emit(ReduceSum(), last), b.emit(ReduceSum(), squares))]

        return graph("main", [entry, rows], main)

    made = with_gradients(make, [0, 1])
    Grad().run(made)
    checked(made)
    h, x = np.array([1, 2], np.int32), np.array([[1, 2], [2, 1], [3, 1], [1, 2]], np.int32)
    of_h, of_x = run(made, [h, x])
    for column in range(2):
        for place in range(-1, 4):
            now, total = Slope(int(h[column]), int(place == -1)), Slope(0)
            for row in range(4):
                entry = Slope(int(x[row, column]), int(row == place))
                now = now.times(entry).plus(entry)
                total = total.plus(now.times(now))
            expected = now.plus(total).slope
            assert (of_h[column] if place == -1 else of_x[place, column]) == expected


def scaled(b: Builder, x: Value, z: Value) -> list[Value]:
    """A loop carries x, of integers, and z, of floats, which x scales."""

    def turn(b: Builder, x: Value, z: Value) -> list[Value]:
        return [b.emit(Mul(), x, x), b.emit(Mul(), z, b.emit(Cast(floats().dtype), x))]

    types = [NUMBER, floats()]
    condition = graph("condition", types, lambda b, x, z: [b.emit(Less(), x, constant(50))])
    return region(b, While(carried=2), [x, z], condition, graph("body", types, turn))


def test_integers_beside_floats() -> None:
    """Both have gradients, of their own types."""

    def main(b: Builder, x: Value, z: Value) -> list[Value]:
        last, product = scaled(b, x, z)
        return [b.emit(Mul(), product, b.emit(Cast(floats().dtype), last))]

    made = with_gradients(lambda: graph("main", [NUMBER, floats()], main), [0, 1])
    Grad().run(made)
    checked(made)
    of_x, of_z = run(made, [np.array(3, np.int32), np.array(2.0)])
    # x = 3, 9, 81: z * 3 * 9 * 81 is z * x**7
    assert (of_x.dtype, int(of_x)) == (np.dtype(np.int32), 2 * 7 * 3**6)
    assert (of_z.dtype, float(of_z)) == (np.dtype(np.float64), 3.0**7)


def test_integers_that_nobody_asks_for_have_no_gradients() -> None:
    """With respect to z alone, the loop of integers and floats hands on the gradient of z and nothing else."""
    made = with_gradients(lambda: graph("main", [NUMBER, floats()], lambda b, x, z: scaled(b, x, z)[1:]), [1])
    Grad().run(made)
    (backward,) = (node for node in made.nodes if node.regions and node.phase == "backward")
    assert len(backward.regions[0].results) == 1
    (of_z,) = run(made, [np.array(3, np.int32), np.array(0.5)])
    assert float(of_z) == 3.0 * 9.0


def test_truth_values() -> None:
    """A value about which a truth value decides has no gradient with respect to it; a value cast from it has one."""

    def main(b: Builder, x: Value, flag: Value) -> list[Value]:
        then = graph("then", [NUMBER, FLAG], lambda b, x, f: [b.emit(Mul(), x, b.emit(Cast(INT32), f))])
        other = graph("else", [NUMBER, FLAG], lambda b, x, f: [x])
        return region(b, If(), [flag, x, flag], then, other)

    def repeated(b: Builder, x: Value, flag: Value) -> list[Value]:
        body = graph("body", [COUNT, NUMBER, FLAG], lambda b, i, x, f: [
            b.emit(Add(), b.emit(Mul(), x, x), b.emit(Cast(INT32), f))])  # fmt: skip
        return region(b, For(turns=2, carried=1), [x, flag], body)

    for make, flag, expected in ((main, True, 1), (main, False, 1), (repeated, True, 2 * 26 * 10)):
        made = with_gradients(lambda make=make: graph("main", [NUMBER, FLAG], make), [0, 1])  # type: ignore[misc]
        Grad().run(made)
        of_x, of_flag = run(checked(made), [np.array(5, np.int32), np.array(flag)])
        assert of_flag.dtype == np.dtype(bool)
        assert (int(of_x), bool(of_flag)) == (expected, flag)
