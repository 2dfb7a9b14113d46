"""Transformers of `parallel._transformer` on eight ranks, two by four, train as on one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import nn, ops, set_seed
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, INT32
from mspc.parallel import transformer as t
from tests.mindspore_api.nn.training import Training

BATCH, LENGTH, HIDDEN, WORDS = 4, 8, 16, 32
OFF = {"attention_dropout_rate": 0.0, "hidden_dropout_rate": 0.0, "compute_dtype": FLOAT32}


class LanguageModel(nn.Cell):
    """Predicts every word from those before it."""

    def __init__(self, config: t.TransformerOpParallelConfig) -> None:
        super().__init__()
        self.embedding = t.VocabEmbedding(WORDS, HIDDEN, config.embedding_dp_mp_config)
        self.mask = t.AttentionMask(LENGTH, config.dp_mp_config)
        self.encoder = t.TransformerEncoder(
            BATCH, 2, HIDDEN, 4 * HIDDEN, LENGTH, 4, post_layernorm_residual=config.vocab_emb_dp,
            hidden_act="relu" if config.vocab_emb_dp else "gelu", parallel_config=config, **OFF,
        )  # fmt: skip
        rows = 1 if config.vocab_emb_dp else config.model_parallel
        self.head = ops.MatMul(transpose_b=True).shard(((config.data_parallel, 1), (rows, 1)))
        self.loss = t.CrossEntropyLoss(t.OpParallelConfig(config.data_parallel, rows))

    def construct(self, words: Any) -> Any:
        shown = ops.cast(words != 0, FLOAT32)
        x, table = self.embedding(words)
        x, _ = self.encoder(x, self.mask(shown))
        logits = self.head(ops.reshape(x, (-1, HIDDEN)), table)
        following = ops.cast(ops.roll(words, -1, 1), INT32)
        return self.loss(logits, ops.reshape(following, (-1,)), ops.reshape(shown, (-1,)))


def trained(ranks: int, **config: Any) -> tuple[list[float], list[dict[str, np.ndarray]]]:
    set_seed(3)
    net = LanguageModel(t.TransformerOpParallelConfig(**config))
    step = nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 0.01))
    step.set_train()
    mode = "stand_alone" if ranks == 1 else "semi_auto_parallel"
    training = Training(step, [(BATCH, LENGTH)], ranks, mode, [INT32])
    generator = np.random.default_rng(5)
    batches = [[generator.integers(0, WORDS, (BATCH, LENGTH)).astype(np.int32)] for _ in range(3)]
    return [float(np.asarray(found)) for found in training.run(batches)], training.states


@pytest.mark.parametrize("vocab_emb_dp", [False, True])
def test_heads_and_rows_are_sharded(vocab_emb_dp: bool) -> None:
    expected, alone = trained(1, vocab_emb_dp=vocab_emb_dp)
    losses, states = trained(8, data_parallel=2, model_parallel=4, vocab_emb_dp=vocab_emb_dp, recompute=vocab_emb_dp)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for key, array in alone[0].items():
        np.testing.assert_allclose(states[0][key], array, rtol=1e-3, atol=2e-5, err_msg=key)
    assert expected[0] != expected[2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: t.MoEConfig(expert_num=4),
            "MoEConfig: expert_num must be 1: mixtures of experts are not supported yet",
        ),
        (
            lambda: t.FeedForward(8, 12, 0.1, parallel_config=t.OpParallelConfig(1, 8)),
            "FeedForward: ffn_hidden_size 12 must be a multiple of model_parallel 8",
        ),
        (
            lambda: t.MultiHeadAttention(2, 4, 4, 12, 5),
            "MultiHeadAttention: hidden_size 12 must be a multiple of num_heads 5",
        ),
        (
            lambda: t.TransformerEncoderLayer(2, 8, 8, 2, 4, use_past=True),
            "TransformerEncoderLayer: use_past must be False: inference word by word is not built",
        ),
        (
            lambda: t.CrossEntropyLoss(parallel_config=3),
            "CrossEntropyLoss: parallel_config must be of type OpParallelConfig, not 3",
        ),
        (lambda: t.MoEConfig(experts=3), "MoEConfig has no argument 'experts'"),
    ],
)
def test_what_they_refuse(make: Any, message: str) -> None:
    with pytest.raises(MspcError) as refused:
        make()
    assert refused.value.message == message


def test_they_are_where_public_code_looks_for_them() -> None:
    from mspc.nn.transformer import VocabEmbedding
    from mspc.nn.transformer.layers import _LayerNorm, _Linear
    from mspc.parallel._transformer import TransformerEncoderLayer
    from mspc.parallel._transformer.transformer import _get_lambda_func, default_transformer_config
    from mspc.parallel.nn import FeedForward, MicroBatchInterleaved

    assert VocabEmbedding is t.VocabEmbedding
    assert TransformerEncoderLayer is t.TransformerEncoderLayer
    assert FeedForward is t.FeedForward
    _get_lambda_func()(nn.ReLU(), 0, 1, 0, default_transformer_config)
    assert MicroBatchInterleaved is nn.MicroBatchInterleaved
    assert _LayerNorm((4,)).gamma.shape == _Linear(3, 4).bias.shape == (4,)
