"""A transformer or a ResNet-50, trained some steps by a plan; rank 0 prints a step's seconds and bytes as JSON.

    mspc run benchmarks/networks/planned.py --ranks 2 -- transformer plan.toml [STEPS [SMALLER [optimizer]]]

Without a plan ("-") nothing is sharded by hand. SMALLER divides widths, for machines without GPUs. With `optimizer` the
optimizer is sharded, too. Asked by estimates.py.
"""

import json
import runpy
import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer
from mindspore.communication import get_rank, init
from mindspore.parallel.auto_parallel import AutoParallel

NETWORK, PLAN, STEPS, SMALLER, SHARDED = (*sys.argv[1:], *("transformer", "-", "20", "1", "")[len(sys.argv) - 1 :])
STEPS, SMALLER = int(STEPS), int(SMALLER)
LAYERS, WIDTH, HEADS, BATCH, SEQUENCE = 4, 2048 // SMALLER, 16, 8, 1024 // SMALLER
WARM = 5


def weight(rows, columns):
    return Parameter(initializer(Normal(0.02), [rows, columns], ms.float32))


class Block(nn.Cell):
    """Attention and feed-forward of rows [rows, width]."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (weight(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = weight(WIDTH, 4 * WIDTH), weight(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm([WIDTH]), nn.LayerNorm([WIDTH])

    def heads(self, x, matrix):
        x = ops.reshape(ops.matmul(x, matrix), (BATCH, SEQUENCE, HEADS, WIDTH // HEADS))
        return ops.transpose(x, (0, 2, 1, 3))

    def construct(self, x):
        y = self.norm1(x)
        query, key, value = self.heads(y, self.wq), self.heads(y, self.wk), self.heads(y, self.wv)
        shares = ops.softmax(ops.BatchMatMul(transpose_b=True)(query, key) * (WIDTH // HEADS) ** -0.5)
        mixed = ops.transpose(ops.BatchMatMul()(shares, value), (0, 2, 1, 3))
        x = x + ops.matmul(ops.reshape(mixed, (BATCH * SEQUENCE, WIDTH)), self.wo)
        return x + ops.matmul(ops.gelu(ops.matmul(self.norm2(x), self.up)), self.down)


class Transformer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.blocks = nn.CellList([Block() for _ in range(LAYERS)])

    def construct(self, x, y):
        for block in self.blocks:
            x = block(x)
        return ops.reduce_mean(ops.square(x - y))


def transformer():
    rng = np.random.default_rng(0)
    rows = [Tensor(rng.standard_normal((BATCH * SEQUENCE, WIDTH), np.float32)) for _ in range(2)]
    return Transformer(), rows


def resnet():
    sample = Path(__file__).resolve().parents[2] / "samples" / "resnet50_cifar10" / "resnet.py"
    network = runpy.run_path(str(sample))["ResNet"]((3, 4, 6, 3), 10, 64 // SMALLER)
    rng = np.random.default_rng(0)
    images = Tensor(rng.standard_normal((64 // SMALLER, 3, 224 // SMALLER, 224 // SMALLER), np.float32))
    classes = Tensor(rng.integers(0, 10, 64 // SMALLER).astype(np.int32))
    return nn.WithLossCell(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")), (images, classes)


ms.set_context(mode=ms.GRAPH_MODE)
init()
network, inputs = {"transformer": transformer, "resnet": resnet}[NETWORK]()
train = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 1e-3, 0.9))
train.set_train()
step = AutoParallel(train, parallel_mode="sharding_propagation")
step.dataset_strategy("full_batch")
if SHARDED:
    step.hsdp()
if PLAN != "-":
    step.load_operator_strategy_file(PLAN)
times = []
for number in range(WARM + STEPS):
    begin = time.perf_counter()
    loss = step(*inputs)
    if number in (WARM - 1, WARM + STEPS - 1):
        float(loss.asnumpy())
        times.append(time.perf_counter())
if get_rank() == 0:
    seconds, taken = (times[1] - times[0]) / STEPS, ms.runtime.max_memory_allocated()
    print(json.dumps({"seconds": seconds, "memory": taken, "loss": float(loss.asnumpy())}), flush=True)
