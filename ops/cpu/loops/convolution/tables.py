"""The numbers and tables of offsets with which the C++ of `source.py` works one convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mspc.ops.convolution.memory_format import first_order
from mspc.ops.convolution.window import Window
from mspc.ops.cpu.loops.convolution.lines import Line, of_image, of_result
from mspc.ops.cpu.loops.convolution.source import IMAGES, LANES, SHARE, TERMS, WEIGHTS

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

Offsets = Any
"""Offsets, an Int64 array."""


class Tables(NamedTuple):
    """numbers: what the function reads, Int64. prepared, parts: parts of its two stages. ready: elements of packed
    operands. multiplications: of all sums."""

    numbers: Any
    prepared: int
    parts: int
    ready: int
    multiplications: int


class Tensor(NamedTuple):
    """Sizes of an operand or of the result, and its strides in elements: [batch or out channels, channels, 3 places]."""

    sizes: Sequence[int]
    strides: Sequence[int]


def tensor(shape: Sequence[int], channels_last: bool) -> Tensor:
    """A contiguous array of this shape, of images or weights with two or three dimensions beside channels."""
    order = first_order(len(shape)) if channels_last else tuple(range(len(shape)))
    strides = [math.prod(shape[d + 1 :]) for d in order]
    sizes = [shape[d] for d in order]
    missing = 5 - len(shape)
    return Tensor([*sizes[:2], *[1] * missing, *sizes[2:]], [*strides[:2], *[0] * missing, *strides[2:]])


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


def of_images(x: Tensor, weight: Tensor, y: Tensor, along: Sequence[Window], groups: int, gradient: bool) -> Tables:
    """Of a convolution's result y from images x, or, as a gradient, of the images' gradient y from the result's, x."""
    channels, made = x.sizes[1] // groups, y.sizes[1] // groups
    windows = [Window(1)] * (3 - len(along)) + list(along)
    chunked = 3 - len(along)
    line: Callable[[Window, int], Line] = of_image if gradient else of_result
    lanes = _lanes(groups, made)
    batch, counts = x.sizes[0], list(y.sizes[2:])
    total = [line(window, count) for window, count in zip(windows, counts, strict=True)]
    step, move = total[chunked].step, total[chunked].move
    wanted = -(-PARTS // (batch * lanes.outers))
    rows = -(-counts[chunked] // (step * wanted)) * step

    def slab(rows: int) -> int:
        lines = [line(windows[d], rows) if d == chunked else total[d] for d in range(3)]
        return channels * math.prod(each.extent for each in lines) * (LANES if lanes.spread else 1)

    row = math.prod(counts) // counts[chunked]
    while rows > step and (slab(rows) > SLAB or rows * row > POSITIONS):
        rows = max(step, rows // step // 2 * step)
    chunks = -(-counts[chunked] // rows)
    images = 1
    if chunks == 1:
        images = max(1, min(-(-FEWEST // math.prod(counts)), SLAB // slab(rows), batch))
    some = [line(windows[d], min(rows, counts[d])) if d == chunked else total[d] for d in range(3)]
    direct = not lanes.spread and all(each.within(n) for each, n in zip(total, x.sizes[2:], strict=True))
    extents = [each.extent for each in some]
    places = x.strides[2:] if direct else [extents[1] * extents[2], extents[2], 1]
    channel, image = (x.strides[1], x.strides[0]) if direct else (math.prod(extents), channels * math.prod(extents))
    terms_of, lanes_of = (weight.strides[0], weight.strides[1]) if gradient else (weight.strides[1], weight.strides[0])
    made_by_group = weight.sizes[0] // groups * weight.strides[0]
    behind = counts[chunked] - (chunks - 1) * rows
    parts = -(-batch // images) * chunks * lanes.outers
    pieces = min(lanes.inners, -(-PARTS // parts))
    tables = _Tables()
    shares: list[list[int]] = []
    ready = 0
    for met in ((a, b, c) for a in some[0].shares for b in some[1].shares for c in some[2].shares):
        taps = [[offset for offset, _ in part.taps] for part in met]
        numbers = [[number for _, number in part.taps] for part in met]
        columns = _grid([range(channels), *taps], [channel, *places])
        positions = math.prod(len(part.made) for part in met)
        last = positions // max(len(met[chunked].made), 1) * sum(place < behind for place in met[chunked].made)
        shares.append(
            [
                len(columns),
                tables.add(columns),
                tables.add(_grid([range(images), *(part.looked for part in met)], [image, *places])),
                tables.add(_grid([range(images), *(part.made for part in met)], [y.strides[0], *y.strides[2:]])),
                tables.add(_grid([range(channels), *numbers], [terms_of, *weight.strides[2:]])),
                ready,
                positions,
                last,
            ]
        )
        ready += lanes.outers * lanes.inners * len(columns) * LANES
    prepared = len(shares) * lanes.outers * lanes.inners
    numbers_of = {
        **_image(x, groups, lanes), **_places(total, extents, x), **lanes.numbers("b", made_by_group, lanes_of),
        **lanes.numbers("y", made * y.strides[1], y.strides[1]), "prepared": prepared, "direct": int(direct),
        "channels": channels, "most_rows": images * max(share[6] for share in shares), "images": images,
        "pieces": pieces,
        "chunks": chunks, "move_0": 0, "move_1": 0, f"move_{chunked}": rows // step * move, "y_image": y.strides[0],
        "y_move": rows * y.strides[2 + chunked], "shares": len(shares), "first_share": 0,
    }  # fmt: skip
    multiplications = y.sizes[0] * made * groups * channels * math.prod(w.size for w in along) * math.prod(counts)
    if gradient:
        multiplications //= math.prod(w.stride for w in along)
    return Tables(tables.with_shares(numbers_of, shares), prepared, parts * pieces, ready, multiplications)


def of_weights(x: Tensor, dout: Tensor, y: Tensor, along: Sequence[Window], groups: int) -> Tables:
    """Of the weights' gradient y from images x and the result's gradient."""
    all_channels, made = x.sizes[1] // groups, dout.sizes[1] // groups
    windows = [Window(1)] * (3 - len(along)) + list(along)
    lanes = _lanes(groups, made)
    counts = dout.sizes[2:]
    lines = [of_result(window, count) for window, count in zip(windows, counts, strict=True)]
    window = math.prod(w.size for w in along)
    blocks = -(-all_channels // -(-ROWS // window))
    channels = -(-all_channels // blocks)
    direct = not lanes.spread and all(each.within(n) for each, n in zip(lines, x.sizes[2:], strict=True))
    extents = [each.extent for each in lines]
    places = x.strides[2:] if direct else [extents[1] * extents[2], extents[2], 1]
    channel, image = (x.strides[1], x.strides[0]) if direct else (math.prod(extents), channels * math.prod(extents))
    parts = [each.shares[0] for each in lines]
    taps = [[offset for offset, _ in part.taps] for part in parts]
    tables = _Tables()
    positions = math.prod(counts)
    wide = LANES if lanes.spread else 1
    images = max(1, min(-(-TERMS // positions), SLAB // (channels * math.prod(extents) * wide), x.sizes[0]))
    prepared = dout.sizes[0] * lanes.outers * lanes.inners
    pieces = min(lanes.inners, -(-PARTS // (lanes.outers * blocks)))
    numbers = {
        **_image(x, groups, lanes), **_places(lines, extents, x),
        **lanes.numbers("b", made * dout.strides[1], dout.strides[1]),
        **lanes.numbers("y", made * y.strides[0], y.strides[0]), "prepared": prepared, "direct": int(direct),
        "channels": channels, "most_rows": channels * window, "all_channels": all_channels, "blocks": blocks,
        "pieces": pieces, "window": window, "positions": positions, "images": images, "b_image": dout.strides[0],
        "columns": tables.add(_grid([range(images), *(part.looked for part in parts)], [image, *places])),
        "rows": tables.add(_grid([range(channels), *taps], [channel, *places])),
        "made": tables.add(_grid([range(n) for n in (all_channels, *(w.size for w in windows))], y.strides[1:])),
        "factors": tables.add(_grid([range(n) for n in counts], dout.strides[2:])),
    }  # fmt: skip
    multiplications = x.sizes[0] * made * groups * all_channels * window * positions
    return Tables(
        tables.with_weights(numbers), prepared, lanes.outers * blocks * pieces, prepared * positions * LANES,
        multiplications,
    )  # fmt: skip


def _image(x: Tensor, groups: int, lanes: _Lanes) -> dict[str, int]:
    group = x.sizes[1] // groups * x.strides[1]
    return {
        "x_outer": group * (LANES if lanes.spread else 1), "x_lane": group, "x_channel": x.strides[1],
        "x_image": x.strides[0], "batch": x.sizes[0], "outers": lanes.outers, "inners": lanes.inners,
        "lanes": lanes.count, "spread": int(lanes.spread),
    }  # fmt: skip


def _places(lines: Sequence[Line], extents: Sequence[int], x: Tensor) -> dict[str, int]:
    found: dict[str, int] = {}
    for d, each in enumerate(lines):
        found |= {
            f"x_{d}": x.strides[2 + d], f"length_{d}": x.sizes[2 + d], f"slab_{d}": extents[d], f"start_{d}": each.start
        }  # fmt: skip
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
        tables = slice(1, 5)
        moved = [[*s[:1], *(place + head for place in s[tables]), *s[5:]] for s in shares]
        numbers["first_share"] = len(IMAGES)
        flat = [number for share in moved for number in share]
        return np.concatenate([np.array([*(numbers[name] for name in IMAGES), *flat], np.int64), *self.arrays])

    def with_weights(self, numbers: dict[str, int]) -> Any:
        for name in ("columns", "rows", "made", "factors"):
            numbers[name] += len(WEIGHTS)
        return np.concatenate([np.array([numbers[name] for name in WEIGHTS], np.int64), *self.arrays])
