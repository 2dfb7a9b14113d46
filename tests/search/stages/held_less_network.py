"""A script of six layers, data parallel on the ranks of a stage, whose parameters are large enough to be stored in
slices."""

from tests.texts import IMPORTS

SCRIPT = IMPORTS + """
from mindspore.common.initializer import Normal, initializer
from mindspore.communication import init

init()
ms.set_seed(3)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel"{settings})
ROWS, WIDTH = {rows}, 128


class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up = ms.Parameter(initializer(Normal(0.02), [WIDTH, 4 * WIDTH], ms.float32))
        self.down = ms.Parameter(initializer(Normal(0.02), [4 * WIDTH, WIDTH], ms.float32))
        self.norm = ops.RmsNorm(1e-5).shard(((2, 1), (1,)))
        self.gamma = ms.Parameter(initializer("ones", [WIDTH], ms.float32))
        self.first, self.last = (ops.MatMul().shard(((2, 1), (1, 1))) for _ in range(2))
        self.relu, self.add = ops.ReLU().shard(((2, 1),)), ops.Add().shard(((2, 1), (2, 1)))

    def construct(self, x):
        inside = self.relu(self.first(self.norm(x, self.gamma)[0], self.up))
        return self.add(x, self.last(inside, self.down))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(6)])
        self.square, self.mean = ops.Square().shard(((2, 1),)), ops.ReduceMean()

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.mean(self.square(x))


cell = nn.PipelineCell(Net(), 4)
step = nn.TrainOneStepCell(cell, nn.Adam(cell.trainable_params(), 1e-2))
rows = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
for _ in range(2):
    print(step(Tensor(rows)))
"""


def script(rows: int = 1024, settings: str = ", full_batch=True") -> str:
    """rows: of the batch. settings: more of them, as they are called with."""
    return SCRIPT.format(rows=rows, settings=settings)
