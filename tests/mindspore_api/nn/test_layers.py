"""Layers and losses against NumPy. `construct` runs at once here: the same operators as in a graph.

Labels that are no class: losses of class numbers refuse them on a CPU, on every rank.
Layers that draw, under the names of operators, functions and cells.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, INT32
from mspc.mindspore_api.common.initializers import initial_value
from tests.mindspore_api.nn.training import Training


def test_dropout_works_in_training_only():
    x = Tensor(np.ones((64, 64)), ms.float32)
    dropout = nn.Dropout(p=0.25)
    assert dropout.construct(x) is x
    dropout.set_train()
    out = dropout.construct(x).asnumpy()
    assert set(np.unique(out)) == {0, np.float32(1 / 0.75)}
    assert (out == 0).mean() == pytest.approx(0.25, abs=0.03)
    other = nn.Dropout(p=0.25).set_train().construct(x).asnumpy()
    assert (out != other).any()
    assert nn.Dropout(0.9).p == pytest.approx(0.1)


def test_no_init_parameters_draws_the_same_numbers():
    def draw(lazily):
        ms.set_seed(5)
        if lazily:
            with nn.utils.no_init_parameters():
                return nn.Dense(4, 2).weight
        return nn.Dense(4, 2).weight

    late = draw(True)
    assert late.has_init
    assert np.array_equal(late.asnumpy(), draw(False).asnumpy())


SHAPES = ((), (5,), (600000,), (700, 900), (3, 600000), (2, 3, 200, 1000), (2, 2, 530000), (4, 0, 3))


@pytest.mark.parametrize("init", ["normal", "uniform", "truncatednormal", "xavier_uniform", "he_normal", "ones"])
@pytest.mark.parametrize("shape", SHAPES)
def test_slices_hold_the_numbers_of_the_whole(init, shape):
    if len(shape) < 2 and init in ("xavier_uniform", "he_normal"):
        return
    if 0 in shape and init == "he_normal":
        return
    value = initial_value(init, shape, ms.float32)
    whole = value.fill()
    assert whole.shape == shape
    rng = np.random.default_rng(0)
    for _ in range(4):
        first = [int(rng.integers(0, n + 1)) for n in shape]
        cut = tuple(slice(i, int(rng.integers(i, n + 1))) for i, n in zip(first, shape, strict=True))
        np.testing.assert_array_equal(value.fill(cut), whole[cut])
    assert value.restyled(ms.float16).fill().dtype == np.float16


@pytest.mark.parametrize(
    ("init", "shape", "cut"),
    [
        ("normal", (8192, 2048), (slice(1024, 2048), slice(None))),
        ("truncatednormal", (8192, 2048), (slice(None), slice(128, 384))),
        ("he_uniform", (1, 1 << 24), (slice(None), slice(1 << 21))),
    ],
)
def test_a_slice_is_drawn_without_the_whole(init, shape, cut):
    """The global tensor is 64 MB, a slice 8 MB, a block 2 MB."""
    value = initial_value(init, shape, ms.float32)
    tracemalloc.start()
    mine = value.fill(cut)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mine.nbytes == 8 << 20
    assert peak < mine.nbytes + (12 << 20)


LOGITS = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
LOSSES: list[Callable[[Any, Any], Any]] = [
    lambda x, y: nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")(x, y),
    lambda x, y: ops.SparseSoftmaxCrossEntropyWithLogits()(x, y),
    lambda x, y: nn.CrossEntropyLoss()(x, y),
    lambda x, y: nn.NLLLoss()(x, y),
    lambda x, y: ops.cross_entropy(x, y),
    lambda x, y: ops.nll_loss(x, y),
]


@pytest.mark.parametrize("label", [3, 7, -1])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_label_that_is_no_class(loss: Callable[[Any, Any], Any], label: int) -> None:
    with pytest.raises(MspcError, match=rf"label {label} is not from 0 to 2"):
        loss(LOGITS, Tensor(np.array([1, label], np.int32)))


@pytest.mark.parametrize("cut", [(2, 1), (1, 2)])
def test_on_ranks_classes_are_those_of_all(cut: tuple[int, int]) -> None:
    """A label beside the classes of a rank's own slice is no mistake."""

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.double = ops.Mul().shard((cut, ()))

        def construct(self, x: Any, y: Any) -> Any:
            return ops.cross_entropy(self.double(x, 2.0), y)

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    training = Training(Net(), [(4, 4), (4,)], 2, "semi_auto_parallel", [FLOAT32, INT32])
    (found,) = training.run([[x, np.array([0, 3, 1, 2], np.int32)]])
    expected = ops.cross_entropy(Tensor(x * 2), Tensor(np.array([0, 3, 1, 2], np.int32)))
    np.testing.assert_allclose(np.asarray(found), expected.asnumpy(), rtol=1e-6)
    with pytest.raises(MspcError, match=r"label 4 is not from 0 to 3"):
        training.run([[x, np.array([0, 3, 1, 4], np.int32)]])


@pytest.mark.parametrize(("operator", "shape"), [(ops.Dropout2D, (16, 32, 3, 2)), (ops.Dropout3D, (16, 32, 2, 3, 2))])
def test_channels_are_dropped_as_a_whole(operator: Any, shape: tuple[int, ...]) -> None:
    out, mask = (t.asnumpy() for t in operator(0.75)(Tensor(np.full(shape, 3.0, np.float32))))
    assert out.shape == mask.shape == shape
    assert mask.dtype == np.bool_
    channels = mask.reshape(16, 32, -1)
    assert (channels == channels[:, :, :1]).all()
    assert 0.65 < channels[:, :, 0].mean() < 0.85
    np.testing.assert_array_equal(out, np.where(mask, np.float32(4.0), np.float32(0.0)))
