"""The quick start's step in mspc; rank 0 prints one line of JSON. See compare.py."""

import argparse
import json

import numpy as np
import transformer

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.communication import get_rank, init

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=int, default=1)
parser.add_argument("--tensor", type=int, default=1)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--repeats", type=int, default=5)
options = parser.parse_args()


class Net(nn.Cell):
    """x[batch, in] -> relu(x @ w) @ w2 -> [batch, out]"""

    def __init__(self, w, w2):
        super().__init__()
        self.weight, self.weight2 = Parameter(Tensor(w), "w"), Parameter(Tensor(w2), "w2")
        self.matmul = ops.MatMul().shard(((options.data, options.tensor), (options.tensor, 1)))
        self.relu, self.matmul2 = ops.ReLU(), ops.MatMul()

    def construct(self, x):
        return self.matmul2(self.relu(self.matmul(x, self.weight)), self.weight2)


ms.set_context(mode=ms.GRAPH_MODE, device_target="GPU")
ms.set_auto_parallel_context(
    parallel_mode="auto_parallel", search_mode="sharding_propagation", dataset_strategy="full_batch"
)
init()
generator = np.random.default_rng(1)
w, w2 = (generator.normal(0, 0.01, shape).astype(np.float32) for shape in ((32, 16), (16, 16)))
x, y = (Tensor(generator.random(shape).astype(np.float32)) for shape in ((16, 32), (16, 16)))
network = Net(w, w2)
network = nn.WithLossCell(network, nn.MSELoss())
train = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.2, 0.1))
result = transformer.measured(lambda: train(x, y), lambda loss: float(loss.asnumpy()), options)
if get_rank() == 0:
    print(json.dumps(result), flush=True)
