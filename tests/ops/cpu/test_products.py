"""Matrix products shared out to threads equal NumPy's, and leave BLAS's settings as they were."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ops.cpu import blas, products

SHAPES = [
    ((40, 7), (7, 9)),
    ((3, 7), (7, 50)),
    ((8, 5, 6), (8, 6, 7)),
    ((8, 5, 6), (6, 7)),
    ((1, 5, 6), (8, 6, 7)),
    ((2, 5, 6), (2, 6, 9)),
    ((2, 1, 5, 6), (2, 4, 6, 7)),
    ((4, 5, 6), (9, 1, 6, 7)),
    ((1, 4), (4, 1)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_products_equal_numpy(
    left: tuple[int, ...], right: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "SHARED", 1)
    monkeypatch.setattr(products, "thread_count", lambda: threads)
    rng = np.random.default_rng(0)
    x, y = rng.random(left), rng.random(right)
    turned = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    for operand in (x, turned):
        out = np.full((x @ y).shape, np.nan)
        assert products.product(operand, y, out) is out
        np.testing.assert_allclose(out, x @ y, rtol=1e-12)


@pytest.mark.parametrize("shared", [1, 1000])
def test_the_threads_of_blas_are_set_back(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(products, "ALONE", 1)
    monkeypatch.setattr(products, "SHARED", shared)
    monkeypatch.setattr(products, "thread_count", lambda: 2)
    for module in (blas, products):
        monkeypatch.setattr(module, "blas_threads", lambda: (lambda: 7, seen.append))
    with pytest.raises(ValueError, match="mismatch"):
        products.product(np.zeros((4, 5)), np.zeros((6, 7)), np.zeros((4, 7)))
    assert seen == [1, 7]


@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 5), (5, 6)), ((60, 50), (50, 40)), ((3, 1, 20, 30), (2, 30, 40)), ((30,), (30, 400)), ((400, 30), (30,))],
)  # fmt: skip
def test_products_without_a_place_wake_no_threads_of_blas(
    left: tuple[int, ...], right: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(products, "thread_count", lambda: 2)
    for module in (blas, products):
        monkeypatch.setattr(module, "blas_threads", lambda: (lambda: 7, seen.append))
    rng = np.random.default_rng(0)
    x, y = rng.random(left), rng.random(right)
    np.testing.assert_allclose(products.multiplied(x, y), x @ y, rtol=1e-12)
    matrices = len(left) > 1 and len(right) > 1
    assert seen == ([1, 7] if matrices and x.size * right[-1] >= products.ALONE else [])
