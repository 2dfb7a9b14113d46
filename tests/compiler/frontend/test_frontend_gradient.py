"""Gradients that a network asks for: every form of the request, against finite differences or by hand."""

from typing import Any

import numpy as np
import pytest
from interpret import run_global

from mspc import nn, ops
from mspc.compiler.frontend.trace import trace
from mspc.mindspore_api.common.gradient import GradOperation, grad, value_and_grad
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from tests.graphs import FLOAT64, INT32, MspcError

W = np.array([[2.0, -1.0], [0.5, 3.0]])
X = np.array([[1.0, 2.0], [-3.0, 0.25], [0.5, -0.5]])
Y = np.array([[0.5, 1.0], [2.0, -1.0], [1.5, 0.0]])


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(W), "w")
        self.v = Parameter(Tensor(np.array([1.0, 2.0])), "v")

    def construct(self, x, y):
        return ((x @ self.w + self.v) * y).sum()


NET = Net()


def both(x, y):
    return (x * x * y).sum()


def with_aux(x, y):
    return (x * y).sum(), x + y


def result(target: Any, *args: np.ndarray) -> Any:
    """The results of a graph of `target` for float64 inputs x, y."""
    traced = trace(target, [Tensor(arg) for arg in args])
    traced.graph.verify()
    feeds = {p.name: a for p, a in zip(traced.graph.parameters, args, strict=False)}
    feeds |= {name: p.asnumpy() for name, p in traced.parameters.items()}
    return traced.rebuild(run_global(traced.graph, feeds))


def close(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert isinstance(found, tuple)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            close(a, b)
        return
    assert not isinstance(found, tuple)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


DX, DY = 2 * X * Y, X * X
NET_X, NET_Y = Y @ W.T, X @ W + np.array([1.0, 2.0])
NET_W, NET_V = X.T @ Y, Y.sum(0)
VALUE = (NET_Y * Y).sum()


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (lambda x, y: grad(both)(x, y), DX),
        (lambda x, y: grad(both, 1)(x, y), DY),
        (lambda x, y: grad(both, (0, 1))(x, y), (DX, DY)),
        (lambda x, y: grad(both, (1,))(x, y), (DY,)),
        (lambda x, y: value_and_grad(both)(x, y), ((X * X * Y).sum(), DX)),
        (lambda x, y: grad(with_aux, has_aux=True)(x, y), (Y, (X + Y,))),
        (lambda x, y: value_and_grad(with_aux, has_aux=True)(x, y), (((X * Y).sum(), X + Y), Y)),
        (lambda x, y: grad(NET, None, NET.trainable_params())(x, y), (NET_W, NET_V)),
        (lambda x, y: grad(NET, None, NET.v)(x, y), NET_V),
        (lambda x, y: grad(NET, 0, NET.trainable_params())(x, y), (NET_X, (NET_W, NET_V))),
        (lambda x, y: value_and_grad(NET, None, NET.trainable_params())(x, y), (VALUE, (NET_W, NET_V))),
        (lambda x, y: GradOperation()(NET)(x, y), NET_X),
        (lambda x, y: GradOperation(get_all=True)(NET)(x, y), (NET_X, NET_Y)),
        (lambda x, y: GradOperation(get_by_list=True)(NET, NET.trainable_params())(x, y), (NET_W, NET_V)),
        (
            lambda x, y: GradOperation(get_all=True, get_by_list=True)(NET, NET.trainable_params())(x, y),
            ((NET_X, NET_Y), (NET_W, NET_V)),
        ),
        (lambda x, y: GradOperation(sens_param=True)(NET)(x, y, 2.0), 2 * NET_X),
        (lambda x, y: ops.GradOperation(sens_param=True)(ops.square)(x, y), 2 * X * Y),
        (lambda x, y: grad(lambda a, b: a * b)(x, y), Y),
    ],
)
def test_every_form_of_the_request(target: Any, expected: Any) -> None:
    close(result(target, X, Y), expected)


def test_direct_target_is_a_request() -> None:
    close(result(value_and_grad(both, (0, 1)), X, Y), ((X * X * Y).sum(), (DX, DY)))


def test_value_and_gradient_share_the_forward_operators() -> None:
    def step(x, y):
        loss = NET(x, y)
        return loss, grad(NET)(x, y)

    names = [n.op.name for n in trace(step, [Tensor(X), Tensor(Y)]).graph.nodes]
    assert names.count("MatMul") == 1


def test_forward_is_computed_again_after_an_update() -> None:
    def step(x, y):
        loss = NET(x, y)
        ops.assign(NET.v, NET.v + 1.0)
        return loss, grad(NET, 1)(x, y)

    close(result(step, X, Y), (VALUE, NET_Y + 1))


def test_same_tensor_for_two_arguments() -> None:
    close(result(lambda x, y: grad(lambda a, b: a * b * b)(x, x), X, Y), X * X)
    close(result(lambda x, y: grad(lambda a, b: a * b * b, (0, 1))(x, x), X, Y), (X * X, 2 * X * X))


def test_argument_that_depends_on_another_argument() -> None:
    close(result(lambda x, y: grad(lambda a, b: a * b, (0, 1))(x, x * y), X, Y), (X * Y, X))
    close(result(lambda x, y: grad(lambda a, b: a * b)(x, x * y), X, Y), X * Y)


def test_captured_value_is_constant() -> None:
    def network(x, y):
        twice = x * 2
        return grad(lambda a: a * twice)(x)

    close(result(network, X, Y), 2 * X)


def test_weights_count_only_inside_the_function() -> None:
    def network(x, y):
        hidden = x * NET.v
        return grad(lambda a: (a * NET.v).sum(), None, NET.v)(hidden)

    close(result(network, X, Y), (X * np.array([1.0, 2.0])).sum(0))


def cubes(x, y):
    return x**3 * y


def slopes(x, y):
    return grad(cubes)(x, y)


class Slopes(nn.Cell):
    def __init__(self, of: Any):
        super().__init__()
        self.of, self.gradient = of, GradOperation()

    def construct(self, x, y):
        return self.gradient(self.of)(x, y)


SLOPES = Slopes(cubes)
CURVES = Slopes(SLOPES)


@pytest.mark.parametrize(
    "first_two",
    [
        lambda x, y: (grad(cubes)(x, y), grad(grad(cubes))(x, y)),
        lambda x, y: (grad(grad(cubes))(x, y), grad(cubes)(x, y))[::-1],
        lambda x, y: (slopes(x, y), grad(slopes)(x, y)),
        lambda x, y: (SLOPES(x, y), CURVES(x, y)),
        lambda x, y: value_and_grad(slopes)(x, y),
    ],
)
def test_a_derivative_is_the_same_beside_one_of_lower_order(first_two: Any) -> None:
    close(result(lambda x, y: (cubes(x, y), *first_two(x, y)), X, Y), (X**3 * Y, 3 * X**2 * Y, 6 * X * Y))


def test_derivatives_pass_through_arguments_that_depend_on_one_another() -> None:
    def by_both(x, y):
        by_a, by_b = grad(lambda a, b: a * a * b * b, (0, 1))(x, x * y)
        return by_a + by_b

    def inner(a, b):
        return a * a * b * b

    def by_both_of_a_function(x, y):
        by_a, by_b = grad(inner, (0, 1))(x, x * y)
        return by_a + by_b

    right = 6 * X**2 * Y**2 + 6 * X**2 * Y  # of 2 x^3 y^2 + 2 x^3 y by x
    close(result(lambda x, y: grad(by_both)(x, y), X, Y), right)
    close(result(lambda x, y: grad(by_both_of_a_function)(x, y), X, Y), right)


def test_a_captured_value_is_constant_for_the_inner_request_only() -> None:
    def by_weight(x, y):
        outside = NET.v * NET.v

        def inner(x):
            return (x * NET.v * outside).sum()

        return grad(inner, None, NET.v)(x)  # the sum of x v^2 over rows

    v = np.array([1.0, 2.0])
    close(result(by_weight, X, Y), X.sum(0) * v * v)
    close(result(lambda x, y: grad(by_weight, None, NET.v)(x, y), X, Y), X.sum(0) * 2 * v)


def test_second_derivative() -> None:
    close(result(lambda x, y: grad(grad(lambda a: a * a * a))(x), X, Y), 6 * X)
    close(result(lambda x, y: grad(lambda a: grad(lambda b: b * b * a)(a))(x), X, Y), 4 * X)


def test_unused_weight_has_a_gradient_of_zeros() -> None:
    close(
        result(lambda x, y: grad(lambda a: a.sum(), None, NET.trainable_params())(x), X, Y),
        (0 * W, np.zeros(2)),
    )


def test_integer_inputs_are_among_all() -> None:
    def network(x, y):
        return GradOperation(get_all=True)(lambda a, n: a * n)(x, ops.cast(y, INT32))

    found = result(network, X, Y)
    close(found, (Y.astype(np.int32).astype(np.float64), X.astype(np.int32)))


def test_sensitivity_of_another_shape_is_refused() -> None:
    with pytest.raises(MspcError, match=r"the sensitivity has shape \(3, 2\), the result \(\)"):
        trace(lambda x, y: GradOperation(sens_param=True)(both)(x, y, y), [Tensor(X), Tensor(Y)])


def test_integer_parameter_has_no_gradient() -> None:
    count = Parameter(Tensor(1, INT32), "count")
    with pytest.raises(MspcError, match="parameter 'count' is Int32 and has no gradient"):
        trace(lambda x, y: grad(both, None, [count])(x, y), [Tensor(X), Tensor(Y)])
    assert Tensor(X).dtype == FLOAT64


def test_a_network_without_a_result_has_gradients_of_zeros() -> None:
    class Silent(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = Parameter(Tensor(W), "w")

        def construct(self, x):
            self.w * x

    net = Silent()
    found = result(lambda x: grad(net, None, net.trainable_params())(x), X[:2])
    np.testing.assert_array_equal(found[0], np.zeros((2, 2)))


def scaled(x, y, factor=1.0, *, offset=0.0):
    return ((x * y + offset) * factor).sum()


def test_arguments_by_name() -> None:
    """They reach the function by name, and count among all inputs in the order in which they are given."""
    close(result(lambda x, y: grad(scaled)(x, factor=2.0, y=y), X, Y), 2 * Y)
    close(result(lambda x, y: grad(scaled, 1)(x, y=y, offset=x), X, Y), X)
    close(result(lambda x, y: value_and_grad(scaled)(x, y=y, offset=x)[1], X, Y), Y)
    every = GradOperation(get_all=True, sens_param=True)
    close(result(lambda x, y: every(scaled)(x, y=y, sens=3.0 * x.sum()), X, Y), (3 * X.sum() * Y, 3 * X.sum() * X))
    close(result(lambda x, y: every(scaled)(x, 3.0 * x.sum(), y=y), X, Y), (3 * X.sum() * Y, 3 * X.sum() * X))
    with pytest.raises(MspcError, match=r"scaled\(\) got an unexpected keyword argument 'what'|what"):
        result(lambda x, y: grad(scaled)(x, y, what=y), X, Y)


def powers(x, y):
    return (x**y).sum()


def test_zero_to_the_power_of_zero_has_no_derivative_that_is_none() -> None:
    bases, exponents = np.array([0, 0, 0, 2.0]), np.array([0, 1, 2, 0.0])
    close(result(grad(powers), bases, exponents), [0, 1, 0, 0])
    close(result(grad(lambda x: (x ** Tensor(np.array([0, 1, 2, 0.0]))).sum()), bases), [0, 1, 0, 0])


def test_a_gradient_reuses_calls_of_a_comprehension() -> None:
    class Sums(nn.Cell):
        """The forward part of each call is in the graph once."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(Tensor(np.ones(8, np.float32)), name="weight")

        def cube(self, x: Any) -> Any:
            return ops.exp(x * self.weight).sum()

        def construct(self, x: Any) -> Any:
            rows = [x[0], x[1], x[2], x[3]]
            sums = [self.cube(row) for row in rows]
            return sum(sums), sum([ops.grad(self.cube)(row) for row in rows])

    graph = trace(Sums(), [Tensor(np.ones((4, 8), np.float32))]).graph
    assert [node.op.name for node in graph.nodes].count("Exp") == 4
