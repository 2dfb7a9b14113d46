"""Sizes of LLaMA (Touvron et al. 2023) with grouped key heads: RMSNorm, rotated queries and keys, SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.networks.start import Optimizer, drawn


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    vocabulary: int
    batch: int
    length: int


GPU = Sizes(layers=12, width=1024, heads=16, key_heads=4, hidden=2816, vocabulary=32000, batch=8, length=1024)
CPU = Sizes(layers=4, width=256, heads=8, key_heads=2, hidden=704, vocabulary=8000, batch=4, length=256)
OPTIMIZER = Optimizer("adamw", 3e-4, weight_decay=0.1)


def data(sizes: Sizes) -> tuple[Any, ...]:
    """Words and the words that follow them, int32 [batch, length]."""
    text = drawn().integers(0, sizes.vocabulary, (sizes.batch, sizes.length + 1)).astype(np.int32)
    return text[:, :-1].copy(), text[:, 1:].copy()


def angles(sizes: Sizes) -> Any:
    """Angles by which places turn pairs of a head's numbers, Float32 [length, size of a head]."""
    size = sizes.width // sizes.heads
    turned = np.outer(np.arange(sizes.length), 10000.0 ** (-np.arange(0, size, 2) / size))
    return np.concatenate((turned, turned), 1).astype(np.float32)
