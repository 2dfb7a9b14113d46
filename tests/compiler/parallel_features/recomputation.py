"""Recomputation: of blocks of cells but for one operator in them, and of one operator; with shared updates."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.communication import init

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True, enable_parallel_optimizer=True,
    parallel_optimizer_config={"parallel_optimizer_threshold": 0},
)  # fmt: skip
init()
ms.set_seed(1)


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(16, 16)
        self.dense.matmul.shard(((2, 1), (4, 1)))
        self.back = nn.Dense(16, 16)
        self.back.matmul.shard(((2, 4), (1, 4)))
        self.sin, self.tanh = ops.Sin(), ops.Tanh()
        self.tanh.recompute(False)

    def construct(self, x):
        return x + self.back(self.sin(self.tanh(self.dense(x))))


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.blocks = nn.SequentialCell([Block(), Block()])
        self.blocks.recompute(mp_comm_recompute=False, parallel_optimizer_comm_recompute=True)
        self.head = nn.Dense(16, 4)
        self.exp = ops.Exp()
        self.exp.recompute()

    def construct(self, x):
        return self.head(self.exp(self.blocks(x)))


net = Network()
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.01, 0.9))
step.set_train()
generator = np.random.default_rng(1)
step(Tensor(generator.random((8, 16)), ms.float32), Tensor(generator.random((8, 4)), ms.float32))
