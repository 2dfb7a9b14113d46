"""Two transformer layers, data parallel by tensor parallel, for tests on several ranks."""

from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops

BATCH, SEQUENCE, WIDTH, HEADS = 4, 8, 32, 4


class Layer(nn.Cell):
    """Pre-norm attention and feed-forward, each added to its input."""

    def __init__(self, data: int, tensor: int, seed: int) -> None:
        super().__init__()
        generator = np.random.default_rng(seed)

        def drawn(*shape: int) -> Parameter:
            return Parameter(Tensor(generator.standard_normal(shape).astype(np.float32) / 6))

        self.gamma = Parameter(Tensor(np.ones(WIDTH, np.float32)))
        self.beta = Parameter(Tensor(np.zeros(WIDTH, np.float32)))
        self.wq, self.wk, self.wv, self.wo = (drawn(WIDTH, WIDTH) for _ in range(4))
        self.w1, self.w2 = drawn(WIDTH, 2 * WIDTH), drawn(2 * WIDTH, WIDTH)
        columns, rows, heads = ((data, 1), (1, tensor)), ((data, tensor), (tensor, 1)), (data, tensor, 1, 1)
        self.query, self.key, self.value, self.up = (ops.MatMul().shard(columns) for _ in range(4))
        self.out, self.down = ops.MatMul().shard(rows), ops.MatMul().shard(rows)
        self.norm = ops.LayerNorm(-1, -1, 1e-5).shard(((data, 1), (1,), (1,)))
        self.split = ops.Transpose().shard(((data, 1, tensor, 1),))
        self.merge = ops.Transpose().shard((heads,))
        self.scores = ops.BatchMatMul(transpose_b=True).shard((heads, heads))
        self.weigh = ops.BatchMatMul().shard((heads, heads))
        self.softmax, self.gelu = ops.Softmax(-1).shard((heads,)), ops.GeLU().shard(((data, tensor),))
        self.add = ops.Add().shard(((data, 1), (data, 1)))

    def heads(self, x: Any) -> Any:
        return self.split(ops.reshape(x, (BATCH, SEQUENCE, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    def construct(self, x: Any) -> Any:
        y, _, _ = self.norm(x, self.gamma, self.beta)
        query, key = self.heads(self.query(y, self.wq)), self.heads(self.key(y, self.wk))
        weights = self.softmax(self.scores(query, key) * 0.35)
        mixed = self.merge(self.weigh(weights, self.heads(self.value(y, self.wv))), (0, 2, 1, 3))
        x = self.add(self.out(ops.reshape(mixed, (BATCH * SEQUENCE, WIDTH)), self.wo), x)
        return self.add(self.down(self.gelu(self.up(x, self.w1)), self.w2), x)


class Layers(nn.Cell):
    """Two layers."""

    def __init__(self, data: int, tensor: int) -> None:
        super().__init__()
        self.first, self.second = Layer(data, tensor, 0), Layer(data, tensor, 1)

    def construct(self, x: Any) -> Any:
        return self.second(self.first(x))


def build(data: int, tensor: int) -> tuple[Any, list[Any]]:
    """(training step, its arguments)."""
    ms.set_seed(1)
    network = nn.WithLossCell(Layers(data, tensor), nn.MSELoss())
    step = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.05, 0.9))
    step.set_train()
    generator = np.random.default_rng(3)
    shape = (BATCH * SEQUENCE, WIDTH)
    return step, [Tensor(generator.standard_normal(shape).astype(np.float32)) for _ in range(2)]
