"""The OpenBLAS of NumPy's wheels: its threads and its products as C++ calls them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from mspc.ops.cpu import blas

_BY_ROWS, _AS_IT_IS, _TURNED = 101, 111, 112


@pytest.mark.parametrize(("before", "after"), [(8, [2]), (2, []), (1, [])])
def test_ranks_limit_blas(before: int, after: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(blas, "thread_count", lambda: 2)
    monkeypatch.setattr(blas, "blas_threads", lambda: (lambda: before, seen.append))
    blas.limit_blas()
    assert seen == after


@pytest.mark.parametrize(("dtype", "number"), [(np.float32, ctypes.c_float), (np.float64, ctypes.c_double)])
def test_a_product_by_its_address(dtype: type, number: type) -> None:
    address = blas.gemm_address(np.dtype(dtype))
    if address is None:
        pytest.skip("NumPy has another BLAS")
    size, pointer, kind = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int
    gemm = ctypes.CFUNCTYPE(
        None, kind, kind, kind, size, size, size, number, pointer, size, pointer, size, number, pointer, size
    )(address)
    rng = np.random.default_rng(0)
    x, y, out = rng.random((3, 4)).astype(dtype), rng.random((5, 4)).astype(dtype), np.ones((3, 5), dtype)
    places = (array.ctypes.data for array in (x, y, out))
    gemm(_BY_ROWS, _AS_IT_IS, _TURNED, 3, 5, 4, 1, next(places), 4, next(places), 4, 1, next(places), 5)
    np.testing.assert_allclose(out, x @ y.T + 1, rtol=1e-6)


def test_other_element_types_have_no_product() -> None:
    assert blas.gemm_address(np.dtype(np.float16)) is None
