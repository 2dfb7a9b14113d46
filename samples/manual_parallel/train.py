"""This is data parallelism by hand, after MindSpore's tutorial: every rank takes its rows of the batch, and the ranks
average their losses.

Nothing reduces the gradients. Every rank updates its weights by its own rows, so that the ranks' weights drift apart,
which the losses do not show: they are averages. mspc warns of it; `train_reduced.py` adds what is missing.
"""

import argparse
import os

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops, train
from mindspore.communication import get_group_size, get_rank, init

ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_seed(1)

cur_rank = get_rank()
batch_size = 32
device_num = get_group_size()
shard_size = batch_size // device_num


class Network(nn.Cell):
    """784 -> 512 -> 512 -> 10, of this rank's rows."""

    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.layer1 = nn.Dense(28 * 28, 512)
        self.relu1 = nn.ReLU()
        self.layer2 = nn.Dense(512, 512)
        self.relu2 = nn.ReLU()
        self.layer3 = nn.Dense(512, 10)

    def construct(self, x):
        x = x[cur_rank * shard_size : cur_rank * shard_size + shard_size]
        x = self.flatten(x)
        x = self.layer1(x)
        x = self.relu1(x)
        x = self.layer2(x)
        x = self.relu2(x)
        return self.layer3(x)


class ReduceLoss(nn.Cell):
    """The mean of all ranks' losses."""

    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()
        self.all_reduce = ops.AllReduce()

    def construct(self, data, label):
        label = label[cur_rank * shard_size : cur_rank * shard_size + shard_size]
        return self.all_reduce(self.loss(data, label)) / device_num


def create_dataset():
    """Batches of all ranks' rows."""
    dataset = ds.MnistDataset(os.getenv("DATA_PATH", "data"))
    image_transforms = [
        ds.vision.Rescale(1.0 / 255.0, 0),
        ds.vision.Normalize(mean=(0.1307,), std=(0.3081,)),
        ds.vision.HWC2CHW(),
    ]
    dataset = dataset.map(image_transforms, "image")
    dataset = dataset.map(ds.transforms.TypeCast(ms.int32), "label")
    return dataset.batch(batch_size, drop_remainder=True)


def options():
    """Return the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    return parser.parse_args()


net = Network()
loss_fn = ReduceLoss()
optimizer = nn.SGD(net.trainable_params(), 1e-2)

if __name__ == "__main__":
    model = ms.Model(net, loss_fn=loss_fn, optimizer=optimizer)
    model.train(options().epochs, create_dataset(), callbacks=[train.LossMonitor(20)])
