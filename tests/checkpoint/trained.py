"""A small network that is trained by simulated ranks under any strategy, and saved; what tests of checkpoints share."""

import re
from pathlib import Path

import pytest

from mspc.commands.run import run_script

SCRIPT = """
import sys
import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops, Parameter
from mindspore.common.initializer import initializer
from mindspore.communication import init, get_rank
from mindspore.train import Model, LossMonitor, ModelCheckpoint, CheckpointConfig, Callback
from mindspore.train import DynamicLossScaleManager
from mspc.train import resume_training

data, tensor, further, last = map(int, sys.argv[1:5])
init()
ms.set_seed(5)
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", dataset_strategy="full_batch", enable_parallel_optimizer=bool(further),
    **({"parallel_optimizer_config": {"parallel_optimizer_threshold": 0}} if further else {}), **PARALLEL
)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [24, 48]), "w")
        self.v = Parameter(initializer("normal", [48, 8]), "v")
        self.drop = nn.Dropout(p=0.25)
        self.first = ops.MatMul().shard(((data, 1), (1, tensor)))
        self.second = ops.MatMul().shard(((data, tensor), (tensor, 1)))

    def construct(self, x):
        return self.second(self.drop(ops.relu(self.first(x, self.w))), self.v)


class Stop(Callback):
    def step_end(self, run_context):
        if run_context.original_args().cur_step_num == last:
            run_context.request_stop()


def rows():
    return np.random.standard_normal((24, 24)).astype(np.float32), np.random.standard_normal((24, 8)).astype(np.float32)


train = ds.NumpySlicesDataset(rows(), ["x", "y"], shuffle=True).batch(12)
net = Net()
rates = nn.exponential_decay_lr(0.01, 0.9, 8, 2, 1)
model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), rates), MODEL)
resumed = resume_training(model, FOLDER, train_dataset=train)
config = CheckpointConfig(1, **CONFIG)
model.train(
    4, train, [LossMonitor(), Stop(), ModelCheckpoint("CKP", FOLDER, config)], initial_epoch=resumed.initial_epoch
)
print("numbers", np.random.random())
MORE
"""
LOSS = re.compile(r"loss is (\S+)")


class Trained:
    """Runs of the script in a folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys

    def run(
        self, data: int, tensor: int, further: int = 0, last: int = 0, config: str = "dict(integrated_save=False)",
        where: str = '"sets"', parallel: str = "{}", model: str = "", more: str = "", width: int = 48,
    ) -> list[str]:  # fmt: skip
        """Train on `data * tensor` ranks up to step `last` of 8; the losses that rank 0 has printed."""
        text = SCRIPT.replace("CONFIG", config).replace("FOLDER", where).replace("PARALLEL", parallel)
        text = text.replace("48", str(width)).replace("MODEL", model).replace("MORE", more)
        path = self.folder / "train.py"
        path.write_text(text)
        run_script(
            path, data * tensor, simulate=True, only_rank=0,
            script_arguments=tuple(map(str, (data, tensor, further, last))),
        )  # fmt: skip
        self.out = self.capsys.readouterr()
        return LOSS.findall(self.out.out)
