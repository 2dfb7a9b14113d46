"""Images [batch, channels, ...] are padded here, and views of them show what windows look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ops.convolution.window import Window


def padded(xp: Any, x: Any, along: Sequence[Window], value: float = 0.0) -> Any:
    """x [batch, channels, ...] with the windows' padding; the same array where there is none."""
    inner = tuple(
        slice(max(-w.before, 0), n - max(-w.after, 0)) for n, w in zip(x.shape[2:], along, strict=True)
    )
    x = x[(slice(None), slice(None), *inner)]
    spans = [(max(w.before, 0), max(w.after, 0)) for w in along]
    if not any(map(any, spans)):
        return x
    shape = (*x.shape[:2], *(n + before + after for n, (before, after) in zip(x.shape[2:], spans, strict=True)))
    out = xp.empty(shape, x.dtype)
    keep: list[slice] = [slice(None), slice(None)]
    for n, (before, _) in zip(x.shape[2:], spans, strict=True):
        for border in (slice(0, before), slice(before + n, None)):
            out[(*keep, border)] = value
        keep.append(slice(before, before + n))
    out[tuple(keep)] = x
    return out


def views(xp: Any, x: Any, along: Sequence[Window], counts: Sequence[int]) -> Any:
    """What every position looks at, without a copy: [batch, channels, *sizes, *counts] of an image that is padded."""
    steps = [n * w.dilation for n, w in zip(x.strides[2:], along, strict=True)]
    moves = [n * w.stride for n, w in zip(x.strides[2:], along, strict=True)]
    shape = (*x.shape[:2], *(w.size for w in along), *counts)
    return xp.lib.stride_tricks.as_strided(x, shape, (*x.strides[:2], *steps, *moves))


def tap(x: Any, along: Sequence[Window], counts: Sequence[int], place: Sequence[int]) -> Any:
    """What every position looks at with one place of its window: a view of an image that is padded."""
    slices = [
        slice(t * w.dilation, t * w.dilation + (n - 1) * w.stride + 1, w.stride)
        for t, w, n in zip(place, along, counts, strict=True)
    ]
    return x[(slice(None), slice(None), *slices)]
