"""The quick start is a network with one hidden layer, sharded over eight ranks and trained on random data.

    mspc compile net.py --ranks 8 --save-graphs     # what every rank will do, as text
    mpirun -n 8 mspc run net.py                     # train; as root or on few cores see run_with_mpi.sh

Only the first MatMul says how it is sharded: its input into 2 x 4 slices, its weight into 4 x 1. The compiler finds the
rest.
"""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, ops
from mindspore.common.initializer import initializer
from mindspore.communication import get_rank, init
from mindspore.nn import Cell, Momentum, MSELoss
from mindspore.train import LossMonitor, Model, ModelCheckpoint

EPOCHS = 5
STEPS_PER_EPOCH = 4
BATCH = 2  # rows that one rank feeds; the global batch is 2 x 8
IN_DIM, HIDDEN_DIM, OUT_DIM = 32, 16, 16


class Net(Cell):
    """x[batch, in] -> relu(x @ w) @ w2 -> [batch, out]"""

    def __init__(self, in_dim, hidden_dim, out_dim):
        super().__init__()
        self.weight = Parameter(initializer("normal", [in_dim, hidden_dim]), "w")
        self.weight2 = Parameter(initializer("normal", [hidden_dim, out_dim]), "w2")
        # (2, 4): the batch in two slices, the inner dimension in four; (4, 1): the weight's rows in four.
        self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu = ops.ReLU()
        self.matmul2 = ops.MatMul()

    def construct(self, x):
        out = self.matmul(x, self.weight)
        out = self.relu(out)
        out = self.matmul2(out, self.weight2)
        return out


def random_batches(batch, in_dim, out_dim, steps):
    """A source of the same random batch, `steps` times per epoch."""
    np.random.seed(1)
    inputs = np.random.rand(batch, in_dim).astype(np.float32)
    labels = np.random.rand(batch, out_dim).astype(np.float32)

    def generate():
        for _ in range(steps):
            yield inputs, labels

    return generate


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(
    parallel_mode=ms.ParallelMode.AUTO_PARALLEL,
    search_mode="sharding_propagation",
    dataset_strategy="data_parallel",
)
init()

dataset = ds.GeneratorDataset(random_batches(BATCH, IN_DIM, OUT_DIM, STEPS_PER_EPOCH), ["input", "label"])
net = Net(IN_DIM, HIDDEN_DIM, OUT_DIM)
optimizer = Momentum(net.trainable_params(), 0.2, 0.1)
model = Model(net, loss_fn=MSELoss(), optimizer=optimizer)
callbacks = [LossMonitor(), ModelCheckpoint(directory=f"checkpoints/rank_{get_rank()}")]
model.train(EPOCHS, dataset, callbacks=callbacks, dataset_sink_mode=False)
