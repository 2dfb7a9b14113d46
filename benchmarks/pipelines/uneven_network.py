"""A network of uneven stages, trained some steps on every stage's rank by one schedule.

    mspc run benchmarks/pipelines/uneven_network.py --ranks 4 -- FOLDER SCHEDULE LAYERS [MICRO_BATCHES WIDTH ROWS STEPS]

LAYERS are those of every stage, as in 1,3,2,2; with the schedules `interleaved`, `zero_bubble_v` and `dual_pipe_v` each
stage has them twice, in two chunks. Every rank writes when its steps began and ended to `FOLDER/times_RANK.npy`, in
seconds of one clock of the host, and for how long it had a core. Asked by predicted.py.
"""

import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer
from mindspore.communication import comm_func, get_rank, init

FOLDER, SCHEDULE, LAYERS, *REST = sys.argv[1:]
LAYERS = [int(each) for each in LAYERS.split(",")]
MICRO_BATCHES, WIDTH, ROWS, STEPS = (int(each) for each in (*REST, *("8", "512", "256", "10")[len(REST) :]))


class Layer(nn.Cell):
    """A feed-forward block of rows (ROWS, WIDTH)."""

    def __init__(self):
        super().__init__()
        self.up = Parameter(initializer(Normal(0.02), [WIDTH, 4 * WIDTH], ms.float32))
        self.down = Parameter(initializer(Normal(0.02), [4 * WIDTH, WIDTH], ms.float32))
        self.norm = nn.LayerNorm([WIDTH])

    def construct(self, x):
        return x + ops.matmul(ops.gelu(ops.matmul(self.norm(x), self.up)), self.down)


class Net(nn.Cell):
    """Layers one behind another, and a loss. places: the stage of each."""

    def __init__(self, places):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in places])
        for layer, stage in zip(self.layers, places, strict=True):
            layer.pipeline_stage = stage

    def construct(self, x, y):
        for layer in self.layers:
            x = layer(x)
        return ops.reduce_mean(ops.square(x - y))


ms.set_context(mode=ms.GRAPH_MODE)
init()
in_rounds, there_and_back = SCHEDULE == "interleaved", SCHEDULE in ("zero_bubble_v", "dual_pipe_v")
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=len(LAYERS),
    pipeline_config={"pipeline_interleave": in_rounds, "pipeline_scheduler": "1f1b" if in_rounds else SCHEDULE},
)
rng = np.random.default_rng(0)
places = [stage for stage, count in enumerate(LAYERS) for _ in range(count)]
places += places if in_rounds else places[::-1] if there_and_back else []
cell = nn.PipelineCell(Net(places), MICRO_BATCHES)
step = nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.01, 0.9)).set_train()
x, y = (Tensor(rng.standard_normal((MICRO_BATCHES * ROWS, WIDTH), np.float32)) for _ in range(2))
times = []
for _ in range(STEPS):
    comm_func.barrier()
    begin, core = time.perf_counter(), time.thread_time()
    step(x, y).asnumpy()
    times.append((begin, time.perf_counter(), time.thread_time() - core))
np.save(Path(FOLDER) / f"times_{get_rank()}.npy", np.array(times))
