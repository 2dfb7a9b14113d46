"""Normalisations and means against PyTorch, in half precision with large numbers too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, mint, nn, ops

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near, same  # noqa: E402  # it imports PyTorch

F = torch.nn.functional


@pytest.mark.parametrize("normalized", [(6,), (5, 6)])
def test_layer_norm(normalized: tuple[int, ...]) -> None:
    arrays = [floats(1, 4, 5, 6), floats(2, *normalized), floats(3, *normalized)]
    same(lambda x, g, b: ops.layer_norm(x, normalized, g, b, 1e-3),
         lambda x, g, b: F.layer_norm(x, normalized, g, b, 1e-3), arrays)  # fmt: skip
    same(lambda x, g, b: mint.nn.functional.layer_norm(x, normalized, g, b),
         lambda x, g, b: F.layer_norm(x, normalized, g, b), arrays)  # fmt: skip


@pytest.mark.parametrize("scale", [1.0, 1000.0, 8000.0])
@pytest.mark.parametrize("columns", [64, 4096])
def test_layer_norm_of_halves(columns: int, scale: float) -> None:
    """The square of a standard deviation above 256 is more than a half holds."""
    x = (floats(1, 4, columns) * scale).astype(np.float16)
    x[0] += np.float16(scale)
    gamma, beta = floats(2, columns, dtype=np.float16), floats(3, columns, dtype=np.float16)
    same(lambda a, g, b: ops.layer_norm(a, (columns,), g, b), lambda a, g, b: F.layer_norm(a, (columns,), g, b),
         [x, gamma, beta], tolerance=2e-3)  # fmt: skip
    _, mean, variance = ops.LayerNorm(-1, -1)(Tensor(x), Tensor(gamma), Tensor(beta))
    near(mean.asnumpy()[:, 0], x.astype(np.float64).mean(1), "mean", 1e-5)
    near(variance.asnumpy()[:, 0], x.astype(np.float64).var(1), "variance", 1e-5)


def test_gradients_of_means_and_variances() -> None:
    def mine(x: Any, g: Any, b: Any) -> Any:
        y, mean, variance = ops.LayerNorm(-1, -1, 1e-3)(x, g, b)
        return y + ops.cast(mean * variance, y.dtype)

    def theirs(x: Any, g: Any, b: Any) -> Any:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
        return F.layer_norm(x, (6,), g, b, 1e-3) + mean * variance

    for dtype in (np.float64, np.float16):
        same(mine, theirs, [floats(1, 4, 6, dtype=dtype), floats(2, 6, dtype=dtype), floats(3, 6, dtype=dtype)],
             tolerance=1e-10 if dtype == np.float64 else 1e-2)  # fmt: skip


def test_halves_with_parameters_of_float32() -> None:
    """Computed in Float32, of the element type of x, as MindSpore's are; the parameters' gradients are Float32."""
    x = floats(1, 4, 6, dtype=np.float16)
    gamma, beta = (floats(seed, 6, dtype=np.float32, low=0.1) for seed in (2, 3))
    same(lambda a, g, b: ops.layer_norm(a, (6,), g, b), lambda a, g, b: F.layer_norm(a.float(), (6,), g, b).half(),
         [x, gamma, beta])  # fmt: skip
    same(lambda a, g: ops.RmsNorm(1e-5)(a, g)[0], lambda a, g: F.rms_norm(a.float(), (6,), g, 1e-5).half(), [x, gamma])
    same(lambda a, g, b: ops.group_norm(a, 3, g, b), lambda a, g, b: F.group_norm(a.float(), 3, g, b).half(),
         [x, gamma, beta], tolerance=4e-3)  # fmt: skip
    for cell in (nn.LayerNorm((6,)), nn.GroupNorm(3, 6), nn.PReLU(6)):
        assert str(cell(Tensor(x)).dtype) == "Float16"
        assert str(ops.grad(cell, None, cell.trainable_params())(Tensor(x))[0].dtype) == "Float32"


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_rms_norm(dtype: Any) -> None:
    x, gamma = floats(1, 4, 64, dtype=dtype), floats(2, 64, dtype=dtype)
    same(lambda a, g: ops.RmsNorm(1e-5)(a, g)[0], lambda a, g: F.rms_norm(a, (64,), g, 1e-5), [x, gamma])
    if dtype == np.float16:
        large = (x * 10000).astype(np.float16)
        same(lambda a, g: ops.RmsNorm(1e-5)(a, g)[0], lambda a, g: F.rms_norm(a, (64,), g, 1e-5), [large, gamma])
        assert str(ops.RmsNorm()(Tensor(x), Tensor(gamma))[1].dtype) == "Float32"


def test_cells() -> None:
    x = floats(1, 4, 6, dtype=np.float32)
    same(nn.LayerNorm((6,), epsilon=1e-5), torch.nn.LayerNorm(6), [x])
    same(mint.nn.LayerNorm(6), torch.nn.LayerNorm(6), [x])
    same(nn.RMSNorm(6, 1e-6), torch.nn.RMSNorm(6, 1e-6), [x])


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_of_halves_are_taken_in_float32(axis: int) -> None:
    x = np.full((5000, 4) if axis == 0 else (4, 5000), 0.1, np.float16)
    x[0, 0] = 100
    wide = torch.tensor(x, dtype=torch.float32)
    near(ops.reduce_sum(Tensor(x), axis).asnumpy(), wide.sum(axis).half().numpy(), "sum", 1e-3)
    near(ops.reduce_mean(Tensor(x), axis).asnumpy(), wide.mean(axis).half().numpy(), "mean", 1e-3)
    larger = torch.tensor(x * 600, dtype=torch.float32).mean(axis).half().numpy()
    near(ops.mean(Tensor(x * 600), axis).asnumpy(), larger, "mean of what sums to more than a half holds", 1e-3)
    near(ops.L2Normalize(axis, 1e-12)(Tensor(x * 500)).asnumpy(),
         F.normalize(torch.tensor(x * 500, dtype=torch.float32), dim=axis).half().numpy(), "norm", 1e-3)  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_halves_gives_halves(training: bool) -> None:
    x = floats(1, 8, 4, 3, 3, dtype=np.float16)
    cell, judged = nn.BatchNorm2d(4).set_train(training), torch.nn.BatchNorm2d(4).train(training)
    found = cell(Tensor(x))
    assert found.dtype == ms.float16
    near(found.asnumpy(), judged(torch.tensor(x).float()).detach().numpy(), "halves", 2e-3)
    near(cell.moving_mean.asnumpy(), judged.running_mean.numpy(), "moving mean")
