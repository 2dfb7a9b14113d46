"""The LSTM language model in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    """The mean cross entropy of the next words."""

    def __init__(self, s):
        super().__init__()
        self.embedding, self.drop = nn.Embedding(s.vocabulary, s.width), nn.Dropout(s.dropout)
        self.rnn = nn.LSTM(s.width, s.width, s.layers, dropout=s.dropout)
        self.bias = nn.Parameter(torch.empty(s.vocabulary))

    def forward(self, words, following):
        x, _ = self.rnn(self.drop(self.embedding(words)))
        logits = F.linear(self.drop(x).flatten(0, 1), self.embedding.weight, self.bias)
        return F.cross_entropy(logits, following.flatten())
