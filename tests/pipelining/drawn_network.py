"""Draws a network, where it is cut into stages, and how it is trained: scripts for a pipeline and for one device.

Both scripts write to `rank_R.npz` in their folder what every step gives, and all parameters and states in the end.
"""

import random
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

LAYERS = (Path(__file__).parent / "layers.py").read_text(encoding="utf-8")
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero_bubble_h1", "zero_bubble_2p", "zero_bubble_v", "dual_pipe_v")
THERE_AND_BACK = ("zero_bubble_v", "dual_pipe_v")
STEPS = 3
OPTIMIZERS = (
    "nn.SGD(GROUPS, 0.1, 0.9)", "nn.Adam(GROUPS, 0.01)", "nn.Momentum(GROUPS, 0.05, 0.9)",
    "nn.AdamWeightDecay(GROUPS, 0.01)", "nn.Lamb(GROUPS, 0.01)",
)  # fmt: skip
WAYS = ("cell", "clipped", "gradients", "scaled", "model", "inference")
"""How a network is trained: `TrainOneStepCell`, a function that clips by the norm of all gradients, one that hands
gradients on, `TrainOneStepWithLossScaleCell`, `Model.train`, or not at all."""

_TEXT = """
import mspc.dataset as ds
from mspc.communication import get_rank, init

ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_seed(1)
ms.set_auto_parallel_context({settings})


def make(shared):
    return [{layers}]


net = Net({width}, make, {repeated}, {tied}, {skips}, {long}, {several})
{marks}
cell = {cell}
params = cell.trainable_params()
decayed = [p for p in params if p.ndim > 1]
GROUPS = {groups}
optimizer = {optimizer}
held = list({{p.name: p for p in (*net.get_parameters(), *optimizer.get_parameters())}}.values())
values = {{}}
drawn = np.random.RandomState(7)
batches = [
    (drawn.randint(0, WORDS, ({rows}, TOKENS)).astype(np.int32), drawn.randn({rows}, TOKENS, {outputs}),
     drawn.randn({rows}, TOKENS, {width}))
    for _ in range({steps})
]
mine = slice({mine})
{train}
values |= {{p.name: p.asnumpy() for p in held}}
np.savez({folder!r} + f"/rank_{{get_rank()}}.npz", **values)
"""
_EACH = """
for i, batch in enumerate(batches):
    found = step(*[Tensor(each[mine]) for each in batch])
    for k, value in enumerate(flat(found)):
        values[f"step {i} {k}"] = value.asnumpy()
"""
_FLAT = """
def flat(found):
    return [leaf for each in found for leaf in flat(each)] if isinstance(found, (tuple, list)) else [found]
"""
_TRAIN = {
    "cell": _FLAT + "\nstep = nn.TrainOneStepCell(cell, optimizer).set_train()\n" + _EACH,
    "scaled": _FLAT + """
manager = nn.DynamicLossScaleUpdateCell(loss_scale_value=256, scale_factor=2, scale_window=2)
step = nn.TrainOneStepWithLossScaleCell(cell, optimizer, manager).set_train()
""" + _EACH,
    "clipped": _FLAT + """
grad = ops.value_and_grad(cell, None, optimizer.parameters, has_aux={several})
cell.set_train()


def one(*inputs):
    found, gradients = grad(*inputs)
    gradients = ops.clip_by_global_norm(gradients, 0.5)
    return ops.depend(found, optimizer(gradients))


step = ms.jit(one)
""" + _EACH,
    "gradients": _FLAT + """
grad = ops.value_and_grad(cell, {position}, optimizer.parameters, has_aux={several})
cell.set_train()


def one(*inputs):
    found, gradients = grad(*inputs)
    return found, gradients


step = ms.jit(one)
""" + _EACH,
    "model": """
model = ms.Model(cell, optimizer=optimizer)
cell.set_train()
data = ds.GeneratorDataset([tuple(each[mine] for each in batch) for batch in batches], ["x", "y", "second"],
                           shuffle=False)
model.train(1, data, dataset_sink_mode=False)
""",
    "inference": _FLAT + "\nstep = net.set_train({trains})\n" + _EACH,
}  # fmt: skip


TOLERANCES = {"": 1e-10, "float16": 2e-2, "bfloat16": 1e-1}
"""How far numbers may be apart, relative to numbers above one, by the half that a layer computes in."""


class DrawnNetwork:
    """A network that a seed draws.

    stages: 0 for any number. only: ways of training. schedule: "" for any. draws: some layers draw random numbers.
    about: what was drawn. ranks: of the pipeline.
    """

    def __init__(
        self, seed: int, stages: int = 0, only: Sequence[str] = WAYS, schedule: str = "", draws: bool = False
    ) -> None:
        self._r = r = random.Random(seed)
        self._stages = stages or r.choice((2, 2, 2, 3, 3, 4, 4, 8))
        most = {2: (1, 1, 2, 2, 4), 3: (1, 1, 2, 2, 4), 4: (1, 2)}
        self._per_stage = r.choice(most.get(self._stages, (1,)))
        self._width = r.choice((8, 16))
        self._parts = max(self._stages, r.choice((1, 2, 3, 4, 5, 6, 8, 12, 16)))
        self._rows = self._parts * r.choice((4, 8))
        self._way = r.choice(only)
        drawn = r.choice(SCHEDULES)
        self._schedule = schedule or drawn
        self._halves = r.choice(("float16", "bfloat16")) if r.random() < 0.08 and self._way != "scaled" else ""
        feeds = ("full_batch", "data_parallel", "strategies") if self._per_stage > 1 else ("full_batch",)
        self._feeds = r.choice(feeds)
        self._sharded_updates = self._per_stage > 1 and r.random() < 0.3
        self._several = r.random() < 0.3 and self._way in ("clipped", "gradients", "inference")
        self._layers = [self._layer() for _ in range(r.randint(1, 7))]
        if self._way == "scaled":
            self._layers.insert(r.randint(0, len(self._layers)), "Overflowing({width})")
        for _ in range(r.randint(1, 3) if draws else 0):
            self._layers.insert(r.randint(0, len(self._layers)), "Dropped({width})")
        self._repeated = r.choice((0, 0, 4, 6, 9))
        self._cut()
        self._train = self._training()
        self.ranks = self._stages * self._per_stage
        self.tolerance = TOLERANCES[self._halves]
        self.about = (
            f"{self._stages} stages of {self._per_stage}, {self._parts} micro-batches, {self._schedule}, {self._way}, "
            f"{self._feeds}{', shared updates' * self._sharded_updates}{', ' * bool(self._halves)}{self._halves}"
        )

    def on_rank(self, name: str, rank: int, wanted: np.ndarray) -> np.ndarray:
        """A rank has everything that one device has."""
        return wanted

    def sharded(self, folder: str) -> str:
        """The script for all ranks."""
        n = self._per_stage
        each = 0 if self._feeds == "full_batch" else self._rows // n
        fed = ((n, 1), (n, 1, 1), (n, 1, 1)) if self._feeds == "strategies" else self._feeds
        name = "1f1b" if self._schedule == "interleaved" else self._schedule
        return self._text(
            folder, self._layers, "\n".join([*self._homes, *self._marks]), f"nn.PipelineCell(net, {self._parts})",
            f"get_rank() % {n} * {each}, get_rank() % {n} * {each} + {each or self._rows}",
            f"parallel_mode='semi_auto_parallel', dataset_strategy={fed!r}, "
            f"enable_parallel_optimizer={self._sharded_updates}, pipeline_stages={self._stages}, "
            f"pipeline_config={{'pipeline_scheduler': {name!r}, "
            f"'pipeline_interleave': {self._schedule == 'interleaved'}}}",
        )  # fmt: skip

    def alone(self, folder: str) -> str:
        """The script for one device."""
        layers = [re.sub(r", cut=.*\)$", ")", layer) for layer in self._layers]
        added = f"Added(net, {self._parts}, {self._several})"
        if "Dropped({width})" in layers:  # random numbers depend on the turn of the loop over micro-batches
            added = f"nn.PipelineCell(net, {self._parts})"
        return self._text(
            folder, layers, "\n".join(self._marks), added, f"0, {self._rows}", "parallel_mode='stand_alone'"
        )

    def _text(self, folder: str, layers: Sequence[str], marks: str, cell: str, mine: str, settings: str) -> str:
        return LAYERS + _TEXT.format(
            layers=", ".join(layer.format(width=self._width) for layer in layers), marks=marks, folder=folder,
            cell="net" if self._way == "inference" else cell, mine=mine, settings=settings, train=self._train,
            width=self._width, repeated=self._repeated, tied=self._tied, several=self._several, rows=self._rows,
            steps=STEPS, skips=self._skips, long=self._long, outputs=16 if self._tied else self._width,
            groups=self._groups, optimizer=self._optimizer,
        )  # fmt: skip

    def _cut(self) -> None:
        """Draw the stages of cells, and what is marked in both scripts."""
        r, count = self._r, len(self._layers)
        cells = [f"net.layers[{i}]" for i in range(count)] + [f"net.repeated[{i}]" for i in range(self._repeated)]
        places: list[int] = list(range(self._stages))
        if self._schedule in THERE_AND_BACK:
            places += reversed(places)
        elif self._schedule == "interleaved":
            places *= r.choice((1, 2, 3))
        borders = sorted(r.randint(0, len(cells)) for _ in places[1:])
        homes = [places[sum(border <= i for border in borders)] for i in range(len(cells))]
        given = 0.9 if self._way == "inference" else 1.0
        self._homes = [
            f"{cell}.pipeline_stage = {home}" for cell, home in zip(cells, homes, strict=True) if r.random() < given
        ]
        if r.random() < 0.5:
            self._homes.append(f"net.head.pipeline_stage = {places[-1]}")
        self._marks = [f"{cell}.recompute()" for cell in cells[:count] if r.random() < 0.15]
        takes_halves = ("Dense", "Wide", "Attention", "Frozen", "Shared")
        own = [cell for cell, layer in zip(cells, self._layers, strict=False) if layer.startswith(takes_halves)]
        if self._halves and own:
            self._marks.append(f"{r.choice(own)}.to_float(ms.{self._halves})")

    def _training(self) -> str:
        """Draw how the network ends and is trained."""
        r, count = self._r, len(self._layers)
        self._tied = r.random() < 0.5
        self._skips = tuple(i for i in range(count) if r.random() < 0.4)
        self._long = tuple(i for i in range(2, count) if r.random() < 0.25)
        self._optimizer = r.choice(OPTIMIZERS)
        self._groups = "params"
        if r.random() < 0.4:
            self._groups = "[{'params': decayed, 'weight_decay': 0.1}, {'params': [p for p in params if p.ndim == 1]}]"
        position = "2" if self._feeds == "full_batch" and r.random() < 0.5 else "None"
        text = _TRAIN[self._way].replace("{several}", str(self._several)).replace("{position}", position)
        return text.replace("{trains}", str(r.random() < 0.5))

    def _layer(self) -> str:
        """The text of a layer."""
        r = self._r
        kind = r.choice(("Dense",) * 5 + ("Wide", "Norm", "Norm", "Attention", "Attention", "Statistics", "Counter",
                                          "Mean", "Shared", "Shared", "Frozen", "Alone"))  # fmt: skip
        if kind == "Shared":
            return "Shared(shared)"
        if kind == "Attention":
            return f"Attention({{width}}, {r.random() < 0.5})"
        if kind != "Dense":
            return f"{kind}({{width}})"
        n, function = self._per_stage, r.choice(("tanh", "relu", "sigmoid"))
        cuts = [None, ((1, n), (n, 1)), ((1, 1), (1, n)), ((n, 1), (1, 1)), ((n, 1), (1, 1))]
        return f"Dense({{width}}, {function!r}, cut={r.choice(cuts) if n > 1 else None})"
