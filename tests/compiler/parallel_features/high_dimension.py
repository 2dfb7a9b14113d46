"""Tensor parallelism of two and of three dimensions: activations and weights are both sharded over several axes."""

import mindspore as ms
import numpy as np
from mindspore import Layout, Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
from mindspore.communication import init

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
init()
ms.set_seed(1)
layout = Layout((2, 2, 2), ("x", "y", "z"))


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w1 = Parameter(initializer("normal", [32, 64]), "w1")
        self.w2 = Parameter(initializer("normal", [64, 32]), "w2")
        self.matmul1 = ops.MatMul().add_prim_attr("enable_nd_tp", True)
        self.matmul1.shard((layout(("x", "y"), "z"), layout(("z", "x"), "y")))
        self.relu = ops.ReLU().shard((layout(("x", "z"), "y"),))
        self.matmul2 = ops.MatMul().add_prim_attr("enable_nd_tp", True)
        self.matmul2.shard((layout(("x", "z"), "y"), layout(("y", "x"), "z")))

    def construct(self, x):
        return self.matmul2(self.relu(self.matmul1(x, self.w1)), self.w2)


net = Network()
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.01, 0.9))
generator = np.random.default_rng(1)
step(Tensor(generator.random((16, 32)), ms.float32), Tensor(generator.random((16, 32)), ms.float32))
