"""Triangular systems and Cholesky factors beside PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import ops

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, same  # noqa: E402  # it imports PyTorch


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
