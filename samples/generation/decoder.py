"""A decoder as LLaMA's: RMSNorm, rotary positions, grouped key heads, SwiGLU; cut by heads, with a cache.

The cache of a layer is two tensors [batch, key heads, places, size of a head] which the caller hands in and gets back.
All shapes here are those of one device; the strategies say what each rank holds.
"""

import math

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer

LAYERS, WIDTH, HIDDEN = 2, 64, 128
HEADS, KEY_HEADS = 8, 4
SIZE = WIDTH // HEADS
GROUP = HEADS // KEY_HEADS
VOCABULARY = 96


def weight(*shape):
    return Parameter(initializer(Normal(1.5 / math.sqrt(shape[0])), shape))


def empty_caches(batch, places):
    """The keys and the values of all layers."""
    shape = (batch, KEY_HEADS, places, SIZE)
    return [ops.zeros(shape) for _ in range(LAYERS)], [ops.zeros(shape) for _ in range(LAYERS)]


class Norm(nn.Cell):
    """Rows [..., width] over their root mean square."""

    def __init__(self):
        super().__init__()
        self.gamma = Parameter(initializer("ones", [WIDTH]))
        self.norm = ops.RmsNorm(1e-6).shard(((1, 1), (1,)))

    def construct(self, x):
        return self.norm(x, self.gamma)[0]


class Rotary(nn.Cell):
    """Turns the halves of every head's vector by angles that grow with its place."""

    def __init__(self, places):
        super().__init__()
        frequencies = 10000.0 ** (-np.arange(0, SIZE, 2, dtype=np.float32) / SIZE)
        angles = np.arange(places, dtype=np.float32)[:, None] * np.concatenate([frequencies, frequencies])
        self.cosines = Tensor(np.cos(angles).astype(np.float32))
        self.sines = Tensor(np.sin(angles).astype(np.float32))

    def construct(self, positions):
        """positions[length] -> cosines and sines [length, size]."""
        return ops.gather(self.cosines, positions, 0), ops.gather(self.sines, positions, 0)


class Attention(nn.Cell):
    """Grouped attention of rows [batch * length, width] to all places that the cache holds so far."""

    def __init__(self, tensor):
        super().__init__()
        self.wq = weight(WIDTH, HEADS * SIZE)
        self.wk = weight(WIDTH, KEY_HEADS * SIZE)
        self.wv = weight(WIDTH, KEY_HEADS * SIZE)
        self.wo = weight(HEADS * SIZE, WIDTH)
        # The columns of wq, wk and wv are the heads.
        columns = ((1, 1), (1, tensor))
        self.query = ops.MatMul().shard(columns)
        self.key = ops.MatMul().shard(columns)
        self.value = ops.MatMul().shard(columns)
        # From here to merge every head works by itself: nothing is sent.
        heads = (1, tensor, 1, 1)
        self.split = ops.Transpose().shard(((1, 1, tensor, 1),))
        self.scores = ops.BatchMatMul(transpose_b=True).shard((heads, heads))
        self.put = ops.Select().shard(((1, 1), heads, heads))
        self.weigh = ops.BatchMatMul().shard((heads, heads))
        self.merge = ops.Transpose().shard(((1, tensor, 1, 1, 1),))
        # The product over all heads is a partial sum on each rank: the layer's first reduction.
        self.out = ops.MatMul().shard(((1, tensor), (tensor, 1)))

    def turned(self, x, cosines, sines):
        first, second = ops.split(x, SIZE // 2, -1)
        return x * cosines + ops.concat((-second, first), -1) * sines

    def kept(self, cache, new, positions):
        """The cache with what a prompt has at its first places, or one token at any place."""
        if new.shape[2] > 1:
            cache[:, :, : new.shape[2]] = new
            return cache
        return self.put(ops.arange(cache.shape[2]).reshape(-1, 1) == positions, new, cache)

    def construct(self, x, keys, values, positions, rotary):
        length = positions.shape[0]
        batch = x.shape[0] // length
        cosines, sines = rotary
        query = self.split(self.query(x, self.wq).reshape(batch, length, HEADS, SIZE), (0, 2, 1, 3))
        key = self.split(self.key(x, self.wk).reshape(batch, length, KEY_HEADS, SIZE), (0, 2, 1, 3))
        value = self.split(self.value(x, self.wv).reshape(batch, length, KEY_HEADS, SIZE), (0, 2, 1, 3))
        query = self.turned(query, cosines, sines)
        keys = self.kept(keys, self.turned(key, cosines, sines), positions)
        values = self.kept(values, value, positions)
        # The heads that share a key head stand below each other, so that no key is repeated.
        query = query.reshape(batch, KEY_HEADS, GROUP * length, SIZE)
        scores = self.scores(query, keys) / math.sqrt(SIZE)
        hidden = ops.arange(keys.shape[2]) > positions.reshape(-1, 1)
        scores = ops.masked_fill(scores, ops.tile(hidden, (GROUP, 1)), -1e9)
        mixed = self.weigh(ops.softmax(scores, -1), values)
        mixed = self.merge(mixed.reshape(batch, KEY_HEADS, GROUP, length, SIZE), (0, 3, 1, 2, 4))
        return self.out(mixed.reshape(batch * length, HEADS * SIZE), self.wo), keys, values


class FeedForward(nn.Cell):
    """SwiGLU of rows [rows, width], whose wider layer's columns are shared out."""

    def __init__(self, tensor):
        super().__init__()
        self.w1 = weight(WIDTH, HIDDEN)
        self.w2 = weight(HIDDEN, WIDTH)
        self.w3 = weight(WIDTH, HIDDEN)
        self.gate = ops.MatMul().shard(((1, 1), (1, tensor)))
        self.up = ops.MatMul().shard(((1, 1), (1, tensor)))
        # The layer's second reduction.
        self.down = ops.MatMul().shard(((1, tensor), (tensor, 1)))

    def construct(self, x):
        return self.down(ops.silu(self.gate(x, self.w1)) * self.up(x, self.w3), self.w2)


class Layer(nn.Cell):
    def __init__(self, tensor):
        super().__init__()
        self.norm1 = Norm()
        self.attention = Attention(tensor)
        self.add1 = ops.Add().shard(((1, 1), (1, 1)))
        self.norm2 = Norm()
        self.feed_forward = FeedForward(tensor)
        self.add2 = ops.Add().shard(((1, 1), (1, 1)))

    def construct(self, x, keys, values, positions, rotary):
        mixed, keys, values = self.attention(self.norm1(x), keys, values, positions, rotary)
        x = self.add1(x, mixed)
        return self.add2(x, self.feed_forward(self.norm2(x))), keys, values


class Decoder(nn.Cell):
    """tokens[batch, length] at positions[length], and the caches -> logits[batch, vocabulary] behind the last one."""

    def __init__(self, tensor, places, tied):
        super().__init__()
        self.table = weight(VOCABULARY, WIDTH)
        # The ranks share out the rows of the table: the sum of what they find is the embedding, and as the head's
        # columns they give each rank some characters' logits.
        self.embed = ops.Gather().shard(((tensor, 1), (1,)))
        self.rotary = Rotary(places)
        self.layers = nn.CellList([Layer(tensor) for _ in range(LAYERS)])
        self.norm = Norm()
        self.head = None if tied else weight(VOCABULARY, WIDTH)
        self.project = ops.MatMul(transpose_b=True).shard(((1, 1), (tensor, 1)))

    def construct(self, tokens, positions, keys, values):
        batch, length = tokens.shape
        x = self.embed(self.table, tokens.reshape(-1), 0)
        rotary = self.rotary(positions)
        for i, layer in enumerate(self.layers):
            x, keys[i], values[i] = layer(x, keys[i], values[i], positions, rotary)
        last = self.norm(x).reshape(batch, length, WIDTH)[:, -1]
        return self.project(last, self.table if self.head is None else self.head)
