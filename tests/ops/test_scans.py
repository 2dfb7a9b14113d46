"""Scans beside PyTorch: infinities and NaN, lines of no and of one element, recurrences, sharded infinities."""

import math
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, ops
from mspc.ir.types import FLOAT64, TensorType
from mspc.ops.math.scans import CumulativeLogsumexp, CumulativeLogsumexpGrad
from tests.ops.simulate import check_sharded

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
INF, NAN = math.inf, math.nan
ROWS = (
    [-INF, -INF, 1.0, 2.0, -INF, 3.0], [-INF] * 4, [1.0, INF, 2.0, 3.0], [1.0, 2.0, NAN, 3.0], [-INF, INF, NAN], [5.0],
    [], [40.0, -40.0, 40.0], [2.0, 2.0, -3.0, 2.0], [0.0, 3.0, 0.0, -0.0],
)  # fmt: skip
SCANS: dict[str, tuple[Any, Any]] = {
    "cumsum": (ops.cumsum, torch.cumsum),
    "cumprod": (ops.cumprod, torch.cumprod),
    "logcumsumexp": (ops.logcumsumexp, torch.logcumsumexp),
    "cummax": (ops.cummax, torch.cummax),
    "cummin": (ops.cummin, torch.cummin),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_hard_lines_equal_pytorch(name: str, row: list[float]) -> None:
    """Values, places and gradients; the gradient of a product of NaN or infinities is NaN in other places."""
    mine, theirs = SCANS[name]
    x, weights = torch.tensor(row, requires_grad=True), torch.arange(1.0, len(row) + 1)
    expected = theirs(x, 0)
    found = mine(Tensor(np.array(row, np.float32)), 0)
    if name in ("cummax", "cummin"):
        np.testing.assert_array_equal(found[1].asnumpy(), expected[1].numpy())
        expected, found = expected[0], found[0]
    np.testing.assert_allclose(found.asnumpy(), expected.detach().numpy(), rtol=1e-6)
    if name == "cumprod" and not np.isfinite(row).all():
        return
    (expected * weights).sum().backward()

    def total(x: Tensor) -> Any:
        result = mine(x, 0)
        return ((result[0] if isinstance(result, tuple) else result) * Tensor(weights.numpy())).sum()

    np.testing.assert_allclose(ms.grad(total)(Tensor(np.array(row, np.float32))).asnumpy(), x.grad.numpy(), rtol=3e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_recurrences_equal_a_loop_of_pytorch(reverse: bool) -> None:
    draw = np.random.default_rng(0)
    arrays = [draw.uniform(-1, 1, (3, 9, 4)).astype(np.float32) for _ in range(3)]
    a, b, weights = (torch.tensor(array, requires_grad=True) for array in arrays)
    h, found = torch.zeros(3, 4), []
    for step in range(9)[:: -1 if reverse else 1]:
        h = a[:, step] * h + b[:, step]
        found.append(h)
    expected = torch.stack(found[:: -1 if reverse else 1], 1)
    (expected * weights).sum().backward()
    recurrence = ops.LinearRecurrence(reverse, 1)
    given = [Tensor(array) for array in arrays]
    np.testing.assert_allclose(recurrence(*given[:2]).asnumpy(), expected.detach().numpy(), atol=1e-6)
    slopes = ms.grad(lambda a, b: (recurrence(a, b) * given[2]).sum(), (0, 1))(*given[:2])
    for slope, wanted in zip(slopes, (a.grad, b.grad), strict=True):
        np.testing.assert_allclose(slope.asnumpy(), wanted.numpy(), atol=1e-5)


def test_second_derivatives_of_logarithms() -> None:
    x = np.random.default_rng(1).uniform(-2, 2, (2, 7))
    own = torch.tensor(x, requires_grad=True)
    (slope,) = torch.autograd.grad(torch.logcumsumexp(own, 1).square().sum(), own, create_graph=True)
    slope.square().sum().backward()

    def norm(x: Tensor) -> Any:
        return ops.square(ms.grad(lambda x: ops.square(ops.logcumsumexp(x, 1)).sum())(x)).sum()

    np.testing.assert_allclose(ms.grad(norm)(Tensor(x)).asnumpy(), own.grad.numpy(), rtol=1e-9)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("ranks", [2, 4])
def test_sharded_lines_of_infinities(ranks: int) -> None:
    x = np.random.default_rng(2).normal(size=(3, 8))
    x[0, :5], x[1, 3] = -INF, INF
    y = np.logaddexp.accumulate(x, 1)
    type = TensorType(FLOAT64, x.shape)
    check_sharded(CumulativeLogsumexp(axis=1), [x], [type], ranks)
    check_sharded(CumulativeLogsumexpGrad(axis=1), [x, y, np.ones_like(x)], [type] * 3, ranks)
