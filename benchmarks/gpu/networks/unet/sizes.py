"""Sizes of a U-Net that denoises (Ho et al. 2020): GroupNorm, SiLU, self-attention in the middle, nearest upsampling,
concatenated skips, a time added in every block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.networks.start import Optimizer, drawn


@dataclass(frozen=True)
class Sizes:
    channels: tuple[int, ...]
    groups: int
    heads: int
    side: int
    batch: int
    colours: int = 3

    @property
    def time(self) -> int:
        """Length of what the time becomes."""
        return 4 * self.channels[0]


GPU = Sizes(channels=(128, 256, 512), groups=32, heads=8, side=64, batch=32)
CPU = Sizes(channels=(32, 64, 128), groups=8, heads=4, side=32, batch=8)
"""Channels of every level; each is half as high and wide as the one before."""
OPTIMIZER = Optimizer("adam", 2e-4)


def data(sizes: Sizes) -> tuple[Any, ...]:
    """Noisy images and their noise, Float32 [batch, colours, side, side]; waves of their times [batch, channels[0]]."""
    draw, shape = drawn(), (sizes.batch, sizes.colours, sizes.side, sizes.side)
    images, noise = (draw.standard_normal(shape, np.float32) for _ in range(2))
    half = sizes.channels[0] // 2
    waves = draw.integers(0, 1000, (sizes.batch, 1)) * 10000.0 ** (-np.arange(half) / half)
    return images, np.concatenate((np.sin(waves), np.cos(waves)), 1).astype(np.float32), noise
