"""Cells against PyTorch's, values and gradients; every public cell has a judge, here or in a file that
tests/omissions.toml names, or a reason there why it has none."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Tensor, mint, nn
from mspc.nn.layer.basic import DropoutExt

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, same  # noqa: E402  # it imports PyTorch
from tests.oracle.step_cases import cases  # noqa: E402
from tests.test_omissions import excepted  # noqa: E402

F = torch.nn.functional
SMALL = floats(3, 4, 5, dtype=np.float32)
X = [floats(1, 3, 4, 6)]
IMAGES = [floats(2, 2, 3, 4, 5)]
NARROW = [floats(2, 2, 3, 4, 5, dtype=np.float32)]
PAIR = [floats(3, 4, 5), floats(4, 4, 5)]
SHARES = [floats(5, 4, 5, low=0.05, high=0.95), floats(6, 4, 5, low=0.05, high=0.95)]
ROWS = np.array([[0, 2], [4, 2]], np.int32)
CLASSES = [floats(7, 4, 5), np.array([0, 4, 2, 2], np.int64)]
WEIGHT, BIAS, TABLE = (floats(8, *shape, dtype=np.float32) for shape in ((3, 6), (3,), (5, 3)))


def tanh_gelu(x: Any) -> Any:
    return F.gelu(x, approximate="tanh")


JUDGED: dict[str, tuple[tuple[Any, ...], Any, list[np.ndarray]]] = {
    "nn.ELU mint.nn.ELU": ((), F.elu, X),
    "nn.FastGelu": ((), lambda x: x * torch.sigmoid(1.702 * x), X),
    "nn.Flatten": ((), lambda x: x.flatten(1), IMAGES),
    "nn.GELU": ((), tanh_gelu, X),
    "mint.nn.GELU": ((), F.gelu, X),
    "nn.GLU": ((), F.glu, X),
    "nn.HSigmoid mint.nn.Hardsigmoid": ((), F.hardsigmoid, X),
    "nn.HSwish mint.nn.Hardswish": ((), F.hardswish, X),
    "nn.Hardtanh": ((-0.5, 2.0), lambda x: F.hardtanh(x, -0.5, 2.0), X),
    "nn.MatMul": ((False, True), lambda x, y: x @ y.mT, PAIR),
    "nn.Norm": ((1,), lambda x: x.norm(dim=1), X),
    "nn.Tril": ((), torch.tril, X),
    "nn.Triu": ((), torch.triu, X),
    "nn.Identity mint.nn.Identity": ((), lambda x: x * 1, X),
    "nn.LeakyReLU": ((0.3,), lambda x: F.leaky_relu(x, 0.3), X),
    "nn.LogSigmoid mint.nn.LogSigmoid": ((), F.logsigmoid, X),
    "nn.LogSoftmax": ((1,), lambda x: F.log_softmax(x, 1), X),
    "mint.nn.LogSoftmax": ((1,), lambda x: F.log_softmax(x, 1), X),
    "nn.Mish mint.nn.Mish": ((), F.mish, X),
    "nn.ReLU mint.nn.ReLU": ((), F.relu, X),
    "nn.ReLU6 mint.nn.ReLU6": ((), F.relu6, X),
    "nn.SeLU mint.nn.SELU": ((), F.selu, X),
    "nn.SiLU mint.nn.SiLU": ((), F.silu, X),
    "nn.Sigmoid mint.nn.Sigmoid": ((), torch.sigmoid, X),
    "nn.Softmax": ((1,), lambda x: F.softmax(x, 1), X),
    "mint.nn.Softmax": ((1,), lambda x: F.softmax(x, 1), X),
    "nn.Tanh mint.nn.Tanh": ((), torch.tanh, X),
    "nn.Threshold": ((0.1, -2.0), lambda x: F.threshold(x, 0.1, -2.0), X),
    "nn.PReLU": ((3, 0.3), lambda x: F.prelu(x, torch.full((3,), 0.3)), NARROW),
    "nn.L1Loss mint.nn.L1Loss": ((), F.l1_loss, PAIR),
    "nn.MSELoss mint.nn.MSELoss": ((), F.mse_loss, PAIR),
    "mint.nn.BCELoss": ((), lambda x, y: F.binary_cross_entropy(x, y.detach()), SHARES),
    "mint.nn.BCEWithLogitsLoss": ((), lambda x, y: F.binary_cross_entropy_with_logits(x, y), PAIR),
    "mint.nn.CrossEntropyLoss": ((), F.cross_entropy, CLASSES),
    "mint.nn.NLLLoss": ((), F.nll_loss, CLASSES),
}
"""Arguments of the cell, what PyTorch computes, and inputs, by the cells' names."""


@pytest.mark.parametrize("name", [name for names in JUDGED for name in names.split()])
def test_a_cell_is_pytorchs(name: str) -> None:
    arguments, theirs, inputs = next(entry for names, entry in JUDGED.items() if name in names.split())
    cell = reduce(getattr, name.split("."), mspc)(*arguments)
    judged = [0] if len(inputs) > 1 else None
    same(cell, theirs, inputs, grads=judged, tolerance=1e-6)


@pytest.mark.parametrize("layer", [nn.Dense(6, 3), mint.nn.Linear(6, 3)])
def test_a_dense_layer_is_pytorchs(layer: Any) -> None:
    layer.weight.set_data(Tensor(WEIGHT))
    layer.bias.set_data(Tensor(BIAS))
    x = floats(1, 3, 4, 6, dtype=np.float32)
    same(layer, lambda x: F.linear(x, torch.tensor(WEIGHT), torch.tensor(BIAS)), [x], tolerance=1e-6)


@pytest.mark.parametrize("layer", [nn.Embedding(5, 3), mint.nn.Embedding(5, 3)])
def test_an_embedding_is_pytorchs(layer: Any) -> None:
    (table,) = layer.trainable_params()
    table.set_data(Tensor(TABLE))
    same(layer, lambda rows: F.embedding(rows, torch.tensor(TABLE)), [ROWS], tolerance=1e-6)


def test_layers_of_mint_under_their_other_names() -> None:
    assert DropoutExt is mint.nn.Dropout
    assert not hasattr(nn, "NothingExt")


def test_embeddings_and_norms_of_mint() -> None:

    table = mint.nn.Embedding(4000, 8, padding_idx=-2)
    assert abs(table.weight.asnumpy().std() - 1) < 0.02
    assert not table.weight.asnumpy()[-2].any()
    assert not mint.nn.Embedding(4, 3, _weight=Tensor(SMALL[:, :3]), _freeze=True).weight.requires_grad
    rows = np.array([1, 0, 1, 3])
    given = mint.nn.Embedding(4, 5, padding_idx=1, _weight=Tensor(SMALL))
    np.testing.assert_array_equal(given(Tensor(rows)).asnumpy(), SMALL[rows])
    weight = torch.from_numpy(SMALL.copy()).requires_grad_()
    F.embedding(torch.from_numpy(rows), weight, 1).sum().backward()
    found = mspc.grad(lambda i: given(i).sum(), None, given.trainable_params())(Tensor(rows))
    np.testing.assert_array_equal((found[0] if isinstance(found, tuple) else found).asnumpy(), weight.grad.numpy())
    for options in ({}, {"bias": False}, {"elementwise_affine": False}):
        layer, other = mint.nn.LayerNorm(5, 1e-3, **options), torch.nn.LayerNorm(5, 1e-3, **options)
        wanted = other(torch.from_numpy(SMALL)).detach().numpy()
        np.testing.assert_allclose(layer(Tensor(SMALL)).asnumpy(), wanted, rtol=1e-4, atol=1e-6)
        assert len(list(layer.get_parameters())) == len(list(other.parameters()))


def test_every_cell_has_a_judge_or_a_reason() -> None:
    found = {f"nn.{name}" for name in dir(nn) if name[0].isupper()} | {f"mint.nn.{name}" for name in dir(mint.nn)}
    # Optimizers have cases of training steps, which test_shared_steps.py runs.
    optimizers = {f"nn.{name}" for name in dir(nn) if name[0].isupper() and issubclass(getattr(nn, name), nn.Optimizer)}
    steps = {case.name.split()[0].rstrip(",") for case in cases()} & optimizers
    judged = {name for names in JUDGED for name in names.split()} | steps
    by_file = excepted()["cells_judged_elsewhere"]
    elsewhere, excused = ({name for names in each.values() for name in names}
                          for each in (by_file, excepted()["cells_without_judge"]))  # fmt: skip
    assert sorted(found - judged - elsewhere - excused) == []
    assert sorted(judged & excused | elsewhere & excused) == [], "they have a judge and a reason to have none"
    assert sorted((judged | elsewhere | excused) - found) == [], "there is no such cell"
    for file, names in by_file.items():
        text = Path(__file__).with_name(file).read_text(encoding="utf-8")
        assert [name for name in names if name not in text] == [], f"not in {file}"
