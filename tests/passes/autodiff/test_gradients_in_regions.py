"""Gradients that meet, inside of regions, what is overwritten, drawn, stopped or given by the script, and requests for
gradients that are made inside of regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT64, INT32, INT64, StackType, TensorType
from mspc.ops.control.custom import GradientPlaceholder, OwnGradient
from mspc.ops.control.regions import Call, For, If, MakeStack, Scan, While
from mspc.ops.control.structural import Gradient, StopGradient, TupleGetItem
from mspc.ops.math.arithmetic import Add, Greater, Less, LogicalAnd, Mul, Sub
from tests.errors import error_of
from tests.executors import Grad, Simplify
from tests.graphs import Builder, Constant, Graph, Location, Value
from tests.operators import Assign, AssignAdd, Cast, Cos, Dropout, ReduceSum, Sin, Square, Tanh
from tests.passes.autodiff.differentiated import (
    CONDITION,
    COUNT,
    arrays_for,
    assert_gradients,
    checked,
    floats,
    graph,
    region,
    run,
    total_of,
    with_gradients,
)
from tests.passes.autodiff.unrolled import unrolled
from tests.random_regions import RandomRegions

VECTOR = floats(3)


def number(value: float) -> Constant:
    return Constant(value, FLOAT64)


# Overwritten values --------------------------------------------------------------------------------------------------


def test_a_counter_that_turns_overwrite_is_read_as_it_was() -> None:
    def make() -> Graph:
        def turn(b: Builder, _: Value, x: Value, w: Value, counter: Value) -> list[Value]:
            before = b.emit(Mul(), b.emit(Sin(), x), counter)
            b.emit(AssignAdd(), counter, number(1.0))
            return [b.emit(Mul(), b.emit(Mul(), before, counter), w)]

        types = [VECTOR, VECTOR, floats()]
        return total_of(For(turns=3, carried=1), types, graph("body", [COUNT, *types], turn), weights=2)

    assert_gradients(make, [0, 1])


def test_a_gradient_with_respect_to_what_a_loop_overwrites_is_refused() -> None:
    def make() -> Graph:
        def turn(b: Builder, x: Value, w: Value) -> list[Value]:
            made = b.emit(Mul(), x, w)
            b.frames = (Location("net.py", 7, 9),)
            b.emit(Assign(), w, made)
            return [made]

        inner = graph("call", [VECTOR, VECTOR], turn)
        body = graph("body", [COUNT, VECTOR, VECTOR], lambda b, _, x, w: region(b, Call(), [x, w], inner))

        def main(b: Builder, x: Value, w: Value) -> list[Value]:
            b.frames = (Location("net.py", 3, 5),)
            (found,) = region(b, For(turns=3, carried=1), [x, w], body)
            return [b.emit(ReduceSum(), found)]

        return graph("main", [VECTOR, VECTOR], main, 1)

    assert error_of(lambda: Grad().run(with_gradients(make, [1]))).render() == (
        "net.py:3:5: error: For: a gradient with respect to p1 is asked for, which the node overwrites\n"
        "  note: Assign in net.py:7 overwrites it; carry the value from turn to turn in a variable instead"
    )
    Grad().run(with_gradients(make, [0]))  # of the input there is one


def test_a_captured_weight_that_changes_behind_a_node_is_read_as_it_was() -> None:
    def make() -> Graph:
        inner = graph("call", [VECTOR, VECTOR], lambda b, x, w: [b.emit(Tanh(), b.emit(Mul(), x, w))])

        def main(b: Builder, x: Value, w: Value) -> list[Value]:
            (found,) = region(b, Call(), [x, w], inner)
            b.emit(Assign(), w, b.emit(Mul(), w, number(3.0)))
            return [b.emit(ReduceSum(), found)]

        return graph("main", [VECTOR, VECTOR], main, 1)

    assert_gradients(make, [0])


# Turns, choices, draws -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize(
    "op", [For(turns=3, carried=1), For(turns=3, carried=1, reverse=True), Scan(turns=3, carried=1)]
)
def test_what_is_drawn_again_in_the_gradient_is_what_was_drawn(op: For | Scan, marked: bool) -> None:
    def make() -> Graph:
        def turn(b: Builder, *operands: Value) -> list[Value]:
            *_, x, w = operands
            drawn = b.emit(Dropout(0.5, 3, 4), b.emit(Mul(), x, w))
            kept = b.emit(Tanh(), b.emit(Add(), b.emit(TupleGetItem(0), drawn), x))
            for node in b.nodes if marked else ():
                node.attrs["recompute"] = "call"
            return [b.emit(Mul(), kept, x)]

        lead = [COUNT] if isinstance(op, For) else []
        return total_of(op, [VECTOR, VECTOR], graph("body", [*lead, VECTOR, VECTOR], turn))

    made = assert_gradients(make, [0, 1])
    drawn = [node for node in made.all_nodes() if isinstance(node.op, Dropout)]
    assert len(drawn) == 1 + marked


def reading(name: str, depth: int) -> Graph:
    """The body of a loop that adds up what it reads of a stack, or of a stack of stacks."""

    def body(b: Builder, _: Value, total: Value, entry: Value, *more: Value) -> list[Value]:
        if depth:
            return region(b, For(carried=1, scanned=1), [more[0], total, entry], reading(f"{name}_inner", 0))
        return [b.emit(Add(), total, b.emit(Cos(), b.emit(Mul(), entry, entry)))]

    types = [COUNT, VECTOR, StackType.of(VECTOR), COUNT] if depth else [COUNT, VECTOR, VECTOR]
    return graph(name, types, body)


def test_a_stack_of_stacks_that_two_loops_read_gets_both_gradients() -> None:
    def make() -> Graph:
        def turn(b: Builder, _: Value, x: Value, w: Value) -> list[Value]:
            new = b.emit(Mul(), b.emit(Sin(), x), w)
            return [new, b.emit(Tanh(), new)]

        inner = graph("inner", [COUNT, VECTOR, VECTOR], turn)
        outer = graph(
            "outer", [COUNT, VECTOR, VECTOR, COUNT],
            lambda b, _, x, w, n: region(b, For(carried=1, stacked=1), [n, x, w], inner),
        )  # fmt: skip

        def main(b: Builder, n: Value, x: Value, w: Value) -> list[Value]:
            last, deep = region(b, For(carried=1, stacked=1), [n, x, w, n], outer)
            for name, reverse in (("first", True), ("second", False)):
                op = For(carried=1, scanned=1, reverse=reverse)
                (last,) = region(b, op, [n, last, deep, n], reading(name, 1))
            return [b.emit(ReduceSum(), last)]

        return graph("main", [COUNT, VECTOR, VECTOR], main, 1)

    made = assert_gradients(make, [1, 2])
    assert "sum_of_stacks" in [each.name for each in made.graphs()]


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


# Gradients that the script gives --------------------------------------------------------------------------------------


def test_gradients_stop_inside_of_a_region() -> None:
    def make() -> Graph:
        def branch(b: Builder, x: Value, w: Value) -> list[Value]:
            return [b.emit(Mul(), b.emit(Sin(), b.emit(StopGradient(), x)), w)]

        types = [VECTOR, VECTOR]
        other = graph("else", types, lambda b, x, w: [w])
        return total_of(If(), [CONDITION, *types], graph("then", types, branch), other)

    x, w = arrays_for(make())[1:]
    made = with_gradients(make, [1, 2])
    Grad().run(made)
    for holds in (True, False):
        of_x, of_w = run(checked(made), [np.array(holds), x, w])
        np.testing.assert_array_equal(of_x, np.zeros(3))
        np.testing.assert_allclose(of_w, np.sin(x) if holds else np.ones(3), rtol=1e-12)


def test_a_gradient_that_the_script_gives_inside_of_a_loop() -> None:
    """The gradient of sin(x) is 5 * dout by the script, computed by a call of a graph."""

    def make() -> Graph:
        five = graph("five", [VECTOR], lambda b, dout: [b.emit(Mul(), dout, number(5.0))])

        def turn(b: Builder, x: Value) -> list[Value]:
            result = b.emit(Sin(), x)
            placeholder = b.emit(GradientPlaceholder(type=VECTOR))
            (given,) = region(b, Call(), [placeholder], five)
            own = b.emit(OwnGradient(), result, x, placeholder, given)
            return [b.emit(TupleGetItem(0), own)]

        return total_of(Scan(turns=3, carried=1), [VECTOR], graph("body", [VECTOR], turn), weights=0)

    made = with_gradients(make, [0])
    Grad().run(made)
    Simplify().run(made)
    (found,) = run(checked(made), arrays_for(make()))
    np.testing.assert_allclose(found, np.full(3, 125.0))
    names = {node.op.name for node in made.all_nodes()}
    assert not names & {"OwnGradient", "GradientPlaceholder", "Gradient"}


# Requests inside of regions ------------------------------------------------------------------------------------------


def training(turns: int) -> Graph:
    """Take this number of steps of gradient descent in one loop, which overwrite the weight; returns every loss."""

    def step(b: Builder, _: Value, x: Value, w: Value) -> list[Value]:
        error = b.emit(Sub(), b.emit(Tanh(), b.emit(Mul(), x, w)), number(0.3))
        loss = b.emit(ReduceSum(), b.emit(Mul(), error, error))
        (grad,) = [b.emit(TupleGetItem(0), b.emit(Gradient(), loss, w))]
        b.emit(Assign(), w, b.emit(Sub(), w, b.emit(Mul(), grad, number(0.1)))).phase = "update"
        return [loss]

    body = graph("body", [COUNT, VECTOR, VECTOR], step)
    return graph("main", [VECTOR, VECTOR], lambda b, x, w: region(b, For(turns=turns, stacked=1), [x, w], body), 1)


def test_a_training_loop_in_one_graph() -> None:
    made = training(4)
    Grad().run(made)
    Simplify().run(made)
    x, w = arrays_for(made)
    (losses,) = run(checked(made), [x, w])
    for loss in losses:
        error = np.tanh(x * w) - 0.3
        np.testing.assert_allclose(loss, (error**2).sum(), rtol=1e-12)
        w = w - 0.1 * 2 * error * (1 - np.tanh(x * w) ** 2) * x


def test_the_gradient_of_a_gradient_that_is_taken_inside_of_a_loop() -> None:
    """Carried weights: of losses behind steps of descent there are gradients with respect to where it began."""

    def make() -> Graph:
        def step(b: Builder, _: Value, w: Value, x: Value) -> list[Value]:
            error = b.emit(Sub(), b.emit(Tanh(), b.emit(Mul(), x, w)), number(0.3))
            loss = b.emit(ReduceSum(), b.emit(Mul(), error, error))
            grad = b.emit(TupleGetItem(0), b.emit(Gradient(), loss, w))
            return [b.emit(Sub(), w, b.emit(Mul(), grad, number(0.1)))]

        body = graph("body", [COUNT, VECTOR, VECTOR], step)

        def main(b: Builder, x: Value, w: Value) -> list[Value]:
            (w,) = region(b, For(turns=3, carried=1), [w, x], body)
            return [b.emit(ReduceSum(), b.emit(Sin(), b.emit(Mul(), w, x)))]

        return graph("main", [VECTOR, VECTOR], main, 1)

    def expanded() -> Graph:
        made = make()
        Grad().run(made)
        return made

    assert_gradients(expanded, [0, 1])


# Weights side by side ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_the_gradient_with_respect_to_a_stack_of_weights_has_one_for_each(stopped: bool, counted: bool) -> None:
    """counted: another loop, whose turns an operand counts, reads the stack, too."""

    def turn(b: Builder, x: Value, w: Value) -> list[Value]:
        return [b.emit(Tanh(), b.emit(Mul(), x, b.emit(StopGradient(), w) if stopped else w))]

    def flat(b: Builder, x: Value, *weights: Value) -> Value:
        for w in weights * (1 + counted):
            x = turn(b, x, w)[0]
        return b.emit(ReduceSum(), x)

    def main(b: Builder, x: Value, *weights: Value) -> list[Value]:
        stack = b.emit(MakeStack(), *weights)
        op = Scan(turns=3, carried=1, scanned=1)
        (y,) = region(b, op, [x, stack], graph("body", [VECTOR, VECTOR], turn))
        if counted:
            again = graph("again", [COUNT, VECTOR, VECTOR], lambda b, _, x, w: turn(b, x, w))
            (y,) = region(b, For(carried=1, scanned=1), [Constant(3, INT64), y, stack], again)
        loss = b.emit(ReduceSum(), y)
        grads = b.emit(TupleGetItem(0), b.emit(Gradient(), loss, stack))
        rows = graph("rows", [VECTOR], lambda b, grad: [b.emit(Mul(), grad, number(1.0))])
        return region(b, Scan(turns=3, scanned=1, stacked=1), [grads], rows)

    types = [VECTOR] * 4
    made = graph("main", types, main, 3)
    expected = with_gradients(lambda: graph("main", types, lambda b, *values: [flat(b, *values)], 3), [1, 2, 3])
    arrays = arrays_for(made)
    for each in (made, expected):
        Grad().run(each)
    (found,) = run(checked(made), arrays)
    np.testing.assert_allclose(found, run(expected, arrays), rtol=1e-12)


def test_a_stack_of_weights_that_change_behind_a_loop_is_read_as_it_was() -> None:
    """The request comes behind a loop that overwrites the weights one by one."""

    def make() -> Graph:
        def overwrite(b: Builder, w: Value) -> list[Value]:
            b.emit(Assign(), w, b.emit(Mul(), w, number(3.0)))
            return []

        def main(b: Builder, x: Value, *weights: Value) -> list[Value]:
            stack = b.emit(MakeStack(), *weights)
            body = graph("body", [VECTOR, VECTOR], lambda b, x, w: [b.emit(Sin(), b.emit(Mul(), x, w))])
            (y,) = region(b, Scan(turns=3, carried=1, scanned=1), [x, stack], body)
            region(b, Scan(turns=3, scanned=1), [stack], graph("overwrite", [VECTOR], overwrite))
            return [b.emit(ReduceSum(), y)]

        return graph("main", [VECTOR] * 4, main, 3)

    assert_gradients(make, [0])


WANTED = (0, 3, 4)
"""The rows and the weights among a random graph's parameters."""


def random_arrays_for(graph: Graph, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [
        generator.normal(size=p.shape) * 0.4 if p.tensor_type.dtype.is_float else np.array(generator.integers(0, 4))
        for p in graph.parameters
    ]


def request(graph: Graph) -> None:
    """Add to a graph's results the gradients of the sums of them."""
    b = Builder(graph)
    totals = [b.emit(ReduceSum(), b.emit(Square(), value)) for value in graph.results]
    made = b.emit(Gradient(outputs=len(totals)), *totals, *(graph.parameters[i] for i in WANTED))
    graph.results = [*graph.results, *(b.emit(TupleGetItem(i), made) for i in range(len(WANTED)))]
    graph.returns_tuple = True


def check(seed: int, overwrites: bool, order: int) -> None:
    made = RandomRegions(seed, mode="stand_alone", overwrites=overwrites).graph
    made.attrs = {}
    arrays = random_arrays_for(made, seed)
    flat = unrolled(made, arrays)
    for each in (flat, made):
        for _ in range(order):
            request(each)
        Grad().run(each)
    expected = run(flat, arrays)
    for step in (Simplify(), Simplify()):
        for found, wanted in zip(run(checked(made), arrays), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
        step.run(made)


@pytest.mark.parametrize("seed", range(16))
def test_gradients(seed: int) -> None:
    check(seed, seed % 2 == 0, 1)


@pytest.mark.parametrize("seed", range(100, 104))
def test_gradients_of_gradients(seed: int) -> None:
    check(seed, False, 2)


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
