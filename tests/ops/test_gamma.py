"""The gamma function and what is made of it, against SciPy, at the ends of their ranges too."""

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, ops

special = pytest.importorskip("scipy.special", reason="needs SciPy: pip install -e '.[oracle]'")
RANDOM = np.random.default_rng(3)
ENDS = np.array([-2.5, -1.0, 0.0, -0.0, 1.0, 2.0, 170.0, np.inf, np.nan])
WIDE = np.concatenate([RANDOM.uniform(-20, 20, 60), 10 ** RANDOM.uniform(-8, 8, 40)])


def ours(operator: str, *arrays: Any) -> Any:
    return getattr(ops, operator)()(*[Tensor(array) for array in arrays]).asnumpy()


@pytest.mark.parametrize(("operator", "theirs"), [("Lgamma", special.gammaln), ("Digamma", special.digamma)])
def test_functions_of_one_number(operator: str, theirs: Any) -> None:
    np.testing.assert_allclose(ours(operator, WIDE), theirs(WIDE), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(ours(operator, ENDS), theirs(ENDS), rtol=1e-13, atol=1e-14)


def test_the_zeta_function() -> None:
    x, q = RANDOM.uniform(1.01, 20, 80), 10 ** RANDOM.uniform(-2, 3, 80)
    np.testing.assert_allclose(ours("Zeta", x, q), special.zeta(x, q), rtol=1e-11)
    edges = np.array([2.0, 1, 0.5, 2, 2.5, 2, 3]), np.array([1.0, 1, 1, -0.5, -0.5, 0, -3])  # MindSpore 2.10's
    expected = [1.6449340668, np.inf, np.nan, 8.9348022005, np.nan, np.inf, np.nan]
    np.testing.assert_allclose(ours("Zeta", *edges), expected, rtol=1e-10)


def test_gradients() -> None:
    p, q = np.array([2.0, 3.0]), np.array([1.0, 2.0])
    by_q = ops.grad(ops.Zeta(), 1)(Tensor(p), Tensor(q)).asnumpy()
    np.testing.assert_allclose(by_q, -p * special.zeta(p + 1, q), rtol=1e-12)


def test_shifted_bits() -> None:
    x, y = np.array([8, 2, -3, 1], np.int32), np.array([1, 3, 2, 4], np.int32)
    assert (ours("LeftShift", x, y) == x << y).all()
    assert (ours("RightShift", x, y) == x >> y).all()
    with pytest.raises(TypeError, match=r"LeftShift: input 0 is Bool, not an integer tensor"):
        ours("LeftShift", x > 0, y > 0)
