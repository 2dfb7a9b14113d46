"""Loops and branches that tensors decide: graphs compute what Python does, with every way to leave them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from interpret import run_global
from test_frontend_language import plain, same

import mspc
from mspc import Parameter, nn, ops
from mspc.compiler.frontend.trace import Traced, trace
from mspc.mindspore_api.common.tensor import Tensor
from tests.graphs import FLOAT32, REGISTRY, Constant, check_graph, parse, print_graph

CASES: dict[Callable[..., Any], str] = {}


def case(kinds: str) -> Callable[..., Any]:
    """kinds: the operators with regions of the program, without those inside of regions."""

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function] = kinds
        return function

    return note


@case("If")
def heavy_branches(x):
    if x.sum() > 0:
        y = x * x
    else:
        y = ops.exp(x) - 1
    return y + 1


@case("")
def cheap_branches(x):
    if x.max() > 0:
        y = x + 1
    else:
        y = -x
    return y


@case("If")
def nested_branches(x):
    scale, names = 1, {"a": x, "b": [x, 2.0]}
    if x.sum() > 0:
        if x[0] > x[1]:
            names["a"] = x * x
            scale = 2
        else:
            names["b"][1] = x.sum()
    elif x.min() < -2:
        scale = 3
        names["a"] = x / 3
    return names["a"] * scale + names["b"][0] * names["b"][1]


@case("If")
def early_returns(x):
    if x.sum() > 3:
        return x * x
    y = x + 1
    if y.min() < 0:
        return y
    return y * y


@case("If")
def conditional_expressions(x):
    y = x * x if x.sum() > 0 else ops.tanh(x)
    return y


@case("If If")
def short_circuit(x):
    if x.sum() > 0 and x @ x > 4:
        return x + 1
    return x - 1 if x.min() > 0 or not ops.softmax(x)[0] > 0.5 else x


@case("")
def cheap_conditions(x):
    return x + 1 if (x.sum() > 0 and ops.exp(x).sum() > 4) or x.min() < -3 else x - 1


@case("While")
def counted_by_numbers(x):
    i = 0
    while x.sum() < 10:
        x = x * x + i + 1
        i += 1
    return x, i


@case("While")
def left_by_break(x):
    while True:
        y = x * 3
        if y.sum() > 20:
            break
        x = x + 1
    return x, y


@case("While")
def left_by_return(x):
    for i in range(200):
        x = x * 1.5
        if x.sum() > 50:
            return x + i
        if x.min() < 0:
            x = x + 2
            continue
        x = x + 0.25
    return -x


@case("While If")
def left_in_every_way(x):
    total, i = 0.0, 0
    while i < 12:
        i += 1
        if x[0] > i * 1.5:
            continue
        if total > 20:
            break
        if x.max() < -2:
            return x * i, total
        total += x.sum() * i
        x = x + 0.5
    else:
        total = total * 2
    return x, total


@case("If")
def short_loop_with_break(x):
    for i in range(3):
        x = x * 2
        if x.sum() > 10 + i:
            break
    else:
        x = x - 5
    return x


@case("For")
def as_often_as_a_tensor_says(x):
    n = ops.abs(x).sum().astype(mspc.int32)
    total = 0.0
    for i in range(n):
        total = total + i * 0.5
        x = x * 0.5 + total
    return x, total


@case("For For")
def ranges_of_all_kinds(x):
    n = ops.abs(x).sum().astype(mspc.int64)
    out, last = [], 0
    for i in range(1, n + 1, 2):
        last = last + i
    out.append(x * last)
    for i in range(n, 0, -2):
        x = x + i
    out.append(x)
    return out


@case("While")
def nested_loops(x):
    i = 0
    while x.sum() < 30:
        for j in range(3):
            x = x + j
        y, k = x, 0
        while y.max() > 2:
            y = y * 0.5
            k += 1
            if k > 4:
                break
        x = x + y + k + i + 1
        i = i + 1
        if i > 10:
            break
    return x, i


@case("While")
def containers_are_carried(x):
    state, pair = {"h": x, "n": 0}, (x, [x, 1.0])
    while state["n"] < 3 + x.min():
        state["h"] = state["h"] * 0.5 + pair[0]
        state["n"] += 1
        pair = (pair[0] + 1, [pair[1][0] * 2, pair[1][1] + 1])
    return state["h"], state["n"], pair[0], pair[1][0], pair[1][1]


@case("While")
def numbers_stay_weak(x):
    half = x.astype(mspc.float16)
    scale = 1.0
    while scale + ops.abs(half).max() < 40:
        scale = scale * 2 + 0.5
        half = half * scale
    return half


@case("While")
def loop_inside_of_a_function(x):
    def newton(x, steps):
        while steps > 0:
            x = x - (x * x - 2) / (2 * x + 1)
            steps = steps - 1
        return x

    return newton(x + 4, ops.abs(x).sum().astype(mspc.int32))


@case("While If")
def behind_a_loop_that_returns(x):
    while x.sum() < 10:
        x = x + 1
        if x[0] > 3:
            return x * x
    x = x * 2
    if x.max() > 5:
        return x / 3
    return x


@case("While")
def tensors_filled_with_what_is_counted(x):
    i, filled = 0, x
    while x.sum() < 10 and i < 4:
        x = x + ops.full((2,), i) + ops.full((1,), i, dtype=mspc.float32)
        filled = ops.full_like(x, i)
        i += 1
    return x, filled


@case("While")
def lists_that_change_and_are_replaced(x):
    first = [x * 2, x + 1]
    named = {"a": [x, 2.0]}
    i = 0
    while i < 4 and first[0].sum() < 9:
        first[0] = first[0] * x
        first = [kept * 1.5 + 1 for kept in first]
        named["a"][1] = named["a"][1] + x.sum()
        named["a"] = [named["a"][0] + named["a"][1], *named["a"][1:]]
        named["a"][0] = named["a"][0] * 0.5
        i += 1
    return first[0], first[1], named["a"][0], named["a"][1], i


@case("While")
def lists_that_a_function_changes_and_the_loop_replaces(x):
    def changed(held):
        held[0] = held[0] + held[1] * x
        return held[0] * 2

    held, i = [x, x + 1], 0
    while i < 3 or held[0].sum() < -20:
        y = changed(held)
        held = [y, held[0]] if i >= 0 else held
        held[1] = held[1] - y * 0.5
        i += 1
    return held[0], held[1]


@case("")
def chained_comparison(x):
    return x + 1 if 0 < x.sum() < 4 else x - 1


INPUTS = ([2.0, 3.0], [3.0, -2.0], [-1.0, -2.0], [0.0, 0.0], [-3.0, 4.0], [0.5, 0.25], [-4.0, -3.5])


def traced_graph(function: Any, *types: Any) -> Traced:
    """The graph of a function, which holds together and reads back."""
    traced = trace(function, list(types) or [((2,), FLOAT32)])
    traced.graph.verify()
    check_graph(traced.graph)
    text = print_graph(traced.graph)
    assert print_graph(parse(text, REGISTRY).main) == text
    return traced


def kinds(traced: Traced) -> str:
    return " ".join(node.op.name for node in traced.graph.nodes if node.regions)


def close(left: Any, right: Any) -> None:
    if isinstance(left, tuple):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            close(a, b)
        return
    assert np.shape(left) == np.shape(right)
    np.testing.assert_allclose(np.asarray(left, np.float64), np.asarray(right, np.float64), rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_the_graph_does_what_python_does(function: Callable[..., Any]) -> None:
    traced = traced_graph(function)
    assert kinds(traced) == CASES[function]
    for values in INPUTS:
        x = np.array(values, np.float32)
        close(plain(traced.rebuild(run_global(traced.graph, {"x": x}))), plain(function(Tensor(x))))


def test_every_region_reads_its_own_parameters_alone() -> None:
    """Numbers that a turn changes are carried, in the type that they come to have; the others stay constants."""

    def function(x):
        i, total, step = 0, 0, 2
        while total + x.min() < 5:
            total = total + x.sum() + step
            i += 1
        return total, i

    graph = traced_graph(function).graph
    loop = next(node for node in graph.nodes if node.regions)
    assert [region.name for region in loop.regions] == ["while_1_condition", "while_1_body"]
    values = [value.value.item() if isinstance(value, Constant) else value.name for value in loop.inputs]
    assert values == [0, 0.0, "x"]
    assert [str(value.type) for value in loop.inputs[:2]] == ["<Tensor[Int64], ()>", "<Tensor[Float32], ()>"]
    assert [parameter.name for parameter in loop.regions[1].parameters] == ["i", "total", "x"]
    assert {node.op.name for node in loop.regions[1].nodes} == {"ReduceSum", "Add"}


class Counting(nn.Cell):
    """Counts turns and branches in Parameters, and keeps a number in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Parameter(np.zeros((), np.float32), "turns", requires_grad=False)
        self.hits = Parameter(np.zeros((), np.float32), "hits", requires_grad=False)

    def construct(self, x):
        self.scale = 1.0
        while x.sum() < 10:
            x = x * 2
            self.turns += 1
            if x[0] > 3:
                self.hits = self.hits + 1
                self.scale = self.scale + x.sum()
        return x * self.scale


def test_parameters_and_attributes_change_in_loops() -> None:
    net = Counting()
    for values, result, turns, hits in (
        ([1.0, 1.0], [200.0, 200.0], 3, 2), ([0.5, 0.25], [152.0, 76.0], 7, 4), ([5.0, 6.0], [5.0, 6.0], 7, 4),
    ):  # fmt: skip
        assert net(Tensor(np.array(values, np.float32))).asnumpy().tolist() == result
        assert (net.turns.asnumpy(), net.hits.asnumpy()) == (turns, hits)


def test_what_a_parameter_becomes_in_a_branch_is_seen_behind_it() -> None:
    """An update that no operand can keep from changing anything runs in the branch alone."""

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(np.ones((2,), np.float32), "w")

        def construct(self, x):
            if x.sum() > 0:
                ops.print_("above", x)
                self.w = self.w * 3
            return self.w + x

    net = Net()
    assert net(Tensor(np.array([1.0, 2.0], np.float32))).asnumpy().tolist() == [4.0, 5.0]
    assert net(Tensor(np.array([-1.0, -2.0], np.float32))).asnumpy().tolist() == [2.0, 1.0]
    assert net.w.asnumpy().tolist() == [3.0, 3.0]


def test_a_long_loop_is_counted_by_the_run() -> None:
    def function(x):
        for i in range(60_000):
            x = x * 0.5 + i
        return x

    traced = traced_graph(function)
    assert kinds(traced) == "For"
    assert traced.graph.nodes[0].op.turns == 60_000


def test_a_loop_that_needs_its_numbers_is_unrolled() -> None:
    def function(x):
        weights = [x + i for i in range(20)]
        for i in range(20):
            x = x * weights[i].reshape(1, -1)[0, : 1 + i % 2]
            if x.sum() > 100:
                break
        return x

    assert kinds(traced_graph(function)) == "If"


class Layers(nn.Cell):
    """One of its layers works, which a tensor says."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.CellList([nn.ReLU(), nn.Tanh(), nn.Sigmoid()])
        self.values = [Tensor(np.full((2,), float(i), np.float32)) for i in range(3)]

    def construct(self, x, i):
        function = ops.exp if x.sum() > 0 else ops.abs
        return function(self.layers[i](x)) + self.values[i] + [1, 2, 3][i]


def test_a_tensor_chooses_among_cells_functions_and_tensors() -> None:
    net = Layers()
    for values in ([1.0, -0.5], [-1.0, 0.5]):
        x = np.array(values, np.float32)
        for i in (0, 1, 2, -1):
            layer = (lambda v: np.maximum(v, 0), np.tanh, lambda v: 1 / (1 + np.exp(-v)))[i]
            function = np.exp if x.sum() > 0 else np.abs
            expected = function(layer(x)) + (i % 3) + (i % 3) + 1
            np.testing.assert_allclose(net(Tensor(x), Tensor(i)).asnumpy(), expected, rtol=1e-5)


def test_gradients_within_a_loop() -> None:
    @mspc.jit
    def descend(x):
        steps = 0
        while x.sum() > 1:
            x = x - 0.1 * mspc.grad(lambda v: (v * v * v).sum())(x)
            steps += 1
        return x, steps

    found, steps = descend(Tensor(np.array([0.8, 0.75], np.float32)))
    x, count = np.array([0.8, 0.75]), 0
    while x.sum() > 1:
        x, count = x - 0.3 * x * x, count + 1
    np.testing.assert_allclose(found.asnumpy(), x, rtol=1e-5)
    assert steps.asnumpy() == count


@pytest.mark.parametrize("unroll", [True, False])
def test_loops_of_functions(unroll: bool) -> None:
    def function(x):
        doubled = ops.WhileLoop()(lambda pair: pair[0].sum() < 10, lambda pair: (pair[0] * 2, pair[1] + 1), (x, 0))
        carried, rows = ops.Scan()(lambda total, row: (total + row, total * 2), x, [x, x + 1, x + 2], None, unroll)
        return doubled, carried, rows

    traced = traced_graph(function)
    assert kinds(traced) == ("While" if unroll else "While Scan")
    x = np.array([1.0, 0.5], np.float32)
    close(plain(traced.rebuild(run_global(traced.graph, {"x": x}))), plain(function(Tensor(x))))


def test_mutable_numbers_are_counted_by_the_run() -> None:
    def function(x):
        for i in range(mspc.mutable(3)):
            x = x + i
        return x

    assert kinds(traced_graph(function)) == "For"


def test_functions_that_choose() -> None:
    def function(x):
        chosen = ops.switch(x.sum() > 0, x, x + 1)
        return ops.switch(x.sum() > 2, ops.exp(chosen), ops.abs(chosen))

    traced = traced_graph(function)
    for values in INPUTS:
        x = np.array(values, np.float32)
        chosen = x if x.sum() > 0 else x + 1
        close(run_global(traced.graph, {"x": x})[0], np.exp(chosen) if x.sum() > 2 else np.abs(chosen))


def test_gradients_of_functions_that_ran_before() -> None:
    """A value that another gradient stops or separates is a copy, with the same regions."""

    def power(x, y):
        z = x * x * y if x.sum() > 1 else ops.exp(x) * y
        while z.sum() < 20:
            z = z * y
        return z.sum()

    @mspc.jit
    def step(x):
        y = x * 2
        loss = power(x, y)
        return loss, mspc.grad(power, (0, 1))(x, y), mspc.grad(lambda v: power(v, y) * v.sum())(x)

    x = Tensor(np.array([1.5, 0.7], np.float32))
    y = x * 2
    expected = power(x, y), mspc.grad(power, (0, 1))(x, y), mspc.grad(lambda v: power(v, y) * v.sum())(x)
    close(plain(step(x)), plain(expected))


CONDITION_CASES: list[Callable[..., Any]] = []


def condition_case(function: Callable[..., Any]) -> Callable[..., Any]:
    CONDITION_CASES.append(function)
    return function


@condition_case
def numbers_and_names(x):
    out, scale = 3, 1.0
    if (x > 0).any():
        out = 1
    else:
        out = 2
        scale = 0.5
    return x * scale + out


@condition_case
def logic(x):
    above, below = (x > 0).any(), (x < 0).any()
    flag = True
    if not above or (below and flag):
        x = x - 1
    return (x if above and below else -x) if flag else x


@condition_case
def lists_and_dicts(x):
    found, named = [], {"x": x}
    for i in range(3):
        if x.sum() > i:
            found.append(x * i)
            named["x"] = x - i
        else:
            found.append(x + i)
        x = x + 0.5
    return found, named["x"]


@condition_case
def a_list_of_one_way_that_changes_behind_it(x):
    kept = [x, x + 1]
    if x.sum() > 0:
        kept = [kept[0], ops.sin(kept[1])]
    else:
        return x * ops.cos(x)
    kept[1] = ops.tanh(kept[1])
    return kept[0] + kept[1]


@condition_case
def checks(x):
    if x.sum() > 1000:
        raise ValueError("too large")
    assert x.sum() < 1000
    return x


@condition_case
def numbers_as_truth(x):
    first = x[0]
    if first:
        return x / first
    return x


@pytest.mark.parametrize("function", CONDITION_CASES, ids=lambda f: f.__name__)
def test_the_graph_takes_the_way_that_python_takes(function: Callable[..., Any]) -> None:
    traced = trace(function, [((2,), FLOAT32)])
    for values in ([2.0, 3.0], [3.0, -2.0], [-1.0, -2.0], [0.0, 0.0], [-3.0, 4.0], [0.5, 0.25]):
        x = np.array(values, np.float32)
        graph = plain(traced.rebuild(run_global(traced.graph, {"x": x})))
        same(graph, plain(function(Tensor(x))))


class Guarded(nn.Cell):
    """Counts in a Parameter how often it went one way, after the other way may have returned."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(np.array([1.0, 2.0], np.float32), "w")
        self.count = Parameter(np.zeros((), np.float32), "count", requires_grad=False)

    def construct(self, x):
        if ops.reduce_sum(x) > 3:
            return (x * self.w).sum()
        self.count += 1
        return (x * x * self.w).sum()


def test_gradients_and_updates_are_those_of_the_way_taken() -> None:
    net = Guarded()
    step = mspc.value_and_grad(net, None, [net.w])
    for values, gradient, count in (([2.0, 3.0], [2, 3], 0), ([1.0, 0.5], [1, 0.25], 1), ([4.0, 0.0], [4, 0], 1)):
        _, (found,) = step(Tensor(np.array(values, np.float32)))
        assert found.asnumpy().tolist() == gradient
        assert net.count.asnumpy() == count
