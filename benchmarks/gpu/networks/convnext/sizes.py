"""Sizes of ConvNeXt (Liu et al. 2022): depthwise 7 x 7, LayerNorm over channels, scales of layers, dropped paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.networks.start import Optimizer, drawn


@dataclass(frozen=True)
class Sizes:
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    side: int
    classes: int
    batch: int
    drop_path: float = 0.1

    def paths(self) -> list[float]:
        """The share of dropped paths of every block."""
        count = sum(self.depths)
        return [self.drop_path * i / (count - 1) for i in range(count)]


GPU = Sizes(depths=(3, 3, 9, 3), widths=(96, 192, 384, 768), side=224, classes=1000, batch=64)
CPU = Sizes(depths=(1, 1, 2, 1), widths=(32, 64, 128, 256), side=64, classes=1000, batch=8)
OPTIMIZER = Optimizer("adamw", 3e-4, weight_decay=0.05)
SMOOTHING = 0.1


def data(sizes: Sizes) -> tuple[Any, ...]:
    """Images, Float32 [batch, 3, side, side], and their classes, int32 [batch]."""
    draw = drawn()
    images = draw.standard_normal((sizes.batch, 3, sizes.side, sizes.side), np.float32)
    return images, draw.integers(0, sizes.classes, sizes.batch).astype(np.int32)
