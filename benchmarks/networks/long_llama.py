"""LLaMA 3 on long texts: context parallel by tensor parallel with sharded norms and residuals, one step of AdamW.

    mspc compile benchmarks/networks/long_llama.py -- [lazy] LAYERS WIDTH HEADS KEY_HEADS HIDDEN VOCABULARY DATA CONTEXT
    TENSOR SEQUENCE [DEGREE [STEPS]]

Every data parallel rank has one text. Products, the attention and the first sum of residuals have strategies; all else
follows. DEGREE: among how many ranks slices of the text are exchanged for heads (1: a ring alone), 0 for what sends the
fewest bytes. 8B with 128k words: 32 4096 32 8 14336 128256 1 8 8 131072.
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Layout, Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer

LAZY = "lazy" in sys.argv[1:2]
GIVEN = tuple(map(int, sys.argv[1 + LAZY :]))
LAYERS, WIDTH, HEADS, KEY_HEADS, HIDDEN, VOCABULARY, DATA, CONTEXT, TENSOR, SEQUENCE = GIVEN[:10]
DEGREE, STEPS = (*GIVEN[10:], *(0, 1)[len(GIVEN) - 10 :])
SIZE = WIDTH // HEADS
HALF = ms.bfloat16

ms.set_seed(1)
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", device_num=DATA * CONTEXT * TENSOR, dataset_strategy="full_batch"
)
layout = Layout((DATA, CONTEXT, TENSOR), ("data", "context", "tensor"))
ROWS = layout(("data", "context"), "None")
BY_COLUMN = (ROWS, layout("None", "tensor"))
BY_ROW = (layout(("data", "context"), "tensor"), layout("tensor", "None"))
HIDDEN_STATES = layout("data", ("context", "tensor"), "None")


def one_graph(constructor):
    """The constructor of cells that are one graph where that is asked for."""
    return ms.lazy_inline(constructor) if LAZY else constructor


def weight(*shape):
    """A weight that is sampled when a rank needs its slice."""
    return Parameter(initializer(Normal(0.02), shape, HALF))


class Linear(nn.Cell):
    """x [texts, words, inputs] times a matrix."""

    def __init__(self, inputs, outputs, strategy):
        super().__init__()
        self.weight = weight(inputs, outputs)
        self.product = ops.MatMul().shard(strategy)

    def construct(self, x):
        found = self.product(ops.reshape(x, (-1, x.shape[-1])), self.weight)
        return ops.reshape(found, (*x.shape[:-1], found.shape[-1]))


class Norm(nn.Cell):
    """x / sqrt(mean of x^2) times a learnt vector."""

    def __init__(self):
        super().__init__()
        self.gamma = Parameter(initializer("ones", [WIDTH], HALF))
        self.norm = ops.RmsNorm(1e-5)

    def construct(self, x):
        return self.norm(x, self.gamma)[0]


class Attention(nn.Cell):
    """Causal attention; several heads share keys and values."""

    def __init__(self):
        super().__init__()
        self.query, self.out = Linear(WIDTH, HEADS * SIZE, BY_COLUMN), Linear(HEADS * SIZE, WIDTH, BY_ROW)
        self.key, self.value = (Linear(WIDTH, KEY_HEADS * SIZE, BY_COLUMN) for _ in range(2))
        flash = ops.operations.FlashAttentionScore(HEADS, 1.0, SIZE**-0.5, input_layout="BSND", sparse_mode=2)
        self.attention = flash.shard((layout("data", "context", "tensor", "None"),) * 3)
        if DEGREE:
            self.attention.add_prim_attr("ulysses_degree", DEGREE)

    def heads(self, x, count):
        return ops.reshape(x, (DATA, SEQUENCE, count, SIZE))

    def turned(self, x, cos, sin):
        first, second = x[..., : SIZE // 2], x[..., SIZE // 2 :]
        return x * cos + ops.concat((-second, first), -1) * sin

    def construct(self, x, cos, sin):
        query = self.turned(self.heads(self.query(x), HEADS), cos, sin)
        key = self.turned(self.heads(self.key(x), KEY_HEADS), cos, sin)
        mixed = self.attention(query, key, self.heads(self.value(x), KEY_HEADS))[3]
        return self.out(ops.reshape(mixed, (DATA, SEQUENCE, HEADS * SIZE)))


class FeedForward(nn.Cell):
    """SwiGLU: silu(x gate) * (x up), then down."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = (Linear(WIDTH, HIDDEN, BY_COLUMN) for _ in range(2))
        self.down = Linear(HIDDEN, WIDTH, BY_ROW)

    def construct(self, x):
        return self.down(ops.silu(self.gate(x)) * self.up(x))


class Layer(nn.Cell):
    """Attention and SwiGLU, each behind a norm and with a residual."""

    @one_graph
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = Norm(), Attention()
        self.feed_forward_norm, self.feed_forward = Norm(), FeedForward()
        self.add = ops.Add().shard((HIDDEN_STATES, HIDDEN_STATES))

    def construct(self, x, cos, sin):
        x = self.add(x, self.attention(self.attention_norm(x), cos, sin))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Cell):
    """The mean cross entropy of the next word."""

    def __init__(self):
        super().__init__()
        self.table = weight(VOCABULARY, WIDTH)
        self.embed = ops.Gather().shard((layout("None", "None"), layout("data", ("context", "tensor"))))
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
        self.norm, self.head = Norm(), Linear(WIDTH, VOCABULARY, BY_COLUMN)
        self.loss = nn.CrossEntropyLoss()
        frequencies = 500000.0 ** -(np.arange(0, SIZE, 2) / SIZE)
        self.frequencies = Tensor(np.concatenate([frequencies, frequencies]).astype(np.float32))

    def construct(self, words, next_words):
        places = ops.cumsum(ops.ones((SEQUENCE,), ms.float32), 0) - 1.0
        angles = ops.reshape(places, (SEQUENCE, 1, 1)) * self.frequencies
        cos, sin = ops.cast(ops.cos(angles), HALF), ops.cast(ops.sin(angles), HALF)
        x = self.embed(self.table, words, 0)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = ops.reshape(self.head(self.norm(x)), (-1, VOCABULARY))
        return self.loss(ops.cast(logits, ms.float32), ops.reshape(next_words, (-1,)))


network = Llama()
step = nn.TrainOneStepCell(network, nn.AdamWeightDecay(network.trainable_params(), 1e-4))
text = np.resize(np.arange(SEQUENCE, dtype=np.int32) % VOCABULARY, (DATA, SEQUENCE))
for _ in range(STEPS):
    print("loss", step(Tensor(text), Tensor(np.roll(text, -1, 1))))
