"""C++ of convolutions and of their gradients.

All of them are sums y[row, lane] = sum over k of x[rows[row] + columns[k]] * b[k, lane]: an element of the image is
found by two tables of offsets, so that no im2col matrix is stored, for any strides and dilations. Lanes are contiguous
in memory and become vectors: output channels, which share an element of the image (`spread` is false), or groups, which
have an element each (`spread` is true).

For the result and the image gradient a row is an output position, k an input channel with a tap, and b the weights. For
the weight gradient a row is an input channel with a tap, k a position, and b the gradient of the result. Both have two
stages with consecutive numbers of parts: first b is packed, so that the lanes of every k are contiguous, then the sums
are computed. A part copies its operands of the image to a padded slab, unless all windows are inside the image.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.types import TensorType
from mspc.ops.convolution.convolve import InputGradient, WeightGradient
from mspc.ops.convolution.window import Convolution, Window, first_order
from mspc.ops.cpu.blocks import scratch
from mspc.ops.cpu.loops.kernel import Addresses, Function, Kernel, shared
from mspc.ops.device import source_text

LANES = 16
"""Neighbouring elements of packed operands, whatever the length of a processor's vectors."""
TERMS = 256
"""Terms of a sum that are added up in registers: their packed operands stay in the cache that is next to a core."""

COMMON = (
    "x_outer", "x_lane", "x_channel", "x_image", "x_0", "x_1", "x_2", "length_0", "length_1", "length_2", "slab_0",
    "slab_1", "slab_2", "start_0", "start_1", "start_2", "b_outer", "b_inner", "b_lane", "y_outer", "y_inner", "y_lane",
    "prepared", "spread", "direct", "outers", "inners", "lanes", "channels", "batch", "most_rows",
    "pieces", "images",
)  # fmt: skip
IMAGES = (
    *COMMON, "chunks", "move_0", "move_1", "y_image", "y_move", "shares", "first_share",
)  # fmt: skip
SHARE = ("terms", "columns", "rows", "made", "factors", "packed", "positions", "last_positions")
WEIGHTS = (
    *COMMON, "all_channels", "blocks", "window", "positions", "b_image", "columns", "rows", "made", "factors",
)  # fmt: skip
"""Numbers that a function is given, in their order; tables follow them, at the places that some of them say.

Strides are in elements. An image has an outer index (a group, or LANES groups), lanes if it is spread, channels and
three dimensions, of which the first has one place in an image of two. b and y have an outer and an inner index (LANES
output channels of a group, or one output channel of every group) and lanes.
"""


def _source(file: str, **structs: Sequence[str]) -> str:
    """Return the C++ of a file, with structures of Int64 numbers."""
    texts = (f"struct {name} {{ i64 {', '.join(fields)}; }};" for name, fields in structs.items())
    return source_text(f"ops/cpu/loops/{file}", structs="\n".join(texts), lanes=LANES, terms=TERMS)


# Along each dimension, positions of an image's windows are listed with the places that they read.
#
# Positions of a convolution read places of the image: one share. The gradient of an image is a convolution, too, of the
# result's gradient: places of the image take the positions that read them. With a stride these are other places of the
# window for every remainder of a place: one share each. Dumoulin and Visin, arXiv 1603.07285, chapter 4.


class Share(NamedTuple):
    """Output positions that use the same taps. looked: the offset that each reads with tap 0, from the start of the
    line's slab. made: the offsets in the result. taps: offset and number of every tap that they use."""

    looked: range
    made: range
    taps: Sequence[tuple[int, int]]


class AxisPositions(NamedTuple):
    """All outputs along one dimension. start: first input position in the slab. Outputs may be processed in chunks of a
    multiple of `step`, with slabs that start `move` positions later for each `step`."""

    start: int
    step: int
    move: int
    shares: Sequence[Share]

    @property
    def extent(self) -> int:
        """Places of the slab."""
        return 1 + max(
            (share.looked[-1] + tap for share in self.shares for tap, _ in share.taps if share.looked), default=0
        )

    def within(self, length: int) -> bool:
        """Return whether the slab has no place outside of an image of this length."""
        return self.start >= 0 and self.start + self.extent <= length


def of_result(window: Window, count: int) -> AxisPositions:
    """Return the first `count` positions of a convolution's result."""
    looked = range(0, count * window.stride, window.stride)
    taps = [(t * window.dilation, t) for t in range(window.size)]
    return AxisPositions(-window.before, 1, window.stride, [Share(looked, range(count), taps)])


def of_image(window: Window, count: int) -> AxisPositions:
    """Return the first `count` places of an image's gradient, each the sum over the positions that read it."""
    stride = window.stride
    met = [
        [
            ((first + window.before - t * window.dilation) // stride, t)
            for t in reversed(range(window.size))
            if (first + window.before - t * window.dilation) % stride == 0
        ]
        for first in range(stride)
    ]
    start = min((offset for taps in met for offset, _ in taps), default=0)
    shares: list[Share] = []
    for first, taps in enumerate(met):
        made = range(first, count, stride)
        shares.append(Share(range(len(made)), made, [(offset - start, t) for offset, t in taps]))
    return AxisPositions(start, stride, 1, shares)


# The numbers and tables of offsets with which the C++ of `source.py` works one convolution.


SLAB = 3 << 14
"""Elements of a slab that stay in the second cache of a core, together with packed operands: 192 KiB."""
POSITIONS = 1 << 11
"""Outputs whose sums stay in registers."""
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
    """numbers: Int64 arguments of the function. prepared, parts: parts of its two stages. ready: elements of packed
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
    """Return a contiguous array of this shape, of images or weights with two or three dimensions in addition to
    channels."""
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
        """Return the strides of an operand, from those of a group and of a group's channel of the result."""
        if self.spread:
            return {f"{letter}_outer": LANES * group, f"{letter}_inner": made, f"{letter}_lane": group}
        return {f"{letter}_outer": group, f"{letter}_inner": LANES * made, f"{letter}_lane": made}


def _lanes(groups: int, made: int) -> _Lanes:
    """Choose lanes that are filled better: the groups, or the channels that a group makes."""
    filled = [count / (-(-count // LANES) * LANES) for count in (groups, made)]
    return _Lanes(filled[0] > filled[1], groups, made)


class _Slab(NamedTuple):
    """The memory that windows read, with its strides: a copy of these lengths, or the image (`direct`)."""

    direct: bool
    lengths: Sequence[int]
    image: int
    channel: int
    places: Sequence[int]


def _slab(
    x: StridedOperand, channels: int, total: Sequence[AxisPositions], some: Sequence[AxisPositions], lanes: _Lanes
) -> _Slab:
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
    """Return the tables of a convolution's result y from images x, or, as a gradient, of the images' gradient y from
    the result's, x."""
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
    """Return the tables of the weights' gradient y from images x and the result's gradient."""
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
    """Return windows along three dimensions; an image of two has one place along the first."""
    return [Window(1)] * (3 - len(along)) + list(along)


def _common(
    x: StridedOperand, groups: int, lanes: _Lanes, slab: _Slab, lines: Sequence[AxisPositions]
) -> dict[str, int]:
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
    found = np.zeros(1, np.int64)
    for each, stride in zip(offsets, strides, strict=True):
        found = (found[:, None] + np.array(each, np.int64) * stride).reshape(-1)
    return found


class _Tables:
    """Concatenated tables. Offsets count from the first table."""

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


# Convolutions and their gradients get kernels of compiled functions.


_FASTER = 8
"""Multiplications of a convolution that take the time of one operation of a loop over elements."""
PACKED_FOR = 1 << 8
"""Positions of all images that do not make up for packing the weights, which are more than the images then."""


class ConvolutionSource(NamedTuple):
    """Compiled form. text: C++ of a function called NAME. order: the operator's operands in the order of the
    function."""

    text: str
    tables: ConvolutionTables
    order: tuple[int, int]
    only_finite: bool


def compiled_convolution(op: Convolution, types: Sequence[TensorType], result: TensorType) -> ConvolutionSource | None:
    """Return the compiled form of an operator on these types; None for other element types than Float32, without
    elements, or if NumPy is faster."""
    if any(type.dtype.name != "Float32" or not type.size for type in (*types, result)):
        return None
    first, second = (strided(type.shape, op.channels_last) for type in types)
    made = strided(result.shape, op.channels_last)
    groups = op.group
    if isinstance(op, WeightGradient):
        along = op.along(second.sizes[5 - op.dims :])
        text = _source("convolution_weights.cpp", Numbers=WEIGHTS)
        return ConvolutionSource(text, of_weights(second, first, made, along, groups), (1, 0), False)
    gradient = isinstance(op, InputGradient)
    along = op.along((made if gradient else first).sizes[5 - op.dims :])
    if groups == 1 and better_in_blas(along, first if gradient else made):
        return None
    text = _source("convolution_images.cpp", Numbers=IMAGES, Share=SHARE)
    return ConvolutionSource(text, of_images(first, second, made, along, groups, gradient), (0, 1), gradient)


def better_in_blas(along: Sequence[Window], result: StridedOperand) -> bool:
    """Return whether a convolution with this result, or the gradient of its image, is faster as NumPy makes it."""
    positions = math.prod(result.sizes) // result.sizes[1]
    return all(window.size == 1 for window in along) or positions <= PACKED_FOR


def convolution_kernel(made: ConvolutionSource, result: TensorType, function: Function, plain: Kernel) -> Kernel:
    """Return the kernel `function(*operands, out=None)`. plain: NumPy's, which leaves padding out of the images'
    gradient: factors that are not finite would make NaN of it."""
    tables = made.tables
    addresses = Addresses(6)
    flag = np.zeros(1, np.int64)
    addresses.hold(4, tables.numbers)
    addresses.hold(5, flag)

    prepare = shared(function, tables.prepared, tables.ready)
    run = shared(function, tables.parts, tables.multiplications // _FASTER, tables.prepared)

    def kernel(*operands: Any, out: Any = None) -> Any:
        found = np.empty(result.shape, result.dtype.numpy) if out is None else out
        target = found if found.flags.c_contiguous else np.empty(result.shape, result.dtype.numpy)
        for place, operand in enumerate(made.order):
            addresses.read(place, operands[operand], result.dtype.numpy)
        addresses.put(2, target)
        ready = scratch("packed", (tables.ready,), np.float32)  # a name, as nothing else holds a large one
        addresses.put(3, ready)
        flag[0] = 0
        prepare(addresses.table)
        if made.only_finite and flag[0]:
            target[...] = plain(*operands)
        else:
            run(addresses.table)
        addresses.release()
        if target is not found:
            np.copyto(found, target)
        return found

    return kernel
