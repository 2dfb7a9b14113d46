"""Networks of language and recommendation on eight simulated ranks, each in its own mode, train as on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc import nn, set_seed
from mspc.ir.types import FLOAT32, INT32
from mspc.parallel._transformer import TransformerOpParallelConfig
from tests.api.nn.training import Training
from tests.compiler.public_networks import bert, decoders, recommenders

RANKS, ROWS = 8, 16

Feed = tuple[tuple[int, ...], int]
"""The shape of an input, and below which its integers are; 0 for floats of both signs, 1 for ones."""


def plain(make: Callable[..., Any]) -> Callable[[int], nn.Cell]:
    """A step of a network that is told how many ranks cut its tables."""

    def step(ranks: int) -> nn.Cell:
        net = make(ranks)
        return nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 0.01))

    return step


def decoder(make: Callable[..., Any]) -> Callable[[int], nn.Cell]:
    """A step of a network that a parallel_config cuts, two by four."""

    def step(ranks: int) -> nn.Cell:
        cuts = {"data_parallel": 2, "model_parallel": 4} if ranks > 1 else {}
        net = make(TransformerOpParallelConfig(vocab_emb_dp=False, **cuts))
        return nn.TrainOneStepCell(net, nn.AdamWeightDecay(net.trainable_params(), 0.01))

    return step


def pre_training(ranks: int) -> nn.Cell:
    net = bert.BertPreTraining()
    scale = nn.DynamicLossScaleUpdateCell(2.0**10, 2, 2)
    return bert.PreTrainingStep(net, nn.Lamb(net.trainable_params(), 0.01), scale)


CLICKS: list[Feed] = [((ROWS, 4), recommenders.VOCAB), ((ROWS, 4), 0), ((ROWS, 1), 1)]
NETWORKS: dict[str, tuple[Callable[[int], nn.Cell], str, list[Feed]]] = {
    "BERT": (
        pre_training, "data_parallel",
        [((ROWS, 8), bert.VOCAB), ((ROWS, 8), 1), ((ROWS, 8), 2), ((ROWS, 1), 2), ((ROWS, 3), 8),
         ((ROWS, 3), bert.VOCAB), ((ROWS, 3), 1)],
    ),
    "GPT-2": (decoder(decoders.GPT2), "semi_auto_parallel", [((decoders.BATCH, decoders.LENGTH), decoders.VOCAB)]),
    "LLaMA": (decoder(decoders.Llama), "semi_auto_parallel", [((decoders.BATCH, decoders.LENGTH), decoders.VOCAB)]),
    "Wide & Deep": (plain(recommenders.WideDeep), "semi_auto_parallel", CLICKS),
    "DeepFM": (plain(recommenders.DeepFM), "data_parallel", CLICKS),
    "NCF": (
        plain(recommenders.NCF), "semi_auto_parallel",
        [((ROWS,), recommenders.USERS), ((ROWS,), recommenders.USERS), ((ROWS, 1), 1)],
    ),
    "skip-gram": (
        plain(recommenders.SkipGram), "auto_parallel",
        [((ROWS,), recommenders.VOCAB), ((ROWS,), recommenders.VOCAB), ((ROWS, 3), recommenders.VOCAB)],
    ),
    "LSTM": (
        plain(recommenders.SentimentNet), "auto_parallel",
        [((ROWS, recommenders.LENGTH), recommenders.VOCAB), ((ROWS,), 2)],
    ),
}  # fmt: skip


def drawn(generator: np.random.Generator, shape: tuple[int, ...], below: int) -> np.ndarray:
    if below > 1:
        return generator.integers(0, below, shape).astype(np.int32)
    return (np.ones(shape) if below else generator.standard_normal(shape)).astype(np.float32)


def trained(name: str, ranks: int) -> tuple[list[float], list[dict[str, np.ndarray]]]:
    """(losses, parameters after each) of three steps; a loss is the mean of the ranks'."""
    make, mode, feeds = NETWORKS[name]
    set_seed(3)
    step = make(ranks)
    step.set_train()
    dtypes = [INT32 if below > 1 else FLOAT32 for _, below in feeds]
    settings = {"gradients_mean": True} if mode == "data_parallel" else {}
    mode = "stand_alone" if ranks == 1 else mode
    training = Training(step, [shape for shape, _ in feeds], ranks, mode, dtypes, **settings)
    generator = np.random.default_rng(5)
    training.run([[drawn(generator, *feed) for feed in feeds] for _ in range(3)])
    losses = [
        float(np.mean([np.asarray(training.compiled.traced.rebuild(rank[i][0])) for rank in training.ranks_found]))
        for i in range(3)
    ]
    return losses, training.states


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_as_on_one_device(name: str) -> None:
    expected, whole = trained(name, 1)
    losses, states = trained(name, RANKS)
    assert np.isfinite(expected).all()
    assert len(set(expected)) == 3
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    assert states[2].keys() == whole[2].keys()
