"""These kernels pool arrays [batch, channels, ...] place by place of the window, some images' channels at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ops.convolution.columns import met, taps
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
