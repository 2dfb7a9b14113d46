"""Draws networks with loops, branches, equal layers and random masks, and trains them in data parallel mode and on one
device that is fed the global batch.

`python -m tests.data_parallel.drawn_batches SEED COUNT` runs many.
"""

import random
import sys
from collections.abc import Sequence

import numpy as np

from tests.control.watched import Outcome
from tests.judged_seeds import judged, seeds_parser
from tests.sharded_beside_one import beside_one_device
from tests.texts import IMPORTS

WIDTH = 8
_TEXT = IMPORTS + """
from mindspore.communication import get_rank, init

ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_seed(4)
{settings}
drawn = np.random.RandomState(5)


def weight(*shape):
    return Parameter(Tensor(drawn.randn(*shape) / 3), name="w")


class Layer(nn.Cell):
    {lazy}
    def __init__(self, kind):
        super().__init__()
        self.w, self.b, self.kind = weight({width}, {width}), weight({width}), kind
        self.b.name = "b"
        self.drop = nn.Dropout(p=0.4)

    def construct(self, x, n):
        y = ops.tanh(ops.matmul(x, self.w) + self.b)
        if self.kind == "dropped":
            y = self.drop(y)
        elif self.kind == "branch":
            if n > 2:
                y = self.drop(y) + x
            else:
                y = y * 0.5
        elif self.kind == "loop":
            i = ops.zeros((), ms.int32)
            while i < n:
                y = self.drop(ops.tanh(ops.matmul(y, self.w)))
                i = i + 1
        return y


class Again(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w, self.drop = weight({width}, {width}), nn.Dropout(p=0.3)

    def construct(self, x):
        return self.drop(ops.tanh(ops.matmul(x, self.w)))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.drop, self.other = nn.Dropout(p=0.5), nn.Dropout(p=0.2)
        self.table = Parameter(Tensor(drawn.randn(6, {width})), name="table")
        self.shared = Parameter(Tensor(drawn.randn({width}, {width}) / 3), name="shared")
        self.bias = Parameter(Tensor(drawn.randn({width}) / 3), name="bias")
        self.again = Again()
        self.again.recompute()
{members}

    def construct(self, x, ids, n):
{body}
        return x


class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, ids, n, y):
        return {loss}


net = Net()
cell = Loss(net)
cell.set_train()
optimizer = {optimizer}
values = {{}}
{train}
mine = slice({mine})
for i in range(2):
    data = drawn.randn({rows}, {width}), drawn.randint(0, 6, ({rows},)).astype(np.int32), drawn.randn({rows}, {width})
    x, ids, y = (Tensor(each[{order}][mine]) for each in data)
    step(x, ids, Tensor(np.int32({turns} + i)), y)
x, ids, _ = (Tensor(each[mine]) for each in data)
for p in (*net.get_parameters(), *optimizer.get_parameters()):
    values[p.name] = p.asnumpy()
values["rows"] = net(x, ids, Tensor(np.int32({turns}))).asnumpy()
np.savez({folder!r} + f"/rank_{{get_rank()}}.npz", **values)
"""
TRAINING = {
    "cell": "step = nn.TrainOneStepCell(cell, optimizer).set_train()",
    "scaled": """
manager = nn.DynamicLossScaleUpdateCell(loss_scale_value=16, scale_factor=2, scale_window=2)
step = nn.TrainOneStepWithLossScaleCell(cell, optimizer, manager).set_train()
""",
    "clipped": """
grad = ops.value_and_grad(cell, None, optimizer.parameters)


@ms.jit
def step(*inputs):
    loss, gradients = grad(*inputs)
    return ops.depend(loss, optimizer(ops.clip_by_global_norm(gradients, 0.3)))
""",
    "by script": """
grad = ops.value_and_grad(cell, None, optimizer.parameters)
reducer = nn.DistributedGradReducer(optimizer.parameters, {mean}) if {many} else lambda gradients: gradients


@ms.jit
def step(*inputs):
    loss, gradients = grad(*inputs)
    return ops.depend(loss, optimizer(reducer(gradients)))
""",
    "under a condition": """
grad = ops.value_and_grad(cell, None, optimizer.parameters)


@ms.jit
def step(x, ids, n, y):
    loss, gradients = grad(x, ids, n, y)
    if n > 1:
        optimizer(gradients)
    return loss
""",
    "in a loop": """
grad = ops.value_and_grad(cell, None, optimizer.parameters)


@ms.jit
def step(x, ids, n, y):
    i = ops.zeros((), ms.int32)
    loss = ops.zeros((), ms.float64)
    while i < 2:
        loss, gradients = grad(x, ids, n, y)
        optimizer(gradients)
        i = i + 1
    return loss
""",
    "parts": """
class Parts(nn.Cell):
    def __init__(self):
        super().__init__()
        self.cell, self.n = cell, Parameter(Tensor({turns}, ms.int32), name="n", requires_grad=False)

    def construct(self, x, ids, y):
        return self.cell(x, ids, self.n, y)


in_parts = nn.TrainOneStepCell(nn.GradAccumulationCell(Parts(), 2), optimizer).set_train()
step = lambda x, ids, n, y: in_parts(x, ids, y)
""",
    "sums of a loop": """
grad = ops.grad(cell, None, optimizer.parameters)


@ms.jit
def step(x, ids, n, y):
    i = ops.zeros((), ms.int32)
    total = grad(x, ids, n, y)
    while i < n:
        more = grad(x * 0.5, ids, n, y)
        total = [one + other for one, other in zip(total, more)]
        i = i + 1
    optimizer(tuple(total))
    return n
""",
}


class DrawnBatches:
    """A network that a seed draws. training: "" for any key of `TRAINING`. about: a summary."""

    def __init__(self, seed: int, training: str = "") -> None:
        self._r = r = random.Random(seed)
        self.ranks = r.choice((2, 2, 4))
        self._rows = self.ranks * r.choice((1, 2, 3))
        self._mean = r.random() < 0.5
        drawn = r.choice(list(TRAINING))
        self._train = training or drawn
        if self._train == "parts":  # two on every rank
            self._rows *= 2
        self.tolerance = 1e-5 if self._train == "by script" else 1e-9  # nn.DistributedGradReducer sums in Float32
        self._optimizer = r.choice(("SGD", "Adam", "Momentum"))
        if self._train == "by script":  # Adam makes a step of its rate from a gradient that is zero but for rounding
            self._optimizer = "SGD"
        self._lazy = r.random() < 0.75
        self._layers: list[str] = []
        self._norms = 0
        self._names = 0
        self._kinds: list[str] = []
        self._body = self._block(2, 8)
        self._turns = r.choice((1, 2, 3))
        self.about = f"{self.ranks} ranks, {self._train}, {self._optimizer}: {', '.join(self._kinds)}"

    def alone(self, folder: str) -> str:
        return self._script(folder, "")

    def sharded(self, folder: str) -> str:
        settings = f'ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean={self._mean})'
        return self._script(folder, settings)

    def on_rank(self, name: str, rank: int, wanted: np.ndarray) -> np.ndarray:
        return np.split(wanted, self.ranks)[rank] if name == "rows" else wanted

    def _script(self, folder: str, settings: str) -> str:
        each = self._rows // self.ranks
        names = {"SGD": "SGD({}, 0.1, 0.9)", "Adam": "Adam({}, 0.01)", "Momentum": "Momentum({}, 0.05, 0.9)"}
        many = bool(settings)
        order = ":"
        if self._train == "parts" and not many:  # a part of the global batch has one of every rank
            halves = np.arange(self._rows).reshape(self.ranks, 2, each // 2)
            order = str(halves.transpose(1, 0, 2).reshape(-1).tolist())
        return _TEXT.format(
            settings=settings, width=WIDTH, lazy="@ms.lazy_inline" if self._lazy else "",
            members="\n".join(" " * 8 + line for line in self._members()), body="\n".join(self._body),
            loss="((self.net(x, ids, n) - y) ** 2)" + (".mean()" if self._mean else ".sum() / 64"),
            optimizer="nn." + names[self._optimizer].format("net.trainable_params()"),
            train=TRAINING[self._train].format(mean=self._mean, many=many, turns=self._turns), order=order,
            rows=self._rows, turns=self._turns,
            mine=f"get_rank() * {each}, get_rank() * {each} + {each}" if many else "None", folder=folder,
        )  # fmt: skip

    def _members(self) -> list[str]:
        found = [f"self.layers{i} = nn.CellList([{layers}])" for i, layers in enumerate(self._layers)]
        return found + [f"self.norm{i} = nn.BatchNorm1d({WIDTH}, dtype=ms.float64)" for i in range(self._norms)]

    def _block(self, depth: int, indent: int) -> list[str]:
        """Some statements that change x."""
        kinds = ["dense", "drop", "turned", "halves", "noise", "embedding", "again", "masked"]
        if depth:
            kinds += ["while", "for", "if", "value", "sum"] * 2
        if depth == 2:
            kinds += ["equal"] * 4 + ["norm"] * 2
        lines: list[str] = []
        for _ in range(self._r.randint(2, 4) if depth == 2 else self._r.randint(1, 2)):
            kind = self._r.choice(kinds)
            self._kinds.append(kind)
            lines += [" " * indent + line for line in getattr(self, f"_{kind}")(depth)]
        return lines

    def _inner(self, depth: int) -> list[str]:
        return self._block(depth - 1, 4)

    def _name(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def _dense(self, depth: int) -> list[str]:
        return ["x = ops.tanh(ops.matmul(x, self.shared) + self.bias)"]

    def _drop(self, depth: int) -> list[str]:
        return ["x = self.drop(x)"]

    def _turned(self, depth: int) -> list[str]:
        return ["x = ops.transpose(self.other(ops.transpose(x, (1, 0))), (1, 0))"]

    def _halves(self, depth: int) -> list[str]:
        return [f"x = self.other(x.reshape(-1, {WIDTH // 2})).reshape(-1, {WIDTH})"]

    def _noise(self, depth: int) -> list[str]:
        return [f"x = x + ops.cast(ops.standard_normal((x.shape[0], {WIDTH}), seed=2), ms.float64) * 0.1"]

    def _masked(self, depth: int) -> list[str]:
        return ["x = x * ops.cast(ops.floor(ops.rand(x.shape[0], 1) + 0.6), ms.float64)"]

    def _embedding(self, depth: int) -> list[str]:
        return ["x = x + self.drop(ops.gather(self.table, ids, 0))"]

    def _again(self, depth: int) -> list[str]:
        return ["x = self.again(x)"]

    def _norm(self, depth: int) -> list[str]:
        self._norms += 1
        return [f"x = self.norm{self._norms - 1}(x)"]

    def _equal(self, depth: int) -> list[str]:
        kind = self._r.choice(("plain", "dropped", "branch", "loop"))
        self._layers.append(f"Layer({kind!r}) for _ in range({self._r.choice((2, 3))})")
        return [f"for layer in self.layers{len(self._layers) - 1}:", "    x = layer(x, n)"]

    def _while(self, depth: int) -> list[str]:
        i = self._name()
        return [f"{i} = ops.zeros((), ms.int32)", f"while {i} < n:", *self._inner(depth), f"    {i} = {i} + 1"]

    def _for(self, depth: int) -> list[str]:
        return [f"for {self._name()} in range(n):", *self._inner(depth)]

    def _if(self, depth: int) -> list[str]:
        return ["if n > 2:", *self._inner(depth), "else:", *self._inner(depth)]

    def _value(self, depth: int) -> list[str]:
        return ["x = self.drop(x) if n > 1 else ops.tanh(x)"]

    def _sum(self, depth: int) -> list[str]:
        i, total = self._name(), self._name()
        return [f"{i} = ops.zeros((), ms.int32)", f"{total} = ops.zeros(x.shape, ms.float64)", f"while {i} < n:",
                f"    {total} = self.other({total} + x * 0.5)", *self._inner(depth), f"    {i} = {i} + 1",
                f"x = ops.tanh({total})"]  # fmt: skip


def check(seed: int, training: str = "") -> Outcome:
    """Compare the network of a seed on ranks with one device."""
    return beside_one_device(seed, DrawnBatches(seed, training))


def main(arguments: Sequence[str] | None = None) -> int:
    given = seeds_parser("Random networks in data parallel mode beside one device.").parse_args(arguments)
    return judged(given, check, lambda seed: DrawnBatches(seed).sharded("."))


if __name__ == "__main__":
    sys.exit(main())
