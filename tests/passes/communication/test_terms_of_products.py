"""Gradients of partial products and extrema that are added: each is reduced before, as it is no sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from tests.mindspore_api.nn.training import Training

VALUES = np.random.default_rng(0).uniform(0.5, 1.5, 8)


class Step(nn.Cell):
    """(square of a reduction over all of a weight, its gradient in the weight)."""

    def __init__(self, reduction: Any, parts: int) -> None:
        super().__init__()
        self.w, self.one = Parameter(Tensor(VALUES), "w"), Tensor(np.float64(1))
        self.product, self.reduction = ops.Mul().shard(((parts,), ())), reduction
        self.both = ops.value_and_grad(self.loss, None, [self.w])

    def loss(self, x: Any) -> Any:
        found = self.reduction(self.product(self.w, self.one), 0)
        return found * found

    def construct(self, x: Any) -> Any:
        value, gradients = self.both(x)
        return value, gradients[0] + 0.0


@pytest.mark.parametrize("reduction", [ops.reduce_prod, ops.reduce_max, ops.reduce_min])
def test_terms_of_one_gradient(reduction: Any) -> None:
    x = [(np.zeros(8, np.float32),)]
    expected = Training(Step(reduction, 1), [(8,)]).run(x)[0]
    for parts in (2, 4):
        found = Training(Step(reduction, parts), [(8,)], 4, "semi_auto_parallel").run(x)[0]
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)
