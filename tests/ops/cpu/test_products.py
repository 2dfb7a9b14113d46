"""Matrix products shared out to threads equal NumPy's, and leave BLAS's settings as they were."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mspc.ops.cpu import blas, gemm, products

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
    ((3, 33, 20), (3, 20, 70)),
    ((5, 1, 6), (6, 8)),
    ((2, 3, 4, 5, 6), (2, 3, 4, 6, 5)),
    ((40, 5), (5, 1)),
]
IN_ORDER, TURNED, INSIDE = 0, 1, 2
"""Where the elements of a matrix of a batch lie: row by row, column by column, rows of all matrices in turns."""


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Without a compiler. What BLAS's threads are set to, which were 7."""
    seen: list[int] = []
    monkeypatch.setattr(products, "thread_count", lambda: 2)
    monkeypatch.setattr(products, "multiplied_by_blas", lambda *_: False)
    monkeypatch.setattr(blas, "library", lambda: None)
    for module in (blas, products):
        monkeypatch.setattr(module, "blas_threads", lambda: (lambda: 7, seen.append))
    return seen


def lying(array: Any, order: int) -> Any:
    """A copy of matrices whose elements lie so."""
    if order == TURNED:
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, -2, 0)), 0, -2) if order == INSIDE else array.copy()


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("by_blas", [True, False])
def test_products_equal_numpy(
    left: tuple[int, ...], right: tuple[int, ...], threads: int, dtype: type, by_blas: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for module in (products, gemm):
        monkeypatch.setattr(module, "SHARED", 1)
        monkeypatch.setattr(module, "thread_count", lambda: threads)
    monkeypatch.setattr(products, "ALONE", 1)
    gemm.plan_of.cache_clear()
    if not by_blas:
        monkeypatch.setattr(products, "multiplied_by_blas", lambda *_: False)
    rng = np.random.default_rng(0)
    x, y = rng.random(left).astype(dtype), rng.random(right).astype(dtype)
    for orders in itertools.product((IN_ORDER, TURNED, INSIDE), (IN_ORDER, TURNED, INSIDE), (IN_ORDER, TURNED)):
        out = lying(np.full((x @ y).shape, np.nan, dtype), orders[2])
        assert products.product(lying(x, orders[0]), lying(y, orders[1]), out) is out
        np.testing.assert_allclose(out, x @ y, rtol=1e-5 if dtype is np.float32 else 1e-12)
    gemm.plan_of.cache_clear()


@pytest.mark.parametrize("order", [IN_ORDER, TURNED])
@pytest.mark.parametrize(
    ("left", "right"), [((64, 70), (70, 300)), ((5, 300, 70), (5, 70, 64)), ((9, 40, 70), (70, 8))]
)
def test_the_number_of_threads_changes_no_bit(
    left: tuple[int, ...], right: tuple[int, ...], order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm, "SHARED", 1)
    rng = np.random.default_rng(0)
    x, y = lying(rng.random(left, np.float32), order), lying(rng.random(right, np.float32), order)
    found: list[Any] = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(gemm, "thread_count", lambda count=threads: count)
        found.append(products.product(x, y, np.zeros((x @ y).shape, np.float32)))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.parametrize(
    ("x", "y", "out"),
    [
        (np.ones((4, 5), np.float16), np.ones((5, 6), np.float16), np.zeros((4, 6), np.float16)),
        (np.ones((4, 5)), np.ones((5, 6), np.float32), np.zeros((4, 6))),
        (np.ones((4, 10))[:, ::2], np.ones((5, 6)), np.zeros((4, 6))),
        (np.ones((4, 5))[::-1], np.ones((5, 6)), np.zeros((4, 6))),
        (np.ones((4, 0)), np.ones((0, 6)), np.zeros((4, 6))),
        (np.ones((4, 5), np.int64), np.ones((5, 6), np.int64), np.zeros((4, 6), np.int64)),
    ],
    ids=["halves", "several types", "elements apart", "backwards", "nothing to add up", "integers"],
)
def test_what_blas_does_not_take(x: Any, y: Any, out: Any) -> None:
    assert not gemm.multiplied_by_blas(x, y, out)
    np.testing.assert_array_equal(products.product(x, y, out), x @ y)


def test_blas_has_its_threads_again_after_a_product() -> None:
    found = blas.blas_threads()
    if found is None:
        pytest.skip("NumPy has another BLAS")
    get, set_to = found
    before = get()
    set_to(2)
    try:
        products.multiplied(np.ones((64, 64)), np.ones((64, 64)))
        assert get() == 2
        with blas.one_blas_thread():
            products.multiplied(np.ones((64, 64)), np.ones((64, 64)))
            assert get() == 1
        assert get() == 2
    finally:
        set_to(before)


@pytest.mark.parametrize("shared", [1, 1000])
def test_the_threads_of_blas_are_set_back(shared: int, in_python: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "ALONE", 1)
    monkeypatch.setattr(products, "SHARED", shared)
    with pytest.raises(ValueError, match="mismatch"):
        products.product(np.zeros((4, 5)), np.zeros((6, 7)), np.zeros((4, 7)))
    assert in_python == [1, 7]


@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 5), (5, 6)), ((60, 50), (50, 40)), ((3, 1, 20, 30), (2, 30, 40)), ((30,), (30, 400)), ((400, 30), (30,))],
)  # fmt: skip
def test_products_without_a_place_wake_no_threads_of_blas(
    left: tuple[int, ...], right: tuple[int, ...], in_python: list[int]
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random(left), rng.random(right)
    np.testing.assert_allclose(products.multiplied(x, y), x @ y, rtol=1e-12)
    matrices = len(left) > 1 and len(right) > 1
    assert in_python == ([1, 7] if matrices and x.size * right[-1] >= products.ALONE else [])
