"""Operator-level parallelism shards the operators of a classifier of handwritten digits in different ways.

    mspc compile net.py --ranks 8 --save-graphs     # what every rank will do, as text
    mspc run net.py --ranks 8                       # train under mpirun; --simulate: without MPI
    mspc run net.py --ranks 8 -- --epochs 20        # what follows -- goes to the script

Neighbouring operators are sharded differently on purpose: the compiler puts the layout changes between them.
`net_layout.py` trains the same network with strategies that name the axes of the device mesh.
"""

import argparse
import os
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import initializer
from mindspore.communication import init
from mindspore.nn.utils import no_init_parameters
from mindspore.parallel.auto_parallel import AutoParallel

# Any folder with MNIST's four idx files will do.
DATA_PATH = os.getenv("DATA_PATH", str(Path(__file__).parent / "data"))
BATCH = 32


class Network(nn.Cell):
    """image[batch, 1, 28, 28] -> logits[batch, 10]"""

    def __init__(self):
        super().__init__()
        self.flatten = ops.Flatten()
        self.fc1_weight = Parameter(initializer("normal", [28 * 28, 512], ms.float32))
        self.fc2_weight = Parameter(initializer("normal", [512, 512], ms.float32))
        self.fc3_weight = Parameter(initializer("normal", [512, 10], ms.float32))
        # (2, 4): rows in two slices, the inner dimension in four, so that each rank holds a quarter of the
        # weight's rows. Its product is a partial sum over four ranks.
        self.matmul1 = ops.MatMul().shard(((2, 4), (4, 1)))
        # 4 slices on 8 ranks: two ranks hold, and compute, the same rows.
        self.relu1 = ops.ReLU().shard(((4, 1),))
        self.matmul2 = ops.MatMul().shard(((1, 8), (8, 1)))
        # A second ReLU of its own, because its strategy is another.
        self.relu2 = ops.ReLU().shard(((8, 1),))
        # No strategy: the compiler shards the batch.
        self.matmul3 = ops.MatMul()

    def construct(self, x):
        x = self.flatten(x)
        x = self.relu1(self.matmul1(x, self.fc1_weight))
        x = self.relu2(self.matmul2(x, self.fc2_weight))
        return self.matmul3(x, self.fc3_weight)


def create_dataset(usage, batch_size):
    """Batches of normalised images[batch, 1, 28, 28] and labels[batch]."""
    dataset = ds.MnistDataset(DATA_PATH, usage)
    to_input = [
        ds.vision.Rescale(1.0 / 255.0, 0),
        ds.vision.Normalize(mean=(0.3,), std=(0.35,)),
        ds.vision.HWC2CHW(),
    ]
    dataset = dataset.map(to_input, "image")
    dataset = dataset.map(ds.transforms.TypeCast(ms.int32), "label")
    return dataset.batch(batch_size, drop_remainder=True)


def train(network_class):
    """Train on all ranks, then say how many of the test images are recognised."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs

    ms.set_context(mode=ms.GRAPH_MODE)
    init()
    ms.set_seed(1)

    # Parameters are not sampled here: each rank samples only the slices that it will hold.
    with no_init_parameters():
        net = network_class()
        optimizer = nn.SGD(net.trainable_params(), 0.1)
    loss_fn = nn.CrossEntropyLoss()

    def forward_fn(image, label):
        logits = net(image)
        return loss_fn(logits, label), logits

    # has_aux: only the loss is differentiated; the logits come along.
    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    def train_step(image, label):
        (loss, _), grads = grad_fn(image, label)
        optimizer(grads)
        return loss

    parallel_step = AutoParallel(train_step, parallel_mode="semi_auto")
    # Every rank reads the same batch of 32 and takes its slice, so a step is exactly one device's.
    parallel_step.dataset_strategy("full_batch")

    dataset = create_dataset("train", BATCH)
    for epoch in range(epochs):
        for step, (image, label) in enumerate(dataset):
            loss = parallel_step(image, label)
            if step % 5 == 0:
                print(f"epoch: {epoch}, step: {step}, loss is {loss}")

    classify = AutoParallel(net, parallel_mode="semi_auto")
    classify.dataset_strategy("full_batch")
    right = seen = 0
    for image, label in create_dataset("test", 8):
        right += int((classify(image).asnumpy().argmax(1) == label.asnumpy()).sum())
        seen += len(label)
    print(f"{right} of {seen} test images recognised")


if __name__ == "__main__":
    train(Network)
