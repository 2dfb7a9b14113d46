"""Disaster recovery: every rank saves its slices and who else holds them; what is lost is copied from another rank.

disaster_recovery.py STEPS [CHECKPOINT]: train STEPS epochs of one step; go on from the file of that name.
"""

import os
import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import initializer
from mindspore.communication import get_rank, init
from mindspore.train import CheckpointConfig, LossMonitor, Model, ModelCheckpoint

ms.set_context(mode=ms.GRAPH_MODE)
init()
folder = f"./ckpt_dir/rank_{get_rank()}"
ms.set_auto_parallel_context(
    parallel_mode=ms.ParallelMode.SEMI_AUTO_PARALLEL, full_batch=True, enable_parallel_optimizer=True,
    parallel_optimizer_config={"parallel_optimizer_threshold": 0, "optimizer_weight_shard_size": 2},
    group_ckpt_save_file=f"{folder}/group_info.pb",
)  # fmt: skip
ms.set_seed(1)


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w1 = Parameter(initializer("normal", [16, 32]), "w1")
        self.w2 = Parameter(initializer("normal", [32, 16]), "w2")
        self.matmul1 = ops.MatMul().shard(((4, 1), (1, 2)))
        self.matmul2 = ops.MatMul().shard(((4, 2), (2, 1)))

    def construct(self, x):
        return self.matmul2(ops.relu(self.matmul1(x, self.w1)), self.w2)


net = Network()
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
model = Model(net, nn.MSELoss(), optimizer)
generator = np.random.default_rng(1)
rows = generator.random((8, 16)).astype(np.float32), generator.random((8, 16)).astype(np.float32)
data = ds.NumpySlicesDataset(rows, ["x", "y"], shuffle=False).batch(8)
if len(sys.argv) > 2:
    parameters = ms.load_checkpoint(os.path.join(folder, sys.argv[2]))
    model.build(train_dataset=data, epoch=1)
    ms.load_param_into_net(net, parameters)
    ms.load_param_into_net(optimizer, parameters)
config = CheckpointConfig(save_checkpoint_steps=1, integrated_save=False, format="ckpt")
saver = ModelCheckpoint(prefix="ckpt", directory=folder, config=config)
model.train(int(sys.argv[1]), data, callbacks=[LossMonitor(), saver], dataset_sink_mode=True)
