"""Decompositions of matrices with NaN or infinity end, with NaN for these matrices alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.ops.math.linear_algebra import Eig, LstsqV2, MatrixExp, SingularValues, SingularValuesGrad, Svd
from mspc.ops.op import Op
from tests.ops.simulate import results_of

MATRICES = np.random.default_rng(2).standard_normal((4, 3, 3)).astype(np.float32)
CASES: list[tuple[Op, list[Any]]] = [
    (SingularValues(), []),
    (SingularValuesGrad(), [MATRICES[:, 0]]),
    (Svd(), []),
    (Svd(compute_uv=False), []),
    (Eig(compute_v=True), []),
    (LstsqV2(), [MATRICES]),
    (MatrixExp(), []),
]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(("op", "others"), CASES, ids=lambda x: str(x) if isinstance(x, Op) else "")
def test_other_matrices_stay_as_they_are(op: Op, others: list[Any], bad: float) -> None:
    spoilt = MATRICES.copy()
    spoilt[1, 0, 2] = bad
    with np.errstate(all="ignore"):
        for found, expected in zip(results_of(op, [spoilt, *others]), results_of(op, [MATRICES, *others]), strict=True):
            if found.shape[:1] != (4,):
                continue
            np.testing.assert_array_equal(np.delete(found, 1, 0), np.delete(expected, 1, 0))
            assert not np.issubdtype(found.dtype, np.inexact) or np.isnan(found[1]).all()
