"""Inference from what other strategies have trained: slices of all ranks by the strategy file, each file's own ranks.

distributed_inference.py train: eight ranks train and save slices, and how they are sharded.
distributed_inference.py predict: any number of ranks load them, sharded otherwise, and predict.
distributed_inference.py transform: a rank rewrites the slices that it needs.
"""

import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
from mindspore.communication import get_group_size, get_rank, init
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint

ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_seed(1)
verb, ranks = sys.argv[1], get_group_size()
trains = verb == "train"
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True,
    strategy_ckpt_save_file="train.ckpt" if trains else "predict.ckpt",
)  # fmt: skip


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w1 = Parameter(initializer("normal" if trains else "zeros", [16, 32]), "w1")
        self.w2 = Parameter(initializer("normal" if trains else "zeros", [32, 16]), "w2")
        self.matmul1 = ops.MatMul().shard(((2, 1), (1, 4)) if trains else ((1, ranks), (ranks, 1)))
        self.matmul2 = ops.MatMul().shard(((2, 4), (4, 1)) if trains else ((1, 1), (1, ranks)))

    def construct(self, x):
        return self.matmul2(ops.relu(self.matmul1(x, self.w1)), self.w2)


net = Network()
generator = np.random.default_rng(1)
rows = generator.random((8, 16)).astype(np.float32), generator.random((8, 16)).astype(np.float32)
files = [f"./checkpoints/rank_{rank}/net-1_1.ckpt" for rank in range(8)]
if trains:
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    config = CheckpointConfig(integrated_save=False, format="ckpt")
    saver = ModelCheckpoint("net", f"./checkpoints/rank_{get_rank()}", config)
    model.train(1, ds.NumpySlicesDataset(rows, ["x", "y"], shuffle=False).batch(8), callbacks=[saver])
    print(net.w1.asnumpy().sum(), net.w2.asnumpy().sum())
elif verb == "predict":
    model = Model(net)
    predict_layout = model.infer_predict_layout(Tensor(rows[0]))
    ms.load_distributed_checkpoint(net, files, predict_layout, "train.ckpt")
    print(model.predict(Tensor(rows[0])).asnumpy().sum(), net.w1.part()[1].shape)
else:
    needed = ms.rank_list_for_transform(get_rank(), "train.ckpt", "predict.ckpt")
    out = f"out{get_rank()}.ckpt"
    ms.transform_checkpoint_by_rank(get_rank(), {r: files[r] for r in needed}, out, "train.ckpt", "predict.ckpt")
    print(needed, ms.load_checkpoint(out)["w1"].shape)
