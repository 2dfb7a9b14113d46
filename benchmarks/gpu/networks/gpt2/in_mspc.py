"""GPT-2 in MindSpore's style."""

import math

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops


class Attention(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.heads, self.size = s.heads, s.width // s.heads
        self.qkv = nn.Dense(s.width, 3 * s.width)
        self.proj = nn.Dense(s.width, s.width)
        self.attn_dropout = nn.Dropout(p=s.dropout)
        self.resid_dropout = nn.Dropout(p=s.dropout)
        self.causal = Tensor(np.tril(np.ones((1, 1, s.length, s.length), bool)))

    def construct(self, x):
        b, t, c = x.shape
        q, k, v = ops.split(self.qkv(x), c, axis=2)
        q = q.reshape(b, t, self.heads, self.size).transpose(0, 2, 1, 3)
        k = k.reshape(b, t, self.heads, self.size).transpose(0, 2, 1, 3)
        v = v.reshape(b, t, self.heads, self.size).transpose(0, 2, 1, 3)
        att = ops.matmul(q, k.swapaxes(-2, -1)) / math.sqrt(self.size)
        att = ops.masked_fill(att, ops.logical_not(self.causal), -1e9)
        att = self.attn_dropout(ops.softmax(att, axis=-1))
        y = ops.matmul(att, v).transpose(0, 2, 1, 3).reshape(b, t, c)
        return self.resid_dropout(self.proj(y))


class MLP(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.fc = nn.Dense(s.width, 4 * s.width)
        self.gelu = nn.GELU(approximate=True)
        self.proj = nn.Dense(4 * s.width, s.width)
        self.dropout = nn.Dropout(p=s.dropout)

    def construct(self, x):
        return self.dropout(self.proj(self.gelu(self.fc(x))))


class Block(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.ln_1 = nn.LayerNorm((s.width,), epsilon=1e-5)
        self.attn = Attention(s)
        self.ln_2 = nn.LayerNorm((s.width,), epsilon=1e-5)
        self.mlp = MLP(s)

    def construct(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Network(nn.Cell):
    """The mean cross entropy of the next words."""

    def __init__(self, s):
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.position = Parameter(ops.zeros((s.length, s.width), ms.float32))
        self.drop = nn.Dropout(p=s.dropout)
        self.blocks = nn.CellList([Block(s) for _ in range(s.layers)])
        self.ln_f = nn.LayerNorm((s.width,), epsilon=1e-5)

    def construct(self, words, following):
        x = self.drop(self.embedding(words) + self.position)
        for block in self.blocks:
            x = block(x)
        logits = ops.matmul(self.ln_f(x), self.embedding.embedding_table.T)
        return ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), following.reshape(-1))
