"""Numbers of the gamma distribution: against SciPy's distribution function, and the same at every call of one seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import MspcError, Tensor, ops


def numbers(*values: float) -> Any:
    return Tensor(np.array(values, np.float32))


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 2.0), (1.0, 1.0), (5.0, 0.5)])
def test_numbers_are_distributed_as_they_should_be(alpha: float, beta: float) -> None:
    stats = pytest.importorskip("scipy.stats", reason="needs SciPy: pip install -e '.[oracle]'")
    drawn = ops.Gamma(3)((4000,), numbers(alpha), numbers(beta)).asnumpy()
    assert drawn.dtype == np.float32
    assert stats.kstest(drawn, stats.gamma(alpha, scale=1 / beta).cdf).pvalue > 0.01


def test_every_row_has_its_own_parameters() -> None:
    shapes = Tensor(np.array([[0.5], [50.0]], np.float32))
    drawn = ops.gamma((3, 1, 2000), shapes, numbers(2.0), seed=1).asnumpy()
    assert drawn.shape == (3, 2, 2000)
    np.testing.assert_allclose(drawn.mean((0, 2)), [0.25, 25.0], rtol=0.05)
    flat = ops.random_gamma(Tensor(np.array([2, 1500], np.int32)), numbers(0.5, 50.0), seed=1).asnumpy()
    assert flat.shape == (2, 1500, 2)
    np.testing.assert_allclose(flat.mean((0, 1)), [0.5, 50.0], rtol=0.1)
    assert np.isnan(ops.Gamma(1)((2,), numbers(-1.0), numbers(1.0)).asnumpy()).all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(MspcError, match=r"Gamma: shape \(3,\), alpha \(2,\) and beta \(1,\) cannot be broadcast"):
        ops.Gamma()((3,), numbers(1.0, 2.0), numbers(1.0))
    with pytest.raises(MspcError, match="Gamma: alpha is Float64, not Float32"):
        ops.Gamma()((3,), Tensor(np.ones(1)), numbers(1.0))
