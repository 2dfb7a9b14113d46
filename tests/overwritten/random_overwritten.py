"""Random networks that take values of parameters in many ways, and overwrite the parameters ahead of their readers.

`python -m tests.overwritten.random_overwritten SEED COUNT` compares one device, two ranks and the GPU's programs, which
are played on the CPU, with NumPy, where every way is a copy. The statements of both are the same text.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mspc import Tensor
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.runtime.device_choice import GpuMemory
from mspc.runtime.gpu.executor import GpuExecutor
from tests.gpu.test_shadow_weights_gpu import gpu
from tests.pipelining.random_networks import far, run

ROWS, COLUMNS, WEIGHTS, STEPS = 4, 6, 3, 3
WAYS = (
    "{}.astype(ms.float32)", "{}.float()", "ops.cast({}, ms.float32)", "{}.to(ms.float32)", "{}.type_as(x)",
    "{}.reshape(4, 6)", "ops.reshape({}, (4, -1))", "{}.view(4, 6)", "{}.view(24).view(4, 6)", "ops.flatten({})",
    "self.identity({})", "ops.Identity()({})", "self.dropout({})", "ops.dropout({}, p=0.0)", "{}[:]", "{}[...]",
    "{}[:, 0:6]", "ops.stop_gradient({})", "ops.depend({}, x)", "ops.transpose({}, (0, 1))", "{}.T.T",
    "{}.transpose(1, 0).transpose(1, 0)", "ops.squeeze({})", "{}.expand_dims(0).squeeze(0)",
    "ops.broadcast_to({}, (4, 6))", "{}.expand_as(x)", "ops.tile({}, (1, 1))", "Tensor({})", "{}.contiguous()",
    "{}.copy()", "{}.clone()", "ops.concat([{}])", "ops.stack([{}])[0]", "ops.concat(ops.split({}, 2))", "+{}",
    "sum([{}])", "ops.pad({}, (0, 0, 0, 0))", "ops.roll({}, 0, 0)", "ops.addn([{}])", "ops.depend({}, x)[:]",
    "self.inner({})", "ops.stack([row for row in {}])", "{}.swapaxes(0, 1).T", "mint.narrow({}, 0, 0, 4)",
    "self.sliced({}, 1.0)", "{} * 1", "-(-{})", "ops.select(x > -100, {}, x)", "ops.atleast_2d({})",
)  # fmt: skip
"""How a script takes the value of a parameter."""
HEAD = '''import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, mint, nn, ops


class Inner(nn.Cell):
    def construct(self, w):
        return w.reshape(-1)[:].reshape(w.shape)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        for i in range({weights}):
            setattr(self, f"w{{i}}", Parameter(Tensor(first(i)), name=f"w{{i}}"))
        self.identity, self.dropout, self.inner = nn.Identity(), nn.Dropout(p=0.0), Inner()
        self.sliced = ops.Mul(){shard}
        self.grad = ops.value_and_grad(self.forward, None, [self.w0], has_aux=True)
'''
SHARED = '''import numpy as np


def first(i):
    return np.arange({size}, dtype=np.float32).reshape({rows}, {columns}) / 16 + i


def fed(step):
    return np.random.default_rng(step).integers(-8, 9, ({rows}, {columns})).astype(np.float32) / 8


'''
FOOT = '''

def main():
    net, found = Net(), {{}}
    for step in range({steps}):
        for i, value in enumerate(net(Tensor(fed(step)))):
            found[f"{{step}}.{{i}}"] = value.asnumpy()
    return found
'''
ON_RANKS = '''

import mspc.communication as comm
ms.set_context(mode=ms.GRAPH_MODE)
comm.init()
ms.set_auto_parallel_context(parallel_mode="{mode}", device_num={ranks}, full_batch=True)
np.savez(f"{folder}/rank_{{comm.get_rank()}}.npz", **main())
'''
PLAYED = '''

class Net:
    def __init__(self):
        for i in range({weights}):
            setattr(self, f"w{{i}}", first(i))
'''


class Statements:
    """The lines of a network, in both dialects."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names: list[str] = []
        self.lines: list[tuple[str, str]] = []

    def add(self, depth: int, line: str, played: str | None = None) -> None:
        indent = "    " * (depth + 2)
        self.lines.append((indent + line, indent + (line if played is None else played)))

    def weight(self) -> str:
        return f"self.w{self.rng.randrange(WEIGHTS)}"

    def taken(self, weight: str) -> tuple[str, str]:
        way = self.rng.choice(WAYS).format(weight)
        if self.rng.random() < 0.8:
            return way, f"{weight}.copy()"
        return f"({way}) * 0.5", f"{weight} * np.float32(0.5)"

    def read(self) -> str:
        return self.rng.choice([*self.names, "x"])

    def block(self, depth: int, count: int, fresh: bool) -> None:
        """count statements. fresh: names may be new here, and are not read outside of the block."""
        known = list(self.names)
        for _ in range(count):
            getattr(self, self.rng.choice(["take"] * 4 + ["overwrite"] * 3 + ["choose", "turn"] * (depth < 2)))(depth)
        if fresh:
            self.names = known

    def take(self, depth: int) -> None:
        ours, played = self.taken(self.weight())
        if depth and self.names:
            name = self.rng.choice(self.names)
            self.add(depth, f"{name} = {ours}", f"{name} = {played}")
            return
        name = f"y{len(self.names)}"
        self.names.append(name)
        self.add(depth, f"{name} = {ours}", f"{name} = {played}")

    def overwrite(self, depth: int) -> None:
        weight, value = self.weight(), self.read()
        other, played = self.taken(self.weight())
        value, played = self.rng.choice([(f"{value} * 0.5 + x", f"{value} * np.float32(0.5) + x"), (other, played)])
        ours = self.rng.choice(["ops.assign({}, {})", "{}.copy_({})", "{} = {}"])
        if self.rng.random() < 0.3:
            self.add(depth, f"ops.assign_add({weight}, {value})", f"{weight} += {played}")
        else:
            self.add(depth, ours.format(weight, value), f"{weight}[...] = {played}")

    def choose(self, depth: int) -> None:
        self.add(depth, f"if x.sum() > {self.rng.choice([-1.0, 0.0, 1.0])}:")
        self.block(depth + 1, self.rng.randint(1, 3), True)
        if self.rng.random() < 0.5:
            self.add(depth, "else:")
            self.block(depth + 1, self.rng.randint(1, 3), True)

    def turn(self, depth: int) -> None:
        if self.rng.random() < 0.4:
            self.add(depth, f"for i{depth} in range({self.rng.randint(1, 3)}):")
        else:
            self.add(depth, f"n{depth} = (x > 0).sum() * 0", f"n{depth} = 0")
            self.add(depth, f"while n{depth} < {self.rng.randint(0, 3)}:")
            self.add(depth + 1, f"n{depth} = n{depth} + 1")
        self.block(depth + 1, self.rng.randint(1, 4), True)

    def train(self) -> None:
        """A gradient whose network hands out a value of the weight, and the update behind it."""
        self.add(0, "(loss, kept), grads = self.grad(x)", "kept, grads = self.forward(x)")
        self.add(0, "ops.assign_sub(self.w0, grads[0] * 0.25)", "self.w0 -= grads * np.float32(0.25)")
        self.names.append("kept")


class Overwritten:
    """The network of a seed."""

    def __init__(self, seed: int) -> None:
        made = Statements(seed)
        made.block(0, made.rng.randint(2, 4), False)
        if made.rng.random() < 0.5:
            made.train()
        made.block(0, made.rng.randint(3, 8), False)
        results = ", ".join([*made.names, *(f"self.w{i} + 0" for i in range(WEIGHTS))])
        forward = made.taken("self.w0")
        self.mode = made.rng.choice(["semi_auto_parallel", "auto_parallel"])
        self.shard = made.rng.choice(["", ".shard(((2, 1), ()))", ".shard(((1, 2), ()))"])
        scale = made.rng.choice(["x", "self.w1[:]"])
        self.lines = made.lines
        self.results = results
        self.forward = (
            f"        y = {forward[0]}\n        return (y * {scale}).sum(), y\n",
            f"        y = {forward[1]}\n        factor = {'x' if scale == 'x' else 'self.w1'}.copy()\n"
            f"        return y, factor * np.float32({0.5 if '0.5' in forward[1] else 1})"
            f" * np.float32({0 if 'stop_gradient' in forward[0] else 1})\n",
        )

    def script(self, shard: bool = False) -> str:
        head = HEAD.format(weights=WEIGHTS, shard=self.shard if shard else "")
        return self._text(head, 0, FOOT)

    def on_ranks(self, folder: str) -> str:
        return self.script(self.mode == "semi_auto_parallel") + ON_RANKS.format(mode=self.mode, ranks=2, folder=folder)

    def played(self) -> str:
        return self._text(PLAYED.format(weights=WEIGHTS), 1, "")

    def _text(self, head: str, way: int, foot: str) -> str:
        shared = SHARED.format(size=ROWS * COLUMNS, rows=ROWS, columns=COLUMNS)
        body = "\n".join(line[way] for line in self.lines)
        forward = "\n    def forward(self, x):\n" + self.forward[way]
        main = f"\n    def construct(self, x):\n{body}\n        return {self.results}\n"
        return shared + head + forward + main + foot.format(steps=STEPS)


def module(text: str, folder: Path, name: str) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"overwritten_{folder.name}_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def wanted(network: Overwritten, folder: Path) -> dict[str, np.ndarray]:
    made = module(network.played(), folder, "played")
    net, found = made.Net(), dict[str, np.ndarray]()
    for step in range(STEPS):
        for i, value in enumerate(net.construct(made.fed(step))):
            found[f"{step}.{i}"] = np.array(value)
    return found


def on_gpu(network: Overwritten, folder: Path) -> dict[str, np.ndarray]:
    made = module(network.script(), folder, "on_gpu")
    net = made.Net()
    compiled = compile_call(net, [Tensor(made.fed(0))], Config(device="GPU"))
    graph, device = compiled.rank_graph(0), gpu(folder / "kernels")
    values: dict[str, Any] = {}
    for parameter in graph.parameters:
        if parameter.kind == "parameter":
            values[parameter.name] = compiled.traced.parameters[parameter.name].asnumpy()
        elif parameter.kind == "constant":
            values[parameter.name] = np.asarray(compiled.traced.constants[parameter.name])
    memory = GpuMemory(device)
    executor = GpuExecutor(graph, device, {name: memory.place(value) for name, value in values.items()})
    found: dict[str, np.ndarray] = {}
    for step in range(STEPS):
        for i, value in enumerate(executor.run([made.fed(step)])):
            found[f"{step}.{i}"] = np.array(value)
    return found


def wrong(seed: int, places: Sequence[str] = ("alone", "ranks", "gpu")) -> list[str]:
    """Where the network of a seed gives other values than NumPy."""
    network, found = Overwritten(seed), list[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        right = wanted(network, folder)
        for place in places:
            if place == "alone":
                results = [module(network.script(), folder, "alone").main()]
            elif place == "ranks":
                results = run(network.on_ranks(name), 2, folder)
            else:
                results = [on_gpu(network, folder)]
            for rank, each in enumerate(results):
                away = [key for key, value in right.items() if far(each[key], value) > 1e-5]
                if away:
                    found.append(f"{place} {rank}: {', '.join(away)}")
    return found


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    places = sys.argv[3].split(",") if len(sys.argv) > 3 else ("alone", "ranks", "gpu")
    failed = 0
    for seed in range(first, first + count):
        try:
            told = wrong(seed, places)
        except Exception as error:  # whatever it is, it is a finding
            told = [f"{type(error).__name__}: {str(error).strip()[:600]}"]
        if told:
            failed += 1
            print(seed, *told, sep="\n  ")
    print(f"{count} networks, {failed} wrong")


if __name__ == "__main__":
    main()
