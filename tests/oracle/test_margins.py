"""Losses of margins, against PyTorch and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from mspc import Tensor, grad, nn, ops

torch = pytest.importorskip("torch")
functional = torch.nn.functional

DRAWS = np.random.default_rng(9)
X, Y, Z = (DRAWS.standard_normal((4, 5)).astype(np.float32) for _ in range(3))
TARGET, WEIGHT = np.array([1, 4, 0, 2]), DRAWS.random(5).astype(np.float32)
LABELS = np.array([[1, 2, -1, 0, 3], [3, -1, 4, 1, 0], [-1, 0, 1, 2, 3], [0, 1, 2, 3, 4]])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_margins_of_classes(reduction: str) -> None:
    x, target, weight = map(torch.from_numpy, (X, TARGET, WEIGHT))
    for p in (1, 2):
        found = ops.multi_margin_loss(Tensor(X), Tensor(TARGET), p, 0.7, Tensor(WEIGHT), reduction)
        wanted = functional.multi_margin_loss(x, target, p, 0.7, weight, reduction=reduction)
        np.testing.assert_allclose(found.asnumpy(), wanted.numpy(), rtol=1e-5)
    found = ops.multilabel_margin_loss(Tensor(X), Tensor(LABELS), reduction)
    wanted = functional.multilabel_margin_loss(x, torch.from_numpy(LABELS), reduction=reduction)
    np.testing.assert_allclose(found.asnumpy(), wanted.numpy(), rtol=1e-5)


def test_gradients_of_margins() -> None:
    x = torch.from_numpy(X.copy()).requires_grad_()
    functional.multi_margin_loss(x, torch.from_numpy(TARGET), 2).backward()
    found = grad(lambda x: ops.multi_margin_loss(x, Tensor(TARGET), 2))(Tensor(X)).asnumpy()
    np.testing.assert_allclose(found, x.grad.numpy(), rtol=1e-4, atol=1e-6)
    x = torch.from_numpy(X.copy()).requires_grad_()
    functional.multilabel_margin_loss(x, torch.from_numpy(LABELS)).backward()
    found = grad(lambda x: ops.multilabel_margin_loss(x, Tensor(LABELS)))(Tensor(X)).asnumpy()
    np.testing.assert_allclose(found, x.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_layers_of_mint_under_their_other_names() -> None:
    from mspc import mint
    from mspc.nn.layer.basic import DropoutExt

    assert DropoutExt is mint.nn.Dropout
    assert not hasattr(nn, "NothingExt")


def test_embeddings_and_norms_of_mint() -> None:
    from mspc import mint

    table = mint.nn.Embedding(4000, 8, padding_idx=-2)
    assert abs(table.weight.asnumpy().std() - 1) < 0.02
    assert not table.weight.asnumpy()[-2].any()
    assert not mint.nn.Embedding(4, 3, _weight=Tensor(X[:, :3]), _freeze=True).weight.requires_grad
    rows = np.array([1, 0, 1, 3])
    given = mint.nn.Embedding(4, 5, padding_idx=1, _weight=Tensor(X))
    np.testing.assert_array_equal(given(Tensor(rows)).asnumpy(), X[rows])
    weight = torch.from_numpy(X.copy()).requires_grad_()
    functional.embedding(torch.from_numpy(rows), weight, 1).sum().backward()
    found = grad(lambda i: given(i).sum(), None, given.trainable_params())(Tensor(rows))
    np.testing.assert_array_equal((found[0] if isinstance(found, tuple) else found).asnumpy(), weight.grad.numpy())
    for options in ({}, {"bias": False}, {"elementwise_affine": False}):
        layer, other = mint.nn.LayerNorm(5, 1e-3, **options), torch.nn.LayerNorm(5, 1e-3, **options)
        wanted = other(torch.from_numpy(X)).detach().numpy()
        np.testing.assert_allclose(layer(Tensor(X)).asnumpy(), wanted, rtol=1e-4, atol=1e-6)
        assert len(list(layer.get_parameters())) == len(list(other.parameters()))
