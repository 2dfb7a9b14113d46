"""ResNet as collections of models train it: options, contexts, callbacks."""

import argparse
import os

import mindspore as ms
import mindspore.nn as nn
from mindspore import context
from mindspore.common import set_seed
from mindspore.communication.management import get_group_size, get_rank, init
from mindspore.nn.optim import Momentum, thor  # lacks mindspore.nn.optim.thor
from mindspore.ops import operations as P
from mindspore.train.callback import CheckpointConfig, LossMonitor, ModelCheckpoint, TimeMonitor
from mindspore.train.loss_scale_manager import FixedLossScaleManager
from mindspore.train.model import Model

parser = argparse.ArgumentParser()
parser.add_argument("--mode", type=int, default=0)
parser.add_argument("--optimizer", default="Momentum")
args = parser.parse_args()
set_seed(1)


class BasicBlock(nn.Cell):
    def __init__(self, channels, stride=1):
        super(BasicBlock, self).__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=stride, padding=0, pad_mode="same")
        self.bn = nn.BatchNorm2d(channels, eps=1e-4, momentum=0.9)
        self.fused = nn.Conv2dBnFoldQuantOneConv(channels, channels, 1)  # lacks mindspore.nn.Conv2dBnFoldQuantOneConv
        self.relu = P.ReLU()
        self.add = P.TensorAdd()
        self.relu.add_prim_attr("primitive_target", "CPU")
        self.relu.set_fancy_kernel(1)

    def construct(self, x):
        identity = x
        out = self.relu(self.bn(self.conv(x)))
        return self.add(out, identity)


context.set_context(mode=args.mode, device_target="GPU")
context.set_context(device_id=int(os.getenv("DEVICE_ID", "0")), enable_auto_mixed_precision=True)  # lacks mindspore.context.set_context(enable_auto_mixed_precision)
init()
context.set_auto_parallel_context(
    device_num=get_group_size(),
    parallel_mode=context.ParallelMode.DATA_PARALLEL,
    gradients_mean=True,
    all_reduce_fusion_config=[85, 160],  # ignored mindspore.context.set_auto_parallel_context(all_reduce_fusion_config)
)
net = BasicBlock(64)
optimizer = Momentum(net.trainable_params(), 0.1, 0.9, weight_decay=1e-4, loss_scale=1024.0)
if args.optimizer == "Thor":
    optimizer = thor(net, 0.1)
model = Model(
    net,
    nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
    optimizer,
    loss_scale_manager=FixedLossScaleManager(1024, drop_overflow_update=False),
    amp_level="O2",
    boost_level="O1",  # ignored mindspore.train.model.Model(boost_level)
    keep_batchnorm_fp32=False,
)
config = CheckpointConfig(save_checkpoint_steps=100, keep_checkpoint_max=10, exception_save=True)  # ignored mindspore.train.callback.CheckpointConfig(exception_save)
callbacks = [TimeMonitor(data_size=10), LossMonitor(), ModelCheckpoint("resnet", f"./ckpt_{get_rank()}", config=config)]
model.train(90, ms.dataset.GeneratorDataset([1], "x"), callbacks=callbacks, dataset_sink_mode=True)
