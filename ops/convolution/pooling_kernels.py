"""Pooling of arrays [batch, channels, ...], place by place of the window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mspc.ops.convolution.columns import padded, tap, taps
from mspc.ops.convolution.window import Window


def greatest(xp: Any, x: Any, along: Sequence[Window], counts: Sequence[int]) -> Any:
    """The greatest value that every position looks at; NaN where there is one."""
    image = padded(xp, x, along, -math.inf)
    found: Any = None
    for place in taps(along):
        view = tap(image, along, counts, place)
        found = xp.array(view) if found is None else xp.maximum(found, view, out=found)
    return found


def greatest_gradient(xp: Any, x: Any, out: Any, dout: Any, along: Sequence[Window]) -> Any:
    """The gradient of `greatest`: that of a position goes to the first place that holds its value."""
    image, counts = padded(xp, x, along, -math.inf), out.shape[2:]
    found = xp.zeros(image.shape, dout.dtype)
    free = xp.ones(out.shape, bool)
    for place in taps(along):
        view = tap(image, along, counts, place)
        here = free & ((view == out) | (xp.isnan(view) & xp.isnan(out)))
        target = tap(found, along, counts, place)
        target += dout * here
        free &= ~here
    return _cropped(xp, found, along, x.shape[2:])


def summed(xp: Any, x: Any, along: Sequence[Window], counts: Sequence[int]) -> Any:
    """The sum of what every position looks at."""
    image = padded(xp, x, along)
    found: Any = None
    for place in taps(along):
        view = tap(image, along, counts, place)
        found = xp.array(view) if found is None else xp.add(found, view, out=found)
    return found


def spread(xp: Any, dout: Any, lengths: Sequence[int], along: Sequence[Window]) -> Any:
    """The gradient of `summed`: every place of an image of these lengths gets that of all positions that look at it."""
    whole = [n + max(w.before, 0) + max(w.after, 0) for n, w in zip(lengths, along, strict=True)]
    found = xp.zeros((*dout.shape[:2], *whole), dout.dtype)
    for place in taps(along):
        target = tap(found, along, dout.shape[2:], place)
        target += dout
    return _cropped(xp, found, along, lengths)


def _cropped(xp: Any, found: Any, along: Sequence[Window], lengths: Sequence[int]) -> Any:
    """The image's part of an array with padding; places that windows leave out get zeros."""
    inner = [slice(max(w.before, 0), max(w.before, 0) + n - max(-w.before, 0) - max(-w.after, 0))
             for w, n in zip(along, lengths, strict=True)]  # fmt: skip
    kept = found[(slice(None), slice(None), *inner)]
    if kept.shape[2:] == tuple(lengths):
        return xp.ascontiguousarray(kept)
    out = xp.zeros((*found.shape[:2], *lengths), found.dtype)
    places = [slice(max(-w.before, 0), n - max(-w.after, 0)) for w, n in zip(along, lengths, strict=True)]
    out[(slice(None), slice(None), *places)] = kept
    return out
