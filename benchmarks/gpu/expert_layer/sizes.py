"""Sizes, data and first values of a layer of experts, the same in every framework; needs NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.networks.start import drawn, first_values


@dataclass(frozen=True)
class Sizes:
    """Every token goes to `chosen` of `experts`, each three matrices of width times hidden."""

    tokens: int
    width: int
    hidden: int
    experts: int = 8
    chosen: int = 2

    @property
    def rows(self) -> int:
        """Rows of all experts' products."""
        return self.tokens * self.chosen

    @property
    def operations(self) -> float:
        """Of a step's products: three forward, and two for the gradients of each."""
        return 9 * 2.0 * self.rows * self.width * self.hidden

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the parameters: matrices [in, out]."""
        wide = (self.experts, self.width, self.hidden)
        return {
            "router": (self.width, self.experts), "gate": wide, "up": wide,
            "down": (self.experts, self.hidden, self.width),
        }  # fmt: skip


SIZES = {"gpu": Sizes(8192, 4096, 14336), "cpu": Sizes(256, 64, 96)}
READ = (*SIZES["gpu"].shapes, "tokens")
"""Gradients by whose norms the programs are compared."""


def values(sizes: Sizes) -> dict[str, Any]:
    """Float32 first values of the parameters, and "tokens"."""
    found = first_values(sizes.shapes)
    return {**found, "tokens": drawn().standard_normal((sizes.tokens, sizes.width), np.float32)}
