"""DLRM in MindSpore's style."""

from itertools import pairwise

import numpy as np

import mspc as ms
from mspc import Tensor, nn, ops


def tower(widths, last):
    layers = [nn.Dense(a, b, activation="relu") for a, b in pairwise(widths[:-1])]
    return nn.SequentialCell([*layers, nn.Dense(widths[-2], widths[-1], activation=last)])


class Network(nn.Cell):
    """The mean loss of clicks."""

    def __init__(self, s):
        super().__init__()
        self.embeddings = nn.CellList([nn.Embedding(s.rows, s.width) for _ in range(s.tables)])
        features = s.tables + 1
        self.bottom = tower((s.dense, *s.bottom, s.width), "relu")
        self.top = tower((s.width + features * (features - 1) // 2, *s.top, 1), None)
        low, high = np.tril_indices(features, -1)
        self.pairs = Tensor(low * features + high, ms.int32)
        self.interact = ops.BatchMatMul(transpose_b=True)
        self.loss = nn.BCEWithLogitsLoss()

    def construct(self, numbers, rows, clicks):
        x = self.bottom(numbers)
        features = [x]
        for i, embedding in enumerate(self.embeddings):
            features.append(embedding(rows[:, i]).astype(x.dtype))
        stacked = ops.stack(features, axis=1)
        products = self.interact(stacked, stacked).reshape(x.shape[0], -1)
        crossed = ops.gather(products, self.pairs, 1)
        logits = self.top(ops.cat((x, crossed), axis=1))
        return self.loss(logits.reshape(-1).astype(ms.float32), clicks)
