"""LLaMA (Touvron et al. 2023) with sequence parallelism (Korthikanti et al. 2022): between the products sharded over
heads, norms and residuals are sharded along the sequence. By tuples over rows of matrices, or by Layouts over three
dimensions."""

import math
from typing import Any

import numpy as np

from mspc import Layout, Parameter, Tensor, nn
from mspc.common import dtype as mstype
from mspc.common.initializer import Normal, initializer
from mspc.ops import functional as F
from mspc.ops import operations as P  # as public code
from mspc.parallel._transformer import CrossEntropyLoss, TransformerOpParallelConfig, VocabEmbedding

VOCAB, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 32, 16, 4, 2, 8, 4


class LlamaRMSNorm(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(initializer("ones", (WIDTH,), mstype.float32), name="weight", parallel_optimizer=False)
        self.norm = P.RmsNorm(1e-6)

    def construct(self, x: Any) -> Any:
        return self.norm(x, self.weight)[0]

    def shard(self, strategy: Any) -> None:
        self.norm.shard(strategy)


class Linear(nn.Cell):
    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = ins, outs
        self.weight = Parameter(initializer(Normal(0.1), [outs, ins], mstype.float32), name="weight")
        self.matmul = P.MatMul(transpose_b=True)
        self.reshape = P.Reshape()

    def construct(self, x: Any) -> Any:
        out_shape = P.Shape()(x)[:-1] + (self.out_channels,)  # noqa: RUF005
        return self.reshape(self.matmul(self.reshape(x, (-1, self.in_channels)), self.weight), out_shape)

    def shard(self, strategy_matmul: Any, out_strategy_matmul: Any = None) -> None:
        self.matmul.shard(in_strategy=strategy_matmul, out_strategy=out_strategy_matmul)


class LlamaAttention(nn.Cell):
    def __init__(self, config: TransformerOpParallelConfig) -> None:
        super().__init__()
        dp, mp = config.data_parallel, config.model_parallel
        self.size = WIDTH // HEADS
        self.wq, self.wk, self.wv, self.wo = (Linear(WIDTH, WIDTH) for _ in "qkvo")
        for each in (self.wq, self.wk, self.wv):
            each.shard(((dp, 1), (mp, 1)))
        self.wo.shard(((dp, mp), (1, mp)), out_strategy_matmul=((dp * mp, 1),) if config.use_seq_parallel else None)
        heads = (dp, mp, 1, 1)
        self.transpose, self.merger_head_transpose = (
            P.Transpose().shard(((dp, 1, mp, 1),)),
            P.Transpose().shard((heads,)),
        )
        self.batch_matmul_q_k = P.BatchMatMul(transpose_b=True).shard((heads, heads))
        self.batch_matmul = P.BatchMatMul().shard((heads, heads))
        self.mul, self.add = P.Mul().shard((heads, ())), P.Add().shard(((1, 1, 1, 1), heads))
        self.softmax = P.Softmax().shard((heads,))
        self.inv_norm_factor = Tensor(1.0 / math.sqrt(self.size), mstype.float32)
        angles = np.outer(np.arange(LENGTH), 10000.0 ** (-np.arange(0, self.size, 2) / self.size))
        angles = np.concatenate((angles, angles), 1)[None, None].astype(np.float32)
        self.freqs_cos, self.freqs_sin = Tensor(np.cos(angles)), Tensor(np.sin(angles))
        half = self.size // 2
        swap = np.zeros((self.size, self.size), np.float32)
        swap[half:, :half], swap[:half, half:] = -np.eye(half), np.eye(half)
        self.swap_mask = Tensor(swap)
        self.bmm_swap = P.BatchMatMul().shard((heads, (1, 1)))
        self.rotary_mul, self.rotary_add = P.Mul().shard((heads, (1, 1, 1, 1))), P.Add().shard((heads, heads))
        self.casual_mask = Tensor(np.triu(np.full((1, 1, LENGTH, LENGTH), -10000.0, np.float32), 1))

    def rotary(self, x: Any) -> Any:
        turned = self.rotary_mul(self.bmm_swap(x, self.swap_mask), self.freqs_sin)
        return self.rotary_add(self.rotary_mul(x, self.freqs_cos), turned)

    def heads(self, x: Any) -> Any:
        return self.transpose(F.reshape(x, (BATCH, LENGTH, HEADS, self.size)), (0, 2, 1, 3))

    def construct(self, x: Any) -> Any:
        shape = x.shape
        query, key = self.rotary(self.heads(self.wq(x))), self.rotary(self.heads(self.wk(x)))
        scores = self.mul(self.batch_matmul_q_k(query, key), self.inv_norm_factor)
        shares = self.softmax(self.add(self.casual_mask, scores))
        merged = self.merger_head_transpose(self.batch_matmul(shares, self.heads(self.wv(x))), (0, 2, 1, 3))
        return self.wo(F.reshape(merged, shape))


class LlamaFeedForward(nn.Cell):
    def __init__(self, config: TransformerOpParallelConfig) -> None:
        super().__init__()
        dp, mp = config.data_parallel, config.model_parallel
        self.w1, self.w2, self.w3 = Linear(WIDTH, 2 * WIDTH), Linear(2 * WIDTH, WIDTH), Linear(WIDTH, 2 * WIDTH)
        self.w1.shard(((dp, 1), (mp, 1)))
        self.w3.shard(((dp, 1), (mp, 1)))
        self.w2.shard(((dp, mp), (1, mp)), out_strategy_matmul=((dp * mp, 1),) if config.use_seq_parallel else None)
        self.activate, self.mul = P.SiLU(), P.Mul()

    def construct(self, x: Any) -> Any:
        return self.w2(self.mul(self.w3(x), self.activate(self.w1(x))))


class LLamaDecodeLayer(nn.Cell):
    def __init__(self, config: TransformerOpParallelConfig, in_2d: bool) -> None:
        super().__init__()
        dp, mp = config.data_parallel, config.model_parallel
        self.attention_norm, self.ffn_norm = LlamaRMSNorm(), LlamaRMSNorm()
        self.attention, self.feed_forward = LlamaAttention(config), LlamaFeedForward(config)
        self.add = P.Add()
        if in_2d:
            rows = (dp * mp if config.use_seq_parallel else dp, 1)
            self.add.shard((rows, rows))
            norms = (rows, (1,))
        else:
            layout = Layout((dp, mp), ("dp", "mp"))
            x = layout("dp", "mp" if config.use_seq_parallel else "None", "None")
            self.add.shard((x, x))
            norms = (x, layout("None"))
        self.attention_norm.shard(norms)
        self.ffn_norm.shard(norms)

    def construct(self, x: Any) -> Any:
        h = self.add(x, self.attention(self.attention_norm(x)))
        return self.add(h, self.feed_forward(self.ffn_norm(h)))


class LlamaForCausalLM(nn.Cell):
    """The loss of the next word. in_2d: hidden states are [batch * length, WIDTH] between the layers."""

    def __init__(self, config: TransformerOpParallelConfig, in_2d: bool = True) -> None:
        super().__init__()
        dp, mp = config.data_parallel, config.model_parallel
        self.in_2d = in_2d
        self.tok_embeddings = VocabEmbedding(VOCAB, WIDTH, config.embedding_dp_mp_config, Normal(0.5))
        self.layers = nn.CellList([LLamaDecodeLayer(config, in_2d) for _ in range(LAYERS)])
        self.norm_out, self.lm_head = LlamaRMSNorm(), Linear(WIDTH, VOCAB)
        rows = (dp * mp if config.use_seq_parallel else dp, 1)
        self.norm_out.shard((rows, (1,)))
        self.lm_head.shard(((dp, 1), (mp, 1)))
        self.slice = P.StridedSlice().shard(((dp, 1),))
        self.loss = CrossEntropyLoss(config.dp_mp_config)

    def construct(self, input_ids: Any) -> Any:
        tokens = self.slice(input_ids, (0, 0), (BATCH, LENGTH), (1, 1))
        labels = self.slice(input_ids, (0, 1), (BATCH, LENGTH + 1), (1, 1))
        h, _ = self.tok_embeddings(tokens)
        if self.in_2d:
            h = F.reshape(h, (-1, WIDTH))
        for i in range(LAYERS):
            h = self.layers[i](h)
        logits = self.lm_head(self.norm_out(F.reshape(h, (-1, WIDTH))))
        return self.loss(
            F.cast(logits, mstype.float32), F.reshape(labels, (-1,)), F.ones((BATCH * LENGTH,), mstype.float32)
        )
