"""The transformer of cpu_step.py in mspc; rank 0 prints the seconds of every step.

    python benchmarks/cpu_step_mspc.py STEPS LAYERS            # one rank
    mpirun -n 8 python benchmarks/cpu_step_mspc.py STEPS LAYERS # 2 (data) x 4 (tensor)
"""

import json
import math
import sys
import time

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.api.common.initializer import initializer
from mspc.communication import get_group_size, get_rank, init

STEPS, LAYERS = (int(word) for word in sys.argv[1:3])
WIDTH, HEADS, SEQUENCE, BATCH, HIDDEN = 512, 8, 128, 16, 2048
ROWS = BATCH * SEQUENCE


class Norm(nn.Cell):
    """LayerNorm of rows [rows, width]."""

    def __init__(self, data):
        super().__init__()
        self.gamma = Parameter(initializer("ones", [WIDTH]))
        self.beta = Parameter(initializer("zeros", [WIDTH]))
        self.norm = ops.LayerNorm(-1, -1, 1e-5).shard(((data, 1), (1,), (1,)))

    def construct(self, x):
        out, _, _ = self.norm(x, self.gamma, self.beta)
        return out


class Block(nn.Cell):
    """Attention and feed-forward of normalised rows [rows, width], each added to its input."""

    def __init__(self, data, tensor):
        super().__init__()
        self.norm1, self.norm2 = Norm(data), Norm(data)
        self.wq = Parameter(initializer("xavier_uniform", [WIDTH, WIDTH]))
        self.wk = Parameter(initializer("xavier_uniform", [WIDTH, WIDTH]))
        self.wv = Parameter(initializer("xavier_uniform", [WIDTH, WIDTH]))
        self.wo = Parameter(initializer("xavier_uniform", [WIDTH, WIDTH]))
        self.w1 = Parameter(initializer("xavier_uniform", [WIDTH, HIDDEN]))
        self.w2 = Parameter(initializer("xavier_uniform", [HIDDEN, WIDTH]))
        columns, rows, heads = ((data, 1), (1, tensor)), ((data, tensor), (tensor, 1)), (data, tensor, 1, 1)
        self.query = ops.MatMul().shard(columns)
        self.key = ops.MatMul().shard(columns)
        self.value = ops.MatMul().shard(columns)
        self.out = ops.MatMul().shard(rows)
        self.reshape = ops.Reshape()
        self.split = ops.Transpose().shard(((data, 1, tensor, 1),))
        self.merge = ops.Transpose().shard((heads,))
        self.scores = ops.BatchMatMul(transpose_b=True).shard((heads, heads))
        self.scale = ops.Mul().shard((heads, ()))
        self.softmax = ops.Softmax(axis=-1).shard((heads,))
        self.weigh = ops.BatchMatMul().shard((heads, heads))
        self.add1 = ops.Add().shard(((data, 1), (data, 1)))
        self.up = ops.MatMul().shard(columns)
        self.gelu = ops.GeLU().shard(((data, tensor),))
        self.down = ops.MatMul().shard(rows)
        self.add2 = ops.Add().shard(((data, 1), (data, 1)))

    def heads(self, x):
        return self.split(self.reshape(x, (BATCH, SEQUENCE, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    def construct(self, x):
        y = self.norm1(x)
        query = self.heads(self.query(y, self.wq))
        key = self.heads(self.key(y, self.wk))
        value = self.heads(self.value(y, self.wv))
        weights = self.softmax(self.scale(self.scores(query, key), 1 / math.sqrt(WIDTH // HEADS)))
        mixed = self.merge(self.weigh(weights, value), (0, 2, 1, 3))
        x = self.add1(self.out(self.reshape(mixed, (ROWS, WIDTH)), self.wo), x)
        return self.add2(self.down(self.gelu(self.up(self.norm2(x), self.w1)), self.w2), x)


class Net(nn.Cell):
    """The layers one after the other."""

    def __init__(self, data, tensor):
        super().__init__()
        self.blocks = nn.CellList([Block(data, tensor) for _ in range(LAYERS)])

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class WithLoss(nn.Cell):
    """Mean squared error of the net's result."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.loss = nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.net(x), y)


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
init()
ms.set_seed(1)
ranks = get_group_size()
tensor = math.gcd(ranks, 4)
net = WithLoss(Net(ranks // tensor, tensor))
train = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.01, 0.9))
train.set_train()
rng = np.random.default_rng(0)
x, y = (Tensor(rng.standard_normal((ROWS, WIDTH)).astype(np.float32)) for _ in range(2))
times, losses = [], []
for _ in range(STEPS):
    start = time.perf_counter()
    losses.append(float(train(x, y).asnumpy()))
    times.append(time.perf_counter() - start)
if get_rank() == 0:
    print(json.dumps({"times": times, "losses": losses}), flush=True)
