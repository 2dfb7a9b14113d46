"""Layers and losses against NumPy. `construct` runs at once here: the same operators as in a graph."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn
from mspc.mindspore_api.common.initializers import initial_value


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
