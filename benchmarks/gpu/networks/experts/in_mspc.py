"""A language model of experts in MindSpore's style."""

import numpy as np

import mspc as ms
from benchmarks.gpu.networks.sizes import EVEN, capacity
from mspc import Parameter, Tensor, nn, ops


class Attention(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.heads, self.size = s.heads, s.width // s.heads
        self.wq, self.wk, self.wv, self.wo = (nn.Dense(s.width, s.width, has_bias=False) for _ in range(4))
        self.causal = Tensor(np.tril(np.ones((s.length, s.length), bool)))

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.size).transpose(0, 2, 1, 3)

    def construct(self, x):
        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        scores = ops.matmul(q * self.size**-0.5, k.swapaxes(-1, -2))
        shares = ops.softmax(ops.where(self.causal, scores, -1e9), axis=-1)
        return self.wo(ops.matmul(shares, v).transpose(0, 2, 1, 3).reshape(x.shape))


class Experts(nn.Cell):
    """Every word goes to the experts that its router prefers, in the order of the words while there is room."""

    def __init__(self, s):
        super().__init__()
        self.count, self.chosen, self.capacity = s.experts, s.chosen, capacity(s)
        self.router = nn.Dense(s.width, s.experts, has_bias=False)
        self.w1 = Parameter(ops.zeros((s.experts, s.hidden, s.width), ms.float32))
        self.w3 = Parameter(ops.zeros((s.experts, s.hidden, s.width), ms.float32))
        self.w2 = Parameter(ops.zeros((s.experts, s.width, s.hidden), ms.float32))

    def construct(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        gates = ops.softmax(self.router(x).astype(ms.float32), axis=-1)
        weights, chosen = ops.topk(gates, self.chosen)
        weights = weights / ops.sum(weights, dim=-1, keepdim=True)
        flat = chosen.reshape(-1)
        taken = ops.one_hot(flat, self.count, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        place = ops.sum((ops.cumsum(taken, 0) - 1.0) * taken, dim=-1).astype(ms.int32)
        room = self.count * self.capacity
        slot = ops.where(place < self.capacity, flat * self.capacity + place, room)
        rows = ops.repeat_interleave(x, self.chosen, axis=0)
        given = ops.zeros((room + 1, shape[-1]), x.dtype)
        given = ops.tensor_scatter_elements(given, ops.broadcast_to(slot.expand_dims(-1), rows.shape), rows, 0)
        given = given[:room].reshape(self.count, self.capacity, shape[-1])
        hidden = ops.silu(ops.bmm(given, self.w1.swapaxes(1, 2))) * ops.bmm(given, self.w3.swapaxes(1, 2))
        found = ops.bmm(hidden, self.w2.swapaxes(1, 2)).reshape(room, shape[-1])
        found = ops.cat((found, ops.zeros((1, shape[-1]), found.dtype)), axis=0)
        out = ops.gather(found, slot, 0) * weights.reshape(-1, 1)
        out = ops.sum(out.reshape(-1, self.chosen, shape[-1]), dim=1)
        even = self.count * ops.sum(ops.mean(taken, 0) * ops.mean(gates, 0))
        return out.reshape(shape), even


class Layer(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm((s.width,), epsilon=1e-5), Attention(s)
        self.norm2, self.experts = nn.LayerNorm((s.width,), epsilon=1e-5), Experts(s)

    def construct(self, x):
        x = x + self.attention(self.norm1(x))
        out, even = self.experts(self.norm2(x))
        return x + out, even


class Network(nn.Cell):
    """The mean cross entropy of the next words, and how unevenly experts are chosen."""

    def __init__(self, s):
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.position = Parameter(ops.zeros((s.length, s.width), ms.float32))
        self.layers = nn.CellList([Layer(s) for _ in range(s.layers)])
        self.norm = nn.LayerNorm((s.width,), epsilon=1e-5)
        self.output = nn.Dense(s.width, s.vocabulary, has_bias=False)

    def construct(self, words, following):
        x = self.embedding(words) + self.position
        total = 0.0
        for layer in self.layers:
            x, even = layer(x)
            total = total + even
        logits = self.output(self.norm(x))
        loss = ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), following.reshape(-1))
        return loss + EVEN * total
