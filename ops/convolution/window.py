"""Windows that slide over images, their columns, and margins around them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import gcd
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ops.cpu.blocks import scratch
from mspc.sharding.halos import Needed, Span, slice_span

MODES = ("same", "valid", "pad")


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one dimension. before, after: padding before and after the image; a negative one leaves out places
    of the image."""

    size: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def extent(self) -> int:
        """Number of positions from the first to the last tap of the window."""
        return (self.size - 1) * self.dilation + 1

    def count(self, length: int, ceil: bool | None = False) -> int:
        """Return the number of positions on an image of `length`: 0 or less if the window is larger than the padded
        image.

        ceil: one more if the last would begin within the image or the padding before it, but end outside.
        """
        room = length + self.before + self.after - self.extent
        if not ceil:
            return room // self.stride + 1
        count = -(-room // self.stride) + 1
        return count - 1 if (count - 1) * self.stride >= length + self.before else count

    def places(self, positions: Span) -> Span:
        """Return the places that these positions of the result read; they may reach outside of the image."""
        first, end = positions
        return first * self.stride - self.before, (end - 1) * self.stride - self.before + self.extent

    def positions(self, places: Span, count: int) -> Span:
        """Return the span of outputs, of `count`, that read these input positions; empty if there are none."""
        first, end = places
        low = max(0, -(-(first + self.before - self.extent + 1) // self.stride))
        high = min(count, (end - 1 + self.before) // self.stride + 1)
        return low, max(low, high)

    def met(self, tap: int, length: int, positions: Span) -> tuple[slice, slice]:
        """Return the outputs, counted from the first one, whose input at one tap is within an image of `length`; and
        these inputs."""
        offset = tap * self.dilation - self.before
        low = max(positions[0], -(offset // self.stride))
        high = min(positions[1], (length - 1 - offset) // self.stride + 1)
        if low >= high:
            return slice(0, 0), slice(0, 0)
        first, last = low * self.stride + offset, (high - 1) * self.stride + offset
        return slice(low - positions[0], high - positions[0]), slice(first, last + 1, self.stride)

    def on_places(self, places: Span, positions: Span) -> Window:
        """Return the window between these places, as an image of their own, and these positions, as a result of their
        own."""
        (first, end), (low, high) = places, positions
        before = self.before + first - low * self.stride
        after = max(high - low - 1, 0) * self.stride + self.extent - (end - first) - before
        return Window(self.size, self.stride, self.dilation, before, after)


def clipped(span: Span, length: int) -> Span:
    """Return the part of a span within [0, length)."""
    first = min(max(span[0], 0), length)
    return first, max(first, min(span[1], length))


def places_of_slices(
    along: Sequence[Window], lengths: Sequence[int], counts: Sequence[int], slice_counts: Sequence[int]
) -> Needed:
    """Return which places of an image of these lengths the owner of a slice of the result reads."""
    return lambda d, part: clipped(along[d].places(slice_span(counts[d], slice_counts[d], part)), lengths[d])


def positions_of_slices(
    along: Sequence[Window], lengths: Sequence[int], counts: Sequence[int], slice_counts: Sequence[int]
) -> Needed:
    """Return which positions of the result read a slice of the image."""
    return lambda d, part: along[d].positions(slice_span(lengths[d], slice_counts[d], part), counts[d])


@lru_cache(maxsize=4096)
def slices_of(length: int, count: int, window: Window) -> int:
    """Return the maximum number of equal slices of image and result for which a rank only needs its own slice and the
    two adjacent ones; every divisor of it is possible, too."""
    common = gcd(length, count)
    for parts in range(common, 1, -1):
        if common % parts == 0 and _reaches_neighbours(length, count, window, parts):
            return parts
    return 1


def _reaches_neighbours(length: int, count: int, window: Window, parts: int) -> bool:
    own, made = length // parts, count // parts
    for part in range(parts):
        first, end = clipped(window.places((part * made, (part + 1) * made)), length)
        low, high = window.positions((part * own, (part + 1) * own), count)
        if first < (part - 1) * own or end > (part + 2) * own:
            return False
        if low < (part - 1) * made or high > (part + 2) * made or low == high:
            return False
    return True


def sharding_mistake(
    lengths: Sequence[int],
    counts: Callable[[Sequence[int]], Sequence[int]],
    along: Callable[[Sequence[int]], Sequence[Window]],
    d: int,
    shards: int,
) -> str:
    """Return why an image of these lengths and its result cannot have `shards` shards along a dimension; "" if they
    can, or it is not a dimension of the image. counts, along: positions and windows of an image."""
    if d < 0:
        return ""
    length, count, window = lengths[d], counts(lengths)[d], along(lengths)[d]
    if length % shards:
        return f"has {length} places, which {shards} does not divide"
    if count % shards:
        return f"makes {count} places of the result, which {shards} does not divide"
    if _reaches_neighbours(length, count, window, shards):
        return ""
    places = f"{length // shards} place{'s' * (length > shards)}"
    return (
        f"would be sharded into {shards} slices of {places}, but a window that spans {window.extent} reads "
        f"beyond the slices beside its own, or a slice has no result"
    )


def listed(value: Any, dims: int) -> tuple[Any, ...]:
    """Return the elements of a tuple or list; any other value is repeated for every dimension."""
    return tuple(cast("Sequence[Any]", value)) if isinstance(value, (tuple, list)) else (value,) * dims


def numbers(operator: str, name: str, value: Any, dims: int) -> tuple[int, ...]:
    """Return one positive integer per dimension, from one for all, one each, or one each after two 1 for batch and
    channels. Raise MspcError if it is none of these, and RuntimeError if its numbers for batch and channels are not
    1."""
    found = listed(value, dims)
    if len(found) == dims + 2:
        if found[:2] != (1, 1):
            message = f"{operator}: {name} {value!r} must be 1 along batch and channels, its first two numbers"
            raise MspcError(message, kind=RuntimeError)
        found = found[2:]
    if len(found) != dims or not all(_is_integer(n) and n > 0 for n in found):
        raise MspcError(f"{operator}: {name} must be a positive integer or {dims} of them, not {value!r}")
    return found


def paddings(operator: str, value: Any, dims: int) -> tuple[Span, ...]:
    """Return (before, after) per dimension, from one integer for all, one per dimension, or two per dimension in order.
    Raise MspcError if it is none of these."""
    given = listed(value, 2 * dims)
    if len(given) not in (dims, 2 * dims) or not all(map(_is_integer, given)):
        raise MspcError(f"{operator}: pad must be an integer or a tuple of {2 * dims} of them, not {value!r}")
    if len(given) == dims:
        return tuple((n, n) for n in given)
    return tuple((given[2 * d], given[2 * d + 1]) for d in range(dims))


def windows(
    operator: str,
    lengths: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    mode: Any,
    pad: Any,
) -> tuple[Window, ...]:
    """Return the window along every dimension of an image of these lengths. Raise MspcError if the padding mode is
    unknown, or gets a padding that it does not take."""
    dims = len(lengths)
    known = str(mode).lower()
    if known not in MODES:
        raise MspcError(f"{operator}: pad_mode must be 'same', 'valid' or 'pad', not {mode!r}")
    given = paddings(operator, pad, dims)
    if known != "pad" and any(span != (0, 0) for span in given):
        raise MspcError(f"{operator}: pad must be 0 when pad_mode is {known!r}, not {pad!r}",
                        notes=["pad_mode='pad' takes a padding"])  # fmt: skip
    found: list[Window] = []
    for length, size, stride, dilation, (before, after) in zip(
        lengths, sizes, strides, dilations, given, strict=True
    ):
        if known == "same":
            total = max((-(-length // stride) - 1) * stride + (size - 1) * dilation + 1 - length, 0)
            before, after = total // 2, total - total // 2
        found.append(Window(size, stride, dilation, before, after))
    return tuple(found)


def result_lengths(
    operator: str, lengths: Sequence[int], along: Sequence[Window], ceil: bool | None = False
) -> tuple[int, ...]:
    """Return the number of positions per dimension. Raise MspcError if a window is larger than the padded image; the
    message names the dimension."""
    found: list[int] = []
    for d, (length, window) in enumerate(zip(lengths, along, strict=True)):
        count = window.count(length, ceil)
        if count < 1:
            padded = f"{length} and {window.before + window.after} of padding"
            spread = f" (a kernel of {window.size} with dilation {window.dilation})" * (window.dilation > 1)
            raise MspcError(
                f"{operator}: the window along dimension {d + 2} spans {window.extent}{spread}, more than the image "
                f"with its {padded}",
                notes=["use a smaller kernel, a larger image, or more padding"],
            )
        found.append(count)
    return tuple(found)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

POSITIONS = 256
"""Number of columns for which a matmul is worth its call: images are processed together up to this number."""
BLOCK_IMAGES = 8
"""Number of images per block if rows are shorter than this: a position of all images is one contiguous run."""
LONG_ROW = 48
"""Positions of a row that are long runs by themselves."""
COLUMN_ELEMENTS = 1 << 20
"""Elements of the columns made at a time: 4 MiB of Float32. Fewer at a time make more calls than the cache saves."""


def taps(along: Sequence[Window]) -> Iterator[tuple[int, ...]]:
    """Return all places of the window, the last dimension running fastest."""
    return itertools.product(*(range(w.size) for w in along))


def is_point(along: Sequence[Window], lengths: Sequence[int]) -> bool:
    """Whether every output only reads the input of the same index."""
    return all(
        w.size == w.stride == 1 and w.before == 0 and w.count(n) == n for w, n in zip(along, lengths, strict=True)
    )


def blocks(
    xp: Any, batch: int, along: Sequence[Window], counts: Sequence[int], least: int = POSITIONS // 4
) -> list[slice]:
    """Return the images of each block: a single one if it has long rows and enough positions for a matmul, which are
    `least` if the windows are single places and need few copies."""
    positions = max(math.prod(counts), 1)
    if all(w.size == 1 for w in along):
        step = 1 if positions >= least else -(-4 * least // positions)
    elif along[-1].stride == 1 and counts[-1] >= LONG_ROW and positions >= POSITIONS:
        step = 1
    else:
        step = max(BLOCK_IMAGES, -(-POSITIONS // positions))
    step = min(step, batch) if xp is np else batch
    return [slice(first, min(first + step, batch)) for first in range(0, batch, step)]


def chunks(xp: Any, column: int, counts: Sequence[int], images: int) -> list[Span]:
    """Return ranges of outputs along the first dimension whose columns, of `column` elements each, are made
    together."""
    row = math.prod(counts[1:]) * images
    step = counts[0]
    if xp is np:
        step = min(step, max(1, COLUMN_ELEMENTS // max(column * row, 1), -(-POSITIONS // max(row, 1))))
    return [(first, min(first + step, counts[0])) for first in range(0, counts[0], step)]


def scratch_array(xp: Any, name: str, shape: Sequence[int], dtype: Any) -> Any:
    """Return an array that this thread reuses at its next call with this name."""
    return scratch(name, shape, dtype) if xp is np else xp.empty(shape, dtype)


def gathered(xp: Any, x: Any, reach: Sequence[Span] = (), stays: bool = False) -> Any:
    """Return [images, channels, ...] as [channels, ..., images]: a view of one image, else a copy with its own name
    (see `scratch_array`) unless it `stays` while others are gathered. reach: the range of positions along each
    dimension, by default all; positions outside the image are zeros."""
    lengths = x.shape[2:]
    spans = tuple(reach) or tuple((0, n) for n in lengths)
    inner = [clipped(span, n) for span, n in zip(spans, lengths, strict=True)]
    x = x[(slice(None), slice(None), *(slice(*span) for span in inner))]
    if x.shape[0] == 1 and inner == list(spans):
        return x[0][..., None]
    shape = (x.shape[1], *(end - first for first, end in spans), x.shape[0])
    out = xp.empty(shape, x.dtype) if stays else scratch_array(xp, "gathered", shape, x.dtype)
    if inner != list(spans):
        out[...] = 0
    there = (slice(low - first, high - first) for (first, _), (low, high) in zip(spans, inner, strict=True))
    out[(slice(None), *there)] = xp.moveaxis(x, 0, -1)
    return out


def reach_of(along: Sequence[Window], counts: Sequence[int]) -> tuple[Span, ...]:
    """Return the places that these positions read."""
    return tuple(w.places((0, n)) for w, n in zip(along, counts, strict=True))


def multiplied(xp: Any, x: Any, y: Any) -> Any:
    """Return x @ y in an array with a name of its own; see `scratch_array`."""
    if xp is not np:
        return xp.matmul(x, y)
    return np.matmul(x, y, out=scratch_array(xp, "multiplied", (*x.shape[:-1], y.shape[-1]), x.dtype))


def columns(xp: Any, image: Any, along: Sequence[Window], counts: Sequence[int], rows: Span) -> Any:
    """Return [channels * taps, windows] (im2col) of some rows of windows; a view, or a `scratch_array`. image:
    gathered, from the first position that is read to the last."""
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
    found = scratch_array(xp, "columns", looked.shape, image.dtype)
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
    """Return the outputs that read positions of an image at one tap of the window, and these positions."""
    return _met(along, place, lengths, [(0, n) for n in counts])


def _met(
    along: Sequence[Window], place: Sequence[int], lengths: Sequence[int], spans: Sequence[Span]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    found = [w.met(t, n, span) for w, t, n, span in zip(along, place, lengths, spans, strict=True)]
    return tuple(inside for inside, _ in found), tuple(looked for _, looked in found)
