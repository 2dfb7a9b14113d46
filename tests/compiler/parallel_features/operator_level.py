"""Operator-level parallelism: strategies of operators by tuples and by Layouts, around a step that is a function."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Layout, Parameter, nn, ops
from mindspore.common.initializer import initializer
from mindspore.communication import init
from mindspore.nn.utils import no_init_parameters
from mindspore.parallel.auto_parallel import AutoParallel

ms.set_context(mode=ms.GRAPH_MODE)
ms.runtime.set_memory(max_size="28GB")
init()
ms.set_seed(1)


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = ops.Flatten()
        self.fc1_weight = Parameter(initializer("normal", [8 * 8, 32], ms.float32))
        self.fc2_weight = Parameter(initializer("normal", [32, 16], ms.float32))
        self.fc3_weight = Parameter(initializer("normal", [16, 10], ms.float32))
        layout = Layout((2, 2, 2), ("dp", "sp", "mp"))
        layout2 = Layout((8,), ("tp",))
        self.matmul1 = ops.MatMul().shard((layout("mp", ("sp", "dp")), layout(("sp", "dp"), "None")))
        self.relu1 = ops.ReLU().shard(((4, 1),))
        self.matmul2 = ops.MatMul().shard((layout2("None", "tp"), layout2("tp", "None")))
        self.relu2 = ops.ReLU().shard(((8, 1),))
        self.matmul3 = ops.MatMul()

    def construct(self, x):
        x = self.flatten(x)
        x = self.relu1(self.matmul1(x, self.fc1_weight))
        x = self.relu2(self.matmul2(x, self.fc2_weight))
        return self.matmul3(x, self.fc3_weight)


def create_dataset(batch_size):
    generator = np.random.default_rng(1)
    images = generator.random((32, 1, 8, 8)).astype(np.float32)
    return ds.NumpySlicesDataset((images, np.arange(32, dtype=np.int32) % 10), ["image", "label"]).batch(batch_size)


with no_init_parameters():
    net = Network()
    optimizer = nn.SGD(net.trainable_params(), 1e-2)
loss_fn = nn.CrossEntropyLoss()


def forward_fn(data, target):
    logits = net(data)
    return loss_fn(logits, target), logits


grad_fn = ms.value_and_grad(forward_fn, None, net.trainable_params(), has_aux=True)


@ms.jit
def train_step(inputs, targets):
    (loss_value, _), grads = grad_fn(inputs, targets)
    optimizer(grads)
    return loss_value


parallel_net = AutoParallel(train_step, parallel_mode="semi_auto")
parallel_net.dataset_strategy("full_batch")
for epoch in range(2):
    for image, label in create_dataset(16):
        print(f"epoch: {epoch}, loss is {parallel_net(image, label)}")
