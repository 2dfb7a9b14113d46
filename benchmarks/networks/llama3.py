"""LLaMA 3 in MindSpore's style: grouped heads, rotary places, weights in bfloat16, one step of AdamW, data parallel.

    mspc compile benchmarks/networks/llama3.py -- LAYERS WIDTH HEADS KEY_HEADS HIDDEN VOCABULARY BATCH SEQUENCE

It computes what transformers' LlamaForCausalLM does; `benchmarks.pytorch.large` sets it beside that. Two known ones:
8B: 32 4096 32 8 14336 128256 64 1024; 70B: 80 8192 64 8 28672 128256 1024 1024.
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import Normal, initializer

LAYERS, WIDTH, HEADS, KEY_HEADS, HIDDEN, VOCABULARY, BATCH, SEQUENCE = map(int, sys.argv[1:9])
SIZE = WIDTH // HEADS
HALF = ms.bfloat16
FREQUENCIES = 500000.0 ** -(np.arange(0, SIZE, 2) / SIZE)
ANGLES = np.outer(np.arange(SEQUENCE), np.concatenate([FREQUENCIES, FREQUENCIES])).astype(np.float32)

ms.set_seed(1)
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)


def weight(*shape):
    """A weight that is sampled when a rank needs its slice."""
    return Parameter(initializer(Normal(0.02), shape, HALF))


class Linear(nn.Cell):
    """x times a matrix that lies as PyTorch has it, (out, in)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = weight(outputs, inputs)
        self.product = ops.MatMul(transpose_b=True)

    def construct(self, x):
        found = self.product(ops.reshape(x, (-1, x.shape[-1])), self.weight)
        return ops.reshape(found, (*x.shape[:-1], found.shape[-1]))


class Norm(nn.Cell):
    """x / sqrt(mean of x^2) in Float32, times a learnt vector."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(initializer("ones", [WIDTH], HALF))

    def construct(self, x):
        wide = ops.cast(x, ms.float32)
        wide = wide * ops.rsqrt(ops.mean(ops.square(wide), -1, True) + 1e-6)
        return self.weight * ops.cast(wide, HALF)


class Attention(nn.Cell):
    """Causal attention; several heads share keys and values."""

    def __init__(self):
        super().__init__()
        self.query, self.out = Linear(WIDTH, HEADS * SIZE), Linear(HEADS * SIZE, WIDTH)
        self.key, self.value = Linear(WIDTH, KEY_HEADS * SIZE), Linear(WIDTH, KEY_HEADS * SIZE)
        self.mask = Tensor(np.triu(np.full((SEQUENCE, SEQUENCE), -1e9, np.float32), 1))

    def heads(self, x, count):
        return ops.transpose(ops.reshape(x, (BATCH, SEQUENCE, count, SIZE)), (0, 2, 1, 3))

    def turned(self, x, cos, sin):
        first, second = x[..., : SIZE // 2], x[..., SIZE // 2 :]
        return x * cos + ops.concat((-second, first), -1) * sin

    def repeated(self, x):
        shape = (BATCH, KEY_HEADS, HEADS // KEY_HEADS, SEQUENCE, SIZE)
        return ops.reshape(ops.broadcast_to(ops.expand_dims(x, 2), shape), (BATCH, HEADS, SEQUENCE, SIZE))

    def construct(self, x, cos, sin):
        query = self.turned(self.heads(self.query(x), HEADS), cos, sin)
        key = self.repeated(self.turned(self.heads(self.key(x), KEY_HEADS), cos, sin))
        value = self.repeated(self.heads(self.value(x), KEY_HEADS))
        scores = ops.BatchMatMul(transpose_b=True)(query, key) * SIZE**-0.5
        shares = ops.softmax(ops.cast(scores, ms.float32) + self.mask, -1)
        mixed = ops.BatchMatMul()(ops.cast(shares, HALF), value)
        return self.out(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (BATCH, SEQUENCE, HEADS * SIZE)))


class Layer(nn.Cell):
    """Attention and SwiGLU, each behind a norm and with a residual."""

    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention, self.norm = Norm(), Attention(), Norm()
        self.gate, self.up, self.down = Linear(WIDTH, HIDDEN), Linear(WIDTH, HIDDEN), Linear(HIDDEN, WIDTH)

    def construct(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        rows = self.norm(x)
        return x + self.down(ops.silu(self.gate(rows)) * self.up(rows))


class Llama(nn.Cell):
    """The mean cross entropy of the next word."""

    def __init__(self):
        super().__init__()
        self.table = weight(VOCABULARY, WIDTH)
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
        self.norm, self.head = Norm(), Linear(WIDTH, VOCABULARY)
        self.angles = Tensor(ANGLES)

    def construct(self, words, labels):
        x = ops.gather(self.table, words, 0)
        cos, sin = ops.cast(ops.cos(self.angles), HALF), ops.cast(ops.sin(self.angles), HALF)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = ops.cast(self.head(self.norm(x)), ms.float32)
        return ops.cross_entropy(ops.reshape(logits, (-1, VOCABULARY)), ops.reshape(labels, (-1,)))


network = Llama()
step = nn.TrainOneStepCell(network, mint.optim.AdamW(network.trainable_params(), 1e-4))
text = np.arange(BATCH * SEQUENCE).reshape(BATCH, SEQUENCE) % VOCABULARY
print("loss", step(Tensor(text, ms.int64), Tensor(text, ms.int64)))
