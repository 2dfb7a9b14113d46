"""These kernels slide windows over arrays [batch, channels, ...], place by place, and find where maxima are and sums of
columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mspc.ops.convolution.columns import taps
from mspc.ops.convolution.padded import padded, tap
from mspc.ops.convolution.window import Window


def greatest_places(xp: Any, x: Any, along: Sequence[Window], counts: Sequence[int]) -> tuple[Any, Any]:
    """(the greatest value that every position looks at, where in the image the first of those values is, Int64)."""
    image = padded(xp, x, along, -math.inf)
    found: Any = None
    at: Any = None
    for place in taps(along):
        view = tap(image, along, counts, place)
        here = _places(xp, x.shape[2:], along, counts, place)
        if found is None:
            found, at = xp.array(view), xp.array(xp.broadcast_to(here, view.shape))
            continue
        inside = here >= 0
        better = inside & ((view > found) | (xp.isnan(view) & ~xp.isnan(found)) | (at < 0))
        found = xp.where(better, view, found)
        at = xp.where(better, here, at)
    return found, at


def _places(
    xp: Any, lengths: Sequence[int], along: Sequence[Window], counts: Sequence[int], place: Sequence[int]
) -> Any:
    """The place of the image that every position looks at with one of its window, -1 outside of the image."""
    total, outside = xp.zeros((), xp.int64), xp.zeros((), bool)
    for length, window, count, t in zip(lengths, along, counts, place, strict=True):
        where = xp.arange(count) * window.stride - window.before + t * window.dilation
        beyond = (where < 0) | (where >= length)
        total, outside = total[..., None] * length + where, outside[..., None] | beyond
    return xp.where(outside, -1, total)


def spread_windows(xp: Any, columns: Any, lengths: Sequence[int], along: Sequence[Window]) -> Any:
    """Images of these lengths whose places are the sums of what windows have for them: [batch, channels, *sizes,
    *counts] is a value for every place of every window. Paddings are not below 0."""
    padded_lengths = [n + w.before + w.after for n, w in zip(lengths, along, strict=True)]
    counts = columns.shape[2 + len(along) :]
    found = xp.zeros((*columns.shape[:2], *padded_lengths), columns.dtype)
    for place in taps(along):
        target = tap(found, along, counts, place)
        target += columns[(slice(None), slice(None), *place)]
    inner = [slice(w.before, w.before + n) for n, w in zip(lengths, along, strict=True)]
    return xp.ascontiguousarray(found[(slice(None), slice(None), *inner)])
