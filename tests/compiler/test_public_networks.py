"""Networks of language and recommendation on eight simulated ranks, each in its own mode, train as on one device."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, context, nn, set_seed
from mspc.common import dtype as mstype
from mspc.communication import init
from mspc.mindspore_api import state
from mspc.mindspore_api.state import Session
from mspc.parallel._transformer import TransformerOpParallelConfig
from tests.compiler.public_networks import (
    dlrm,
    pangu,
    recommenders,
    sequence_parallel,
    translation,
    vision_transformers,
)
from tests.graphs import FLOAT32, INT32, Collective
from tests.mindspore_api.nn.training import Training

RANKS, ROWS = 8, 16

Feed = tuple[tuple[int, ...], int]
"""The shape of an input, and below which its integers are; 0 for floats of both signs, 1 for ones, -1 for ones with
zeros behind them, on every rank as many."""


def plain(make: Callable[..., Any]) -> Callable[[int], nn.Cell]:
    """A step of a network that is told how many ranks shard its tables."""

    def step(ranks: int) -> nn.Cell:
        net = make(ranks)
        return nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 0.01))

    return step


def translating(ranks: int) -> nn.Cell:
    net = translation.TransformerNetworkWithLoss()
    rate = Tensor(translation.noam(8, 4, 0.5), mstype.float32)
    optimizer = nn.Adam(net.trainable_params(), rate, beta2=0.98)
    scale = nn.DynamicLossScaleUpdateCell(loss_scale_value=2.0**10, scale_factor=2, scale_window=2)
    return translation.TransformerTrainOneStepWithLossScaleCell(net, optimizer, scale)


def across(make: Callable[..., Any]) -> Callable[[int], nn.Cell]:
    """A step of a network of images that is sharded over four times two ranks."""

    def step(ranks: int) -> nn.Cell:
        net = make(ranks // 2 or 1, min(ranks, 2))
        return nn.TrainOneStepCell(net, nn.AdamWeightDecay(net.trainable_params(), 0.01, weight_decay=0.05))

    return step


def along_the_sequence(in_2d: bool) -> Callable[[int], nn.Cell]:
    """A step of a network that a parallel_config shards, two by four."""

    def step(ranks: int) -> nn.Cell:
        cuts = {"data_parallel": 2, "model_parallel": 4} if ranks > 1 else {}
        config = TransformerOpParallelConfig(vocab_emb_dp=False, use_seq_parallel=True, **cuts)
        net = sequence_parallel.LlamaForCausalLM(config, in_2d)
        return nn.TrainOneStepCell(net, nn.AdamWeightDecay(net.trainable_params(), 0.01))

    return step


def aligned(ranks: int) -> nn.Cell:
    cuts = {"data_parallel": 2, "model_parallel": 4} if ranks > 1 else {}
    config = TransformerOpParallelConfig(
        **cuts, pipeline_stage=1, micro_batch_num=1, recompute=True, vocab_emb_dp=False, optimizer_shard=True
    )
    net = pangu.PanguWithLoss(config)
    params = net.trainable_params()
    plain = [p for p in params if "layernorm" in p.name.lower() or "bias" in p.name]
    decayed = [p for p in params if "layernorm" not in p.name.lower() and "bias" not in p.name]
    groups = [
        {"params": decayed, "weight_decay": 1e-1},
        {"params": plain, "weight_decay": 0.0},
        {"order_params": params},
    ]
    optimizer = nn.AdamWeightDecay(groups, learning_rate=0.01, eps=1e-8, beta1=0.9, beta2=0.95)
    return pangu.PanguTrainOneStep(net, optimizer, nn.DynamicLossScaleUpdateCell(2.0**10, 2, 2))


WORDS: list[Feed] = [((sequence_parallel.BATCH, sequence_parallel.LENGTH + 1), sequence_parallel.VOCAB)]
NETWORKS: dict[str, tuple[Callable[[int], nn.Cell], str, list[Feed]]] = {
    "sequence parallel LLaMA": (along_the_sequence(True), "semi_auto_parallel", WORDS),
    "sequence parallel LLaMA by Layouts": (along_the_sequence(False), "semi_auto_parallel", WORDS),
    "PanGu": (aligned, "semi_auto_parallel", [((pangu.BATCH, pangu.LENGTH + 1), pangu.VOCAB)]),
    "Transformer": (
        translating, "data_parallel",
        [((ROWS, translation.LENGTH), below) for below in (translation.VOCAB, -1, translation.VOCAB, -1)]
        + [((ROWS, translation.LENGTH), translation.VOCAB), ((ROWS, translation.LENGTH), -1)],
    ),
    "ViT": (
        across(vision_transformers.ViT), "semi_auto_parallel",
        [((8, 3, 16, 16), 0), ((8,), vision_transformers.CLASSES)],
    ),
    "DLRM": (
        plain(dlrm.DLRM), "semi_auto_parallel",
        [((ROWS, dlrm.DENSE), 0), ((ROWS, len(dlrm.ROWS)), 1000), ((ROWS, 1), 1)],
    ),
    "Wide & Deep": (
        plain(recommenders.WideDeep), "semi_auto_parallel",
        [((ROWS, 4), recommenders.VOCAB), ((ROWS, 4), 0), ((ROWS, 1), 1)],
    ),
    "NCF": (
        plain(recommenders.NCF), "semi_auto_parallel",
        [((ROWS,), recommenders.USERS), ((ROWS,), recommenders.USERS), ((ROWS, 1), 1)],
    ),
    "LSTM": (
        plain(recommenders.SentimentNet), "auto_parallel",
        [((ROWS, recommenders.LENGTH), recommenders.VOCAB), ((ROWS,), 2)],
    ),
}  # fmt: skip

SETTINGS = {"PanGu": {"parallel_optimizer": True, "parallel_optimizer_threshold": 0}}
"""Other settings for eight ranks."""
SENT = {
    # For every layer two of each around its products, and the embedding and the head: no AllReduce within layers.
    "sequence parallel LLaMA": {"AllGather": 5, "ReduceScatter": 5, "AllReduce": 3},
    "sequence parallel LLaMA by Layouts": {"AllGather": 5, "ReduceScatter": 5, "AllReduce": 3},
    "Transformer": {"AllReduce": 0, "AllGather": 0},
    "ViT": {"AllGather": 0, "AlltoAll": 0},
    "DLRM": {"ReduceScatter": 2, "AlltoAll": 2, "AllGather": 2, "AllReduce": 1},
}  # fmt: skip
"""Collectives of a rank's forward graph."""


def drawn(generator: np.random.Generator, shape: tuple[int, ...], below: int) -> np.ndarray:
    if below < 0:
        lengths = np.resize([shape[1], shape[1] - 3], (shape[0], 1))
        return (np.arange(shape[1]) < lengths).astype(np.int32)
    if below > 1:
        return generator.integers(0, below, shape).astype(np.int32)
    return (np.ones(shape) if below else generator.standard_normal(shape)).astype(np.float32)


def _loss(result: Any) -> np.ndarray:
    return np.asarray(result[0] if isinstance(result, tuple) else result)


def trained(name: str, ranks: int) -> tuple[list[float], Training]:
    """(losses, how they came about) of three steps; a loss is the mean of the ranks'."""
    make, mode, feeds = NETWORKS[name]
    mode = "stand_alone" if ranks == 1 else mode
    state.swap(Session.of_rank(0, ranks))
    init()
    context.set_auto_parallel_context(parallel_mode=mode, gradients_mean=mode == "data_parallel")
    set_seed(3)
    step = make(ranks)
    step.set_train()
    dtypes = [INT32 if below not in (0, 1) else FLOAT32 for _, below in feeds]
    settings = SETTINGS.get(name, {}) if ranks > 1 else {}
    if mode == "data_parallel":
        settings = {"gradients_mean": True}
    training = Training(step, [shape for shape, _ in feeds], ranks, mode, dtypes, **settings)
    generator = np.random.default_rng(5)
    training.run([[drawn(generator, *feed) for feed in feeds] for _ in range(3)])
    rebuild = training.compiled.traced.rebuild
    losses = [[_loss(rebuild(rank[i][0])) for rank in training.ranks_found] for i in range(3)]
    return [float(np.mean(found)) for found in losses], training


def collectives(training: Training) -> Counter[str]:
    """Which collectives rank 0 runs for the forward graph, the gradients left out."""
    return Counter(
        node.op.name for node in training.graphs[0].nodes
        if isinstance(node.op, Collective) and node.op.communicates and node.phase == "forward"
    )  # fmt: skip


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_as_on_one_device(name: str) -> None:
    expected, alone = trained(name, 1)
    losses, training = trained(name, RANKS)
    assert np.isfinite(expected).all()
    assert len(set(expected)) == 3
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    for key, array in alone.states[0].items():
        np.testing.assert_allclose(training.states[0][key], array, rtol=1e-3, atol=1e-4, err_msg=key)
    found = collectives(training)
    assert {kind: found[kind] for kind in SENT.get(name, {})} == SENT.get(name, {})
