"""This is a small language model, sharded over ranks by tensor and by data parallelism.

    mspc run net.py                           # one rank: nothing is split
    mspc run net.py --ranks 8                 # four ranks share each layer, two groups of four share the batch
    mspc run net.py --ranks 8 -- --steps 50   # what follows -- goes to the script; --simulate works too

It reads `text.txt` 32 characters at a time and learns to guess each next one: two layers of width 64 with four
heads. Whatever the number of ranks, the losses are one rank's, up to rounding.
"""

import argparse
import math
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Layout, Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
from mindspore.communication import get_group_size, init
from mindspore.train import LossMonitor, Model

LAYERS, WIDTH, HEADS, HIDDEN = 2, 64, 4, 256
BATCH, SEQUENCE = 16, 32
ROWS = BATCH * SEQUENCE
VOCABULARY = 64  # more than text.txt uses, so that the table can be sharded into equal slices


class Norm(nn.Cell):
    """LayerNorm of rows [rows, width]; each rank normalises the rows that it holds."""

    def __init__(self, data):
        super().__init__()
        self.gamma = Parameter(initializer("ones", [WIDTH]))
        self.beta = Parameter(initializer("zeros", [WIDTH]))
        self.norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1).shard(((data, 1), (1,), (1,)))

    def construct(self, x):
        out, _, _ = self.norm(x, self.gamma, self.beta)
        return out


class Attention(nn.Cell):
    """Causal self-attention [rows, width] -> [rows, width]; the heads are shared out."""

    def __init__(self, data, tensor):
        super().__init__()
        self.wq = Parameter(initializer("xavier_uniform", [WIDTH, WIDTH]))
        self.wk = Parameter(initializer("xavier_uniform", [WIDTH, WIDTH]))
        self.wv = Parameter(initializer("xavier_uniform", [WIDTH, WIDTH]))
        self.wo = Parameter(initializer("xavier_uniform", [WIDTH, WIDTH]))
        # Rows by data, columns by tensor: the columns of wq, wk and wv are the heads.
        columns = ((data, 1), (1, tensor))
        self.query = ops.MatMul().shard(columns)
        self.key = ops.MatMul().shard(columns)
        self.value = ops.MatMul().shard(columns)
        self.reshape = ops.Reshape()
        self.split = ops.Transpose().shard(((data, 1, tensor, 1),))
        # From here to merge every head works by itself: nothing is sent.
        heads = (data, tensor, 1, 1)
        self.scores = ops.BatchMatMul(transpose_b=True).shard((heads, heads))
        self.scale = ops.Mul().shard((heads, ()))
        self.mask = ops.Add().shard((heads, (1, 1)))
        self.softmax = ops.Softmax(axis=-1).shard((heads,))
        self.weigh = ops.BatchMatMul().shard((heads, heads))
        self.merge = ops.Transpose().shard((heads,))
        # The product over all heads is a partial sum on each rank: the layer's first reduction.
        self.out = ops.MatMul().shard(((data, tensor), (tensor, 1)))
        # Added to the scores: a character sees itself and those before it.
        self.future = Tensor(np.triu(np.full((SEQUENCE, SEQUENCE), -1e4, np.float32), 1))

    def heads(self, x):
        x = self.reshape(x, (BATCH, SEQUENCE, HEADS, WIDTH // HEADS))
        return self.split(x, (0, 2, 1, 3))

    def construct(self, x):
        query = self.heads(self.query(x, self.wq))
        key = self.heads(self.key(x, self.wk))
        value = self.heads(self.value(x, self.wv))
        scores = self.scale(self.scores(query, key), 1 / math.sqrt(WIDTH // HEADS))
        weights = self.softmax(self.mask(scores, self.future))
        mixed = self.merge(self.weigh(weights, value), (0, 2, 1, 3))
        return self.out(self.reshape(mixed, (ROWS, WIDTH)), self.wo)


class FeedForward(nn.Cell):
    """[rows, width] -> [rows, width] through a wider layer, whose columns are shared out."""

    def __init__(self, data, tensor):
        super().__init__()
        self.w1 = Parameter(initializer("xavier_uniform", [WIDTH, HIDDEN]))
        self.w2 = Parameter(initializer("xavier_uniform", [HIDDEN, WIDTH]))
        self.up = ops.MatMul().shard(((data, 1), (1, tensor)))
        self.gelu = ops.GeLU().shard(((data, tensor),))
        # The layer's second reduction.
        self.down = ops.MatMul().shard(((data, tensor), (tensor, 1)))

    def construct(self, x):
        return self.down(self.gelu(self.up(x, self.w1)), self.w2)


class Layer(nn.Cell):
    """Attention, then feed-forward, each of normalised rows and added to them."""

    def __init__(self, data, tensor):
        super().__init__()
        self.norm1 = Norm(data)
        self.attention = Attention(data, tensor)
        self.add1 = ops.Add().shard(((data, 1), (data, 1)))
        self.norm2 = Norm(data)
        self.feed_forward = FeedForward(data, tensor)
        self.add2 = ops.Add().shard(((data, 1), (data, 1)))

    def construct(self, x):
        x = self.add1(x, self.attention(self.norm1(x)))
        return self.add2(x, self.feed_forward(self.norm2(x)))


class LanguageModel(nn.Cell):
    """characters[batch, sequence] (Int32) -> logits[batch * sequence, vocabulary]"""

    def __init__(self, data, tensor):
        super().__init__()
        self.table = Parameter(initializer("normal", [VOCABULARY, WIDTH]))
        self.position = Parameter(initializer("normal", [SEQUENCE, WIDTH]))
        self.head = Parameter(initializer("xavier_uniform", [WIDTH, VOCABULARY]))
        # Each rank holds some characters' rows and gives zeros for the others; the sum is the embedding.
        # A Layout, because the ranks that share a table must be those that share a layer: (tensor, data) as
        # a tuple would take others.
        mesh = Layout((data, tensor), ("data", "tensor"))
        self.embed = ops.Gather().shard((mesh("tensor", "None"), mesh("data", "None")))
        self.add_position = ops.Add().shard(((data, 1, 1), (1, 1)))
        self.reshape = ops.Reshape()
        self.layers = nn.CellList([Layer(data, tensor) for _ in range(LAYERS)])
        self.norm = Norm(data)
        self.project = ops.MatMul().shard(((data, 1), (1, tensor)))

    def construct(self, characters):
        x = self.add_position(self.embed(self.table, characters, 0), self.position)
        x = self.reshape(x, (ROWS, WIDTH))
        for layer in self.layers:
            x = layer(x)
        return self.project(self.norm(x), self.head)


class NextCharacterLoss(nn.Cell):
    """Mean cross entropy of logits[batch * sequence, vocabulary] and labels[batch, sequence]."""

    def __init__(self):
        super().__init__()
        # No strategies here: the compiler splits the rows over all ranks.
        self.cross_entropy = nn.CrossEntropyLoss()

    def construct(self, logits, labels):
        return self.cross_entropy(logits, ops.reshape(labels, (ROWS,)))


def windows(steps):
    """`steps` batches from random places of the text: characters[batch, sequence], and those that follow."""
    text = (Path(__file__).parent / "text.txt").read_text(encoding="utf-8")
    number = {character: i for i, character in enumerate(sorted(set(text)))}
    numbers = np.array([number[character] for character in text], np.int32)
    # The same places on every rank.
    starts = np.random.default_rng(1).integers(0, len(numbers) - SEQUENCE, (steps, BATCH, 1))

    def generate():
        for start in starts:
            places = start + np.arange(SEQUENCE)
            yield numbers[places], numbers[places + 1]

    return generate


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--every", type=int, default=10, help="steps between two lines of output")
options = parser.parse_args()

ms.set_context(mode=ms.GRAPH_MODE)
# full_batch: every rank is fed the global batch and takes its slice.
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
init()
ms.set_seed(1)

# As much tensor parallelism as there are heads; the rest of the ranks share the batch. 8 ranks: 2 x 4.
tensor = math.gcd(get_group_size(), HEADS)
data = get_group_size() // tensor

net = LanguageModel(data, tensor)
model = Model(net, NextCharacterLoss(), nn.Adam(net.trainable_params(), 3e-3))
dataset = ds.GeneratorDataset(windows(options.steps), ["characters", "labels"])
model.train(1, dataset, callbacks=LossMonitor(options.every), dataset_sink_mode=False)
