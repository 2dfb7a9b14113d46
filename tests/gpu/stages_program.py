"""Trains a network in two stages some steps and prints the losses of rank 0.

    mspc run tests/gpu/stages_program.py --ranks 2 -- SCHEDULE

Stages hand on several tensors of several sizes, one of them twice, and share a weight.
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.communication import get_rank, init

SCHEDULE = sys.argv[1]
PLACES = {"interleaved": [0, 1, 0, 1], "zero_bubble_v": [0, 1, 1, 0]}.get(SCHEDULE, [0, 0, 1, 1])
MICRO_BATCHES, ROWS, WIDTH, STEPS = 4, 32, 48, 6
rng = np.random.default_rng(3)


class Layer(nn.Cell):
    """Rows (rows, WIDTH), and what stands beside them (rows, 3)."""

    def __init__(self, shared, stage):
        super().__init__()
        self.own = Parameter(Tensor(rng.standard_normal((WIDTH, WIDTH), np.float32) / 7))
        self.shared, self.norm = shared, nn.LayerNorm([WIDTH])
        self.pipeline_stage = stage

    def construct(self, x, beside):
        y = self.norm(x)
        mixed = ops.tanh(ops.matmul(y, self.own)) + ops.matmul(ops.sin(y), self.shared)
        return x + mixed * ops.reduce_sum(beside, -1, keep_dims=True), beside + mixed[:, :3] * 0.1


class Net(nn.Cell):
    """Layers one behind another, and a loss."""

    def __init__(self):
        super().__init__()
        self.shared = Parameter(Tensor(rng.standard_normal((WIDTH, WIDTH), np.float32) / 7))
        self.layers = nn.CellList([Layer(self.shared, stage) for stage in PLACES])

    def construct(self, x, y):
        beside = x[:, :3]
        for layer in self.layers:
            x, beside = layer(x, beside)
        return ops.reduce_mean(ops.square(x - y)) + ops.reduce_mean(ops.square(beside))


ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2,
    pipeline_config={
        "pipeline_interleave": PLACES != sorted(PLACES),
        "pipeline_scheduler": "1f1b" if SCHEDULE == "interleaved" else SCHEDULE,
    },
)  # fmt: skip
cell = nn.PipelineCell(Net(), MICRO_BATCHES)
step = nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.01, 0.9)).set_train()
x, y = (Tensor(rng.standard_normal((MICRO_BATCHES * ROWS, WIDTH), np.float32)) for _ in range(2))
for _ in range(STEPS):
    loss = float(step(x, y).asnumpy())
    if get_rank() == 0:
        print(f"loss {loss:.9g}", flush=True)
