"""A language model of experts in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu.networks.sizes import EVEN, capacity


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.size = s.heads, s.width // s.heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(s.width, s.width, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, self.size).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, c))


class Experts(nn.Module):
    """Every word goes to the experts that its router prefers, in the order of the words while there is room."""

    def __init__(self, s):
        super().__init__()
        self.count, self.chosen, self.capacity = s.experts, s.chosen, capacity(s)
        self.router = nn.Linear(s.width, s.experts, bias=False)
        self.w1, self.w3 = (nn.Parameter(torch.empty(s.experts, s.hidden, s.width)) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(s.experts, s.width, s.hidden))

    def forward(self, x):
        shape = x.shape
        x = x.flatten(0, -2)
        gates = torch.softmax(self.router(x).float(), -1)
        weights, chosen = gates.topk(self.chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        flat = chosen.flatten()
        taken = F.one_hot(flat, self.count)
        place = ((taken.cumsum(0) - 1) * taken).sum(-1)
        room = self.count * self.capacity
        slot = torch.where(place < self.capacity, flat * self.capacity + place, room)
        given = x.new_zeros(room + 1, shape[-1]).index_copy(0, slot, x.repeat_interleave(self.chosen, 0))
        given = given[:room].view(self.count, self.capacity, shape[-1])
        hidden = F.silu(torch.bmm(given, self.w1.mT)) * torch.bmm(given, self.w3.mT)
        found = F.pad(torch.bmm(hidden, self.w2.mT).flatten(0, 1), (0, 0, 0, 1))
        out = found[slot] * weights.view(-1, 1)
        out = out.view(-1, self.chosen, shape[-1]).sum(1)
        even = self.count * (taken.float().mean(0) * gates.mean(0)).sum()
        return out.view(shape), even


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(s.width), Attention(s)
        self.norm2, self.experts = nn.LayerNorm(s.width), Experts(s)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        out, even = self.experts(self.norm2(x))
        return x + out, even


class Network(nn.Module):
    """The mean cross entropy of the next words, and how unevenly experts are chosen."""

    def __init__(self, s):
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.position = nn.Parameter(torch.empty(s.length, s.width))
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.LayerNorm(s.width)
        self.output = nn.Linear(s.width, s.vocabulary, bias=False)

    def forward(self, words, following):
        x, total = self.embedding(words) + self.position, 0.0
        for layer in self.layers:
            x, even = layer(x)
            total = total + even
        logits = self.output(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), following.flatten()) + EVEN * total
