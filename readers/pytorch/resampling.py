"""The weights with which PyTorch makes a line of pixels of another one: a matrix for each dimension of an image."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

SHARP, SOFT = -0.75, -0.5
"""The coefficient of cubic weights, without and with a filter against aliases: aten/src/ATen/native/UpSample.h."""


def _step(size: int, new: int, factor: float | None) -> float:
    """How many of the pixels that are there a new one covers. factor: by how much the line grows, where that was
    given."""
    return size / new if factor is None else 1 / factor


@cache
def cubic_weights(size: int, new: int, corners: bool, factor: float | None, dtype: Any) -> np.ndarray:
    """[new, size]: what every new pixel takes of the `size` that are there, four neighbours of each.

    corners: the outermost pixels stay where they are. factor: by how much the line grows, where that was given.
    """
    found = np.zeros((new, size))
    step = (size - 1) / max(1, new - 1) if corners else _step(size, new, factor)
    for place in range(new):
        source = place * step if corners else (place + 0.5) * step - 0.5
        first = math.floor(source)
        for neighbour in range(first - 1, first + 3):
            found[place, min(max(neighbour, 0), size - 1)] += cubic(source - neighbour, SHARP)
    return found.astype(dtype)


@cache
def filtered_weights(size: int, new: int, kind: str, dtype: Any, corners: bool, factor: float | None) -> np.ndarray:
    """[new, size]: the same with a filter as wide as what one new pixel covers; kind: "bilinear" or "bicubic"."""
    found = np.zeros((new, size))
    step = (size - 1) / max(1, new - 1) if corners else _step(size, new, factor)
    kernel: Callable[[float], float] = _soft if kind == "bicubic" else _triangle
    reach = (2.0 if kind == "bicubic" else 1.0) * max(step, 1.0)
    for place in range(new):
        centre = step * (place + 0.5)
        first, last = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), size)
        for pixel in range(first, last):
            found[place, pixel] = kernel((pixel - centre + 0.5) / max(step, 1.0))
    return (found / found.sum(axis=1, keepdims=True)).astype(dtype)


@cache
def linear_weights(size: int, new: int, factor: float | None, dtype: Any) -> np.ndarray:
    """[new, size]: what every new pixel takes of its two neighbours."""
    found = np.zeros((new, size))
    step = _step(size, new, factor)
    for place in range(new):
        source = max((place + 0.5) * step - 0.5, 0.0)
        first = min(int(source), size - 1)
        part = min(max(source - first, 0.0), 1.0)
        found[place, first] += 1 - part
        found[place, min(first + 1, size - 1)] += part
    return found.astype(dtype)


@cache
def nearest_places(size: int, new: int, factor: float | None, is_exact: bool) -> np.ndarray:
    """[new]: which pixel every new one is, by a product in Float32, as PyTorch rounds it; is_exact: the one that the
    middle of the new one lies in."""
    if new == size:
        return np.arange(size)
    step = np.float32(_step(size, new, factor))
    middles = np.arange(new, dtype=np.float32) + np.float32(0.5 if is_exact else 0.0)
    return np.minimum(np.floor(middles * step).astype(np.int64), size - 1)


def is_even(places: np.ndarray, size: int) -> bool:
    """Whether pixels are spread as their numbers alone say."""
    return bool((places == np.arange(len(places)) * size // len(places)).all())


def cubic(distance: float, coefficient: float) -> float:
    """The weight of a pixel at a distance."""
    x = abs(distance)
    if x <= 1:
        return ((coefficient + 2) * x - (coefficient + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * coefficient if x < 2 else 0.0


def _soft(distance: float) -> float:
    return cubic(distance, SOFT)


def _triangle(distance: float) -> float:
    return max(0.0, 1.0 - abs(distance))
