"""Measures how far two arrays that should be equal are apart, and decides how far they may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, element_types
from mspc.ir.late_dataclass import dataclass

Array = Any
TOLERANCES = {"Float64": 1e-12, "Float32": 1e-5, "Float16": 1e-2, "BFloat16": 5e-2}
"""Largest difference relative to the largest magnitude of the tensor, per element type."""
GROWTH = 8.0
"""How many times the measured noise of one device a value may be apart from it."""
STORED = 4.0
"""Rounding errors that a parameter may take on as its change is added to it."""


@dataclass(frozen=True)
class Noise:
    """How far a value of one device moves if its inputs move by rounding errors.

    largest: of all elements. mean: the root of the mean square, which a few elements hardly move.
    """

    largest: float = 0.0
    mean: float = 0.0


@dataclass(frozen=True)
class ComparedValue:
    """One compared value. difference: the largest, relative to the largest magnitude on one device (for a parameter
    that changed wrongly, to the largest change); infinite if the shapes differ.

    stage: the pipeline stage whose ranks hold the wrong value; None if several do or there are no stages. excused:
    beyond the tolerance, but within the effect of rounding on one device: a gradient that is zero but for it, or an
    optimizer that divides by the size of the gradient (Adam's first step is near lr * sign(gradient)).
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    difference: float
    tolerance: float
    excused: bool = False
    stage: int | None = None

    @property
    def same(self) -> bool:
        return self.excused or self.difference <= self.tolerance

    @property
    def remark(self) -> str:
        if self.excused:
            return "rounding, grown by the update" if self.kind == "parameter" else "no more than rounding"
        return "" if self.same else "differs" if self.stage is None else f"differs on stage {self.stage}"

    def badness(self) -> tuple[bool, bool, float]:
        """Return a key that is the largest for the worst of several values."""
        return not self.same, self.excused, self.difference


def compare(
    kind: str, name: str, expected: Array, found: Array | None, least: float, noise: Callable[[], Noise] = Noise,
    before: Array | None = None,
) -> ComparedValue:  # fmt: skip
    """Return the row of one value. found: None if the ranks' slices do not fit together. least: the smallest tolerance
    of floating-point values. noise: measures the effect of rounding; called only if the values differ by more than the
    tolerance. before: a parameter's first value; if given, its change is compared, too."""
    floating = _floating(expected)
    tolerance = max(TOLERANCES[floating], least) if floating else 0.0
    if found is None or found.shape != expected.shape:
        return ComparedValue(kind, name, expected.shape, float("inf"), tolerance)
    apart, size = _apart(expected, found), largest_of(expected)
    largest, mean = _largest(apart), _mean(apart)
    difference = largest / size if size else largest

    def is_within(allowed: float) -> bool:
        if not np.isfinite(largest) or max(largest, mean) <= allowed:
            return largest <= allowed
        rounding = noise()
        return largest <= allowed + GROWTH * rounding.largest and mean <= allowed + GROWTH * rounding.mean

    excused = difference > tolerance and is_within(tolerance * size)
    if tolerance and before is not None and (difference <= tolerance or excused):
        change = largest_of(_apart(expected, before))
        rounding = STORED * epsilon_of(_floating(expected)) * max(size, largest_of(before))
        if not is_within(tolerance * change + rounding):
            return ComparedValue(kind, name, expected.shape, largest / change if change else float("inf"), tolerance)
    return ComparedValue(kind, name, expected.shape, difference, tolerance, excused)


def noise_between(expected: Array, perturbed: Iterable[Array]) -> Noise:
    """Measure how far a value moved in some runs. Elements that are not finite count as unmoved."""
    largest = mean = 0.0
    for array in perturbed:
        apart = _apart(expected, array)
        if np.isfinite(apart).all():
            largest, mean = max(largest, _largest(apart)), max(mean, _mean(apart))
    return Noise(largest, mean)


def _apart(expected: Array, found: Array) -> Array:
    """Return the distances of the elements: 0 if both are the same infinity or NaN, infinite if one of them is."""
    wide = np.result_type(expected.dtype, np.float64)
    a, b = expected.astype(wide), found.astype(wide)
    with np.errstate(all="ignore"):
        apart = np.abs(a - b)
    if np.isfinite(apart).all():
        return apart
    apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, apart)
    return np.where(np.isnan(apart), np.inf, apart)


def largest_of(array: Array) -> float:
    """Return the largest magnitude of the finite elements of an array, 0 if there is none."""
    wide = np.abs(np.asarray(array).astype(np.result_type(array.dtype, np.float64)))
    return float(np.max(wide, initial=0.0, where=np.isfinite(wide)))


def _largest(apart: Array) -> float:
    return float(np.max(apart, initial=0.0))


def _mean(apart: Array) -> float:
    return float(np.sqrt(np.mean(np.square(apart)))) if apart.size else 0.0


def _floating(array: Array) -> str:
    """Name the floating-point type of an array, of the parts if it is complex, or ""."""
    known = {name.lower(): name for name in TOLERANCES} | {"complex64": "Float32", "complex128": "Float64"}
    return known.get(array.dtype.name, "")


def epsilon_of(dtype: str) -> float:
    """Return the distance of 1 to the next number of a floating-point type."""
    return {"Float64": 2.0**-52, "Float32": 2.0**-23, "Float16": 2.0**-10, "BFloat16": 2.0**-7}[dtype]


def coarsest(graph: Graph) -> float:
    """Return the tolerance of the narrowest floating-point type in the graph: in mixed precision all else is as
    exact."""
    return max((TOLERANCES[name] for name in floats_of(graph)), default=0.0)


def floats_of(graph: Graph) -> set[str]:
    """Return the floating-point types that operators of the graph make, and of those inside of it that they run."""
    return {t.dtype.name for node in graph.all_nodes() for t in element_types(node.type) if t.dtype.name in TOLERANCES}
