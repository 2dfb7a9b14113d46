"""Random integers, orders and choices: their distribution, their seeds, and the same numbers on any number of ranks."""

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, mint, ops

WEIGHTS = Tensor(np.array([0.0, 1.0, 3.0], np.float32))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    ms.set_seed(7)


def shares(values: Any, count: int) -> list[float]:
    return (np.bincount(values.asnumpy().reshape(-1).astype(int), minlength=count) / values.size).round(1).tolist()


def test_integers_and_orders() -> None:
    for found in (ops.randint(2, 6, (50, 40)), mint.randint(2, 6, (50, 40))):
        assert (found.dtype, found.shape) == (ms.int64, (50, 40))
        assert set(found.asnumpy().ravel().tolist()) == {2, 3, 4, 5}
    assert mint.randint(3, (4,)).asnumpy().max() < 3
    assert ops.randint_like(WEIGHTS, 0, 9).dtype == ms.float32
    assert mint.randint_like(WEIGHTS, 1).asnumpy().tolist() == [0, 0, 0]
    for found in (ops.randperm(9), mint.randperm(9), ops.shuffle(ops.arange(9))):
        assert sorted(found.asnumpy().tolist()) == list(range(9))
    assert ops.randperm(9, 3).asnumpy().tolist() == ops.randperm(9, 3).asnumpy().tolist()
    assert ops.randperm(0).shape == (0,)


def test_choices_follow_the_weights() -> None:
    assert shares(ops.multinomial(WEIGHTS, 2000), 3) == [0.0, 0.2, 0.8]
    assert shares(mint.multinomial(WEIGHTS, 2000, True), 3) == [0.0, 0.2, 0.8]
    assert shares(ops.random_categorical(Tensor(np.log([[1.0, 3.0]]).astype(np.float32)), 2000), 2) in (
        [0.2, 0.8], [0.3, 0.7],
    )  # fmt: skip
    assert {tuple(sorted(ops.multinomial(WEIGHTS, 2, False).asnumpy())) for _ in range(9)} == {(1, 2)}
    assert ops.multinomial(Tensor(np.ones((2, 3), np.float32)), 4).shape == (2, 4)
    assert ops.multinomial(WEIGHTS, 2).dtype == ms.int32
    assert mint.multinomial(WEIGHTS, 2).dtype == ms.int64


def test_distributions() -> None:
    assert abs(ops.bernoulli_ext(ops.full((4000,), 0.3)).asnumpy().mean() - 0.3) < 0.03
    soft = ops.gumbel_softmax(ops.zeros((4000, 2)), hard=True).asnumpy()
    assert set(soft.ravel().tolist()) == {0, 1}
    np.testing.assert_allclose(soft.mean(0), 0.5, atol=0.04)


def test_a_generator_has_a_sequence_of_its_own() -> None:
    first, second = ms.Generator().manual_seed(3), ms.Generator().manual_seed(3)
    drawn = [mint.rand(3, generator=first).asnumpy().tolist() for _ in range(2)]
    assert drawn == [mint.rand(3, generator=second).asnumpy().tolist() for _ in range(2)]
    assert drawn[0] != drawn[1]
    state = first.get_state()
    third = mint.randn(2, generator=first).asnumpy().tolist()
    first.set_state(state)
    assert mint.randn(2, generator=first).asnumpy().tolist() == third
    assert (first.initial_seed(), first.seed() == first.initial_seed()) == (3, True)


def test_the_generator_of_the_script_is_its_seed() -> None:
    assert ms.manual_seed(5).initial_seed() == ms.initial_seed() == ms.get_seed() == 5
    state = ms.get_rng_state()
    drawn = ops.rand(3).asnumpy().tolist()
    ms.set_rng_state(state)
    assert ops.rand(3).asnumpy().tolist() == drawn
    assert ms.default_generator.next_seeds() == (0, 0)
