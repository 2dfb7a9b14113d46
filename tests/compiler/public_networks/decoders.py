"""GPT-2 (Radford et al. 2019) and LLaMA (Touvron et al. 2023), sharded over rows and heads by a parallel_config."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc import Parameter, Tensor, nn
from mspc import ops as P  # as public code
from mspc.common import dtype as mstype
from mspc.common.initializer import initializer
from mspc.ops import functional as F
from mspc.parallel._transformer import (
    AttentionMask,
    CrossEntropyLoss,
    TransformerEncoder,
    TransformerOpParallelConfig,
    VocabEmbedding,
)

VOCAB, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 32, 16, 4, 2, 8, 4


class GPT2(nn.Cell):
    """The loss of the next word, of Transformer layers of the library."""

    def __init__(self, config: TransformerOpParallelConfig) -> None:
        super().__init__()
        dp, mp = config.data_parallel, config.model_parallel
        self.word = VocabEmbedding(VOCAB, WIDTH, config.embedding_dp_mp_config, "normal")
        self.position = Parameter(initializer("normal", (LENGTH, WIDTH)), name="position_embedding")
        self.mask = AttentionMask(LENGTH, config.dp_mp_config)
        self.decoder = TransformerEncoder(
            batch_size=BATCH, num_layers=LAYERS, hidden_size=WIDTH, ffn_hidden_size=4 * WIDTH, seq_length=LENGTH,
            num_heads=HEADS, attention_dropout_rate=0.0, hidden_dropout_rate=0.0, parallel_config=config,
            compute_dtype=mstype.float32,
        )  # fmt: skip
        self.layernorm = nn.LayerNorm((WIDTH,))
        self.layernorm.layer_norm.shard(((dp, 1, 1), (1,), (1,)))
        self.head = P.MatMul(transpose_b=True).shard(((dp, 1), (mp, 1)))
        self.add = P.Add().shard(((dp, 1, 1), (1, 1, 1)))
        self.loss = CrossEntropyLoss(config.dp_mp_config)

    def construct(self, ids: Any) -> Any:
        x, table = self.word(ids)
        x = self.add(x, F.expand_dims(self.position, 0))
        x, _ = self.decoder(x, self.mask(F.ones((BATCH, LENGTH), mstype.float32)))
        logits = self.head(F.reshape(self.layernorm(x), (-1, WIDTH)), table)
        return self.loss(logits, P.roll(ids, -1, 1), F.ones((BATCH * LENGTH,), mstype.float32))


class RMSNorm(nn.Cell):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = Parameter(initializer("ones", (dim,), mstype.float32), parallel_optimizer=False)
        self.eps = eps
        self.square, self.mean = P.Square(), P.ReduceMean(keep_dims=True)
        self.add, self.rsqrt, self.mul, self.mul2 = P.Add(), P.Rsqrt(), P.Mul(), P.Mul()

    def construct(self, x: Any) -> Any:
        norm = self.rsqrt(self.add(self.mean(self.square(x), -1), self.eps))
        return self.mul2(self.mul(x, norm), self.weight)

    def shard(self, dp: int) -> Any:
        rows = (dp, 1, 1)
        self.square.shard((rows,))
        self.mean.shard((rows,))
        self.add.shard((rows, ()))
        self.rsqrt.shard((rows,))
        self.mul.shard((rows, rows))
        self.mul2.shard((rows, (1,)))
        return self


class Linear(nn.Cell):
    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.weight = Parameter(initializer("normal", (outs, ins)), name="weight")
        self.matmul = P.MatMul(transpose_b=True)
        self.outs = outs

    def construct(self, x: Any) -> Any:
        flat = P.reshape(x, (-1, x.shape[-1]))
        return P.reshape(self.matmul(flat, self.weight), (*x.shape[:-1], self.outs))

    def shard(self, strategy: Any) -> Any:
        self.matmul.shard(strategy)
        return self


class LlamaLayer(nn.Cell):
    def __init__(self, config: TransformerOpParallelConfig) -> None:
        super().__init__()
        dp, mp = config.data_parallel, config.model_parallel
        self.size = WIDTH // HEADS
        self.attention_norm, self.ffn_norm = RMSNorm(WIDTH).shard(dp), RMSNorm(WIDTH).shard(dp)
        across, back = ((dp, 1), (mp, 1)), ((dp, mp), (1, mp))
        self.wq, self.wk, self.wv = (Linear(WIDTH, WIDTH).shard(across) for _ in "qkv")
        self.wo = Linear(WIDTH, WIDTH).shard(back)
        self.w1, self.w3 = Linear(WIDTH, 2 * WIDTH).shard(across), Linear(WIDTH, 2 * WIDTH).shard(across)
        self.w2 = Linear(2 * WIDTH, WIDTH).shard(back)
        heads = (dp, mp, 1, 1)
        self.transpose, self.merger = P.Transpose().shard(((dp, 1, mp, 1),)), P.Transpose().shard((heads,))
        self.scores = P.BatchMatMul(transpose_b=True).shard((heads, heads))
        self.mix = P.BatchMatMul().shard((heads, heads))
        self.softmax = P.Softmax().shard((heads,))
        self.add = P.Add().shard(((dp, 1, 1), (dp, 1, 1)))
        self.gate = P.Mul().shard(((dp, 1, mp), (dp, 1, mp)))
        self.silu = P.SiLU().shard(((dp, 1, mp),))
        angles = np.outer(np.arange(LENGTH), 10000.0 ** (-np.arange(0, self.size, 2) / self.size))
        angles = np.concatenate((angles, angles), 1).astype(np.float32)
        self.cos, self.sin = Tensor(np.cos(angles)), Tensor(np.sin(angles))
        self.hidden = Tensor(np.triu(np.full((1, 1, LENGTH, LENGTH), -10000.0, np.float32), 1))

    def rotate(self, x: Any) -> Any:
        half = self.size // 2
        turned = P.concat((-x[..., half:], x[..., :half]), -1)
        return x * self.cos + turned * self.sin

    def heads(self, x: Any) -> Any:
        return self.transpose(P.reshape(x, (BATCH, LENGTH, HEADS, self.size)), (0, 2, 1, 3))

    def construct(self, x: Any) -> Any:
        read = self.attention_norm(x)
        q, k = self.rotate(self.heads(self.wq(read))), self.rotate(self.heads(self.wk(read)))
        shares = self.softmax(self.scores(q, k) / math.sqrt(self.size) + self.hidden)
        mixed = self.merger(self.mix(shares, self.heads(self.wv(read))), (0, 2, 1, 3))
        x = self.add(x, self.wo(P.reshape(mixed, (BATCH, LENGTH, WIDTH))))
        read = self.ffn_norm(x)
        return self.add(x, self.w2(self.gate(self.silu(self.w1(read)), self.w3(read))))


class Llama(nn.Cell):
    """The loss of the next word."""

    def __init__(self, config: TransformerOpParallelConfig) -> None:
        super().__init__()
        dp, mp = config.data_parallel, config.model_parallel
        self.tok_embeddings = VocabEmbedding(VOCAB, WIDTH, config.embedding_dp_mp_config, "normal")
        self.layers = nn.CellList([LlamaLayer(config) for _ in range(LAYERS)])
        self.norm_out = RMSNorm(WIDTH).shard(dp)
        self.lm_head = Linear(WIDTH, VOCAB).shard(((dp, 1), (mp, 1)))
        self.loss = CrossEntropyLoss(config.dp_mp_config)

    def construct(self, ids: Any) -> Any:
        x, _ = self.tok_embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        logits = P.reshape(self.lm_head(self.norm_out(x)), (-1, VOCAB))
        return self.loss(logits, P.roll(ids, -1, 1), P.ones((BATCH * LENGTH,), mstype.float32))
