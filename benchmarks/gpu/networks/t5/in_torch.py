"""T5 in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu.networks.sizes import buckets


class Bias(nn.Module):
    """[1, heads, length, length]: what is added to the scores of two places that are so far apart."""

    def __init__(self, s, length, both_ways):
        super().__init__()
        self.embedding = nn.Embedding(s.buckets, s.heads)
        self.register_buffer("buckets", torch.from_numpy(buckets(length, s, both_ways)))

    def forward(self):
        return self.embedding(self.buckets).permute(2, 0, 1)[None]


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.size, self.rate = s.heads, s.width // s.heads, s.dropout
        self.q, self.k, self.v, self.o = (nn.Linear(s.width, s.width, bias=False) for _ in range(4))

    def split(self, x):
        return x.view(x.shape[0], -1, self.heads, self.size).transpose(1, 2)

    def forward(self, x, read, bias):
        q, k, v = self.split(self.q(x)), self.split(self.k(read)), self.split(self.v(read))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), dropout_p=self.rate, scale=1.0)
        return self.o(mixed.transpose(1, 2).reshape(x.shape))


class FeedForward(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.wi, self.wo = nn.Linear(s.width, s.hidden, bias=False), nn.Linear(s.hidden, s.width, bias=False)
        self.dropout = nn.Dropout(s.dropout)

    def forward(self, x):
        return self.wo(self.dropout(F.relu(self.wi(x))))


class Layer(nn.Module):
    """One of the encoder, or with `cross` one of the decoder, which reads the encoder's result too."""

    def __init__(self, s, cross):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(s.width, eps=1e-6), Attention(s)
        self.cross = cross
        if cross:
            self.norm2, self.cross_attention = nn.RMSNorm(s.width, eps=1e-6), Attention(s)
        self.norm3, self.feed_forward = nn.RMSNorm(s.width, eps=1e-6), FeedForward(s)
        self.dropout = nn.Dropout(s.dropout)

    def forward(self, x, bias, encoded=None, padding=None):
        y = self.norm1(x)
        x = x + self.dropout(self.attention(y, y, bias))
        if self.cross:
            x = x + self.dropout(self.cross_attention(self.norm2(x), encoded, padding))
        return x + self.dropout(self.feed_forward(self.norm3(x)))


class Network(nn.Module):
    """The mean cross entropy of the answer's words."""

    def __init__(self, s):
        super().__init__()
        self.scale = s.width**-0.5
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.encoder_relative, self.decoder_relative = Bias(s, s.length, True), Bias(s, s.answer, False)
        self.encoder = nn.ModuleList(Layer(s, False) for _ in range(s.layers))
        self.decoder = nn.ModuleList(Layer(s, True) for _ in range(s.layers))
        self.encoder_norm, self.decoder_norm = nn.RMSNorm(s.width, eps=1e-6), nn.RMSNorm(s.width, eps=1e-6)
        self.dropout = nn.Dropout(s.dropout)
        self.register_buffer("future", torch.full((s.answer, s.answer), -1e9).triu(1))

    def forward(self, words, present, answer, wanted):
        padding = (1.0 - present.float())[:, None, None, :] * -1e9
        bias = self.encoder_relative() + padding
        x = self.dropout(self.embedding(words))
        for layer in self.encoder:
            x = layer(x, bias)
        encoded = self.dropout(self.encoder_norm(x))
        bias = self.decoder_relative() + self.future
        x = self.dropout(self.embedding(answer))
        for layer in self.decoder:
            x = layer(x, bias, encoded, padding)
        logits = F.linear(self.dropout(self.decoder_norm(x)) * self.scale, self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100)
