"""A random network of layers that multiply in Float8, sharded at random: `float8_layers.py SEED RANKS [RECIPE]`."""

import itertools
import random
import sys

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops

SEED, RANKS = int(sys.argv[1]), int(sys.argv[2])
draw, values = random.Random(SEED), np.random.default_rng(SEED)
RECIPE = sys.argv[3] if len(sys.argv) > 3 else "tensorwise"
ms.set_context(fp8_format=draw.choice(("hybrid", "e4m3")), fp8_recipe=RECIPE)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")


def strategy() -> tuple[tuple[int, int], tuple[int, int]]:
    """How many slices the rows, the sum and the columns of a matmul have."""
    rows = draw.choice([n for n in (1, 2, 4) if n <= RANKS])
    inner = draw.choice([n for n in (1, 2) if rows * n <= RANKS])
    columns = draw.choice([n for n in (1, 2, 4) if rows * inner * n <= RANKS])
    return (rows, inner), (inner, columns)


class Layer(nn.Cell):
    def __init__(self, inside: int, outside: int):
        super().__init__()
        self.weight = Parameter(Tensor(values.standard_normal((inside, outside)).astype(np.float32) * inside**-0.5))
        self.matmul = ops.MatMul()
        if RANKS > 1:
            self.matmul.shard(strategy())

    def construct(self, x):
        return ops.tanh(self.matmul(x, self.weight))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        widths = [draw.choice((16, 32, 64)) for _ in range(draw.randint(4, 6))]
        self.first = widths[0]
        self.layers = nn.CellList([Layer(a, b) for a, b in itertools.pairwise(widths)])

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return (x * x).mean()


net = Net()
step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
step(Tensor(values.standard_normal((draw.choice((16, 32)), net.first)).astype(np.float32)))
