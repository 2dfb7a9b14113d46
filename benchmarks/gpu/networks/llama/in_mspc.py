"""LLaMA in MindSpore's style."""

import math

import numpy as np

import mspc as ms
from benchmarks.gpu.networks.sizes import angles
from mspc import Parameter, Tensor, nn, ops


class RMSNorm(nn.Cell):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight = Parameter(ops.ones((width,), ms.float32))
        self.eps = eps

    def construct(self, x):
        wide = x.astype(ms.float32)
        wide = wide * ops.rsqrt(ops.mean(ops.square(wide), -1, keep_dims=True) + self.eps)
        return wide.astype(x.dtype) * self.weight


class Attention(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.heads, self.key_heads, self.size = s.heads, s.key_heads, s.width // s.heads
        self.wq = nn.Dense(s.width, s.width, has_bias=False)
        self.wk = nn.Dense(s.width, s.key_heads * self.size, has_bias=False)
        self.wv = nn.Dense(s.width, s.key_heads * self.size, has_bias=False)
        self.wo = nn.Dense(s.width, s.width, has_bias=False)
        self.cos, self.sin = Tensor(np.cos(angles(s))), Tensor(np.sin(angles(s)))
        self.mask = Tensor(np.triu(np.full((1, 1, s.length, s.length), -1e9, np.float32), 1))

    def rotate(self, x):
        left, right = ops.split(x, self.size // 2, axis=-1)
        return x * self.cos + ops.cat((-right, left), axis=-1) * self.sin

    def construct(self, x):
        b, t, c = x.shape
        q = self.wq(x).reshape(b, t, self.heads, self.size).transpose(0, 2, 1, 3)
        k = self.wk(x).reshape(b, t, self.key_heads, self.size).transpose(0, 2, 1, 3)
        v = self.wv(x).reshape(b, t, self.key_heads, self.size).transpose(0, 2, 1, 3)
        q, k = self.rotate(q), self.rotate(k)
        k = ops.repeat_interleave(k, self.heads // self.key_heads, axis=1)
        v = ops.repeat_interleave(v, self.heads // self.key_heads, axis=1)
        scores = ops.matmul(q, k.transpose(0, 1, 3, 2)) / math.sqrt(self.size) + self.mask
        shares = ops.softmax(scores.astype(ms.float32), axis=-1).astype(q.dtype)
        return self.wo(ops.matmul(shares, v).transpose(0, 2, 1, 3).reshape(b, t, c))


class FeedForward(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.w1 = nn.Dense(s.width, s.hidden, has_bias=False)
        self.w2 = nn.Dense(s.hidden, s.width, has_bias=False)
        self.w3 = nn.Dense(s.width, s.hidden, has_bias=False)

    def construct(self, x):
        return self.w2(ops.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(s.width), Attention(s)
        self.ffn_norm, self.feed_forward = RMSNorm(s.width), FeedForward(s)

    def construct(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Network(nn.Cell):
    """The mean cross entropy of the next words."""

    def __init__(self, s):
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.layers = nn.CellList([Layer(s) for _ in range(s.layers)])
        self.norm = RMSNorm(s.width)
        self.output = nn.Dense(s.width, s.vocabulary, has_bias=False)

    def construct(self, words, following):
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        logits = self.output(self.norm(x)).astype(ms.float32)
        return ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), following.reshape(-1))
