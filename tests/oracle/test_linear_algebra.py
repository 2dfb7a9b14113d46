"""Traces, triangular systems, Cholesky factors and running extrema beside PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, ops

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, same  # noqa: E402  # it imports PyTorch


@pytest.mark.parametrize("arguments", [(), (1, 0, 1), (-2, -1, 0), (0, 2, 1)])
def test_a_trace_is_the_sum_of_a_diagonal(arguments: tuple[int, ...]) -> None:
    offset, first, second = (*arguments, *(0, 0, 1)[len(arguments) :])
    cubes = floats(1, 4, 5, 3)
    same(lambda x: x.trace(*arguments), lambda x: torch.diagonal(x, offset, first, second).sum(-1), [cubes])


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3)])
def test_a_triangular_system(trans: int, lower: bool, unit: bool, shape: tuple[int, ...]) -> None:
    def theirs(a: Any, b: Any) -> Any:
        matrices = a.transpose(-1, -2) if trans else a
        sides = b if b.ndim == a.ndim else b[..., None]
        upper = lower if trans else not lower
        found = torch.linalg.solve_triangular(matrices, sides, upper=upper, unitriangular=unit)
        return found if b.ndim == a.ndim else found[..., 0]

    matrices = floats(2, 2, 4, 4, low=-0.5, high=0.5) + 2 * np.eye(4)
    same(lambda a, b: ops.SolveTriangular()(a, b, trans, lower, unit), theirs, [matrices, floats(3, *shape)])


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_factors(upper: bool) -> None:
    roots = floats(4, 2, 3, 3)
    matrices = roots @ roots.swapaxes(-1, -2) + np.eye(3)
    same(ops.Cholesky(upper), lambda x: torch.linalg.cholesky(x, upper=upper), [matrices])


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("name", ["Cummax", "Cummin"])
def test_running_extrema(name: str, axis: int) -> None:
    x = np.round(floats(7, 4, 5, 6))
    x[1, 2, 3] = np.nan
    theirs = getattr(torch, name.lower())
    values, places = (t.asnumpy() for t in getattr(ops, name)(axis)(Tensor(x)))
    expected = theirs(torch.tensor(x), axis)
    np.testing.assert_array_equal(values, expected.values.numpy())
    np.testing.assert_array_equal(places, expected.indices.numpy())
    same(lambda x: getattr(ops, name)(axis)(x)[0], lambda x: theirs(x, axis).values, [floats(8, 4, 5, 6)])
