"""A stack of transformer layers, data parallel 2 by tensor parallel 4, called once as a training step.

    mspc compile benchmarks/networks/layers.py -- LAYERS [WIDTH [BATCH SEQUENCE HEADS DATA TENSOR TYPE]]
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

LAYERS = int(sys.argv[1]) if len(sys.argv) > 1 else 12
WIDTH = int(sys.argv[2]) if len(sys.argv) > 2 else 64
BATCH, SEQUENCE, HEADS = 8, 16, 8
DATA, TENSOR = 2, 4
if len(sys.argv) > 3:
    BATCH, SEQUENCE, HEADS, DATA, TENSOR = map(int, sys.argv[3:8])
TYPE = getattr(ms, sys.argv[8]) if len(sys.argv) > 8 else ms.float32

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=DATA * TENSOR, full_batch=True)


class Layer(nn.Cell):
    """Attention over heads and a feed-forward network, both with a residual."""

    def __init__(self):
        super().__init__()

        def weight(rows, columns):
            return Parameter(initializer("normal", [rows, columns], TYPE))

        self.query_weight, self.key_weight = weight(WIDTH, WIDTH), weight(WIDTH, WIDTH)
        self.value_weight, self.out_weight = weight(WIDTH, WIDTH), weight(WIDTH, WIDTH)
        self.up_weight, self.down_weight = weight(WIDTH, 4 * WIDTH), weight(4 * WIDTH, WIDTH)
        by_column, by_row = ((DATA, 1), (1, TENSOR)), ((DATA, TENSOR), (TENSOR, 1))
        heads = (DATA, TENSOR, 1, 1)
        self.query, self.key = ops.MatMul().shard(by_column), ops.MatMul().shard(by_column)
        self.value, self.out = ops.MatMul().shard(by_column), ops.MatMul().shard(by_row)
        self.reshape = ops.Reshape()
        self.split_heads = ops.Transpose().shard(((DATA, 1, TENSOR, 1),))
        self.join_heads = ops.Transpose().shard((heads,))
        self.scores = ops.BatchMatMul(transpose_b=True).shard((heads, heads))
        self.scale = ops.Mul().shard((heads, ()))
        self.softmax = ops.Softmax().shard((heads,))
        self.mix = ops.BatchMatMul().shard((heads, heads))
        self.add_attention = ops.Add().shard(((DATA, 1), (DATA, 1)))
        self.up, self.down = ops.MatMul().shard(by_column), ops.MatMul().shard(by_row)
        self.gelu = ops.GeLU().shard(((DATA, TENSOR),))
        self.add_feed_forward = ops.Add().shard(((DATA, 1), (DATA, 1)))

    def heads(self, x):
        return self.split_heads(self.reshape(x, (BATCH, SEQUENCE, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    def construct(self, x):
        query = self.heads(self.query(x, self.query_weight))
        key = self.heads(self.key(x, self.key_weight))
        value = self.heads(self.value(x, self.value_weight))
        shares = self.softmax(self.scale(self.scores(query, key), (WIDTH // HEADS) ** -0.5))
        mixed = self.join_heads(self.mix(shares, value), (0, 2, 1, 3))
        x = self.add_attention(self.out(self.reshape(mixed, (BATCH * SEQUENCE, WIDTH)), self.out_weight), x)
        return self.add_feed_forward(self.down(self.gelu(self.up(x, self.up_weight)), self.down_weight), x)


class Loss(nn.Cell):
    """Mean squared error of the stack's output."""

    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
        self.loss = nn.MSELoss()

    def construct(self, x, target):
        for layer in self.layers:
            x = layer(x)
        return self.loss(x, target)


network = Loss()
step = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))
rows = Tensor(np.ones([BATCH * SEQUENCE, WIDTH]), TYPE)
step(rows, rows)
