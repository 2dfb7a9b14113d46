"""What all programs of a network start from: first values of its parameters by name, and ways to draw data.

Needs NumPy alone, since each program has other libraries. A parameter's name is its path of attributes, the same in
every framework; layers' own words for the last part of it (`gamma`, `embedding_table`) are brought to one.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

SEED = 1
TABLES = ("embedding", "position", "token", "relative")
"""Parts of the names of what is looked up or added: small first values whatever the shape."""
PIECE = 1 << 20
"""Elements that are drawn in one go."""
LAST = {"gamma": "weight", "beta": "bias", "embedding_table": "weight"}
NETWORKS = ("gpt2", "llama", "bert", "vit", "t5", "unet", "convnext", "experts", "recommender", "lstm")


@dataclass(frozen=True)
class Optimizer:
    """`kind` is "adamw" (decay beside the gradient), "adam" or "sgd"; gradients longer than `clip` are clipped to it
    by their global norm, where it is given."""

    kind: str
    rate: float
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip: float | None = None


def sizes_of(network: str, size: str, random: bool = True) -> tuple[ModuleType, Any]:
    """The module of a network's sizes, and its set `size` ("gpu" or "cpu"); without `random` nothing is dropped."""
    module = importlib.import_module(f"benchmarks.gpu.networks.{network}.sizes")
    sizes = {"gpu": module.GPU, "cpu": module.CPU}[size]
    if random:
        return module, sizes
    rates = [field.name for field in dataclasses.fields(sizes) if field.name.startswith("drop")]
    return module, dataclasses.replace(sizes, **dict.fromkeys(rates, 0.0))


def same_name(name: str) -> str:
    """A parameter's name in all frameworks."""
    path, dot, last = name.rpartition(".")
    return path + dot + LAST.get(last, last)


def first_values(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Float32 first values of parameters by name, which depend on the seed, the name and the shape alone.

    They are drawn on all cores in pieces, as every program's start waits for them.

    Vectors are near 1 (weights of norms), near 0.1 (scales of layers) or near 0 (biases); tables are small; weights
    [out, in, ...] keep the variance of what they multiply.
    """
    values = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
    pieces = [
        (name, start, value.reshape(-1)[start : start + PIECE])
        for name, value in values.items() for start in range(0, value.size, PIECE)
    ]  # fmt: skip

    def draw(name: str, start: int, piece: Any) -> None:
        scale, shift = _scale(same_name(name), shapes[name])
        seeds = [SEED, zlib.crc32(same_name(name).encode())] + [start] * (start > 0)
        np.random.default_rng(seeds).standard_normal(out=piece, dtype=np.float32)
        piece *= np.float32(scale)
        if shift:
            piece += np.float32(shift)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for drawing in [pool.submit(draw, *piece) for piece in pieces]:
            drawing.result()
    return values


def _scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """The deviation and the mean of a parameter's first values."""
    if any(part in name for part in TABLES):
        return 0.02, 0.0
    if len(shape) == 1:
        return 0.02, {"weight": 1.0, "layer_scale": 0.1}.get(name.rpartition(".")[2], 0.0)
    inputs = shape[-1] if len(shape) == 3 else math.prod(shape[1:])  # three are matrices of several experts
    return 1 / math.sqrt(inputs), 0.0


def drawn() -> np.random.Generator:
    """The generator of a network's data."""
    return np.random.default_rng(SEED + 1)
