"""The layers of which random networks are made (`drawn_network.py`), and parts of steps; scripts begin with this text.

Activations have shape (rows, TOKENS, width) and are Float64. A layer gives what it was given in the same shape.
"""

from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops

DRAWN = np.random.RandomState(1)


def weight(*shape: int) -> Tensor:
    """First values of a parameter."""
    return Tensor(DRAWN.randn(*shape) * 0.3)


class Dense(nn.Cell):
    """A product with a weight, whose operands may be sharded, and a function of it."""

    def __init__(self, width: int, function: str, cut: Any = None) -> None:
        super().__init__()
        self.weight = Parameter(weight(width, width), name="weight")
        self.bias = Parameter(weight(width), name="bias")
        self.product = ops.MatMul()
        if cut is not None:
            self.product.shard(cut)
        self.function = function  # by its name: an operator is called as the attribute that holds it

    def construct(self, h: Any) -> Any:
        rows = ops.reshape(h, (-1, h.shape[2]))
        return getattr(ops, self.function)(ops.reshape(self.product(rows, self.weight), h.shape) + self.bias)


class Wide(nn.Cell):
    """Two products with a gate, wider in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = Parameter(weight(width, 2 * width), name="up")
        self.gate = Parameter(weight(width, 2 * width), name="gate")
        self.down = Parameter(weight(2 * width, width), name="down")

    def construct(self, h: Any) -> Any:
        return h + ops.matmul(ops.sigmoid(ops.matmul(h, self.gate)) * ops.matmul(h, self.up), self.down)


class Norm(nn.Cell):
    """Layer normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((width,), dtype=ms.float64)

    def construct(self, h: Any) -> Any:
        return self.norm(h)


class Attention(nn.Cell):
    """Attention with two heads over the tokens, and what it was given."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.query = Parameter(weight(width, width), name="query")
        self.key = Parameter(weight(width, width), name="key")
        self.value = Parameter(weight(width, width), name="value")
        self.out = Parameter(weight(width, width), name="out")
        self.mask = Tensor((1.0 - np.tri(TOKENS)) * -1e4) if causal else None

    def heads(self, h: Any, by: Any) -> Any:
        parts = ops.reshape(ops.matmul(h, by), (h.shape[0], h.shape[1], 2, h.shape[2] // 2))
        return ops.transpose(parts, (0, 2, 1, 3))

    def construct(self, h: Any) -> Any:
        scores = ops.matmul(self.heads(h, self.query), ops.transpose(self.heads(h, self.key), (0, 1, 3, 2))) * 0.5
        if self.mask is not None:
            scores = scores + self.mask
        mixed = ops.matmul(ops.softmax(scores, -1), self.heads(h, self.value))
        return h + ops.matmul(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), h.shape), self.out)


class Statistics(nn.Cell):
    """Batch normalisation, whose moving averages follow every micro-batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, dtype=ms.float64)

    def construct(self, h: Any) -> Any:
        return ops.reshape(self.norm(ops.reshape(h, (-1, h.shape[2]))), h.shape)


class Counter(nn.Cell):
    """Counts micro-batches, and adds to them what it has counted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.count = Parameter(Tensor(np.zeros(1)), name="count", requires_grad=False)
        self.scale = Parameter(weight(width), name="scale")

    def construct(self, h: Any) -> Any:
        ops.assign_add(self.count, Tensor(np.ones(1)))
        return h * self.scale + self.count * 0.01


class Mean(nn.Cell):
    """A moving average of what it is given, which it takes away."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.average = Parameter(Tensor(np.zeros(width)), name="average", requires_grad=False)

    def construct(self, h: Any) -> Any:
        new = self.average * 0.9 + ops.stop_gradient(h).mean((0, 1)) * 0.1
        return h - ops.depend(self.average * 1.0, ops.assign(self.average, new))


class Shared(nn.Cell):
    """Multiplies with a weight that several layers read."""

    def __init__(self, shared: Parameter) -> None:
        super().__init__()
        self.shared = shared

    def construct(self, h: Any) -> Any:
        return ops.tanh(ops.matmul(h, self.shared))


class Dropped(nn.Cell):
    """Masks and noise, one mask twice and another one in a loop."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(weight(width, width), name="weight")
        self.drop, self.other = nn.Dropout(p=0.3), nn.Dropout(p=0.1)
        self.turns = Parameter(Tensor(2, ms.int32), name="turns", requires_grad=False)

    def construct(self, h: Any) -> Any:
        h = self.drop(self.drop(ops.tanh(ops.matmul(h, self.weight))))
        for _ in range(self.turns):
            h = self.other(h)
        return h + ops.cast(ops.standard_normal(h.shape, seed=3), h.dtype) * 0.1


class Frozen(nn.Cell):
    """A layer that is not trained."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(weight(width, width), name="weight", requires_grad=False)

    def construct(self, h: Any) -> Any:
        return ops.tanh(ops.matmul(h, self.weight))


class Overflowing(nn.Cell):
    """Adds a weight whose gradient alone overflows where the loss is scaled by some hundreds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(weight(width), name="weight")
        self.first, self.second = Tensor(np.array(1e-307)), Tensor(np.array(3e307))

    def construct(self, h: Any) -> Any:
        own = ops.sigmoid(ops.stop_gradient(h)) * self.first
        return h + (self.weight * own) * self.second


class Alone(nn.Cell):
    """Adds what it makes of the second input, which no other layer reads."""

    reads_second = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(weight(width, width), name="weight")

    def construct(self, h: Any, second: Any) -> Any:
        return h + ops.tanh(ops.matmul(second, self.weight))


class Repeated(nn.Cell):
    """A layer of which equal ones become one graph."""

    @ms.lazy_inline
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(weight(width, width), name="weight")
        self.norm = nn.LayerNorm((width,), dtype=ms.float64)

    def construct(self, h: Any) -> Any:
        return h + ops.tanh(ops.matmul(self.norm(h), self.weight))


class Added(nn.Cell):
    """On one device: what a network gives for parts of the batch, one after the other, added up."""

    def __init__(self, network: nn.Cell, parts: int, several: bool) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.parts, self.several = network, parts, several

    def construct(self, *inputs: Any) -> Any:
        rows = inputs[0].shape[0] // self.parts
        total = self.network(*[each[:rows] for each in inputs])
        for i in range(1, self.parts):
            part = self.network(*[each[i * rows : (i + 1) * rows] for each in inputs])
            total = (total[0] + part[0], total[1] + part[1]) if self.several else total + part
        return total


class Net(nn.Cell):
    """Layers between an embedding and a head, the last of them equal ones. tied: the head multiplies with the
    embedding, too.

    skips: layers to whose results their operands are added. long: layers to whose results the first layer's operand is
    added. several: it gives a second result.
    """

    def __init__(
        self, width: int, make: Any, repeated: int, tied: bool, skips: Any, long: Any, several: bool
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = Parameter(weight(WORDS, width), name="embedding")
        self.shared = Parameter(weight(width, width), name="shared")
        self.layers = nn.CellList(make(self.shared))
        self.repeated = nn.CellList([Repeated(width) for _ in range(repeated)])
        self.head = Dense(width, "tanh")
        self.tied, self.skips, self.long, self.several = tied, skips, long, several

    def construct(self, x: Any, y: Any, second: Any) -> Any:
        h = ops.gather(self.embedding, x, 0)
        first = h
        for i, layer in enumerate(self.layers):
            new = layer(h, second) if hasattr(layer, "reads_second") else layer(h)
            if i in self.skips:
                new = new + h
            if i in self.long:
                new = new + first
            h = ops.cast(new, ms.float64)
        for layer in self.repeated:
            h = layer(h)
        h = self.head(h)
        if self.tied:
            h = ops.matmul(h, self.embedding.T)
        difference = h - y
        loss = (difference * difference).mean()
        return (loss, ops.tanh(h).mean((0, 1))) if self.several else loss


TOKENS, WORDS = 4, 16
