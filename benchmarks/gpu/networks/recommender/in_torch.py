"""DLRM in PyTorch."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    """The mean loss of clicks."""

    def __init__(self, s):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(s.rows, s.width) for _ in range(s.tables))
        features = s.tables + 1
        self.bottom = self.tower((s.dense, *s.bottom, s.width))
        self.top = self.tower((s.width + features * (features - 1) // 2, *s.top, 1))
        low, high = torch.tril_indices(features, features, -1)
        self.register_buffer("pairs", low * features + high)

    @staticmethod
    def tower(widths):
        return nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, numbers, rows, clicks):
        x = numbers
        for layer in self.bottom:
            x = F.relu(layer(x))
        looked_up = [table(rows[:, i]).to(x.dtype) for i, table in enumerate(self.embeddings)]
        stacked = torch.stack((x, *looked_up), 1)
        products = torch.bmm(stacked, stacked.mT).flatten(1)
        y = torch.cat((x, products[:, self.pairs]), 1)
        for layer in self.top[:-1]:
            y = F.relu(layer(y))
        return F.binary_cross_entropy_with_logits(self.top[-1](y).flatten().float(), clicks)
