"""Puts into the scripts of drawn networks what others do not draw: optimizers with states, states and activations on
the host, levels of optimizer parallel, searched layouts.

Networks are those of sharded sequences, of experts and of pipelines (`tests/context`, `tests/experts`,
`tests/pipelining`), each with the script that it has for one device, which gets the optimizer alone.
"""

import random
import re

import numpy as np

from tests.context.drawn_network import DrawnNetwork as Sequences
from tests.experts.drawn_experts import DrawnExperts
from tests.pipelining.drawn_network import DrawnNetwork as Pipeline

KINDS = ("sequences", "experts", "pipeline")
_OPTIMIZERS = ("nn.Momentum({}, 0.05, 0.9)", "nn.Adam({}, 0.01)", "nn.AdamWeightDecay({}, 0.01)")
LOOSE = 1e-6
"""From this tolerance on a network computes in halves."""
_LEVELS = ("level1", "level2", "level3")
_SETTINGS = re.compile(r"^ms\.set_auto_parallel_context\(.*\)$", re.MULTILINE)
_TRAINED = "nn.SGD(net.trainable_params(), 0.1)"
_STATES = 'values |= {{p.name: p.asnumpy() for p in {}.get_parameters()}}\nnp.savez'


class Combination:
    """The choices of a seed. kind: of network; "" for any. about: what was drawn. ranks, tolerance: of the network."""

    def __init__(self, seed: int, kind: str = "") -> None:
        r = random.Random(f"combination {seed}")
        kind = kind or r.choice(KINDS)
        drawn = {"sequences": Sequences, "experts": DrawnExperts, "pipeline": _trained_pipeline}[kind](seed)
        self._drawn, self.ranks = drawn, drawn.ranks
        self.tolerance = drawn.tolerance
        self._optimizer = r.choice(_OPTIMIZERS)
        self._level = r.choice(_LEVELS) if kind != "pipeline" and r.random() < 0.6 else ""
        self._searched = kind == "sequences" and r.random() < 0.3
        self._states = r.choice((0, 0, 1, 3)) if r.random() < 0.7 else -1
        self._layers = [r.choice(('"Auto"', "1", "2", "7")) if r.random() < 0.6 else "" for _ in range(8)]
        told = {"states on the host": self._states >= 0, self._level: bool(self._level), "searched": self._searched}
        self.about = ", ".join([kind, drawn.about, *(name for name, is_so in told.items() if is_so)])

    def on_rank(self, name: str, rank: int, value: np.ndarray) -> np.ndarray:
        """A rank's part of a value of one device."""
        return self._drawn.on_rank(name, rank, value)

    def alone(self, folder: str) -> str:
        """The script for one device."""
        return self._trained(self._drawn.alone(folder))

    def sharded(self, folder: str) -> str:
        """The script for all ranks."""
        text = self._trained(self._drawn.sharded(folder))
        more: list[str] = []
        if self._level:
            config = {"parallel_optimizer_threshold": 0, "optimizer_level": self._level}
            more.append(f"enable_parallel_optimizer=True, parallel_optimizer_config={config}")
        if self._searched:
            more.append("parallel_mode='auto_parallel', search_mode='dynamic_programming'")
        settings = "".join(f"\nms.set_auto_parallel_context({each})" for each in more)
        text = _SETTINGS.sub(lambda found: found[0] + settings, text, count=1)
        named = "type(layer).__name__ != 'Counter'"  # of which gradients read nothing
        marks = [f"    if i == {i} and {named}: layer.offload({p})" for i, p in enumerate(self._layers) if p]
        if marks:
            layers = "\n".join(["for i, layer in enumerate(net.layers):", *marks])
            text = re.sub(r"^(net = .*)$", lambda found: f"{found[0]}\n{layers}", text, count=1, flags=re.MULTILINE)
        if self._states >= 0:
            asked = f"optimizer.offload({self._states or ''})"
            text = re.sub(r"^(optimizer = .*)$", lambda found: f"{found[0]}\n{asked}", text, flags=re.MULTILINE)
        return text

    def _trained(self, text: str) -> str:
        """With an optimizer that has states, which are compared, too."""
        if _TRAINED in text:
            optimizer = self._optimizer.format("net.trainable_params()")
            text = text.replace("step = nn.TrainOneStepCell", f"optimizer = {optimizer}\nstep = nn.TrainOneStepCell", 1)
            text = text.replace(_TRAINED, "optimizer", 1)
        else:
            optimizer = self._optimizer.format("params")
            text = text.replace("optimizer = nn.Momentum(params, 0.1, 0.9)", f"optimizer = {optimizer}", 1)
        return text.replace("np.savez", _STATES.format("optimizer"), 1)


def _trained_pipeline(seed: int) -> Pipeline:
    """The first from a seed on that is trained in Float64."""
    while True:
        drawn = Pipeline(seed, only=("cell", "clipped", "scaled"))
        if drawn.tolerance < LOOSE:
            return drawn
        seed += 1_000_000
