"""Sizes of a language model of experts (Shazeer et al. 2017, Fedus et al. 2021): two of eight for every word, as many
words for each as it has room for, a loss that evens out who is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.networks.start import Optimizer, drawn


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    heads: int
    hidden: int
    experts: int
    chosen: int
    vocabulary: int
    batch: int
    length: int
    room: float = 1.25

    @property
    def capacity(self) -> int:
        """Words for which an expert has room."""
        return math.ceil(self.room * self.chosen * self.batch * self.length / self.experts)


GPU = Sizes(layers=8, width=1024, heads=16, hidden=2816, experts=8, chosen=2, vocabulary=32000, batch=8, length=1024)
CPU = Sizes(layers=4, width=256, heads=8, hidden=512, experts=8, chosen=2, vocabulary=8000, batch=4, length=256)
OPTIMIZER = Optimizer("adamw", 3e-4, weight_decay=0.1)
EVEN = 0.01
"""Weight of the loss that evens out."""


def data(sizes: Sizes) -> tuple[Any, ...]:
    """Words and the words that follow them, int32 [batch, length]."""
    text = drawn().integers(0, sizes.vocabulary, (sizes.batch, sizes.length + 1)).astype(np.int32)
    return text[:, :-1].copy(), text[:, 1:].copy()
