"""What all programs of a network start from: first values of its parameters by name, and ways to draw data.

Needs NumPy alone, since each program has other libraries. A parameter's name is its path of attributes, the same in
every framework; layers' own words for the last part of it (`gamma`, `embedding_table`) are brought to one.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import zlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

SEED = 1
TABLES = ("embedding", "position", "token", "relative")
"""Parts of the names of what is looked up or added: small first values whatever the shape."""
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


def first_value(name: str, shape: tuple[int, ...]) -> Any:
    """Float32 first value of the parameter `name`: it depends on the seed, the name and the shape alone.

    Vectors are near 1 (weights of norms), near 0.1 (scales of layers) or near 0 (biases); tables are small; weights
    [out, in, ...] keep the variance of what they multiply.
    """
    name = same_name(name)
    generator = np.random.default_rng([SEED, zlib.crc32(name.encode())])
    value = generator.standard_normal(shape, np.float32)
    last = name.rpartition(".")[2]
    if any(part in name for part in TABLES):
        return 0.02 * value
    if len(shape) == 1:
        return 0.02 * value + {"weight": 1.0, "layer_scale": 0.1}.get(last, 0.0)
    inputs = shape[-1] if len(shape) == 3 else math.prod(shape[1:])  # three are matrices of several experts
    return value / np.float32(math.sqrt(inputs))


def drawn() -> np.random.Generator:
    """The generator of a network's data."""
    return np.random.default_rng(SEED + 1)
