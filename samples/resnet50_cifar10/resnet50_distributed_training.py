"""Train ResNet-50 on CIFAR-10, data parallel and automatically parallel, as the tutorials do.

Under pytest (`mpirun -n 8 pytest -s -v resnet50_distributed_training.py`) every test trains one mode; as a script
(`mspc run resnet50_distributed_training.py --ranks 8`) the mode is that of MODE. Environment variables:

    DATA_PATH   the folder with data_batch_1.bin ... (default: data/cifar-10-batches-bin beside this file)
    IMAGE_SIZE  height and width that images are resized to (224)
    WIDTH       channels of the first stage (64 is ResNet-50)
    EPOCHS, BATCH_SIZE, MODE ("data_parallel" or "auto_parallel")
"""

import os
from pathlib import Path

import mindspore.common.dtype as mstype
import mindspore.dataset as ds
import mindspore.dataset.transforms.c_transforms as C
import mindspore.dataset.vision.c_transforms as vision
import mindspore.nn as nn
import mindspore.ops as ops
from mindspore import Tensor, context, set_seed
from mindspore.communication.management import get_group_size, get_rank, init
from mindspore.context import ParallelMode
from mindspore.nn.optim.momentum import Momentum
from mindspore.train.callback import LossMonitor
from mindspore.train.model import Model
from resnet import resnet50

DATA_PATH = os.environ.get("DATA_PATH", str(Path(__file__).parent / "data" / "cifar-10-batches-bin"))
IMAGE_SIZE = int(os.environ.get("IMAGE_SIZE", "224"))
WIDTH = int(os.environ.get("WIDTH", "64"))
EPOCHS = int(os.environ.get("EPOCHS", "10"))
BATCH_SIZE = int(os.environ.get("BATCH_SIZE", "32"))
CLASSES = 10

context.set_context(mode=context.GRAPH_MODE)
init()


def create_dataset(data_path, usage, batch_size, shards):
    """Batches of (image, label). Every rank reads its own share of the rows where `shards`, else all of them."""
    given = {"num_shards": get_group_size(), "shard_id": get_rank()} if shards else {}
    data_set = ds.Cifar10Dataset(data_path, usage=usage, **given)
    random = [vision.RandomCrop((32, 32), (4, 4, 4, 4)), vision.RandomHorizontalFlip()]
    always = [
        vision.Resize((IMAGE_SIZE, IMAGE_SIZE)),
        vision.Rescale(1.0 / 255.0, 0.0),
        vision.Normalize((0.4465, 0.4822, 0.4914), (0.2010, 0.1994, 0.2023)),
        vision.HWC2CHW(),
    ]
    data_set = data_set.map(operations=C.TypeCast(mstype.int32), input_columns="label")
    data_set = data_set.map(operations=random + always if usage == "train" else always, input_columns="image")
    if usage == "train":
        data_set = data_set.shuffle(buffer_size=1000)
    return data_set.batch(batch_size, drop_remainder=True)


class SoftmaxCrossEntropyExpand(nn.Cell):
    """The mean cross entropy, of small operators, each of which can be split in its own way."""

    def __init__(self, sparse=False):
        super().__init__()
        self.exp = ops.Exp()
        self.sum = ops.ReduceSum(keep_dims=True)
        self.onehot = ops.OneHot()
        self.on_value = Tensor(1.0, mstype.float32)
        self.off_value = Tensor(0.0, mstype.float32)
        self.div = ops.Div()
        self.log = ops.Log()
        self.sum_cross_entropy = ops.ReduceSum(keep_dims=False)
        self.mul = ops.Mul()
        self.mul2 = ops.Mul()
        self.mean = ops.ReduceMean(keep_dims=False)
        self.sparse = sparse
        self.max = ops.ReduceMax(keep_dims=True)
        self.sub = ops.Sub()

    def construct(self, logit, label):
        logit_max = self.max(logit, -1)
        exp = self.exp(self.sub(logit, logit_max))
        exp_sum = self.sum(exp, -1)
        softmax_result = self.div(exp, exp_sum)
        if self.sparse:
            label = self.onehot(label, ops.shape(logit)[1], self.on_value, self.off_value)
        softmax_result_log = self.log(softmax_result)
        loss = self.sum_cross_entropy((self.mul(softmax_result_log, label)), -1)
        loss = self.mul2(ops.scalar_to_array(-1.0), loss)
        return self.mean(loss, -1)


def train_cifar(parallel_mode, epochs=EPOCHS):
    """Train and evaluate; returns the accuracy on the images for testing."""
    set_seed(1)
    context.reset_auto_parallel_context()
    context.set_auto_parallel_context(parallel_mode=parallel_mode, gradients_mean=True)
    net = resnet50(BATCH_SIZE, CLASSES, WIDTH)
    if parallel_mode == ParallelMode.DATA_PARALLEL:
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    else:
        loss = SoftmaxCrossEntropyExpand(sparse=True)
    opt = Momentum(filter(lambda x: x.requires_grad, net.get_parameters()), 0.01, 0.9)
    model = Model(net, loss_fn=loss, optimizer=opt, metrics={"accuracy"})
    data_set = create_dataset(DATA_PATH, "train", BATCH_SIZE, shards=True)
    callbacks = [LossMonitor(data_set.get_dataset_size())] if get_rank() == 0 else []
    model.train(epochs, data_set, callbacks=callbacks, dataset_sink_mode=True)
    found = model.eval(create_dataset(DATA_PATH, "test", BATCH_SIZE, shards=True))
    if get_rank() == 0:
        print(f"accuracy: {found['accuracy']:.3f}")
    return found["accuracy"]


def test_train_cifar_data_parallel():
    assert train_cifar(ParallelMode.DATA_PARALLEL) > 2 / CLASSES


def test_train_cifar_auto_parallel():
    assert train_cifar(ParallelMode.AUTO_PARALLEL) > 2 / CLASSES


if __name__ == "__main__":
    train_cifar(os.environ.get("MODE", ParallelMode.DATA_PARALLEL))
