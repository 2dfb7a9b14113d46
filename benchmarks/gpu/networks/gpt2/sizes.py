"""Sizes of GPT-2 (Radford et al. 2019): learnt positions, norms ahead of attention and MLP, dropout, a tied table."""

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
    vocabulary: int
    batch: int
    length: int
    dropout: float = 0.1


GPU = Sizes(layers=12, width=768, heads=12, vocabulary=50304, batch=8, length=1024)
CPU = Sizes(layers=4, width=256, heads=8, vocabulary=8000, batch=4, length=256)
OPTIMIZER = Optimizer("adamw", 3e-4, weight_decay=0.1)


def data(sizes: Sizes) -> tuple[Any, ...]:
    """Words and the words that follow them, int32 [batch, length]."""
    text = drawn().integers(0, sizes.vocabulary, (sizes.batch, sizes.length + 1)).astype(np.int32)
    return text[:, :-1].copy(), text[:, 1:].copy()
