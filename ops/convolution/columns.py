"""Convolutions as matrix products: what every position looks at, written out as a column.

A position of the result is a column of all places that its window looks at, over all channels, so that the weights of
all output channels times the columns are the result. Columns are made for a few positions at a time, which stay in the
cache. Chellapilla, Puri and Simard, "High Performance Convolutional Neural Networks for Document Processing", 2006.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mspc.ops.convolution.window import Window
from mspc.ops.cpu.products import share_out

POSITIONS = 256
"""Columns from which a product is worth its call: images are taken together up to so many."""
COLUMN_ELEMENTS = 1 << 18
"""Elements of the columns made at a time: 1 MiB of Float32, which a core's cache holds."""
PARTS = 4
"""Sums over images are made of at most so many parts, whose number may not depend on the threads."""

Part = tuple[slice, slice]
"""Images, and places along the first dimension of the result."""


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
    cut = [
        slice(t * w.dilation, t * w.dilation + (n - 1) * w.stride + 1, w.stride)
        for t, w, n in zip(place, along, counts, strict=True)
    ]
    return x[(slice(None), slice(None), *cut)]


def taps(along: Sequence[Window]) -> Iterator[tuple[int, ...]]:
    """All places of the window, the last dimension running fastest."""
    return itertools.product(*(range(w.size) for w in along))


def convolve(
    xp: Any, x: Any, weight: Any, along: Sequence[Window], counts: Sequence[int], groups: int, out: Any
) -> Any:
    """Fill `out` [batch, out channels, *counts]: sums over the input channels of the group and the window.

    x: [batch, in channels, ...]. weight: [out channels, in channels / groups, *sizes]. `out` may be strided.
    """
    if not out.size:
        return out
    if not weight.size or not x.size:
        out[...] = 0
        return out
    x = padded(xp, x, along)
    if weight.shape[1] == 1 and groups > 1:
        return _depthwise(xp, x, weight, along, counts, out)
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    inside = views(xp, x, along, counts)

    def work(images: slice, rows: slice) -> None:
        columns = _columns(xp, inside, groups, images, rows)
        target = out[images, :, rows]
        shape = (target.shape[0], groups, target.shape[1] // groups, *target.shape[2:])
        if target.shape[0] == 1 and target.flags.c_contiguous:
            xp.matmul(matrix, columns, out=target.reshape(groups, matrix.shape[1], -1))
            return
        found = xp.matmul(matrix, columns).reshape(groups, matrix.shape[1], target.shape[0], *target.shape[2:])
        target[...] = xp.moveaxis(found, 2, 0).reshape(shape).reshape(target.shape)

    _in_parts(xp, work, out.shape, counts, matrix[0].size * groups, matrix.shape[2] * groups)
    return out


def _depthwise(xp: Any, x: Any, weight: Any, along: Sequence[Window], counts: Sequence[int], out: Any) -> Any:
    """`convolve` where every group has one input channel."""
    channels = x.shape[1]
    each = weight.shape[0] // channels
    scaled = weight.reshape(channels, each, *weight.shape[2:])
    ones = (1,) * len(counts)

    def work(images: slice, rows: slice) -> None:
        del rows  # whole images: a product less than its call would cost
        total: Any = None
        for place in taps(along):
            factor = scaled[(slice(None), slice(None), *place)].reshape(1, channels, each, *ones)
            found = tap(x[images], along, counts, place)[:, :, None] * factor
            total = found if total is None else xp.add(total, found, out=total)
        out[images] = total.reshape(total.shape[0], channels * each, *counts)

    _in_parts(xp, work, out.shape, counts, weight.size, 0)
    return out


def _columns(xp: Any, inside: Any, groups: int, images: slice, rows: slice) -> Any:
    """[groups, places of all windows over the channels, positions] of some images and rows of the result."""
    dims = (inside.ndim - 2) // 2
    chosen = inside[(images, slice(None), *[slice(None)] * dims, rows)]
    count, channels = chosen.shape[:2]
    order = (*range(1, 2 + dims), 0, *range(2 + dims, 2 + 2 * dims))
    ready = chosen.transpose(order)
    return xp.ascontiguousarray(ready).reshape(
        groups, channels // groups * math.prod(chosen.shape[2 : 2 + dims]), count * math.prod(chosen.shape[2 + dims :])
    )


def _in_parts(
    xp: Any, work: Callable[[slice, slice], None], shape: Sequence[int], counts: Sequence[int], each: int, column: int
) -> None:
    """Do the work for all images and rows, a few at a time. each: multiplications of a position. column: its length,
    0 where there are no columns."""
    if xp is not np:
        work(slice(0, shape[0]), slice(0, counts[0]))
        return
    row = math.prod(counts[1:])
    images = max(1, POSITIONS // max(row * counts[0], 1))
    rows = counts[0]
    if images == 1 and column:
        rows = min(rows, max(1, COLUMN_ELEMENTS // max(column * row, 1), -(-POSITIONS // row)))
    calls = [
        functools.partial(work, slice(i, min(i + images, shape[0])), slice(r, min(r + rows, counts[0])))
        for i in range(0, shape[0], images)
        for r in range(0, counts[0], rows)
    ]
    share_out(calls, each * shape[0] * row * counts[0])


def input_gradient(
    xp: Any, dout: Any, weight: Any, along: Sequence[Window], lengths: Sequence[int], groups: int
) -> Any:
    """The gradient of the image, of these lengths, from that of the result [batch, out channels, ...].

    Places that are a multiple of the strides apart get theirs by one convolution without strides, with the part of the
    window that meets them, turned round.
    """
    per_group = weight.shape[0] // groups
    turned = weight.reshape(groups, per_group, *weight.shape[1:]).swapaxes(1, 2)
    turned = turned.reshape(groups * weight.shape[1], per_group, *weight.shape[2:])
    out = xp.empty((dout.shape[0], turned.shape[0], *lengths), dout.dtype)
    shares = [_shares(w, n, m) for w, n, m in zip(along, lengths, dout.shape[2:], strict=True)]
    for chosen in itertools.product(*shares):
        places = (slice(None), slice(None), *(where for where, _, _ in chosen))
        target = out[places]
        if not all(found for _, found, _ in chosen):
            target[...] = 0
            continue
        picked = turned
        for d, (_, found, _) in enumerate(chosen):
            picked = picked.take(found, axis=d + 2) if found != list(range(picked.shape[d + 2])) else picked
        convolve(xp, dout, xp.ascontiguousarray(picked), [w for _, _, w in chosen], target.shape[2:], groups, target)
    return out


def _shares(window: Window, length: int, count: int) -> Iterator[tuple[slice, list[int], Window]]:
    """Per remainder of the stride: the places of the image, the places of the window that meet them, in the order in
    which a convolution of the result's gradient reads it, and that convolution's window."""
    found: list[tuple[slice, list[int], Window]] = []
    step = window.stride // math.gcd(window.stride, window.dilation)
    for first in range(min(window.stride, length)):
        met = [t for t in range(window.size) if (first + window.before - t * window.dilation) % window.stride == 0]
        met.reverse()
        number = len(range(first, length, window.stride))
        start = (first + window.before - met[0] * window.dilation) // window.stride if met else 0
        dilation = step * window.dilation // window.stride
        extent = (max(len(met), 1) - 1) * dilation + 1
        own = Window(max(len(met), 1), 1, dilation, -start, number - 1 + extent - count + start)
        found.append((slice(first, length, window.stride), met, own))
    return iter(found)


def weight_gradient(
    xp: Any, dout: Any, x: Any, along: Sequence[Window], groups: int, shape: Sequence[int]
) -> Any:
    """The gradient of the weights, of this shape, from that of the result [batch, out channels, ...]."""
    counts = dout.shape[2:]
    if not dout.size or not x.size or not math.prod(shape):
        return xp.zeros(shape, dout.dtype)
    x = padded(xp, x, along)
    batch, channels = dout.shape[:2]
    if shape[1] == 1 and groups > 1:
        return _depthwise_weights(xp, dout, x, along, groups, shape)
    inside = views(xp, x, along, counts)
    number = min(PARTS, batch) if xp is np else 1
    bounds = [batch * i // number for i in range(number + 1)]
    sums: list[Any] = [None] * number
    positions = math.prod(counts)
    images = max(1, POSITIONS // positions) if xp is np else batch

    def work(part: int) -> None:
        total: Any = None
        for first in range(bounds[part], bounds[part + 1], images):
            here = slice(first, min(first + images, bounds[part + 1]))
            columns = _columns(xp, inside, groups, here, slice(None))
            rows = xp.ascontiguousarray(dout[here].swapaxes(0, 1)).reshape(groups, channels // groups, -1)
            found = xp.matmul(rows, columns.swapaxes(1, 2))
            total = found if total is None else xp.add(total, found, out=total)
        sums[part] = total

    share_out([functools.partial(work, part) for part in range(number)], batch * positions * math.prod(shape))
    return functools.reduce(xp.add, sums).reshape(shape)


def _depthwise_weights(xp: Any, dout: Any, x: Any, along: Sequence[Window], groups: int, shape: Sequence[int]) -> Any:
    each = shape[0] // groups
    counts = dout.shape[2:]
    gradient = dout.reshape(dout.shape[0], groups, each, *counts)
    out = xp.empty((groups, each, *shape[2:]), dout.dtype)
    axes = (0, *range(3, gradient.ndim))
    for place in taps(along):
        found = (gradient * tap(x, along, counts, place)[:, :, None]).sum(axis=axes)
        out[(slice(None), slice(None), *place)] = found
    return out.reshape(shape)
