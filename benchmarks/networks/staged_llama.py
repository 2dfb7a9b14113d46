"""A LLaMA in stages of a pipeline, each data parallel by tensor parallel, as one training step under Adam.

    mspc compile benchmarks/networks/staged_llama.py --ranks R --
        LAYERS WIDTH HEADS KEY_HEADS HIDDEN VOCABULARY DATA TENSOR STAGES MICRO_BATCHES SEQUENCE [SCHEDULE]

Keys and values have heads of their own that several query heads share. Every rank has one sequence of a micro-batch.
8B: 32 4096 32 8 14336 128256; 70B: 80 8192 64 8 28672 128256; 405B: 126 16384 128 8 53248 128256.
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer
from mindspore.communication import init

SMALL = ("4", "32", "4", "2", "48", "64", "2", "2", "2", "4", "8", "1f1b")
*SIZES, SCHEDULE = (*sys.argv[1:], *SMALL[len(sys.argv) - 1 :])
LAYERS, WIDTH, HEADS, KEY_HEADS, HIDDEN, VOCABULARY, DATA, TENSOR, STAGES, MICRO_BATCHES, SEQUENCE = map(int, SIZES)
SIZE = WIDTH // HEADS
BATCH = DATA
"""Sequences of a micro-batch."""
MASK = Tensor(np.triu(np.full((SEQUENCE, SEQUENCE), -1e9, np.float32), 1))

ms.set_seed(1)
init()
ms.set_context(mode=ms.GRAPH_MODE)
stages = {"pipeline_stages": STAGES, "pipeline_config": {"pipeline_interleave": False, "pipeline_scheduler": SCHEDULE}}
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True, **stages if STAGES > 1 else {}
)


def weight(rows, columns):
    """A matrix that is sampled when a rank needs its slice."""
    return Parameter(initializer(Normal(0.02), [rows, columns], ms.float32))


class Norm(nn.Cell):
    """x / sqrt(mean of x^2) times a learnt vector."""

    def __init__(self):
        super().__init__()
        self.gamma = Parameter(initializer("ones", [WIDTH], ms.float32))
        self.norm = ops.RmsNorm(1e-5).shard(((DATA, 1, 1), (1,)))

    def construct(self, x):
        return self.norm(x, self.gamma)[0]


class Product(nn.Cell):
    """x times a matrix, sharded by columns or by rows."""

    def __init__(self, rows, columns, by_row=False):
        super().__init__()
        self.weight = weight(rows, columns)
        cuts = ((DATA, TENSOR), (TENSOR, 1)) if by_row else ((DATA, 1), (1, TENSOR))
        self.product = ops.MatMul().shard(cuts)

    def construct(self, x):
        found = self.product(ops.reshape(x, (-1, x.shape[-1])), self.weight)
        return ops.reshape(found, (*x.shape[:-1], found.shape[-1]))


class Attention(nn.Cell):
    """Causal attention with rotary places; every rank of a tensor group has some of the heads."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (Product(WIDTH, n * SIZE) for n in (HEADS, KEY_HEADS, KEY_HEADS))
        self.out = Product(WIDTH, WIDTH, by_row=True)
        heads = (DATA, TENSOR, 1, 1)
        self.scores = ops.BatchMatMul(transpose_b=True).shard((heads, heads))
        self.mix = ops.BatchMatMul().shard((heads, heads))
        self.softmax = ops.Softmax().shard((heads,))
        self.mask = MASK

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
        shares = self.softmax(self.scores(query, key) * SIZE**-0.5 + self.mask)
        mixed = ops.transpose(self.mix(shares, value), (0, 2, 1, 3))
        return self.out(ops.reshape(mixed, (BATCH, SEQUENCE, WIDTH)))


class Layer(nn.Cell):
    """Attention and SwiGLU, each behind a norm and with a residual."""

    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention, self.norm = Norm(), Attention(), Norm()
        self.gate, self.up, self.down = Product(WIDTH, HIDDEN), Product(WIDTH, HIDDEN), Product(HIDDEN, WIDTH, True)

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
        self.norm, self.head = Norm(), Product(WIDTH, VOCABULARY)
        angles = np.outer(np.arange(SEQUENCE), 1e4 ** -(np.arange(SIZE // 2) * 2 / SIZE))
        self.angles = Tensor(np.concatenate((angles, angles), -1).astype(np.float32))
        self.embed = ops.Gather().shard(((1, 1), (DATA, 1)))
        if STAGES > 1:
            for number, layer in enumerate(self.layers):
                layer.pipeline_stage = number * STAGES // LAYERS
            self.norm.pipeline_stage = self.head.pipeline_stage = STAGES - 1

    def construct(self, words, labels):
        x = self.embed(self.table, words, 0)
        cos, sin = ops.cos(self.angles), ops.sin(self.angles)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.head(self.norm(x))
        return ops.cross_entropy(ops.reshape(logits, (-1, VOCABULARY)), ops.reshape(labels, (-1,)))


network = Llama()
parts = nn.PipelineCell(network, MICRO_BATCHES) if STAGES > 1 else network
step = nn.TrainOneStepCell(parts, nn.Adam(network.trainable_params(), 1e-4))
count = BATCH * (MICRO_BATCHES if STAGES > 1 else 1)
text = np.arange(count * SEQUENCE, dtype=np.int32).reshape(count, SEQUENCE) % VOCABULARY
print("loss", step(Tensor(text), Tensor(text)))
