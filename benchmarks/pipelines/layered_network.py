"""A network of equal layers in stages, to be compiled. Asked by compiles.py.

    mspc compile layered_network.py --ranks 2 -- LAYERS STAGES MICRO_BATCHES SCHEDULE OPTIMIZER [lazy]

With `lazy` equal layers are one graph a stage (`lazy_inline`).
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, lazy_inline, nn, ops
from mindspore.communication import init

WIDTH, ROWS = 64, 2
"""Of a layer, and of a micro-batch."""
LAYERS, STAGES, MICRO_BATCHES = map(int, sys.argv[1:4])
SCHEDULE, OPTIMIZER, *LAZY = sys.argv[4:]
IN_ROUNDS, THERE_AND_BACK = SCHEDULE == "interleaved", SCHEDULE in ("zero_bubble_v", "dual_pipe_v")
"""Whether a stage has two chunks, as stages come again, or as they come back."""


class Layer(nn.Cell):
    """A feed-forward block of rows (ROWS, WIDTH)."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm([WIDTH])
        self.up, self.down = nn.Dense(WIDTH, 4 * WIDTH), nn.Dense(4 * WIDTH, WIDTH)

    def construct(self, x):
        return x + self.down(ops.relu(self.up(self.norm(x))))


if LAZY:
    Layer.__init__ = lazy_inline(Layer.__init__)


class Net(nn.Cell):
    """Layers one behind another."""

    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
        chunks = STAGES * (1 + (IN_ROUNDS or THERE_AND_BACK))
        for number, layer in enumerate(self.layers):
            chunk = number * chunks // LAYERS
            layer.pipeline_stage = chunk % STAGES if IN_ROUNDS else min(chunk, 2 * STAGES - 1 - chunk)

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


init()
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=STAGES,
    pipeline_config={"pipeline_interleave": IN_ROUNDS, "pipeline_scheduler": "1f1b" if IN_ROUNDS else SCHEDULE},
)
cell = nn.PipelineCell(nn.WithLossCell(Net(), nn.MSELoss()), MICRO_BATCHES)
optimizer = getattr(nn, OPTIMIZER)(cell.trainable_params(), 1e-3)
rows = np.ones((MICRO_BATCHES * ROWS, WIDTH), np.float32)
print(nn.TrainOneStepCell(cell, optimizer).set_train()(Tensor(rows), Tensor(rows)))
