"""These kernels pool arrays [batch, channels, ...] place by place of the window, some images' channels at a time, and
find where maxima are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ops.convolution.columns import met, taps
from mspc.ops.convolution.padded import padded, tap
from mspc.ops.convolution.window import Window
from mspc.ops.cpu.blocks import in_rows


def _rows(x: Any) -> Any:
    """[batch * channels, ...]."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def greatest(xp: Any, x: Any, along: Sequence[Window], counts: Sequence[int]) -> Any:
    """The greatest value that every position looks at; NaN where there is one."""
    out = xp.empty((*x.shape[:2], *counts), x.dtype)

    def work(found: Any, _: Any, image: Any) -> None:
        found[...] = -math.inf
        for place in taps(along):
            inside, looked = met(along, place, x.shape[2:], counts)
            target = found[(slice(None), *inside)]
            xp.maximum(target, image[(slice(None), *looked)], out=target)

    in_rows(xp, work, (_rows(out),), [_rows(x)])
    return out


def greatest_gradient(xp: Any, x: Any, out: Any, dout: Any, along: Sequence[Window]) -> Any:
    """The gradient of `greatest`: that of a position goes to the first place that holds its value."""
    found = xp.empty(x.shape, dout.dtype)
    counts = out.shape[2:]

    def work(total: Any, _: Any, image: Any, best: Any, gradient: Any) -> None:
        total[...] = 0
        free = xp.ones(best.shape, bool)
        missing = xp.isnan(best)
        search = xp is not np or missing.any()  # asking an array of a GPU would make the CPU wait
        for place in taps(along):
            inside, looked = met(along, place, x.shape[2:], counts)
            chosen = (slice(None), *inside)
            view = image[(slice(None), *looked)]
            here = view == best[chosen]
            if search:
                here |= xp.isnan(view) & missing[chosen]
            here &= free[chosen]
            free[chosen] ^= here
            target = total[(slice(None), *looked)]
            xp.add(target, gradient[chosen] * here, out=target)

    in_rows(xp, work, (_rows(found),), [_rows(x), _rows(out), _rows(dout)])
    return found


def summed(xp: Any, x: Any, along: Sequence[Window], counts: Sequence[int]) -> Any:
    """The sum of what every position looks at."""
    out = xp.empty((*x.shape[:2], *counts), x.dtype)

    def work(found: Any, _: Any, image: Any) -> None:
        found[...] = 0
        for place in taps(along):
            inside, looked = met(along, place, x.shape[2:], counts)
            target = found[(slice(None), *inside)]
            xp.add(target, image[(slice(None), *looked)], out=target)

    in_rows(xp, work, (_rows(out),), [_rows(x)])
    return out


def spread(xp: Any, dout: Any, lengths: Sequence[int], along: Sequence[Window]) -> Any:
    """The gradient of `summed`: every place of an image of these lengths gets that of all positions that look at it."""
    out = xp.empty((*dout.shape[:2], *lengths), dout.dtype)
    counts = dout.shape[2:]

    def work(found: Any, _: Any, gradient: Any) -> None:
        found[...] = 0
        for place in taps(along):
            inside, looked = met(along, place, lengths, counts)
            target = found[(slice(None), *looked)]
            xp.add(target, gradient[(slice(None), *inside)], out=target)

    in_rows(xp, work, (_rows(out),), [_rows(dout)])
    return out


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
