"""The transformer of cpu_step.py in PyTorch, eager; prints the seconds of every step.

    python benchmarks/cpu_step_torch.py STEPS LAYERS
"""

import json
import math
import sys
import time

import torch
from torch.nn import functional

STEPS, LAYERS = (int(word) for word in sys.argv[1:3])
WIDTH, HEADS, SEQUENCE, BATCH, HIDDEN = 512, 8, 128, 16, 2048


def weight(inputs, outputs):
    bound = math.sqrt(6 / (inputs + outputs))
    return torch.nn.Parameter(torch.empty(inputs, outputs).uniform_(-bound, bound))


class Block(torch.nn.Module):
    """Attention and feed-forward of normalised rows [rows, width], each added to its input."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.wq, self.wk, self.wv, self.wo = (weight(WIDTH, WIDTH) for _ in range(4))
        self.w1, self.w2 = weight(WIDTH, HIDDEN), weight(HIDDEN, WIDTH)

    def heads(self, x):
        return x.reshape(BATCH, SEQUENCE, HEADS, WIDTH // HEADS).transpose(1, 2)

    def forward(self, x):
        y = self.norm1(x)
        query, key, value = self.heads(y @ self.wq), self.heads(y @ self.wk), self.heads(y @ self.wv)
        scores = query @ key.transpose(-1, -2) * (1 / math.sqrt(WIDTH // HEADS))
        mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(x.shape)
        x = mixed @ self.wo + x
        return functional.gelu(self.norm2(x) @ self.w1, approximate="tanh") @ self.w2 + x


torch.manual_seed(1)
net = torch.nn.Sequential(*[Block() for _ in range(LAYERS)])
optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
x, y = torch.randn(BATCH * SEQUENCE, WIDTH), torch.randn(BATCH * SEQUENCE, WIDTH)
times, losses = [], []
for _ in range(STEPS):
    start = time.perf_counter()
    optimizer.zero_grad()
    loss = functional.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    times.append(time.perf_counter() - start)
print(json.dumps({"times": times, "losses": losses}))
