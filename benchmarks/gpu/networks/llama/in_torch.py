"""LLaMA in PyTorch."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu.networks.sizes import angles


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.key_heads, self.size = s.heads, s.key_heads, s.width // s.heads
        self.wq = nn.Linear(s.width, s.width, bias=False)
        self.wk = nn.Linear(s.width, s.key_heads * self.size, bias=False)
        self.wv = nn.Linear(s.width, s.key_heads * self.size, bias=False)
        self.wo = nn.Linear(s.width, s.width, bias=False)
        self.register_buffer("cos", torch.from_numpy(np.cos(angles(s))))
        self.register_buffer("sin", torch.from_numpy(np.sin(angles(s))))

    def rotate(self, x):
        left, right = x.chunk(2, -1)
        return (x * self.cos + torch.cat((-right, left), -1) * self.sin).to(x.dtype)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, self.size).transpose(1, 2)
        k = self.wk(x).view(b, t, self.key_heads, self.size).transpose(1, 2)
        v = self.wv(x).view(b, t, self.key_heads, self.size).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.w1 = nn.Linear(s.width, s.hidden, bias=False)
        self.w2 = nn.Linear(s.hidden, s.width, bias=False)
        self.w3 = nn.Linear(s.width, s.hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(s.width, eps=1e-5), Attention(s)
        self.ffn_norm, self.feed_forward = nn.RMSNorm(s.width, eps=1e-5), FeedForward(s)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Network(nn.Module):
    """The mean cross entropy of the next words."""

    def __init__(self, s):
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.width, eps=1e-5)
        self.output = nn.Linear(s.width, s.vocabulary, bias=False)

    def forward(self, words, following):
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.output(self.norm(x)).flatten(0, 1).float(), following.flatten())
