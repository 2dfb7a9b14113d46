"""Communication that travels together: gradients in two groups, weights of shared updates in one."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.communication import init

ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True,
    comm_fusion={"openstate": True, "allreduce": {"mode": "auto", "config": None}},
)  # fmt: skip
ms.set_seed(1)


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(16, 16, activation="relu") for _ in range(4)])
        for i, layer in enumerate(self.layers):
            layer.matmul.shard(((8, 1), (1, 1)))
            layer.set_comm_fusion(1 + i // 2)

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


net = Network()
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.01, 0.9))
generator = np.random.default_rng(1)
step(Tensor(generator.random((16, 16)), ms.float32), Tensor(generator.random((16, 16)), ms.float32))
