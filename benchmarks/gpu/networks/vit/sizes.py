"""Sizes of ViT (Dosovitskiy et al. 2020), with dropout, dropped paths and smoothed labels."""

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
    side: int
    patch: int
    classes: int
    batch: int
    dropout: float = 0.1
    drop_path: float = 0.1


GPU = Sizes(layers=12, width=768, heads=12, side=224, patch=16, classes=1000, batch=64)
CPU = Sizes(layers=4, width=256, heads=8, side=64, patch=8, classes=1000, batch=16)
OPTIMIZER = Optimizer("adamw", 3e-4, weight_decay=0.05)
SMOOTHING = 0.1


def data(sizes: Sizes) -> tuple[Any, ...]:
    """Images, Float32 [batch, 3, side, side], and their classes, int32 [batch]."""
    draw = drawn()
    images = draw.standard_normal((sizes.batch, 3, sizes.side, sizes.side), np.float32)
    return images, draw.integers(0, sizes.classes, sizes.batch).astype(np.int32)
