"""What a convolution looks at from every position is written out as a column, and columns are added up to an image
again.

A column holds all places that a window looks at, over all channels, so that the weights of all output channels times
the columns are the result. Chellapilla, Puri and Simard, "High Performance Convolutional Neural Networks for Document
Processing", 2006. Small images are taken several at a time, which run fastest: what a place of the window contributes
to the columns is then copied in long runs however short the rows are.

Arrays here are [channels, ..., images]; `met` of a window says which positions look at places that are there, so that
no image has to be copied into a padded one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mspc.ops.convolution.window import Window, clipped
from mspc.ops.cpu.scratch import scratch
from mspc.sharding.borders import Span

POSITIONS = 256
"""Columns from which a product is worth its call: images are taken together up to so many."""
TOGETHER = 8
"""Images that are taken together where rows are shorter than this: places of as many images are one run."""
LONG_ROW = 48
"""Positions of a row that are long runs by themselves."""
COLUMN_ELEMENTS = 1 << 20
"""Elements of the columns made at a time: 4 MiB of Float32. Fewer at a time make more calls than the cache saves."""


def taps(along: Sequence[Window]) -> Iterator[tuple[int, ...]]:
    """All places of the window, the last dimension running fastest."""
    return itertools.product(*(range(w.size) for w in along))


def is_point(along: Sequence[Window], lengths: Sequence[int]) -> bool:
    """Whether every position looks at the one place of its own number."""
    return all(
        w.size == w.stride == 1 and w.before == 0 and w.count(n) == n for w, n in zip(along, lengths, strict=True)
    )


def blocks(
    xp: Any, batch: int, along: Sequence[Window], counts: Sequence[int], least: int = POSITIONS // 4
) -> list[slice]:
    """Which images are worked together: one alone where it has long rows and positions enough for a product, which are
    `least` where it needs few copies."""
    positions = max(math.prod(counts), 1)
    if all(w.size == 1 for w in along):
        step = 1 if positions >= least else -(-4 * least // positions)
    elif along[-1].stride == 1 and counts[-1] >= LONG_ROW and positions >= POSITIONS:
        step = 1
    else:
        step = max(TOGETHER, -(-POSITIONS // positions))
    step = min(step, batch) if xp is np else batch
    return [slice(first, min(first + step, batch)) for first in range(0, batch, step)]


def chunks(xp: Any, column: int, counts: Sequence[int], images: int) -> list[Span]:
    """Positions along the first dimension whose columns, of so many elements each, are made together."""
    row = math.prod(counts[1:]) * images
    step = counts[0]
    if xp is np:
        step = min(step, max(1, COLUMN_ELEMENTS // max(column * row, 1), -(-POSITIONS // max(row, 1))))
    return [(first, min(first + step, counts[0])) for first in range(0, counts[0], step)]


def empty(xp: Any, name: str, shape: Sequence[int], dtype: Any) -> Any:
    """An array that is written and read again before this thread takes the next one of this name."""
    return scratch(name, shape, dtype) if xp is np else xp.empty(shape, dtype)


def gathered(xp: Any, x: Any, reach: Sequence[Span] = (), stays: bool = False) -> Any:
    """[images, channels, ...] as [channels, ..., images]: a view of one image, else a copy, of an own name (see
    `empty`) unless it `stays` while others are gathered.

    reach: the places that are wanted along each dimension, all by default; those outside of the image are zeros.
    """
    lengths = x.shape[2:]
    spans = tuple(reach) or tuple((0, n) for n in lengths)
    inner = [clipped(span, n) for span, n in zip(spans, lengths, strict=True)]
    x = x[(slice(None), slice(None), *(slice(*span) for span in inner))]
    if x.shape[0] == 1 and inner == list(spans):
        return x[0][..., None]
    shape = (x.shape[1], *(end - first for first, end in spans), x.shape[0])
    out = xp.empty(shape, x.dtype) if stays else empty(xp, "gathered", shape, x.dtype)
    if inner != list(spans):
        out[...] = 0
    there = (slice(low - first, high - first) for (first, _), (low, high) in zip(spans, inner, strict=True))
    out[(slice(None), *there)] = xp.moveaxis(x, 0, -1)
    return out


def reach_of(along: Sequence[Window], counts: Sequence[int]) -> tuple[Span, ...]:
    """The places that so many positions look at."""
    return tuple(w.places((0, n)) for w, n in zip(along, counts, strict=True))


def multiplied(xp: Any, x: Any, y: Any) -> Any:
    """x @ y in an array of an own name; see `empty`."""
    if xp is not np:
        return xp.matmul(x, y)
    return np.matmul(x, y, out=empty(xp, "multiplied", (*x.shape[:-1], y.shape[-1]), x.dtype))


def columns(xp: Any, image: Any, along: Sequence[Window], counts: Sequence[int], rows: Span) -> Any:
    """[channels * places of the window, positions], of some rows of positions; a view, or of an own name: see
    `empty`. image: gathered, from the first place that is looked at to the last."""
    channels, images = image.shape[0], image.shape[-1]
    sizes = [rows[1] - rows[0], *counts[1:]]
    if all(w.size == w.stride == 1 for w in along):
        return image[:, slice(*rows)].reshape(channels, -1)
    steps = image.strides[1:-1]
    looked = xp.lib.stride_tricks.as_strided(
        image[:, rows[0] * along[0].stride :],
        (channels, *(w.size for w in along), *sizes, images),
        (image.strides[0], *(w.dilation * step for w, step in zip(along, steps, strict=True)),
         *(w.stride * step for w, step in zip(along, steps, strict=True)), image.strides[-1]),
    )  # fmt: skip
    found = empty(xp, "columns", looked.shape, image.dtype)
    found[...] = looked
    return found.reshape(-1, math.prod(sizes) * images)


def spread(xp: Any, found: Any, image: Any, along: Sequence[Window], counts: Sequence[int], rows: Span) -> None:
    """Add columns, shaped as those of `columns`, to the places of the image that they were taken from."""
    spans = [rows, *((0, n) for n in counts[1:])]
    sizes = [end - first for first, end in spans]
    given = found.reshape(image.shape[0], -1, *sizes, image.shape[-1])
    for number, place in enumerate(taps(along)):
        inside, looked = _met(along, place, image.shape[1:-1], spans)
        target = image[(slice(None), *looked)]
        xp.add(target, given[(slice(None), number, *inside)], out=target)


def met(
    along: Sequence[Window], place: Sequence[int], lengths: Sequence[int], counts: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The positions that look at an image's places with one place of the window, and these places."""
    return _met(along, place, lengths, [(0, n) for n in counts])


def _met(
    along: Sequence[Window], place: Sequence[int], lengths: Sequence[int], spans: Sequence[Span]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    found = [w.met(t, n, span) for w, t, n, span in zip(along, place, lengths, spans, strict=True)]
    return tuple(inside for inside, _ in found), tuple(looked for _, looked in found)
