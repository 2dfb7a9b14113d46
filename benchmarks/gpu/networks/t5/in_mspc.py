"""T5 in MindSpore's style."""

import numpy as np

import mspc as ms
from benchmarks.gpu.networks.sizes import buckets
from mspc import Parameter, Tensor, nn, ops


class LayerNorm(nn.Cell):
    """Without mean and bias."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = Parameter(ops.ones((width,), ms.float32))
        self.eps = eps

    def construct(self, x):
        variance = x.astype(ms.float32).pow(2).mean(-1, keep_dims=True)
        return self.weight * (x * ops.rsqrt(variance + self.eps)).astype(x.dtype)


class Bias(nn.Cell):
    """[1, heads, length, length]: what is added to the scores of two places that are so far apart."""

    def __init__(self, s, length, both_ways):
        super().__init__()
        self.embedding = nn.Embedding(s.buckets, s.heads)
        self.buckets = Tensor(buckets(length, s, both_ways))

    def construct(self):
        return self.embedding(self.buckets).transpose(2, 0, 1).expand_dims(0)


class Attention(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.heads, self.size = s.heads, s.width // s.heads
        self.q, self.k, self.v, self.o = (nn.Dense(s.width, s.width, has_bias=False) for _ in range(4))
        self.dropout = nn.Dropout(p=s.dropout)

    def split(self, x):
        return x.view(x.shape[0], -1, self.heads, self.size).swapaxes(1, 2)

    def construct(self, x, read, bias):
        q, k, v = self.split(self.q(x)), self.split(self.k(read)), self.split(self.v(read))
        scores = ops.matmul(q, k.swapaxes(3, 2)) + bias
        shares = self.dropout(ops.softmax(scores.astype(ms.float32), axis=-1).astype(scores.dtype))
        return self.o(ops.matmul(shares, v).swapaxes(1, 2).reshape(x.shape))


class FeedForward(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.wi, self.wo = nn.Dense(s.width, s.hidden, has_bias=False), nn.Dense(s.hidden, s.width, has_bias=False)
        self.dropout = nn.Dropout(p=s.dropout)

    def construct(self, x):
        return self.wo(self.dropout(ops.relu(self.wi(x))))


class Layer(nn.Cell):
    """One of the encoder, or with `cross` one of the decoder, which reads the encoder's result too."""

    def __init__(self, s, cross):
        super().__init__()
        self.norm1, self.attention = LayerNorm(s.width), Attention(s)
        self.cross = cross
        if cross:
            self.norm2, self.cross_attention = LayerNorm(s.width), Attention(s)
        self.norm3, self.feed_forward = LayerNorm(s.width), FeedForward(s)
        self.dropout = nn.Dropout(p=s.dropout)

    def construct(self, x, bias, encoded=None, padding=None):
        y = self.norm1(x)
        x = x + self.dropout(self.attention(y, y, bias))
        if self.cross:
            x = x + self.dropout(self.cross_attention(self.norm2(x), encoded, padding))
        return x + self.dropout(self.feed_forward(self.norm3(x)))


class Network(nn.Cell):
    """The mean cross entropy of the answer's words."""

    def __init__(self, s):
        super().__init__()
        self.scale, self.answer = s.width**-0.5, s.answer
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.encoder_relative, self.decoder_relative = Bias(s, s.length, True), Bias(s, s.answer, False)
        self.encoder = nn.CellList([Layer(s, False) for _ in range(s.layers)])
        self.decoder = nn.CellList([Layer(s, True) for _ in range(s.layers)])
        self.encoder_norm, self.decoder_norm = LayerNorm(s.width), LayerNorm(s.width)
        self.dropout = nn.Dropout(p=s.dropout)
        self.future = Tensor(np.triu(np.full((1, 1, s.answer, s.answer), -1e9, np.float32), 1))

    def construct(self, words, present, answer, wanted):
        padding = (1.0 - present.astype(ms.float32)).expand_dims(1).expand_dims(1) * -1e9
        bias = self.encoder_relative() + padding
        x = self.dropout(self.embedding(words))
        for layer in self.encoder:
            x = layer(x, bias)
        encoded = self.dropout(self.encoder_norm(x))
        bias = self.decoder_relative() + self.future
        x = self.dropout(self.embedding(answer))
        for layer in self.decoder:
            x = layer(x, bias, encoded, padding)
        x = self.dropout(self.decoder_norm(x)) * self.scale
        logits = ops.matmul(x, self.embedding.embedding_table.T)
        return ops.cross_entropy(logits.view(-1, logits.shape[-1]), wanted.view(-1), ignore_index=-100)
