"""Sizes of a language model of LSTM layers (Zaremba et al. 2014): dropout between layers, a tied table, SGD with
clipped gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.networks.start import Optimizer, drawn


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    vocabulary: int
    batch: int
    length: int
    dropout: float = 0.65


GPU = Sizes(layers=2, width=1500, vocabulary=33278, batch=64, length=35)
CPU = Sizes(layers=2, width=256, vocabulary=8000, batch=32, length=32)
OPTIMIZER = Optimizer("sgd", 1.0, clip=0.25)


def data(sizes: Sizes) -> tuple[Any, ...]:
    """Words and the words that follow them, int32 [length, batch]."""
    text = drawn().integers(0, sizes.vocabulary, (sizes.length + 1, sizes.batch)).astype(np.int32)
    return text[:-1].copy(), text[1:].copy()
