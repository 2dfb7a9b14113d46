"""A graph convolution network in MindSpore's style."""

from mspc import nn, ops


class Network(nn.Cell):
    """The mean cross entropy of the nodes' classes."""

    def __init__(self, s):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(s.width, s.width) for _ in range(s.layers)])
        self.output = nn.Dense(s.width, s.classes)

    def construct(self, x, sources, targets, weights, classes):
        for layer in self.layers:
            x = layer(x)
            messages = ops.gather(x, sources, 0) * weights.astype(x.dtype).expand_dims(-1)
            x = ops.relu(ops.index_add(ops.zeros_like(x), targets, messages, 0))
        return ops.cross_entropy(self.output(x), classes)
