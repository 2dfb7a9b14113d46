"""GroupedMatmul: each group of rows is what it would be alone, on one device and on ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, ops
from mspc.ir.diagnostics import MspcError

ENDS = (2, 2, 5, 7)
NONE = (None,) * 4


def drawn(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", [tuple, Tensor])
def test_rows_go_with_the_matrix_of_their_group(kind: Any, biased: bool) -> None:
    x, w, b = drawn(8, 3), drawn(4, 3, 5, seed=2), drawn(4, 5, seed=3)
    weights = Tensor(drawn(8, 5, seed=4))

    def grouped(x: Any, w: Any, b: Any) -> Any:
        gmm = ops.GroupedMatmul(3, 0)
        return (gmm([x], [w], [b] if biased else None, *NONE, kind(ENDS))[0] * weights).sum()

    def apart(x: Any, w: Any, b: Any) -> Any:
        total, begin = 0.0, 0
        for i, end in enumerate(ENDS):
            if end > begin:
                product = ops.matmul(x[begin:end], w[i])
                total = total + ((product + b[i] if biased else product) * weights[begin:end]).sum()
            begin = end
        return total

    tensors = [Tensor(array) for array in (x, w, b)]
    places = (0, 1, 2) if biased else (0, 1)
    found, expected = (ms.value_and_grad(f, places)(*tensors) for f in (grouped, apart))
    np.testing.assert_allclose(found[0].asnumpy(), expected[0].asnumpy(), rtol=1e-12)
    for left, right in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(left.asnumpy(), right.asnumpy(), rtol=1e-12, atol=1e-12)


def test_lists_are_products_of_their_own() -> None:
    x, w, b = [drawn(2, 3), drawn(4, 5)], [drawn(3, 2), drawn(5, 1)], [drawn(2), drawn(1)]
    lists = [[Tensor(array) for array in arrays] for arrays in (x, w, b)]
    found = ops.GroupedMatmul()(*lists)
    for result, left, right, added in zip(found, x, w, b, strict=True):
        np.testing.assert_allclose(result.asnumpy(), left @ right + added, rtol=1e-12)


X, W = Tensor(drawn(8, 3)), Tensor(drawn(4, 3, 5))


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (0, ([X], [W]), "group_type 0 takes one x and a group_list"),
        (-1, ([X], [W], None, *NONE, ENDS), "group_type -1 no group_list"),
        (2, ([X], [W]), "group_type is 2, not -1 or 0"),
        (-1, ([X, X], [W]), "x, weight and bias are lists of 2, 1 and 0 tensors"),
        (-1, ([X], [W], None, X), "scale must be None; quantised products are not built"),
        (0, ([W], [W], None, *NONE, ENDS), "GroupedProduct: inputs of shapes (4, 3, 5) and (4, 3, 5)"),
    ],
)
def test_what_does_not_fit_is_named(kind: int, arguments: Any, message: str) -> None:
    with pytest.raises((MspcError, ValueError, TypeError)) as refused:
        ops.GroupedMatmul(3, kind)(*arguments)
    assert message in str(refused.value)
