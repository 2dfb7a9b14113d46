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


def strategy():
    rows = draw.choice([n for n in (1, 2, 4) if n <= RANKS])
    inner = draw.choice([n for n in (1, 2) if rows * n <= RANKS])
    columns = draw.choice([n for n in (1, 2, 4) if rows * inner * n <= RANKS])
    return (rows, inner), (inner, columns)


class Net(nn.Cell):
    def __init__(self, widths):
        super().__init__()
        drawn = [values.standard_normal(shape).astype(np.float32) / 5 for shape in itertools.pairwise(widths)]
        self.weights = [Parameter(Tensor(w), f"w{i}") for i, w in enumerate(drawn)]
        self.matmuls = [ops.MatMul().shard(strategy()) for _ in drawn]

    def construct(self, x):
        for matmul, weight in zip(self.matmuls, self.weights, strict=True):
            x = ops.tanh(matmul(x, weight))
        return (x * x).mean()


widths = [draw.choice((16, 32, 64)) for _ in range(draw.randint(4, 6))]
net = Net(widths)
step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
step(Tensor(values.standard_normal((draw.choice((16, 32)), widths[0])).astype(np.float32)))
