"""Transformers of `parallel._transformer` on eight ranks, two by four, train as on one device."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import nn, ops, set_seed
from mspc.ir.types import FLOAT32, INT32
from mspc.parallel import transformer as t
from tests.compiled_scripts import CompileOptions, verify_target
from tests.compiler.sharded_networks import HEAD, check_equals_one_device, compiled
from tests.errors import error_of
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
    assert error_of(make).message == message


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


NETWORK = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor{shape}, "w")
        self.op = {made}
    def construct(self, x):
        return self.op(x, x * self.w, self.w{more})[{result}]
{call}(tensor{shape})
"""
FLASH = 'P.FlashAttentionScore(4, 1.0, 0.5, input_layout="{}", sparse_mode={}).add_prim_attr("{}", {}).shard({})'
GRADIENT = "C.GradOperation(get_all=True)(Net())"
BSH, BNSD = "((2, 2, 2),) * 3", "((1, 2, 4, 1),) * 3"
NETWORKS = {
    "a ring": (FLASH.format("BSH", 0, "enable_ring_attention", True, BSH), (4, 8, 16), "", 3, GRADIENT),
    "causal": (FLASH.format("BNSD", 2, "enable_flash_sp", True, BNSD), (2, 4, 8, 2), "", 3, GRADIENT),
    "by Layouts": (
        FLASH.format("BSH", 2, "enable_flash_sp", True, '(layout("dp", "sp", "mp"),) * 3'), (4, 8, 16), "", 3, GRADIENT,
    ),
}  # fmt: skip


def text_of(name: str) -> str:
    made, shape, more, result, call = NETWORKS[name]
    return NETWORK.format(made=made, shape=shape, more=more, result=result, call=call)


GROUPED = """
line = Layout((8,), ("all",))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(2, 4, {width}), "w")
        self.op = P.FlashAttentionScore(8, 1.0, 0.5, input_layout="BSH", sparse_mode=2).shard(
            (layout("None", "None", {queries}), layout("None", "None", {keys}), layout("None", "None", {keys})))
    def construct(self, x):
        return self.op(x, self.w, self.w * 0.5)[3]
C.GradOperation(get_by_list=True)(Net())(tensor(2, 4, 16))
"""


@pytest.mark.parametrize(
    ("width", "queries", "keys"), [(4, '("dp", "mp")', '"mp"'), (8, '("sp", "dp")', '("dp", "mp")')]
)
def test_grouped_heads_that_stand_on_other_ranks_equal_one_device(
    width: int, queries: str, keys: str, tmp_path: Path
) -> None:
    """8 heads of queries look at 2 or 4 of keys: the first axes of the queries' heads say which."""
    check_equals_one_device(tmp_path, GROUPED.format(width=width, queries=queries, keys=keys))


def test_grouped_heads_in_another_number_of_shards_are_refused(tmp_path: Path) -> None:
    error = error_of(compiled, tmp_path, GROUPED.format(width=8, queries='("dp", "sp", "mp")', keys='"mp"'))
    assert "dimension 2 of input 1 and dimension 2 of input 0 are the same dimension" in str(error)


def test_an_axis_that_cuts_across_groups_of_heads_is_refused(tmp_path: Path) -> None:
    assert "input 0 is 2 parts one after the other, and slices over the axis of size 8 would cross" in str(
        error_of(compiled, tmp_path, GROUPED.format(width=4, queries='"all"', keys='"all"').replace("layout(", "line("))
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_sequences_in_parts_equal_one_device(name: str, tmp_path: Path) -> None:
    check_equals_one_device(tmp_path, text_of(name))


def test_an_addend_gathers_what_is_stored_in_slices(tmp_path: Path) -> None:
    """The added mask may leave the logarithms of sums too coarse for gradients by slices of the keys."""
    script = tmp_path / "net.py"
    text = text_of("causal").replace(", self.w)[3]", ", self.w, self.w[:1, :1, :, :1])[3]")
    script.write_text(HEAD + text.replace("((1, 2, 4, 1),) * 3", "(*((1, 2, 4, 1),) * 3, (1, 1, 4, 1))"))
    verify_target(str(script), CompileOptions(), seed=1)
