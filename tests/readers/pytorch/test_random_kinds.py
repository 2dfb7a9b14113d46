"""Kinds that draw numbers: PyTorch's are others, so their properties are tested."""

from __future__ import annotations

import numpy as np
import pytest

import mspc
from mspc import Tensor
from mspc.readers.pytorch.kinds.creation import dropped_channels
from mspc.readers.pytorch.kinds.linear import attention


@pytest.mark.parametrize("shape", [(8, 16), (8, 16, 6), (8, 16, 3, 2), (4, 16, 2, 2, 2)])
def test_channels_are_dropped_as_a_whole(shape: tuple[int, ...]) -> None:
    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        y = dropped_channels(x, 0.25, True)
        return y.sum(), y

    x = np.random.default_rng(0).uniform(1, 2, shape).astype(np.float32)
    (_, y), gradient = mspc.value_and_grad(total, has_aux=True)(Tensor(x))
    channels = (y.asnumpy() / x).reshape(*shape[:2], -1)
    np.testing.assert_allclose(channels, np.broadcast_to(channels[:, :, :1], channels.shape), rtol=1e-5)
    counts = np.isclose(channels[:, :, 0], 4 / 3)
    assert (counts | (channels[:, :, 0] == 0)).all()
    assert 0.5 < counts.mean() < 0.95  # 0.75 of 64 channels or more
    np.testing.assert_allclose(gradient.asnumpy(), np.where(y.asnumpy() != 0, 4 / 3, 0), rtol=1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("is_bool", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_query_that_sees_nothing_gives_zeros(is_bool: bool, is_causal: bool, dropout: float) -> None:
    """Also if the mask and the causal one hide its keys together."""
    rng = np.random.default_rng(0)
    query, key, value = (Tensor(rng.standard_normal((2, 2, 4, 8)).astype(np.float32)) for _ in range(3))
    seen = rng.random((2, 1, 4, 4)) > 0.4
    seen[0, 0, 1] = seen[1, 0, :2] = False
    seen[1, 0, 3] = [True, False, False, False]
    seen[1, 0, 2] = [False, False, False, True]
    mask = Tensor(seen if is_bool else np.where(seen, 0, -np.inf).astype(np.float32))

    def total(*operands: Tensor) -> tuple[Tensor, Tensor]:
        y = attention(*operands, mask, dropout, is_causal, None, False)
        return (y * y).sum(), y

    (_, y), gradients = mspc.value_and_grad(total, (0, 1, 2), has_aux=True)(query, key, value)
    seen &= np.tri(4, dtype=bool) | (not is_causal)
    hidden = np.broadcast_to(~seen.any(-1), (2, 2, 4))
    assert hidden[1, 0].tolist() == [True, True, is_causal, False]
    assert (y.asnumpy()[hidden] == 0).all()
    assert (y.asnumpy()[~hidden] != 0).any()
    assert all(np.isfinite(gradient.asnumpy()).all() for gradient in gradients)
    assert (gradients[0].asnumpy()[hidden] == 0).all()
