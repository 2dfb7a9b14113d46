"""How far two arrays that should be equal are apart, and how far they may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, element_types

Array = Any
TOLERANCES = {"Float64": 1e-12, "Float32": 1e-5, "Float16": 1e-2, "BFloat16": 5e-2}
"""Largest difference relative to the largest magnitude of the tensor, per element type."""


@dataclass(frozen=True)
class Row:
    """One compared value. difference: the largest, relative to the largest magnitude on one device; infinite where the
    shapes differ.

    excused: an updated parameter whose gradient and optimizer states agree; an optimizer that divides by the size of
        the gradient (Adam's first step is near lr * sign(gradient)) makes much of their last bits.
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    difference: float
    tolerance: float
    excused: bool = False

    @property
    def same(self) -> bool:
        return self.excused or self.difference <= self.tolerance

    @property
    def remark(self) -> str:
        if self.excused:
            return "rounding, grown by the update"
        return "" if self.same else "differs"


def compare(kind: str, name: str, expected: Array, found: Array | None, least: float) -> Row:
    """The row of one value; `found` is None where the ranks' parts do not fit together. `least`: the tolerance that
    floating-point values have at least."""
    names = {dtype.lower(): value for dtype, value in TOLERANCES.items()}
    tolerance = max(names[expected.dtype.name], least) if expected.dtype.name in names else 0.0
    if found is None or found.shape != expected.shape:
        return Row(kind, name, expected.shape, float("inf"), tolerance)
    wide = np.result_type(expected.dtype, np.float64)
    size = float(np.max(np.abs(expected.astype(wide)), initial=0.0))
    apart = float(np.max(np.abs(expected.astype(wide) - found.astype(wide)), initial=0.0))
    if np.isnan(found.astype(wide)).any() != np.isnan(expected.astype(wide)).any():
        apart = float("inf")
    return Row(kind, name, expected.shape, apart / size if size else apart, tolerance)


def coarsest(graph: Graph) -> float:
    """The tolerance of the narrowest floating-point type in the graph: in mixed precision all else is as exact."""
    types = {t.dtype.name for node in graph.nodes for t in element_types(node.type)}
    return max((TOLERANCES[name] for name in types if name in TOLERANCES), default=0.0)
