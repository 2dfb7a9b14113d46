"""DLRM (Naumov et al. 2019): embedding tables sharded by rows or by columns, and products of every two features."""

from typing import Any

import numpy as np

import mspc.common.dtype as mstype
from mspc import Parameter, Tensor, nn
from mspc.common.initializer import Normal, Uniform, initializer
from mspc.ops import functional as F
from mspc.ops import operations as P  # as public code

DENSE, WIDTH, ROWS = 5, 8, (32, 16, 64)


class Tower(nn.Cell):
    """Layers of products and ReLUs, each of which is sharded over rows of the batch and its outputs."""

    def __init__(self, sizes: list[int], ranks: int, across: int = 1) -> None:
        super().__init__()
        rows = ranks // across
        self.weights, self.biases, self.layers = [], [], []
        for i, (ins, outs) in enumerate(zip(sizes, sizes[1:])):  # noqa: B905, RUF007  # as public code
            shards = across if outs % across == 0 else 1
            self.weights.append(Parameter(initializer(Normal(0.3), [ins, outs], mstype.float32), name=f"w{i}"))
            self.biases.append(Parameter(initializer("zeros", [outs], mstype.float32), name=f"b{i}"))
            self.insert_param_to_cell(f"w{i}", self.weights[-1])
            self.insert_param_to_cell(f"b{i}", self.biases[-1])
            matmul = P.MatMul().shard(((rows, 1), (1, shards)))
            bias_add = P.BiasAdd().shard(((rows, shards), (shards,)))
            self.layers.append((matmul, bias_add, P.ReLU().shard(((rows, shards),))))
        self.count = len(self.layers)

    def construct(self, x: Any) -> Any:
        for i in range(self.count):
            matmul, bias_add, activation = self.layers[i]
            x = bias_add(matmul(x, self.weights[i]), self.biases[i])
            if i < self.count - 1:
                x = activation(x)
        return x


class DLRM(nn.Cell):
    """The loss of clicks. Table 0 is sharded by rows, table 1 by columns, table 2 by both."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        cuts = [(ranks, 1), (1, ranks), (ranks // 2 or 1, min(ranks, 2))]
        self.tables, self.lookups = [], []
        for i, (count, shards) in enumerate(zip(ROWS, cuts)):  # noqa: B905
            table = Parameter(initializer(Uniform(0.5), [count, WIDTH], mstype.float32), name=f"table{i}")
            self.insert_param_to_cell(f"table{i}", table)
            self.tables.append(table)
            self.lookups.append(P.Gather().shard((shards, (1,))))
        self.bottom = Tower([DENSE, 16, WIDTH], ranks)
        pairs = (len(ROWS) + 1) * len(ROWS) // 2
        self.top = Tower([WIDTH + pairs, 16, 1], ranks, min(2, ranks))
        self.stack = P.Stack(axis=1)
        self.interact = P.BatchMatMul(transpose_b=True).shard(((ranks, 1, 1), (ranks, 1, 1)))
        low, high = np.tril_indices(len(ROWS) + 1, -1)
        self.places = Tensor(low * (len(ROWS) + 1) + high, mstype.int32)
        self.take = P.Gather().shard(((ranks, 1), (1,)))
        self.concat = P.Concat(axis=1).shard(((ranks, 1), (ranks, 1)))
        self.loss = P.SigmoidCrossEntropyWithLogits().shard(((ranks, 1), (ranks, 1)))
        self.mean = P.ReduceMean()

    def construct(self, dense: Any, ids: Any, label: Any) -> Any:
        x = self.bottom(dense)
        features = (x,)
        for i in range(len(self.tables)):
            features += (self.lookups[i](self.tables[i], ids[:, i] % ROWS[i], 0),)
        stacked = self.stack(features)
        products = F.reshape(self.interact(stacked, stacked), (F.shape(x)[0], -1))
        crossed = self.take(products, self.places, 1)
        return self.mean(self.loss(self.top(self.concat((x, crossed))), label))
