"""Recommendation and words: Wide & Deep (Cheng et al. 2016), NCF (He et al. 2017), and an LSTM that classifies
(Hochreiter and Schmidhuber 1997)."""

from typing import Any

from mspc import Parameter, nn
from mspc import ops as P  # as public code
from mspc.common.initializer import initializer
from mspc.ops import functional as F

VOCAB, FIELDS, WIDTH, USERS, LENGTH = 64, 4, 8, 32, 6


class WideDeep(nn.Cell):
    """The loss of clicks; rows of the tables are sharded over the ranks."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        self.wide_w = Parameter(initializer("normal", (VOCAB, 1)), name="wide_w")
        self.deep_v = Parameter(initializer("normal", (VOCAB, WIDTH)), name="deep_v")
        self.wide_b = Parameter(initializer("zeros", (1,)), name="wide_b")
        self.gather_wide = P.Gather().shard(((ranks, 1), (1, 1)))
        self.gather_deep = P.Gather().shard(((ranks, 1), (1, 1)))
        self.dense1 = nn.Dense(FIELDS * WIDTH, 16, activation="relu")
        self.dense2 = nn.Dense(16, 1)
        self.reduce_sum = P.ReduceSum(keep_dims=False)
        self.loss = P.SigmoidCrossEntropyWithLogits()
        self.square, self.mean, self.mul = P.Square(), P.ReduceMean(), P.Mul()

    def construct(self, ids: Any, weights: Any, label: Any) -> Any:
        weights = F.expand_dims(weights, 2)
        wide = self.reduce_sum(self.mul(self.gather_wide(self.wide_w, ids, 0), weights), 1) + self.wide_b
        deep = self.mul(self.gather_deep(self.deep_v, ids, 0), weights)
        out = wide + self.dense2(self.dense1(F.reshape(deep, (-1, FIELDS * WIDTH))))
        return self.mean(self.loss(out, label), ()) + 1e-3 * self.mean(self.square(self.deep_v), ())


class NCF(nn.Cell):
    """The loss of what users choose; columns of the tables are sharded over the ranks."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        self.tables = nn.CellList([nn.Embedding(USERS, WIDTH) for _ in range(4)])
        for table in self.tables:
            table.gather.shard(((1, ranks), (1,)))
        self.mlp = nn.CellList([nn.Dense(2 * WIDTH, WIDTH, activation="relu"), nn.Dense(WIDTH, 4, activation="relu")])
        self.logits = nn.Dense(4 + WIDTH, 1)
        self.concat = P.Concat(1)
        self.loss = nn.BCEWithLogitsLoss(reduction="mean")

    def construct(self, users: Any, items: Any, label: Any) -> Any:
        mf = self.tables[0](users) * self.tables[1](items)
        x = self.concat((self.tables[2](users), self.tables[3](items)))
        for layer in self.mlp:
            x = layer(x)
        return self.loss(self.logits(self.concat((mf, x))), label)


class SentimentNet(nn.Cell):
    """The loss of the class of a sentence, read by an LSTM in both directions."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.trans = P.Transpose()
        self.encoder = nn.LSTM(WIDTH, WIDTH, num_layers=1, bidirectional=True)
        self.concat = P.Concat(1)
        self.decoder = nn.Dense(4 * WIDTH, 2)
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, words: Any, label: Any) -> Any:
        output, _ = self.encoder(self.trans(self.embedding(words), (1, 0, 2)))
        return self.loss(self.decoder(self.concat((output[0], output[LENGTH - 1]))), label)
