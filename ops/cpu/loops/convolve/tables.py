"""The numbers and tables of offsets with which the C++ of `source.py` works one convolution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mspc.ops.convolution.base import first_order
from mspc.ops.convolution.window import Window
from mspc.ops.cpu.loops.convolve.lines import AxisPositions, of_image, of_result
from mspc.ops.cpu.loops.convolve.source import IMAGES, LANES, SHARE, TERMS, WEIGHTS

SLAB = 3 << 14
"""Elements of a slab that stay in the second cache of a core, with packed operands beside them: 192 KiB."""
POSITIONS = 1 << 11
"""Positions whose sums stay there."""
FEWEST = 96
"""Positions from which tiles are full enough: of smaller images several are worked together."""
ROWS = 48
"""Rows of the weights' gradient that a part has: they read the same packed operands."""
PARTS = 16
"""Parts that threads can share out evenly."""

_PLACES = ("columns", "rows", "made", "factors")
"""Numbers that are places of tables."""

Offsets = Any
"""Offsets, an Int64 array."""


class ConvolutionTables(NamedTuple):
    """numbers: what the function reads, Int64. prepared, parts: parts of its two stages. ready: elements of packed
    operands. multiplications: of all sums."""

    numbers: Any
    prepared: int
    parts: int
    ready: int
    multiplications: int


class StridedOperand(NamedTuple):
    """An operand or the result: its sizes [batch or out channels, channels, 3 places], and its strides in elements."""

    sizes: Sequence[int]
    strides: Sequence[int]


def strided(shape: Sequence[int], channels_last: bool) -> StridedOperand:
    """A contiguous array of this shape, of images or weights with two or three dimensions beside channels."""
    order = first_order(len(shape)) if channels_last else tuple(range(len(shape)))
    strides = [math.prod(shape[d + 1 :]) for d in order]
    sizes = [shape[d] for d in order]
    missing = 5 - len(shape)
    return StridedOperand([*sizes[:2], *[1] * missing, *sizes[2:]], [*strides[:2], *[0] * missing, *strides[2:]])


class _Lanes(NamedTuple):
    """How groups and channels are outer and inner indices and lanes. spread: lanes are groups."""

    spread: bool
    groups: int
    made: int

    @property
    def outers(self) -> int:
        return -(-self.groups // LANES) if self.spread else self.groups

    @property
    def inners(self) -> int:
        return self.made if self.spread else -(-self.made // LANES)

    @property
    def apart(self) -> int:
        """Elements of a slab from one place to the next."""
        return LANES if self.spread else 1

    @property
    def count(self) -> int:
        return self.groups if self.spread else self.made

    def numbers(self, letter: str, group: int, made: int) -> dict[str, int]:
        """Strides of an operand, from those of a group and of a group's channel of the result."""
        if self.spread:
            return {f"{letter}_outer": LANES * group, f"{letter}_inner": made, f"{letter}_lane": group}
        return {f"{letter}_outer": group, f"{letter}_inner": LANES * made, f"{letter}_lane": made}


def _lanes(groups: int, made: int) -> _Lanes:
    """Lanes are what fills them better: the groups, or the channels that a group makes."""
    filled = [count / (-(-count // LANES) * LANES) for count in (groups, made)]
    return _Lanes(filled[0] > filled[1], groups, made)


class _Slab(NamedTuple):
    """Where what windows look at lies, with its strides: in a copy of these lengths, or `direct`ly in the image."""

    direct: bool
    lengths: Sequence[int]
    image: int
    channel: int
    places: Sequence[int]


def _slab(
    x: StridedOperand, channels: int, total: Sequence[AxisPositions], some: Sequence[AxisPositions], lanes: _Lanes
) -> _Slab:
    """total: all positions. some: those of a chunk."""
    lengths = [each.extent for each in some]
    if not lanes.spread and all(each.within(n) for each, n in zip(total, x.sizes[2:], strict=True)):
        return _Slab(True, lengths, x.strides[0], x.strides[1], x.strides[2:])
    plane = math.prod(lengths)
    return _Slab(False, lengths, channels * plane, plane, [lengths[1] * lengths[2], lengths[2], 1])


class _Chunks(NamedTuple):
    """Which positions a part has: `rows` along the dimension `along` of one image, or all of several images."""

    along: int
    rows: int
    count: int
    images: int
    total: Sequence[AxisPositions]
    some: Sequence[AxisPositions]
    behind: int


def _chunks(line: Callable[[Window, int], AxisPositions], windows: Sequence[Window], y: StridedOperand, dims: int,
            channels: int, lanes: _Lanes) -> _Chunks:  # fmt: skip
    along, counts, batch = 3 - dims, y.sizes[2:], y.sizes[0]
    total = [line(window, count) for window, count in zip(windows, counts, strict=True)]
    length, step, row = counts[along], total[along].step, math.prod(counts) // counts[along]

    def some(rows: int) -> list[AxisPositions]:
        return [line(window, min(rows, length)) if d == along else total[d] for d, window in enumerate(windows)]

    def size(rows: int) -> int:
        return channels * math.prod(each.extent for each in some(rows)) * lanes.apart

    rows = -(-length // (step * -(-PARTS // (batch * lanes.outers)))) * step
    while rows > step and (size(rows) > SLAB or rows * row > POSITIONS):
        rows = max(step, rows // step // 2 * step)
    count = -(-length // rows)
    images = 1 if count > 1 else max(1, min(-(-FEWEST // (length * row)), SLAB // size(rows), batch))
    return _Chunks(along, rows, count, images, total, some(rows), length - (count - 1) * rows)


def of_images(
    x: StridedOperand, weight: StridedOperand, y: StridedOperand, along: Sequence[Window], groups: int, gradient: bool
) -> ConvolutionTables:
    """Of a convolution's result y from images x, or, as a gradient, of the images' gradient y from the result's, x."""
    channels, made = x.sizes[1] // groups, y.sizes[1] // groups
    lanes = _lanes(groups, made)
    chunks = _chunks(of_image if gradient else of_result, _three(along), y, len(along), channels, lanes)
    slab = _slab(x, channels, chunks.total, chunks.some, lanes)
    terms_of, lanes_of = weight.strides[:2] if gradient else weight.strides[1::-1]
    tables = _Tables()
    shares: list[list[int]] = []
    ready = 0
    for met in itertools.product(*(each.shares for each in chunks.some)):
        taps = [[offset for offset, _ in part.taps] for part in met]
        numbers = [[number for _, number in part.taps] for part in met]
        columns = _grid([range(channels), *taps], [slab.channel, *slab.places])
        of_chunk = [len(part.made) for part in met]
        of_last = [*of_chunk]
        of_last[chunks.along] = sum(place < chunks.behind for place in met[chunks.along].made)
        shares.append(
            [
                len(columns),
                tables.add(columns),
                tables.add(_grid([range(chunks.images), *(part.looked for part in met)], [slab.image, *slab.places])),
                tables.add(_grid([range(chunks.images), *(part.made for part in met)], [y.strides[0], *y.strides[2:]])),
                tables.add(_grid([range(channels), *numbers], [terms_of, *weight.strides[2:]])),
                ready,
                math.prod(of_chunk),
                math.prod(of_last),
            ]
        )
        ready += lanes.outers * lanes.inners * len(columns) * LANES
    parts = -(-x.sizes[0] // chunks.images) * chunks.count * lanes.outers
    pieces = min(lanes.inners, -(-PARTS // parts))
    prepared = len(shares) * lanes.outers * lanes.inners
    chunked = chunks.total[chunks.along]
    found = {
        **_common(x, groups, lanes, slab, chunks.total), "channels": channels, "images": chunks.images,
        "most_rows": chunks.images * max(share[6] for share in shares), "prepared": prepared, "pieces": pieces,
        **lanes.numbers("b", weight.sizes[0] // groups * weight.strides[0], lanes_of),
        **lanes.numbers("y", made * y.strides[1], y.strides[1]), "chunks": chunks.count, "move_0": 0, "move_1": 0,
        f"move_{chunks.along}": chunks.rows // chunked.step * chunked.move, "y_image": y.strides[0],
        "y_move": chunks.rows * y.strides[2 + chunks.along], "shares": len(shares), "first_share": len(IMAGES),
    }  # fmt: skip
    multiplications = ready // (lanes.outers * lanes.inners * LANES) * math.prod(y.sizes) // len(shares)
    return ConvolutionTables(tables.with_shares(found, shares), prepared, parts * pieces, ready, multiplications)


def of_weights(
    x: StridedOperand, dout: StridedOperand, y: StridedOperand, along: Sequence[Window], groups: int
) -> ConvolutionTables:
    """Of the weights' gradient y from images x and the result's gradient."""
    all_channels, made = x.sizes[1] // groups, dout.sizes[1] // groups
    lanes, windows = _lanes(groups, made), _three(along)
    lines = [of_result(window, count) for window, count in zip(windows, dout.sizes[2:], strict=True)]
    places, positions = [each.shares[0] for each in lines], math.prod(dout.sizes[2:])
    window = math.prod(w.size for w in along)
    blocks = -(-all_channels // -(-ROWS // window))
    channels = -(-all_channels // blocks)
    slab = _slab(x, channels, lines, lines, lanes)
    size = channels * math.prod(slab.lengths) * lanes.apart
    images = max(1, min(-(-TERMS // positions), SLAB // size, x.sizes[0]))
    pieces = min(lanes.inners, -(-PARTS // (lanes.outers * blocks)))
    prepared = dout.sizes[0] * lanes.outers * lanes.inners
    taps = [[offset for offset, _ in part.taps] for part in places]
    tables = _Tables()
    found = {
        **_common(x, groups, lanes, slab, lines), "channels": channels, "images": images,
        "most_rows": channels * window, "prepared": prepared, "pieces": pieces,
        **lanes.numbers("b", made * dout.strides[1], dout.strides[1]),
        **lanes.numbers("y", made * y.strides[0], y.strides[0]), "all_channels": all_channels, "blocks": blocks,
        "window": window, "positions": positions, "b_image": dout.strides[0],
        "columns": tables.add(_grid([range(images), *(part.looked for part in places)], [slab.image, *slab.places])),
        "rows": tables.add(_grid([range(channels), *taps], [slab.channel, *slab.places])),
        "made": tables.add(_grid([range(n) for n in (all_channels, *(w.size for w in windows))], y.strides[1:])),
        "factors": tables.add(_grid([range(n) for n in dout.sizes[2:]], dout.strides[2:])),
    }  # fmt: skip
    multiplications = math.prod(dout.sizes) * all_channels * window
    parts = lanes.outers * blocks * pieces
    return ConvolutionTables(tables.with_weights(found), prepared, parts, prepared * positions * LANES, multiplications)


def _three(along: Sequence[Window]) -> list[Window]:
    """Windows along three dimensions, of which an image of two has one place along the first."""
    return [Window(1)] * (3 - len(along)) + list(along)


def _common(
    x: StridedOperand, groups: int, lanes: _Lanes, slab: _Slab, lines: Sequence[AxisPositions]
) -> dict[str, int]:
    """Numbers that both functions have, of the image."""
    group = x.sizes[1] // groups * x.strides[1]
    found = {
        "x_outer": group * lanes.apart, "x_lane": group, "x_channel": x.strides[1], "x_image": x.strides[0],
        "batch": x.sizes[0], "outers": lanes.outers, "inners": lanes.inners, "lanes": lanes.count,
        "spread": int(lanes.spread), "direct": int(slab.direct),
    }  # fmt: skip
    for d, each in enumerate(lines):
        found |= {f"x_{d}": x.strides[2 + d], f"length_{d}": x.sizes[2 + d]}
        found |= {f"slab_{d}": slab.lengths[d], f"start_{d}": each.start}
    return found


def _grid(offsets: Sequence[Sequence[int]], strides: Sequence[int]) -> Offsets:
    """Sums of one offset of each dimension times its stride, the last dimension running fastest."""
    found = np.zeros(1, np.int64)
    for each, stride in zip(offsets, strides, strict=True):
        found = (found[:, None] + np.array(each, np.int64) * stride).reshape(-1)
    return found


class _Tables:
    """Tables one behind the other. The places that they get count from the first table."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.size = 0

    def add(self, table: Offsets) -> int:
        self.arrays.append(table)
        self.size += len(table)
        return self.size - len(table)

    def with_shares(self, numbers: dict[str, int], shares: Sequence[Sequence[int]]) -> Any:
        head = len(IMAGES) + len(SHARE) * len(shares)
        flat = [
            number + head if name in _PLACES else number
            for share in shares
            for name, number in zip(SHARE, share, strict=True)
        ]
        return np.concatenate([np.array([*(numbers[name] for name in IMAGES), *flat], np.int64), *self.arrays])

    def with_weights(self, numbers: dict[str, int]) -> Any:
        numbers |= {name: numbers[name] + len(WEIGHTS) for name in _PLACES}
        return np.concatenate([np.array([numbers[name] for name in WEIGHTS], np.int64), *self.arrays])
