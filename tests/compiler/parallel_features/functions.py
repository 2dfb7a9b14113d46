"""Functions and cells whose inputs are sharded by `shard`, in PyNative mode; all else follows by propagation."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.communication import init

ms.set_context(mode=ms.PYNATIVE_MODE)
init()
ms.set_auto_parallel_context(
    parallel_mode=ms.ParallelMode.AUTO_PARALLEL, search_mode="sharding_propagation", device_num=8, full_batch=True
)
ms.set_seed(1)


class BasicBlock(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense1, self.gelu, self.dense2 = nn.Dense(32, 32), nn.GELU(), nn.Dense(32, 32)

    def construct(self, x):
        return self.dense2(self.gelu(self.dense1(x)))


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.block1, self.block2, self.head = BasicBlock(), BasicBlock(), nn.Dense(32, 16)
        self.block1_graph = ms.shard(self.block1, in_strategy=((8, 1),), parameter_plan={"self.dense2.weight": (8, 1)})
        self.scaled = ms.ops.shard(lambda x, y: ms.ops.exp(x) * y, ((2, 4), (2, 4)), device="Ascend", level=0)

    def construct(self, x):
        x = self.block1_graph(x)
        x = x + self.block2(self.scaled(x, x))
        return self.head(x)


net = Network()
loss_fn = nn.MSELoss()
optimizer = nn.SGD(net.trainable_params(), 1e-2)


def forward_fn(data, target):
    return loss_fn(net(data), target)


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)


@ms.jit
def train_step(data, target):
    loss, grads = grad_fn(data, target)
    optimizer(grads)
    return loss


generator = np.random.default_rng(1)
for _ in range(2):
    train_step(Tensor(generator.random((16, 32)), ms.float32), Tensor(generator.random((16, 16)), ms.float32))
