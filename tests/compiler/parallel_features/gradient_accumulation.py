"""Gradient accumulation: four micro-batches, one update."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops, train
from mindspore.communication import init
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.parallel.nn import GradAccumulation

ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_seed(1)


class Network(nn.Cell):
    @ms.lazy_inline
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = nn.Dense(16, 32), nn.Dense(32, 4)
        self.layer1.matmul.shard(((4, 1), (2, 1)))
        self.layer2.matmul.shard(((4, 2), (1, 2)))
        self.relu = ops.ReLU()

    def construct(self, x):
        return self.layer2(self.relu(self.layer1(x)))


def rows():
    generator = np.random.default_rng(1)
    for _ in range(32):
        yield generator.random(16).astype(np.float32), generator.random(4).astype(np.float32)


net = Network()
optimizer = nn.SGD(net.trainable_params(), 1e-2)
net_with_loss = GradAccumulation(nn.WithLossCell(net, nn.MSELoss()), 4)
parallel_net = AutoParallel(net_with_loss, parallel_mode="semi_auto")
parallel_net.dataset_strategy("full_batch")
model = train.Model(parallel_net, optimizer=optimizer)
model.train(1, ds.GeneratorDataset(rows, ["x", "y"], num_samples=32).batch(32), callbacks=[train.LossMonitor(1)])
