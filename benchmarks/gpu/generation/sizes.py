"""Sizes of a decoder as LLaMA's, and first values that its programs start from; needs NumPy alone."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Sizes:
    """prompt: tokens ahead of the `most` that are generated, greedily."""

    layers: int = 12
    width: int = 1024
    hidden: int = 2816
    heads: int = 16
    key_heads: int = 8
    vocabulary: int = 32000
    prompt: int = 128
    most: int = 256

    @property
    def size(self) -> int:
        return self.width // self.heads

    @property
    def places(self) -> int:
        return self.prompt + self.most


SMALL = Sizes(2, 64, 128, 8, 4, 96, 8, 24)


def first_value(name: str, shape: tuple[int, ...]) -> Any:
    """Float32 first value of a weight, the same in every program."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    return generator.standard_normal(shape, np.float32) * np.float32(1.5 / np.sqrt(shape[-1]))


def prompt_of(sizes: Sizes, batch: int) -> Any:
    """Int32 tokens [batch, prompt]."""
    return np.random.default_rng(7).integers(0, sizes.vocabulary, (batch, sizes.prompt)).astype(np.int32)


def rotations(sizes: Sizes) -> tuple[Any, Any]:
    """Cosines and sines [places, size]."""
    frequencies = 10000.0 ** (-np.arange(0, sizes.size, 2, dtype=np.float32) / sizes.size)
    angles = np.arange(sizes.places, dtype=np.float32)[:, None] * np.concatenate([frequencies, frequencies])
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
