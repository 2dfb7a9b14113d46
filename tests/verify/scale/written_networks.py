"""Scripts of networks that are right, by their seeds: those of other tests, and some with rows of every rank."""

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from tests.context.drawn_network import DrawnNetwork as DrawnContext
from tests.control_programs import judged
from tests.experts.drawn_experts import DrawnExperts
from tests.pipelining.drawn_network import DrawnNetwork as DrawnStages
from tests.texts import IMPORTS

Script = tuple[str, int]
"""The text, and the number of ranks."""


def _stages(seed: int) -> Script:
    network = DrawnStages(seed)
    return network.sharded("."), network.ranks


def _experts(seed: int) -> Script:
    network = DrawnExperts(seed)
    return network.sharded("."), network.ranks


def _context(seed: int) -> Script:
    network = DrawnContext(seed)
    return network.sharded("."), network.ranks


def _control(seed: int) -> Script:
    ranks = 1 + seed % 4
    gradients = seed % 2 == 1 and find_spec("torch") is not None  # which judges them
    return judged(seed, ranks, gradients, 3).program.script(".", gradients), ranks


PUBLIC = IMPORTS + """
from mindspore.communication import init
from tests.compiler.test_public_networks import NETWORKS, RANKS, SETTINGS, drawn

number = {number} % len(NETWORKS)
make, mode, feeds = list(NETWORKS.values())[number]
own = mode == "data_parallel"
init()
if number == list(NETWORKS).index("PanGu"):
    ms.set_auto_parallel_context(
        enable_parallel_optimizer=True, parallel_optimizer_config={{"parallel_optimizer_threshold": 0}}
    )
batch = "data_parallel" if own else "full_batch"
ms.set_auto_parallel_context(parallel_mode=mode, gradients_mean=own, dataset_strategy=batch)
ms.set_seed(3)
step = make(RANKS)
step.set_train()
generator = np.random.default_rng(5)
shapes = [((shape[0] // RANKS if own else shape[0], *shape[1:]), below) for shape, below in feeds]
step(*(Tensor(drawn(generator, shape, below)) for shape, below in shapes))
"""


def _public(seed: int) -> Script:
    return PUBLIC.format(number=seed), 8


ROWS = IMPORTS + """
from mindspore.communication import init

init()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean={mean})
ms.set_seed(1)


class Attention(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Dense(width, width) for _ in range(3))

    def construct(self, x):
        q, k, v = (f(x).reshape(x.shape[0], 4, -1) for f in (self.query, self.key, self.value))
        return ops.matmul(ops.softmax(ops.matmul(q, k.swapaxes(1, 2))), v).reshape(x.shape)


class Images(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.convolve, self.norm = nn.Conv2d(1, 4, 3, pad_mode="pad", padding=1), nn.BatchNorm2d(4)

    def construct(self, x):
        return self.norm(self.convolve(x.reshape(x.shape[0], 1, 4, -1))).mean(1).reshape(x.shape)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell({layers})
        self.table = Parameter(Tensor(np.random.RandomState(0).randn(24, {width}) * 0.3, ms.float32))

    def construct(self, x, places, wanted):
        found = self.layers(x + ops.gather(self.table, places, 0))
        return ops.{loss}(ops.square(found - wanted))


net = Net()
optimizer = nn.{optimizer}
step = nn.TrainOneStepCell(net, optimizer{scale}).set_train()
step(
    Tensor(np.ones(({rows}, {width}), np.float32)), Tensor(np.zeros({rows}, np.int32)),
    Tensor(np.ones(({rows}, {width}), np.float32)),
)
"""
LAYERS = (
    "nn.Dense({w}, {w})", "nn.GELU()", "nn.ReLU()", "nn.LayerNorm(({w},))", "nn.BatchNorm1d({w})", "nn.Dropout(p=0.3)",
    "Attention({w})", "Images({w})", "nn.Tanh()", "nn.SyncBatchNorm({w})",
)  # fmt: skip
OPTIMIZERS = (
    "Adam(net.trainable_params(), 0.01)", "Momentum(net.trainable_params(), 0.1, 0.9)",
    "SGD(net.trainable_params(), 0.1)", "Lamb(net.trainable_params(), 0.01)",
    "AdamWeightDecay(net.trainable_params(), 0.01, weight_decay=0.1)",
)  # fmt: skip


def _rows(seed: int) -> Script:
    """A network in data parallel mode."""
    draw = np.random.default_rng([seed, 7])
    ranks, width, rows = int(draw.choice([2, 3, 4, 8])), int(draw.choice([8, 12, 16, 64])), int(draw.integers(1, 7))
    layers = [str(draw.choice(LAYERS)).format(w=width) for _ in range(int(draw.integers(1, 5)))]
    text = ROWS.format(
        mean=bool(draw.integers(2)),
        layers=", ".join([f"nn.Dense({width}, {width})", *layers]), width=width, rows=rows,
        loss=str(draw.choice(["reduce_mean", "reduce_sum"])), optimizer=str(draw.choice(OPTIMIZERS)),
        scale=str(draw.choice(["", "", ", sens=4.0"])),
    )  # fmt: skip
    return text, ranks


HALVES = IMPORTS + """

ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True, enable_parallel_optimizer={shared},
    parallel_optimizer_config={{"parallel_optimizer_threshold": 0}},
)
HALF, DATA, TENSOR = ms.{half}, {data}, {tensor}
draw = np.random.RandomState(0)


def weight(*shape):
    return Parameter(Tensor(draw.randn(*shape) * 0.3, ms.float32))


class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.bias, self.down = weight(16, 32), weight(32), weight(32, 16)
        self.first = ops.MatMul().shard(((DATA, 1), (1, TENSOR)))
        self.second = ops.MatMul().shard(((DATA, TENSOR), (TENSOR, 1)))

    def construct(self, x):
        inside = self.first(x.astype(HALF), self.up.astype(HALF)){bias}
        return {around}(self.second(ops.{activation}(inside).astype(HALF), self.down.astype(HALF)))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(2)])

    def construct(self, x):
        for layer in self.layers:
            x = layer(x){added}
        return ops.square(x.astype(ms.float32)).mean()


net = nn.GradAccumulationCell(Net(), {parts}) if {parts} > 1 else Net()
optimizer = nn.AdamWeightDecay(net.trainable_params(), 0.01)
step = nn.{step}
step(Tensor(np.ones((24, 16), np.float32)))
"""


def _halves(seed: int) -> Script:
    """Products of halves, whose gradients are added up over ranks, parts of the batch and residuals."""
    draw = np.random.default_rng([seed, 11])
    data, tensor = [(1, 2), (2, 1), (2, 2), (4, 1), (2, 4)][int(draw.integers(5))]
    step = ["TrainOneStepCell(net, optimizer)",
            "TrainOneStepWithLossScaleCell(net, optimizer, Tensor(128.0, ms.float32))"]  # fmt: skip
    text = HALVES.format(
        half=str(draw.choice(["float16", "bfloat16"])), data=data, tensor=tensor, shared=bool(draw.integers(2)),
        bias=str(draw.choice(["", " + self.bias.astype(HALF)", ".astype(ms.float32) + self.bias"])),
        around=str(draw.choice(["", "ops.tanh", "ops.relu"])), activation=str(draw.choice(["relu", "gelu", "tanh"])),
        added=str(draw.choice(["", " + x", ".astype(ms.float32) + x"])),
        parts=int(draw.choice([1, 1, 3])), step=step[int(draw.integers(2))],
    )  # fmt: skip
    return text, data * tensor


WRITTEN: dict[str, Callable[[int], Script]] = {
    "stages": _stages, "experts": _experts, "context": _context, "control": _control, "rows": _rows, "public": _public,
    "halves": _halves,
}  # fmt: skip
"""By source what makes the script of a seed."""
