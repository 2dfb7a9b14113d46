"""The transformer of pipelines.py: its sizes, and the weights and data that all its programs start from.

Twelve layers of pre-norm attention and feed-forward, mean squared error, SGD with momentum; float32 master weights,
computed in float32 (TF32 products) or in bfloat16. Needs NumPy alone, since each program has other libraries.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

RATE, MOMENTUM = 0.01, 0.9
WARM_UP = 20
"""Steps before the clock starts; their losses are compared."""


@dataclass(frozen=True)
class Sizes:
    """layers, width, heads, sequence and global batch of the network; data x tensor GPUs of each of the stages; "tf32"
    or "bf16"; the schedule of the stages, and in how many micro-batches the batch comes; the rate of learning; a
    table with another order of that schedule's work."""

    layers: int
    width: int
    heads: int
    sequence: int
    batch: int
    data: int
    tensor: int
    precision: str
    stages: int = 1
    schedule: str = ""
    micro_batches: int = 1
    rate: float = RATE
    order: str = ""

    @property
    def chunks(self) -> list[int]:
        """The stages of equal parts of the layers, in their order: a stage has one, or two by some schedules."""
        once = list(range(self.stages))
        return {"interleaved": once * 2, "zero_bubble_v": once + once[::-1]}.get(self.schedule, once)

    @property
    def places(self) -> list[int]:
        """The stage of every layer."""
        return [stage for stage in self.chunks for _ in range(self.layers // len(self.chunks))]

    @property
    def micro_batch(self) -> int:
        """Sequences of a micro-batch."""
        return self.batch // self.micro_batches

    @property
    def hidden(self) -> int:
        return 4 * self.width

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def rows(self) -> int:
        return self.batch * self.sequence


def parsed() -> tuple[Sizes, argparse.Namespace]:
    """The sizes, and the other options, of a program's command line."""
    parser = argparse.ArgumentParser()
    for name, value in (("layers", 12), ("width", 1024), ("heads", 16), ("sequence", 512), ("batch", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--data", type=int, default=1)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--schedule", default="")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--order", default="", help="a table of the order of the stages' work, which mspc reads")
    parser.add_argument("--rate", type=float, default=RATE, help="of learning")
    parser.add_argument("--precision", choices=("tf32", "bf16"), default="bf16")
    parser.add_argument("--steps", type=int, default=20, help="steps of one measurement")
    parser.add_argument("--repeats", type=int, default=5, help="measurements")
    options = parser.parse_args()
    return Sizes(**{each.name: getattr(options, each.name) for each in fields(Sizes)}), options


def weights(sizes: Sizes) -> list[dict[str, Any]]:
    """Float32 weights of every layer."""
    generator = np.random.default_rng(1)

    def drawn(inputs: int, outputs: int) -> Any:
        bound = math.sqrt(6 / (inputs + outputs))
        return generator.uniform(-bound, bound, (inputs, outputs)).astype(np.float32)

    width, hidden = sizes.width, sizes.hidden
    shapes = {"wq": (width, width), "wk": (width, width), "wv": (width, width), "wo": (width, width),
              "w1": (width, hidden), "w2": (hidden, width)}  # fmt: skip
    return [
        {
            **{name: drawn(*shape) for name, shape in shapes.items()},
            **{f"gamma{i}": np.ones(width, np.float32) for i in (1, 2)},
            **{f"beta{i}": np.zeros(width, np.float32) for i in (1, 2)},
        }
        for _ in range(sizes.layers)
    ]


def batch(sizes: Sizes) -> tuple[Any, Any]:
    """Float32 input and target, [rows, width]."""
    generator = np.random.default_rng(2)
    shape = (sizes.rows, sizes.width)
    return tuple(generator.standard_normal(shape).astype(np.float32) for _ in range(2))


def measured(step: Callable[[], Any], value: Callable[[Any], float], options: argparse.Namespace) -> dict[str, Any]:
    """Run a program's steps: {"first": seconds of the first step, "losses": of the warm-up, "times": seconds per step}.

    `step` may return before its work is done; `value` waits for a loss.
    """
    start = time.perf_counter()
    losses = [value(step())]
    first = time.perf_counter() - start
    losses += [value(step()) for _ in range(WARM_UP - 1)]
    times: list[float] = []
    for _ in range(options.repeats):
        start = time.perf_counter()
        for _ in range(options.steps):
            last = step()
        value(last)
        times.append((time.perf_counter() - start) / options.steps)
    return {"first": first, "losses": losses, "times": times, "median": statistics.median(times)}
