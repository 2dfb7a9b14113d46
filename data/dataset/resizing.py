"""Images of bytes are made larger with the numbers of Pillow's filters, by NumPy over several images at once.

Pillow holds Python's lock while it hands an image over, and works on one number after another. Here every step is one
call over many numbers, without the lock. Making images smaller reads many pixels for each new one; Pillow does that.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mspc.ir.late_dataclass import dataclass

BITS = 22
"""Weights are whole numbers, 1 being 2 to this power, and every pass rounds to bytes, as in Pillow."""
AT_ONCE = 1 << 20
"""Numbers that a step works on at once. Fewer would stay in a core's own cache, but after every call a thread waits
for Python's lock: with a sixteenth two threads on two cores take a third longer, and more threads wait more."""


def _box(x: float) -> float:
    return 1.0 if -0.5 < x <= 0.5 else 0.0


def _linear(x: float) -> float:
    return max(0.0, 1.0 - abs(x))


def _cubic(x: float) -> float:
    a, x = -0.5, abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


_FILTERS: dict[str, tuple[Callable[[float], float], float]] = {
    "BOX": (_box, 0.5), "BILINEAR": (_linear, 1.0), "BICUBIC": (_cubic, 2.0),
}  # fmt: skip
"""Weight by distance in pixels, and the distance from which on it is 0."""


@dataclass(frozen=True)
class Runs:
    """New pixels in runs of one length; the first and the last may lack some at the line's ends.

    first: [runs] the first pixel that those of a run are made of. lead: how many the first run lacks. weights: Int32
    [factors, runs, length, 1], those of the pixels behind the first, and what the sum is above 1 where it is.
    """

    first: np.ndarray
    lead: int
    weights: np.ndarray


@dataclass(frozen=True)
class Taps:
    """Which pixels of a line a line of another size is made of.

    first: [size] the first pixel of each new one. weights: [pixels, size, 1] Int32, of that pixel and those behind it.
    rest: [size, 1] what their sum is above 1, None where it is 1 everywhere. exceeds: whether results may lie outside
    of bytes. runs: new pixels side by side that are made of the same ones, None where these are not equally many.
    """

    first: np.ndarray
    weights: np.ndarray
    rest: np.ndarray | None
    exceeds: bool
    runs: Runs | None


def can_enlarge(shape: tuple[int, ...], dtype: np.dtype, size: tuple[int, int], method: str) -> bool:
    """Whether `enlarged` takes images [rows, height, width] or [rows, height, width, channels]."""
    if dtype != np.uint8 or method not in _FILTERS or not (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3))):
        return False
    return 0 < shape[1] <= size[0] and 0 < shape[2] <= size[1]


def taps(there: int, wanted: int, method: str) -> Taps:
    """For a line of `there` pixels that gets `wanted`, at least as many."""
    weight, reach = _FILTERS[method]
    scale = there / wanted
    starts: list[int] = []
    rows: list[list[int]] = []
    for place in range(wanted):
        centre = (place + 0.5) * scale
        start, end = max(0, int(centre - reach + 0.5)), min(there, int(centre + reach + 0.5))
        found = [weight(pixel - centre + 0.5) for pixel in range(start, end)]
        total = 0.0
        for value in found:
            total += value  # one after another: `sum` rounds otherwise in newer Pythons
        fixed = [_fixed_point(value / total) if total else 0 for value in found]
        while len(fixed) > 1 and not fixed[-1]:
            fixed.pop()
        while len(fixed) > 1 and not fixed[0]:
            fixed.pop(0)
            start += 1
        starts.append(start)
        rows.append(fixed)
    most = max(map(len, rows))
    first = np.minimum(starts, there - most)
    weights = np.zeros((most, wanted), np.int32)
    for place, (start, row) in enumerate(zip(starts, rows, strict=True)):
        before = start - first[place]
        weights[before : before + len(row), place] = row
    rest = weights.sum(0, dtype=np.int32) - np.int32(1 << BITS)
    uneven = rest[:, None] if rest.any() else None
    factors = weights[:-1] if uneven is None else np.concatenate([weights[:-1], rest[None]])
    return Taps(first, weights[..., None], uneven, bool((weights < 0).any()), _runs(first, wanted // there, factors))


def _runs(first: np.ndarray, length: int, factors: np.ndarray) -> Runs | None:
    for lead in range(length) if length > 1 else ():
        count = -(-(lead + first.size) // length)
        sides = lead, count * length - lead - first.size
        firsts = np.pad(first, sides, "edge").reshape(count, length)
        if (firsts == firsts[:, :1]).all():
            return Runs(firsts[:, 0], lead, np.pad(factors, ((0, 0), sides)).reshape(-1, count, length, 1))
    return None


def _fixed_point(weight: float) -> int:
    return int(math.copysign(0.5, weight) + weight * (1 << BITS))


def enlarged(images: np.ndarray, down: Taps, across: Taps) -> np.ndarray:
    """Images [rows, height, width] or [rows, height, width, channels] of bytes in another size; in memory the result
    has one channel behind another. Taps: of columns and of lines."""
    planes = images[:, None] if images.ndim == 3 else np.moveaxis(images, -1, 1)
    rows, channels, height, _ = planes.shape
    tall, wide = down.first.size, across.first.size
    result = np.empty((rows, channels, tall, wide), np.uint8)
    lines = np.empty((rows, channels, height, wide), np.uint8)
    several, together = (max(1, AT_ONCE // (channels * high * wide)) for high in (height, tall))
    least = channels * max(several * height, together * wide)
    terms = 1 + max(len(down.weights), len(across.weights))
    scratch = np.empty(terms * max(AT_ONCE, least), np.int32)
    for begin in range(0, rows, several):
        some = slice(begin, begin + several)
        _resample(planes[some].reshape(-1, images.shape[2], 1), across, scratch, lines[some].reshape(-1, wide, 1))
    for begin in range(0, rows, together):
        some = slice(begin, begin + together)
        _resample(lines[some].reshape(-1, height, wide), down, scratch, result[some].reshape(-1, tall, wide))
    return result[:, 0] if images.ndim == 3 else np.moveaxis(result, 1, -1)


def _resample(source: np.ndarray, taps: Taps, scratch: np.ndarray, result: np.ndarray) -> None:
    """[outer, size, inner] of bytes into a result of another size. scratch: Int32, for a line of all terms at least."""
    outer, size, inner = result.shape
    if size == source.shape[1]:
        result[...] = source
        return
    terms = _terms(source, taps)
    if taps.runs is not None and inner > 1:
        _in_runs(terms, taps.runs, taps.exceeds, scratch, result)
        return
    count = len(terms)
    step = max(1, scratch.size // (count * outer * inner))
    for begin in range(0, size, step):
        some = slice(begin, min(size, begin + step))
        first = taps.first[some]
        found = scratch[: count * outer * first.size * inner].reshape(count, outer, first.size, inner)
        terms.take(first, 2, found, "clip")
        total = found[0]
        for i in range(1, count):
            weights = taps.weights[i - 1, some] if i < len(taps.weights) else taps.rest[some]
            found[i] *= weights
            total += found[i]
        total >>= BITS
        if taps.exceeds:
            np.clip(total, 0, 255, out=total)
        np.copyto(result[:, some], total, casting="unsafe")


def _in_runs(terms: np.ndarray, runs: Runs, exceeds: bool, scratch: np.ndarray, result: np.ndarray) -> None:
    """The same from [terms, outer, pixels, inner]: a run reads its pixels where they are instead of copies of them."""
    outer, size, inner = result.shape
    _, count, length, _ = runs.weights.shape
    read = terms.take(runs.first, 2, mode="clip")[:, :, :, None]
    together = max(1, scratch.size // (2 * count * length * inner))
    for begin in range(0, outer, together):
        some = read[:, begin : begin + together]
        shape = (some.shape[1], count, length, inner)
        total, product = scratch[: 2 * math.prod(shape)].reshape(2, *shape)
        if len(some) == 1:
            total[...] = some[0]
        for i, weights in enumerate(runs.weights):
            np.multiply(some[1 + i], weights, product if i else total)
            total += product if i else some[0]
        total >>= BITS
        if exceeds:
            np.clip(total, 0, 255, out=total)
        lines = total.reshape(-1, count * length, inner)[:, runs.lead : runs.lead + size]
        np.copyto(result[begin : begin + together], lines, casting="unsafe")


def _terms(source: np.ndarray, taps: Taps) -> np.ndarray:
    """Int32 [terms, outer, pixels, inner], by the first pixel that a new one is made of.

    As the weights have the sum 1, the last pixel needs no product: it is in the first term, with a half for the
    rounding, and the others bring their difference to it. A last term is for what the sum is above 1.
    """
    last = len(taps.weights) - 1
    outer, there, inner = source.shape
    length = there - last
    terms = np.empty((1 + last + (taps.rest is not None), outer, length, inner), np.int32)
    base = source[:, last:].astype(np.int32)
    for i in range(last):
        np.subtract(source[:, i : i + length], base, out=terms[1 + i])
    if taps.rest is not None:
        terms[-1] = base
    np.left_shift(base, BITS, out=terms[0])
    terms[0] += np.int32(1 << (BITS - 1))
    return terms
