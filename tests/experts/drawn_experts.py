"""Draws layers of experts, and on how many ranks they are trained: scripts for the ranks and for one device.

Both write to `rank_R.npz` in their folder the loss, all gradients, and the parameters behind two steps.
"""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = (Path(__file__).parent / "layers.py").read_text(encoding="utf-8")
FORMS = ("one_hot", "slots", "sorted", "tables")
WAYS = {
    "one_hot": ("",), "tables": ("",), "slots": ("elements", "update", "sums"),
    "sorted": ("permute", "gather", "weighted", "sums"),
}  # fmt: skip
"""How rows come to the experts and back, where a form has several ways."""

_TEXT = """
from types import SimpleNamespace

from mspc.communication import get_rank, init

ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_auto_parallel_context({settings})
net = Net([SimpleNamespace(**each) for each in {layers}])
params = net.trainable_params()
optimizer = nn.Momentum(params, 0.1, 0.9)
grad = ms.value_and_grad(net, 0, params)
values = {{}}
drawn = np.random.RandomState(7)
x, y = drawn.randn({batch}, {length}, {width}), drawn.randn({batch}, {length}, {width})
mine = slice({mine})
loss, (dx, gradients) = grad(Tensor(x[mine]), Tensor(y[mine]))
values |= {{"loss": loss.asnumpy(), "gradient of x": dx.asnumpy()}}
values |= {{f"gradient of {{p.name}}": g.asnumpy() for p, g in zip(params, gradients)}}
step = nn.TrainOneStepCell(net, optimizer).set_train()
for i in range(2):
    values[f"step {{i}}"] = step(Tensor(x[mine]), Tensor(y[mine])).asnumpy()
values |= {{p.name: p.asnumpy() for p in net.get_parameters()}}
np.savez({folder!r} + f"/rank_{{get_rank()}}.npz", **values)
"""


class DrawnExperts:
    """Layers that a seed draws. only: forms. about: what was drawn. ranks: how many there are."""

    tolerance = 1e-10

    def __init__(self, seed: int, only: tuple[str, ...] = FORMS) -> None:
        r = random.Random(seed)
        self.ranks = r.choice((2, 3, 4, 4, 6, 8, 8, 12, 16))
        form = r.choice(only)
        inner = r.choice([n for n in (1, 1, 1, 2) if self.ranks % n == 0])
        left = self.ranks // inner
        parts = r.choice([n for n in range(1, left + 1) if left % n == 0])
        outer = left // parts
        self._batch = self.ranks * r.choice((1, 1, 2))
        self._length = r.choice((1, 2, 3, 4)) * inner
        self._width = 4 * r.choice((1, 2))
        first = self._layer(r, form, (outer, parts, inner))
        self._layers = [first] + [self._layer(r, form, (outer, parts, inner)) for _ in range(r.choice((0, 0, 1)))]
        self._feeds = r.choice(("full_batch", "data_parallel"))
        self._sharded_updates = r.random() < 0.3
        self.about = (
            f"{form} {first['way']}, {self.ranks} ranks, {outer} x {parts} x {inner}, {first['experts']} experts, "
            f"{len(self._layers)} layers, {self._feeds}{', shared updates' * self._sharded_updates}"
        )

    def _layer(self, r: random.Random, form: str, cut: tuple[int, int, int]) -> Mapping[str, Any]:
        """Settings of a layer."""
        groups = r.choice((1, 1, 2))
        each = cut[1] * groups * r.choice((1, 2) if cut[1] > 4 else (1, 2, 4))
        experts = max(each, 2 * groups)
        chosen = min(r.choice((1, 2, 2, 3)), experts // groups)
        rows = self._batch * self._length if form == "slots" else self._length
        capacity = max(1, round(r.choice((0.3, 1.0, 3.0)) * rows * chosen / experts))
        return {
            "form": form, "way": r.choice(WAYS[form]), "cut": cut, "experts": experts, "chosen": chosen,
            "width": self._width, "hidden": 2 * cut[2] * r.choice((1, 2)), "capacity": capacity,
            "ties": r.random() < 0.3, "unwanted": r.choice((0, 0, experts - chosen)) if groups == 1 else 0,
            "groups": groups, "kept": 1, "sigmoid": r.random() < 0.4, "bias": r.choice((0.0, 0.0, 1.0)),
            "normalised": r.random() < 0.5, "scale": r.choice((1.0, 2.5)), "biased": r.random() < 0.4,
            "shared": r.random() < 0.5, "drop_type": r.choice((0, 1)),
        }  # fmt: skip

    def on_rank(self, name: str, rank: int, value: np.ndarray) -> np.ndarray:
        """A rank's part of a value of one device; of a gradient of its own rows it has these alone."""
        if name != "gradient of x" or self._feeds == "full_batch":
            return value
        return np.split(value, self.ranks)[rank]

    def sharded(self, folder: str) -> str:
        """The script for all ranks."""
        each = 0 if self._feeds == "full_batch" else self._batch // self.ranks
        return self._text(
            folder, self._layers, f"get_rank() * {each}, get_rank() * {each} + {each or self._batch}",
            f"parallel_mode='semi_auto_parallel', dataset_strategy={self._feeds!r}, "
            f"enable_parallel_optimizer={self._sharded_updates}",
        )  # fmt: skip

    def alone(self, folder: str) -> str:
        """The script for one device."""
        layers = [{**layer, "cut": None} for layer in self._layers]
        return self._text(folder, layers, f"0, {self._batch}", "parallel_mode='stand_alone'")

    def _text(self, folder: str, layers: list[Any], mine: str, settings: str) -> str:
        return LAYERS + _TEXT.format(
            folder=folder, layers=layers, mine=mine, settings=settings, batch=self._batch, length=self._length,
            width=self._width,
        )  # fmt: skip
