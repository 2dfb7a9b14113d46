"""Multiple copies: two halves of a batch through tensor-parallel layers; one computes while the other communicates."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.communication import init
from mindspore.nn import MicroBatchInterleaved

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.SEMI_AUTO_PARALLEL, dataset_strategy="full_batch")
init()
ms.set_seed(1)


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = nn.Dense(16, 64, has_bias=False), nn.Dense(64, 16, has_bias=False)
        self.layer1.matmul.shard(((2, 1), (4, 1)))
        self.layer2.matmul.shard(((2, 4), (1, 4)))
        self.tanh = ops.Tanh().shard(((2, 4),))

    def construct(self, x):
        return self.layer2(self.tanh(self.layer1(x)))


net = Network()
net_with_loss = MicroBatchInterleaved(nn.WithLossCell(net, nn.MSELoss()), interleave_num=2)
step = nn.TrainOneStepCell(net_with_loss, nn.Momentum(net.trainable_params(), 0.01, 0.9))
generator = np.random.default_rng(1)
step(Tensor(generator.random((16, 16)), ms.float32), Tensor(generator.random((16, 16)), ms.float32))
