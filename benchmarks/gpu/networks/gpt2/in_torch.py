"""GPT-2 in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.size, self.rate = s.heads, s.width // s.heads, s.dropout
        self.qkv = nn.Linear(s.width, 3 * s.width)
        self.proj = nn.Linear(s.width, s.width)
        self.resid_dropout = nn.Dropout(s.dropout)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, self.size).transpose(1, 2) for y in self.qkv(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate, is_causal=True)
        return self.resid_dropout(self.proj(y.transpose(1, 2).reshape(b, t, c)))


class MLP(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.fc, self.proj = nn.Linear(s.width, 4 * s.width), nn.Linear(4 * s.width, s.width)
        self.dropout = nn.Dropout(s.dropout)

    def forward(self, x):
        return self.dropout(self.proj(F.gelu(self.fc(x), approximate="tanh")))


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(s.width), Attention(s)
        self.ln_2, self.mlp = nn.LayerNorm(s.width), MLP(s)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Network(nn.Module):
    """The mean cross entropy of the next words."""

    def __init__(self, s):
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.position = nn.Parameter(torch.empty(s.length, s.width))
        self.drop = nn.Dropout(s.dropout)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.ln_f = nn.LayerNorm(s.width)

    def forward(self, words, following):
        x = self.drop(self.embedding(words) + self.position)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())
