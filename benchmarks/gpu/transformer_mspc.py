"""The transformer of pipelines.py in mspc; rank 0 prints one line of JSON.

    mpirun -n 4 python benchmarks/gpu/transformer_mspc.py --data 2 --tensor 2

With several stages "waited" has the seconds that every stage waits for others, in the mean of the timed steps.
"""

import json
import math

import numpy as np
import transformer

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.communication import get_group_size, get_rank, init
from mspc.mindspore_api.call_handler import current

sizes, options = transformer.parsed()
DATA, TENSOR = sizes.data, sizes.tensor
KIND = ms.bfloat16 if sizes.precision == "bf16" else ms.float32
ROWS, WIDTH, HEADS = sizes.micro_batch * sizes.sequence, sizes.width, sizes.heads
BY_COLUMN, BY_ROW = ((DATA, 1), (1, TENSOR)), ((DATA, TENSOR), (TENSOR, 1))
BY_HEAD = (DATA, TENSOR, 1, 1)


class Norm(nn.Cell):
    """LayerNorm of rows [rows, width], computed in float32."""

    def __init__(self, gamma, beta):
        super().__init__()
        self.gamma, self.beta = Parameter(Tensor(gamma)), Parameter(Tensor(beta))
        self.norm = ops.LayerNorm(-1, -1, 1e-5).shard(((DATA, 1), (1,), (1,)))

    def construct(self, x):
        out, _, _ = self.norm(ops.cast(x, ms.float32), self.gamma, self.beta)
        return ops.cast(out, KIND)


class Block(nn.Cell):
    """Attention and feed-forward of normalised rows [rows, width], each added to its input."""

    def __init__(self, p):
        super().__init__()
        self.norm1, self.norm2 = Norm(p["gamma1"], p["beta1"]), Norm(p["gamma2"], p["beta2"])
        self.wq, self.wk, self.wv = (Parameter(Tensor(p[name])) for name in ("wq", "wk", "wv"))
        self.wo, self.w1, self.w2 = (Parameter(Tensor(p[name])) for name in ("wo", "w1", "w2"))
        self.query, self.key, self.value, self.up = (ops.MatMul().shard(BY_COLUMN) for _ in range(4))
        self.out, self.down = ops.MatMul().shard(BY_ROW), ops.MatMul().shard(BY_ROW)
        self.reshape = ops.Reshape()
        self.split = ops.Transpose().shard(((DATA, 1, TENSOR, 1),))
        self.merge = ops.Transpose().shard((BY_HEAD,))
        self.scores = ops.BatchMatMul(transpose_b=True).shard((BY_HEAD, BY_HEAD))
        self.scale = ops.Mul().shard((BY_HEAD, ()))
        self.softmax = ops.Softmax(axis=-1).shard((BY_HEAD,))
        self.weigh = ops.BatchMatMul().shard((BY_HEAD, BY_HEAD))
        self.gelu = ops.GeLU().shard(((DATA, TENSOR),))
        self.add1, self.add2 = (ops.Add().shard(((DATA, 1), (DATA, 1))) for _ in range(2))

    def heads(self, x):
        return self.split(self.reshape(x, (sizes.micro_batch, sizes.sequence, HEADS, sizes.head)), (0, 2, 1, 3))

    def construct(self, x):
        y = self.norm1(x)
        query = self.heads(self.query(y, ops.cast(self.wq, KIND)))
        key = self.heads(self.key(y, ops.cast(self.wk, KIND)))
        value = self.heads(self.value(y, ops.cast(self.wv, KIND)))
        weights = self.softmax(self.scale(self.scores(query, key), 1 / math.sqrt(sizes.head)))
        mixed = self.reshape(self.merge(self.weigh(weights, value), (0, 2, 1, 3)), (ROWS, WIDTH))
        x = self.add1(self.out(mixed, ops.cast(self.wo, KIND)), x)
        hidden = self.gelu(self.up(self.norm2(x), ops.cast(self.w1, KIND)))
        return self.add2(self.down(hidden, ops.cast(self.w2, KIND)), x)


class Loss(nn.Cell):
    """Mean squared error of the layers' result."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.CellList([Block(p) for p in transformer.weights(sizes)])
        if sizes.stages > 1:
            for block, stage in zip(self.blocks, sizes.places, strict=True):
                block.pipeline_stage = stage
        self.loss = nn.MSELoss()

    def construct(self, x, y):
        x = ops.cast(x, KIND)
        for block in self.blocks:
            x = block(x)
        return self.loss(ops.cast(x, ms.float32), y)


def built():
    """(training step, input, target)."""
    ms.set_context(mode=ms.GRAPH_MODE, device_target="GPU", gpu_config={"matmul_allow_tf32": True})
    ms.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", dataset_strategy="full_batch",
        gradient_fp32_sync=sizes.precision != "bf16",  # in bf16 as in JAX, whose products of gradients are summed so
    )  # fmt: skip
    if sizes.stages > 1:
        scheduler = "1f1b" if sizes.schedule == "interleaved" else sizes.schedule
        config = {"pipeline_interleave": sizes.places != sorted(sizes.places)}
        if sizes.order:
            scheduler, config = sizes.order, {}
        ms.set_auto_parallel_context(
            pipeline_stages=sizes.stages, pipeline_config={**config, "pipeline_scheduler": scheduler}
        )
    init()
    network = Loss()
    if sizes.micro_batches > 1:
        network = nn.PipelineCell(network, sizes.micro_batches)
    optimizer = nn.Momentum(network.trainable_params(), sizes.rate, transformer.MOMENTUM)
    train = nn.TrainOneStepCell(network, optimizer)
    train.set_train()
    return train, *(Tensor(value) for value in transformer.batch(sizes))


train, x, y = built()
counted: list[float] = []


def value(loss):
    """The loss of a step that has ended. Behind the warm-up the time starts in which stages wait."""
    found = float(loss.asnumpy())
    counted.append(executor().waited if sizes.stages > 1 and len(counted) == transformer.WARM_UP - 1 else 0.0)
    return found


def executor():
    """What runs this rank's step."""
    return current().compiled_calls[0].executor


result = transformer.measured(lambda: train(x, y), value, options)
if sizes.stages > 1:
    steps = options.steps * options.repeats
    own = (executor().waited - sum(counted)) / steps
    ranks = tuple(range(get_group_size()))
    result["waited"] = executor().comm.all_gather(np.array([[own]]), ranks, 0)[:, 0].tolist()
if get_rank() == 0:
    print(json.dumps(result), flush=True)
