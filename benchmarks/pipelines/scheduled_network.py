"""Trains a small network once for each of many schedules, in one start of all ranks: `scheduled_network.py FOLDER`.

`FOLDER/cases.json` has for every case its number, stages, chunks, micro-batches and table, "" for one device. The first
rank writes the results of every step, and all parameters in the end, to `FOLDER/found_NUMBER.npz`.
"""

import json
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.communication import get_rank, init

WIDTH, ROWS, STEPS = 8, 2, 2
"""The width of a layer, the rows of a micro-batch, and the number of steps."""


class Layer(nn.Cell):
    """A layer, a chunk of the network. shared: a weight that the first and the last one have."""

    def __init__(self, drawn, shared, scales):
        super().__init__()
        self.w = Parameter(Tensor(drawn.randn(WIDTH, WIDTH) * 0.5), name="w")
        self.shared, self.scales = shared, scales

    def construct(self, x):
        x = ops.tanh(ops.matmul(x, self.w))
        return x * self.shared if self.scales else x


class Net(nn.Cell):
    """Layers, and a loss behind the last one."""

    def __init__(self, chunks):
        super().__init__()
        drawn = np.random.RandomState(chunks)
        shared = Parameter(Tensor(drawn.randn(WIDTH)), name="shared")
        self.layers = nn.CellList([Layer(drawn, shared, i in (0, chunks - 1)) for i in range(chunks)])

    def construct(self, x, y):
        for layer in self.layers:
            x = layer(x)
        return ((x - y) ** 2).mean()


def values_of(case):
    """The values of a case that are compared."""
    net = Net(case["chunks"])
    ms.reset_auto_parallel_context()
    if case["table"]:
        ms.set_auto_parallel_context(
            parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=case["stages"],
            pipeline_config={"pipeline_scheduler": case["table"]},
        )
        for layer, stage in zip(net.layers, case["placement"], strict=True):
            layer.pipeline_stage = stage
    cell = nn.PipelineCell(net, case["micro_batches"])
    step = nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.1, 0.9)).set_train()
    drawn = np.random.RandomState(case["number"])
    rows = case["micro_batches"] * ROWS
    batches = [[Tensor(drawn.randn(rows, WIDTH)) for _ in range(2)] for _ in range(STEPS)]
    found = {f"step {i}": step(*batch).asnumpy() for i, batch in enumerate(batches)}
    return found | {p.name: p.asnumpy() for p in step.get_parameters() if "learning_rate" not in p.name}


def main(folder):
    init()
    for case in json.loads((folder / "cases.json").read_text()):
        found = values_of(case)
        if get_rank() == 0:
            np.savez(folder / f"found_{case['number']}.npz", **found)


main(Path(sys.argv[1]))
