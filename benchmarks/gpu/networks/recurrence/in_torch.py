"""A gated recurrence as a scan in logarithms, in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F


class Recurrence(nn.Module):
    """h = (1 - z) * h + z * g along the length, where z is a gate and g is positive."""

    def __init__(self, s):
        super().__init__()
        self.gate, self.value = nn.Linear(s.width, s.width), nn.Linear(s.width, s.width)

    def forward(self, x):
        gate, value = self.gate(x).float(), self.value(x).float()
        logs = torch.where(value >= 0, (F.relu(value) + 0.5).log(), -F.softplus(-value))
        decay = torch.cumsum(-F.softplus(gate), 1)
        return torch.exp(decay + torch.logcumsumexp(logs - F.softplus(-gate) - decay, 1)).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.norm1, self.recurrence = nn.LayerNorm(s.width), Recurrence(s)
        self.norm2, self.out = nn.LayerNorm(s.width), nn.Linear(s.width, s.width)
        self.up, self.down = nn.Linear(s.width, 4 * s.width), nn.Linear(4 * s.width, s.width)

    def forward(self, x):
        x = x + self.out(self.recurrence(self.norm1(x)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Network(nn.Module):
    """The mean cross entropy of the next words."""

    def __init__(self, s):
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm, self.output = nn.LayerNorm(s.width), nn.Linear(s.width, s.vocabulary, bias=False)

    def forward(self, words, following):
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.output(self.norm(x)).flatten(0, 1), following.flatten())
