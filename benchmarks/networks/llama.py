"""A LLaMA-like language model, data parallel by tensor parallel, called once as a training step under Adam.

    mspc compile benchmarks/networks/llama.py -- [lazy] [LAYERS WIDTH HEADS HIDDEN VOCABULARY DATA TENSOR BATCH
    SEQUENCE STAGES MICRO_BATCHES]

With `lazy` the layers are one graph, which a loop runs. Sizes that are not given are small enough to run; then
it trains three steps. With several stages of DATA x TENSOR ranks BATCH is of a micro-batch. Known networks:
7B: 32 4096 32 11008 32000 8 8 8 2048; 70B: 80 8192 64 28672 32000 128 8 128 2048;
405B in 16 stages: 126 16384 128 53248 128256 64 8 64 2048 16 32.
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer

SMALL = (2, 32, 4, 48, 64, 2, 2, 2, 16, 1, 1)
LAZY = "lazy" in sys.argv[1:2]
GIVEN = tuple(int(size) for size in sys.argv[1 + LAZY :])
LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY, DATA, TENSOR, BATCH, SEQUENCE, STAGES, PARTS = GIVEN + SMALL[len(GIVEN) :]
ROWS = BATCH * SEQUENCE
MASK = Tensor(np.triu(np.full((SEQUENCE, SEQUENCE), -1e9, np.float32), 1))

ms.set_seed(1)
ms.set_context(mode=ms.GRAPH_MODE)
ranks = {"device_num": DATA * TENSOR * STAGES} | ({"pipeline_stages": STAGES} if STAGES > 1 else {})
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, **ranks)


def one_graph(constructor):
    """The constructor of cells that are one graph where that is asked for."""
    return ms.lazy_inline(constructor) if LAZY else constructor


def weight(rows, columns):
    """A matrix that is sampled when a rank needs its slice."""
    return Parameter(initializer(Normal(0.02), [rows, columns], ms.float32))


class Norm(nn.Cell):
    """x / sqrt(mean of x^2) times a learnt vector."""

    def __init__(self):
        super().__init__()
        self.gamma = Parameter(initializer("ones", [WIDTH], ms.float32))
        self.norm = ops.RmsNorm(1e-5).shard(((DATA, 1), (1,)))

    def construct(self, x):
        return self.norm(x, self.gamma)[0]


class Attention(nn.Cell):
    """Causal attention; every rank of a tensor group holds some of the heads."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv = weight(WIDTH, WIDTH), weight(WIDTH, WIDTH), weight(WIDTH, WIDTH)
        self.wo = weight(WIDTH, WIDTH)
        by_column, by_row = ((DATA, 1), (1, TENSOR)), ((DATA, TENSOR), (TENSOR, 1))
        heads = (DATA, TENSOR, 1, 1)
        self.query, self.key = ops.MatMul().shard(by_column), ops.MatMul().shard(by_column)
        self.value, self.out = ops.MatMul().shard(by_column), ops.MatMul().shard(by_row)
        self.split_heads = ops.Transpose().shard(((DATA, 1, TENSOR, 1),))
        self.join_heads = ops.Transpose().shard((heads,))
        self.scores = ops.BatchMatMul(transpose_b=True).shard((heads, heads))
        self.scale = ops.Mul().shard((heads, ()))
        self.hide = ops.Add().shard((heads, (1, 1)))
        self.softmax = ops.Softmax().shard((heads,))
        self.mix = ops.BatchMatMul().shard((heads, heads))
        self.mask = MASK

    def heads(self, x):
        return self.split_heads(ops.reshape(x, (-1, SEQUENCE, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    def construct(self, x):
        query, key = self.heads(self.query(x, self.wq)), self.heads(self.key(x, self.wk))
        scores = self.scale(self.scores(query, key), (WIDTH // HEADS) ** -0.5)
        shares = self.softmax(self.hide(scores, self.mask))
        mixed = self.join_heads(self.mix(shares, self.heads(self.value(x, self.wv))), (0, 2, 1, 3))
        return self.out(ops.reshape(mixed, (-1, WIDTH)), self.wo)


class FeedForward(nn.Cell):
    """SwiGLU: silu(x gate) * (x up), then down."""

    def __init__(self):
        super().__init__()
        self.w_gate, self.w_up, self.w_down = weight(WIDTH, HIDDEN), weight(WIDTH, HIDDEN), weight(HIDDEN, WIDTH)
        by_column, by_row = ((DATA, 1), (1, TENSOR)), ((DATA, TENSOR), (TENSOR, 1))
        self.gate, self.up, self.down = (ops.MatMul().shard(by) for by in (by_column, by_column, by_row))
        self.silu = ops.SiLU().shard(((DATA, TENSOR),))
        self.product = ops.Mul().shard(((DATA, TENSOR), (DATA, TENSOR)))

    def construct(self, x):
        return self.down(self.product(self.silu(self.gate(x, self.w_gate)), self.up(x, self.w_up)), self.w_down)


class Layer(nn.Cell):
    """Attention and a feed-forward network, each behind a norm and with a residual."""

    @one_graph
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = Norm(), Attention()
        self.feed_forward_norm, self.feed_forward = Norm(), FeedForward()
        self.add = ops.Add().shard(((DATA, 1), (DATA, 1)))

    def construct(self, x):
        x = self.add(x, self.attention(self.attention_norm(x)))
        return self.add(x, self.feed_forward(self.feed_forward_norm(x)))


class Llama(nn.Cell):
    """The mean cross entropy of the next word."""

    def __init__(self):
        super().__init__()
        self.table, self.head = weight(VOCABULARY, WIDTH), weight(WIDTH, VOCABULARY)
        self.embed = ops.Gather().shard(((1, 1), (DATA,)))
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
        self.norm = Norm()
        self.logits = ops.MatMul().shard(((DATA, 1), (1, TENSOR)))
        self.loss = nn.CrossEntropyLoss()

    def construct(self, words, next_words):
        x = self.embed(self.table, words, 0)
        for layer in self.layers:
            x = layer(x)
        return self.loss(self.logits(self.norm(x), self.head), next_words)


network = Llama()
for number, layer in enumerate(network.layers if STAGES > 1 else ()):
    layer.pipeline_stage = number * STAGES // LAYERS
step = nn.TrainOneStepCell(
    nn.PipelineCell(network, PARTS) if STAGES > 1 else network, nn.Adam(network.trainable_params(), 1e-4)
)
text = np.arange(PARTS * ROWS + 1, dtype=np.int32) % VOCABULARY
for _ in range(3):
    print("loss", step(Tensor(text[:-1]), Tensor(text[1:])))
