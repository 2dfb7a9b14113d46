"""A gated recurrence as a scan in logarithms, in MindSpore's style."""

import mspc as ms
from mspc import nn, ops


class Recurrence(nn.Cell):
    """h = (1 - z) * h + z * g along the length, where z is a gate and g is positive."""

    def __init__(self, s):
        super().__init__()
        self.gate, self.value = nn.Dense(s.width, s.width), nn.Dense(s.width, s.width)

    def construct(self, x):
        gate, value = self.gate(x).astype(ms.float32), self.value(x).astype(ms.float32)
        logs = ops.where(value >= 0, ops.log(ops.relu(value) + 0.5), -ops.softplus(-value))
        decay = ops.cumsum(-ops.softplus(gate), 1)
        return ops.exp(decay + ops.logcumsumexp(logs - ops.softplus(-gate) - decay, 1)).astype(x.dtype)


class Layer(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.norm1, self.recurrence = nn.LayerNorm((s.width,), epsilon=1e-5), Recurrence(s)
        self.norm2, self.out = nn.LayerNorm((s.width,), epsilon=1e-5), nn.Dense(s.width, s.width)
        self.up, self.down = nn.Dense(s.width, 4 * s.width), nn.Dense(4 * s.width, s.width)

    def construct(self, x):
        x = x + self.out(self.recurrence(self.norm1(x)))
        return x + self.down(ops.gelu(self.up(self.norm2(x)), "none"))


class Network(nn.Cell):
    """The mean cross entropy of the next words."""

    def __init__(self, s):
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.layers = nn.CellList([Layer(s) for _ in range(s.layers)])
        self.norm, self.output = nn.LayerNorm((s.width,), epsilon=1e-5), nn.Dense(s.width, s.vocabulary, has_bias=False)

    def construct(self, words, following):
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        logits = self.output(self.norm(x))
        return ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), following.reshape(-1))
