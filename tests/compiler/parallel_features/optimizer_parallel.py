"""Optimizer parallelism: replicas of a weight, two by two, share its update."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
from mindspore.communication import init

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(
    parallel_mode=ms.ParallelMode.SEMI_AUTO_PARALLEL, enable_parallel_optimizer=True, full_batch=True,
    parallel_optimizer_config={"parallel_optimizer_threshold": 1, "optimizer_weight_shard_size": 2},
)  # fmt: skip
init()
ms.set_seed(1)


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(initializer("normal", [32, 32]), "weight")
        self.replicated = Parameter(initializer("normal", [32, 32]), "replicated", parallel_optimizer=False)
        self.bias = Parameter(initializer("zeros", [32]), "bias")
        self.first = ops.MatMul().shard(((4, 1), (1, 2)))
        self.second = ops.MatMul().shard(((4, 2), (2, 1)))
        self.add = ops.Add().shard(((8, 1), (1,)))

    def construct(self, x):
        return self.add(self.second(ops.relu(self.first(x, self.weight)), self.replicated), self.bias)


net = Network()
optimizer = nn.AdamWeightDecay(net.trainable_params(), 0.01)
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
generator = np.random.default_rng(1)
step(Tensor(generator.random((16, 32)), ms.float32), Tensor(generator.random((16, 32)), ms.float32))
