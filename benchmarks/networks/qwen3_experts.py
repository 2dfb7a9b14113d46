"""Qwen 3 with experts in MindSpore's style: normed heads, several experts for a row, one step of AdamW, data parallel.

    mspc compile benchmarks/networks/qwen3_experts.py -- LAYERS WIDTH HEADS KEY_HEADS SIZE EXPERTS CHOSEN HIDDEN \\
        VOCABULARY BATCH SEQUENCE [TYPE]

It computes what transformers' Qwen3MoeForCausalLM does; `benchmarks.pytorch.large` sets it beside that.
30B: 48 2048 32 4 128 128 8 768 151936 64 1024.
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import Normal, initializer

LAYERS, WIDTH, HEADS, KEY_HEADS, SIZE, EXPERTS, CHOSEN, HIDDEN, VOCABULARY, BATCH, SEQUENCE = map(int, sys.argv[1:12])
HALF = getattr(ms, sys.argv[12] if len(sys.argv) > 12 else "bfloat16")
FREQUENCIES = 10000.0 ** -(np.arange(0, SIZE, 2) / SIZE)
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

    def __init__(self, width):
        super().__init__()
        self.weight = Parameter(initializer("ones", [width], HALF))

    def construct(self, x):
        wide = ops.cast(x, ms.float32)
        wide = wide * ops.rsqrt(ops.mean(ops.square(wide), -1, True) + 1e-6)
        return self.weight * ops.cast(wide, HALF)


class Attention(nn.Cell):
    """Causal attention; several heads share keys and values, and queries and keys are normalised."""

    def __init__(self):
        super().__init__()
        self.query, self.out = Linear(WIDTH, HEADS * SIZE), Linear(HEADS * SIZE, WIDTH)
        self.key, self.value = Linear(WIDTH, KEY_HEADS * SIZE), Linear(WIDTH, KEY_HEADS * SIZE)
        self.query_norm, self.key_norm = Norm(SIZE), Norm(SIZE)
        self.mask = Tensor(np.triu(np.full((SEQUENCE, SEQUENCE), -1e9, np.float32), 1))

    def split(self, x, count):
        return ops.reshape(x, (BATCH, SEQUENCE, count, SIZE))

    def turned(self, x, cos, sin):
        first, second = x[..., : SIZE // 2], x[..., SIZE // 2 :]
        return x * cos + ops.concat((-second, first), -1) * sin

    def repeated(self, x):
        shape = (BATCH, KEY_HEADS, HEADS // KEY_HEADS, SEQUENCE, SIZE)
        return ops.reshape(ops.broadcast_to(ops.expand_dims(x, 2), shape), (BATCH, HEADS, SEQUENCE, SIZE))

    def construct(self, x, cos, sin):
        query = ops.transpose(self.query_norm(self.split(self.query(x), HEADS)), (0, 2, 1, 3))
        key = ops.transpose(self.key_norm(self.split(self.key(x), KEY_HEADS)), (0, 2, 1, 3))
        value = self.repeated(ops.transpose(self.split(self.value(x), KEY_HEADS), (0, 2, 1, 3)))
        query, key = self.turned(query, cos, sin), self.repeated(self.turned(key, cos, sin))
        scores = ops.BatchMatMul(transpose_b=True)(query, key) * SIZE**-0.5
        shares = ops.softmax(ops.cast(scores, ms.float32) + self.mask, -1)
        mixed = ops.BatchMatMul()(ops.cast(shares, HALF), value)
        return self.out(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (BATCH, SEQUENCE, HEADS * SIZE)))


class Experts(nn.Cell):
    """Every row goes through several of the experts, which are products of groups of rows."""

    def __init__(self):
        super().__init__()
        self.router = Linear(WIDTH, EXPERTS)
        self.gate_up, self.down = weight(EXPERTS, WIDTH, 2 * HIDDEN), weight(EXPERTS, HIDDEN, WIDTH)
        self.product = ops.GroupedMatmul(3, 0)

    def construct(self, x):
        rows = ops.reshape(x, (-1, WIDTH))
        shares, places = mint.topk(ops.softmax(ops.cast(self.router(rows), ms.float32), -1), CHOSEN, -1)
        shares = ops.reshape(shares / ops.sum(shares, -1, True), (-1,))
        experts, order = mint.sort(ops.reshape(places, (-1,)))
        ends = ops.sum(ops.cast(ops.expand_dims(experts, 1) <= ops.arange(EXPERTS), ms.int64), 0)
        sent = ops.gather(rows, order // CHOSEN, 0)
        both = self.product([sent], [self.gate_up], None, None, None, None, None, ends)[0]
        gate, up = ops.split(both, HIDDEN, -1)
        given = self.product([ops.silu(gate) * up], [self.down], None, None, None, None, None, ends)[0]
        given = given * ops.cast(ops.expand_dims(ops.gather(shares, order, 0), 1), HALF)
        back = ops.gather(given, mint.argsort(order), 0)
        return ops.reshape(ops.sum(ops.reshape(back, (-1, CHOSEN, WIDTH)), 1), x.shape)


class Layer(nn.Cell):
    """Attention and experts, each behind a norm and with a residual."""

    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention, self.norm, self.experts = Norm(WIDTH), Attention(), Norm(WIDTH), Experts()

    def construct(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.experts(self.norm(x))


class Qwen(nn.Cell):
    """The mean cross entropy of the next word."""

    def __init__(self):
        super().__init__()
        self.table = weight(VOCABULARY, WIDTH)
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
        self.norm, self.head = Norm(WIDTH), Linear(WIDTH, VOCABULARY)
        self.angles = Tensor(ANGLES)

    def construct(self, words, labels):
        x = ops.gather(self.table, words, 0)
        cos, sin = ops.cast(ops.cos(self.angles), HALF), ops.cast(ops.sin(self.angles), HALF)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = ops.cast(self.head(self.norm(x)), ms.float32)
        return ops.cross_entropy(ops.reshape(logits, (-1, VOCABULARY)), ops.reshape(labels, (-1,)))


network = Qwen()
step = nn.TrainOneStepCell(network, mint.optim.AdamW(network.trainable_params(), 1e-4))
text = np.arange(BATCH * SEQUENCE).reshape(BATCH, SEQUENCE) % VOCABULARY
print("loss", step(Tensor(text, ms.int64), Tensor(text, ms.int64)))
