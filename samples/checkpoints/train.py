"""This classifier trains with any strategy, saves at every step, and resumes from the newest checkpoint it finds.

mspc run train.py --ranks 8 -- --tensor 4 --steps 10
"""

import argparse

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import initializer
from mindspore.communication import get_group_size, init
from mindspore.train import Callback, CheckpointConfig, LossMonitor, Model, ModelCheckpoint

from mspc.train import resume_training

parser = argparse.ArgumentParser()
parser.add_argument("--tensor", type=int, default=1, help="ranks that share every matrix; the rest share the batch")
parser.add_argument("--shard-optimizer", action="store_true", help="replicas of a matrix share its update")
parser.add_argument("--steps", type=int, default=24, help="number of the last step")
parser.add_argument("--directory", default="checkpoints")
asked = parser.parse_args()

init()
ms.set_seed(1)
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", dataset_strategy="full_batch", enable_parallel_optimizer=asked.shard_optimizer,
    parallel_optimizer_config={"parallel_optimizer_threshold": 0} if asked.shard_optimizer else {},
)  # fmt: skip
tensor = asked.tensor
data = get_group_size() // tensor
FEATURES, HIDDEN, CLASSES, BATCH, EPOCHS = 32, 64, 8, 24, 3


class Net(nn.Cell):
    """Two matrices, the first sharded by columns and the second by rows, and dropout between them."""

    def __init__(self):
        super().__init__()
        self.up = Parameter(initializer("normal", [FEATURES, HIDDEN]), "up")
        self.down = Parameter(initializer("normal", [HIDDEN, CLASSES]), "down")
        self.dropout = nn.Dropout(p=0.1)
        self.first = ops.MatMul().shard(((data, 1), (1, tensor)))
        self.relu = ops.ReLU().shard(((data, tensor),))
        self.second = ops.MatMul().shard(((data, tensor), (tensor, 1)))

    def construct(self, x):
        return self.second(self.dropout(self.relu(self.first(x, self.up))), self.down)


class StopAfter(Callback):
    """End training after a step."""

    def step_end(self, run_context):
        if run_context.original_args().cur_step_num >= asked.steps:
            run_context.request_stop()


rng = np.random.default_rng(0)
features = rng.standard_normal((8 * BATCH, FEATURES)).astype(np.float32)
labels = (features @ rng.standard_normal((FEATURES, CLASSES))).argmax(axis=1).astype(np.int32)
rows = ds.NumpySlicesDataset((features, labels), ["data", "label"], shuffle=True).batch(BATCH)

net = Net()
rates = nn.cosine_decay_lr(0.0, 0.02, 24, 8, EPOCHS)
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
model = Model(net, loss, nn.Adam(net.trainable_params(), rates, weight_decay=0.01))

resumed = resume_training(model, asked.directory, train_dataset=rows)
if resumed.file:
    print(f"resumes after epoch {resumed.epoch} step {resumed.step}: {resumed.file}")
if resumed.total_step < asked.steps and resumed.initial_epoch < EPOCHS:
    config = CheckpointConfig(1, keep_checkpoint_max=2, integrated_save=False, remove_redundancy=True)
    callbacks = [LossMonitor(), StopAfter(), ModelCheckpoint(directory=asked.directory, config=config)]
    model.train(EPOCHS, rows, callbacks, initial_epoch=resumed.initial_epoch)
