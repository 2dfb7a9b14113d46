"""Products with Jacobians, Jacobians and mapped functions: beside formulas, outside of networks and in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, nn, ops, value_and_grad, vmap
from mspc.ir.diagnostics import MspcError

X = np.array([0.5, -1.0, 2.0])
Y = np.array([1.0, 3.0, -0.5])


def product(x: Any, y: Any) -> Any:
    return x * x * y


def first_of_two(x: Any, y: Any) -> Any:
    return x * x * y, x + y


class Along(nn.Cell):
    """A derivative along a direction, in a network."""

    def construct(self, x: Any, y: Any) -> Any:
        out, along = ops.jvp(product, (x, y), (y, x))
        found, back = ops.vjp(product, x, y)
        return out - found, along, back(y)[0], ops.vmap(product)(x, y), ops.jacrev(product)(x, y)


def test_products_with_jacobians() -> None:
    x, y = Tensor(X), Tensor(Y)
    out, back = ops.vjp(product, x, y)
    np.testing.assert_allclose(out.asnumpy(), X * X * Y)
    for found, expected in zip(back(y), (2 * X * Y * Y, X * X * Y), strict=True):
        np.testing.assert_allclose(found.asnumpy(), expected)
    out, along = ops.jvp(product, (x, y), (y, x))
    np.testing.assert_allclose(along.asnumpy(), 2 * X * Y * Y + X * X * X)
    np.testing.assert_allclose(ops.linearize(product, (x, y))[1](y, x).asnumpy(), along.asnumpy())
    out, along, more = ops.jvp(first_of_two, (x, y), (y, x), has_aux=True)
    np.testing.assert_allclose(more.asnumpy(), X + Y)
    np.testing.assert_allclose(ops.vjp(lambda x: x * 2, x)[1](y).asnumpy(), 2 * Y)
    assert len(ops.vjp(first_of_two, x, y, has_aux=True)) == 3


def test_jacobians() -> None:
    x, y = Tensor(X), Tensor(Y)
    np.testing.assert_allclose(ops.jacrev(product)(x, y).asnumpy(), np.diag(2 * X * Y))
    both = ops.jacfwd(product, (0, 1))(x, y)
    np.testing.assert_allclose(both[1].asnumpy(), np.diag(X * X))
    found, more = ops.jacrev(first_of_two, 1, True)(x, y)
    np.testing.assert_allclose(found.asnumpy(), np.diag(X * X))
    np.testing.assert_allclose(more.asnumpy(), X + Y)


def test_mapped_functions() -> None:
    rows = np.random.default_rng(0).random((4, 3))
    matrix = np.random.default_rng(1).random((3, 2))
    multiplied = ops.vmap(lambda row, m: ops.matmul(row, m), (0, None))(Tensor(rows), Tensor(matrix))
    np.testing.assert_allclose(multiplied.asnumpy(), rows @ matrix)
    turned = ops.vmap(lambda row: (row * 2, row.sum()), 1, (1, 0))(Tensor(rows))
    np.testing.assert_allclose(turned[0].asnumpy(), rows * 2)
    np.testing.assert_allclose(turned[1].asnumpy(), rows.sum(0))


def test_mapped_functions_of_tuples_and_ensembles_of_cells() -> None:
    rows, y = np.random.default_rng(0).random((4, 3)), np.random.default_rng(1).random((4, 3))
    tupled = vmap(lambda t, b: t[0] * t[1] + b, in_axes=((0, None), 0))((Tensor(rows), Tensor(2.0)), Tensor(y))
    np.testing.assert_allclose(tupled.asnumpy(), rows * 2 + y)
    outer = vmap(vmap(lambda a, b: a * b, (None, 0)), (0, None))(Tensor(rows), Tensor(y))
    np.testing.assert_allclose(outer.asnumpy(), rows[:, None] * y)
    cells = nn.CellList([nn.Dense(3, 2, bias_init=float(i)) for i in range(4)])
    found = vmap(cells)(Tensor(rows.astype(np.float32)))
    weights = [cell.weight.asnumpy() for cell in cells]
    expected = [row @ weight.T + i for i, (row, weight) in enumerate(zip(rows, weights, strict=True))]
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5)


def test_in_a_network() -> None:
    nothing, along, back, mapped, jacobian = Along()(Tensor(X), Tensor(Y))
    assert not nothing.asnumpy().any()
    np.testing.assert_allclose(along.asnumpy(), 2 * X * Y * Y + X * X * X)
    np.testing.assert_allclose(back.asnumpy(), 2 * X * Y * Y)
    np.testing.assert_allclose(mapped.asnumpy(), X * X * Y)
    np.testing.assert_allclose(jacobian.asnumpy(), np.diag(2 * X * Y))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.vjp(product, Tensor(X), weights=[1]), "vjp(): weights must be None"),
        (lambda: ops.vmap(5), "vmap: fn must be a function, not 5"),
        (lambda: ops.vmap(product, (0, 0, 0))(Tensor(X), Tensor(Y)), "vmap(): 3 axes (0, 0, 0) for 2 tensors"),
        (
            lambda: ops.vmap(product)(Tensor(X), Tensor(Y[:2])),
            "vmap(): arguments have [2, 3] slices along in_axes, not one number of them",
        ),
        (lambda: ops.vmap(product, ((0, 0), 0))((Tensor(X),), Tensor(Y)), "vmap(): 2 axes (0, 0) for a tuple of 1"),
        (
            lambda: ops.vmap(nn.CellList([nn.ReLU(), nn.ReLU()]))(Tensor(X)),
            "vmap(): arguments have [2, 3] slices along in_axes, not one number of them",
        ),
        (lambda: ops.vmap(product, 1)(Tensor(X), Tensor(Y)), "vmap(): there is no axis 1 in an argument of shape (3,)"),
    ],
)  # fmt: skip
def test_bad_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(MspcError) as caught:
        call()
    assert caught.value.message == message


def test_the_gradient_by_tensors_that_a_network_captures() -> None:
    """They are no inputs of the graph, and different: their values must not be folded away first."""
    x, y = Tensor(X), Tensor(Y)

    def weighted(sens: Any) -> Any:
        dx, dy = ops.GradOperation(get_all=True, sens_param=True)(product)(x, y, sens)
        return (dx * x).sum() + (dy * x).sum()

    found = value_and_grad(weighted)(Tensor(np.ones(3)))
    expected = 2 * X * Y * X + X * X * X
    np.testing.assert_allclose(found[0].asnumpy(), expected.sum())
    np.testing.assert_allclose(found[1].asnumpy(), expected)


def test_a_product_along_a_direction_of_several_results() -> None:
    def both(x: Any, y: Any) -> Any:
        return x * x * y, (x + y).sum()

    def with_more(x: Any, y: Any) -> Any:
        return both(x, y), x

    x, y = Tensor(X), Tensor(Y)
    (product_of, total), along = ops.jvp(both, (x, y), (y, x))
    np.testing.assert_allclose(product_of.asnumpy(), X * X * Y)
    np.testing.assert_allclose(total.asnumpy(), (X + Y).sum())
    for found in (along, ops.jvp(with_more, (x, y), (y, x), has_aux=True)[1]):
        np.testing.assert_allclose(found[0].asnumpy(), 2 * X * Y * Y + X * X * X)
        np.testing.assert_allclose(found[1].asnumpy(), (X + Y).sum())
