"""CUDA kernels of depthwise convolutions and their gradients, for images with channels last.

Products are accumulated in Float32 (Float64 for Float64) and rounded once. Positions outside an image count as zeros.
There are no atomics, and the order of additions is fixed on one kind of GPU. In the weight gradient, a non-finite image
value may affect taps that do not read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.text import accumulating_type, definitions, power_of_two
from mspc.ops.device import Array, Device, Launch, Sliding, source_text

# The CUDA C++ of convolutions of single channels and of their gradients; `depthwise.py` chooses the sizes.
#
# A thread works on one channel of a tile of columns, and goes down the rows of it. Sums of the rows that are not
# complete (or, for the gradient of the weights, the rows that are still needed) stay in registers and move up by one at
# every step, so that a row is read once and every element of it is used for all places of the window. Lanes of a warp
# have neighbouring channels, which are contiguous in memory.
#
# Along a dimension, place p of the image and position q of the result meet at place k of the window if p = q * STRIDE -
# BEFORE + k * DILATION. One thread computes all results of rows `begin` to `end`.
#
# Constants of all kernels (ending in Y for rows, in X for columns): IMAGES, CHANNELS of the result, MULTIPLIER results
# of each channel of the image; IN, OUT, SIZE (of the window), STRIDE, DILATION, BEFORE; LANES channels by GROUPS items,
# the THREADS of a block; TILE columns of an item and ROWS of it; COLUMNS tiles and SLABS, which make up an image;
# FIRST, from which they are counted; ITEMS, all of them. T is the element type, A that of sums.


# Sizes of the kernels of depthwise convolutions: the part of the work of a thread, and the number of threads.
#
# They are chosen by the number of instructions: elements that a thread loads cost some instructions each, so that wide
# tiles are better, until too few blocks are left for the multiprocessors. See `launch_of`.


THREADS = 128
"""Threads of a block."""
_LANES = 32
"""Channels that a block works on at most."""
_REGISTERS = 65536
"""Registers of a multiprocessor."""
_MAX_REGISTERS = 180
"""Registers of a thread for its data, in addition to those for addresses."""
_ADDRESSES = 40
"""Registers for addresses, counters and loads in flight."""
_MAX_BLOCKS = 12
"""Upper bound of the blocks that a multiprocessor runs at once."""
_MAX_TILE = 8
_MAX_SUMS = 64
"""Words for sums of the gradient of the weights that a thread holds."""
_MAX_PART = 7
"""Columns of a window that a block sums up for."""
_LOAD = 4
"""Instructions for a loaded element: its test, the load and the conversion."""
_BUSY = 2
"""Blocks that a multiprocessor needs to be busy."""


class TileUsage(NamedTuple):
    """The registers and work of a thread for a tile: rows of sums (or of values used again), elements it loads at every
    step, multiplications of a step, and rows that a step completes."""

    rows: int
    loads: int
    products: float
    advance: int


class TileSizes(NamedTuple):
    """Constants of a kernel, its blocks, and how long it takes, in some unit."""

    constants: dict[str, int]
    blocks: int
    cost: float


class Depthwise(NamedTuple):
    """A convolution or a gradient: arrays with their channels last, weights [channels, rows, columns]."""

    device: Device
    kind: str
    image: Array
    weight: Array
    result: Array
    windows: tuple[Sliding, Sliding]
    dtype: DType

    @property
    def channels(self) -> int:
        """Channels of the result."""
        return self.result.shape[3]

    @property
    def words(self) -> int:
        """Registers for a sum."""
        return 2 if accumulating_type(self.dtype) == "double" else 1

    @property
    def lanes(self) -> int:
        """Channels of a block."""
        return min(_LANES, power_of_two(self.channels))

    @property
    def groups(self) -> int:
        """Items that a block works on at once."""
        return THREADS // self.lanes

    @property
    def window(self) -> tuple[int, int]:
        """Its rows and columns."""
        return self.weight.shape[1], self.weight.shape[2]

    def _made(self, dim: int) -> tuple[int, int]:
        """Return the first position along rows (0) or columns (1) that threads share, and their end."""
        if self.kind != "image":
            return 0, self.result.shape[1 + dim]
        before, stride = self.windows[dim].before, self.windows[dim].stride
        return before // stride * stride, self.image.shape[1 + dim] + before

    def _held(self, tile: int, size: tuple[int, int]) -> TileUsage:
        (down, across), stride = self.windows, self.windows[1].stride
        deep = (size[0] - 1) * down.dilation + 1
        reach = (size[1] - 1) * across.dilation
        if self.kind == "image":
            loads = (tile - 1) // stride + reach // stride + 1
            return TileUsage(max(deep, down.stride), loads, math.prod(size) * tile / stride, down.stride)
        late = (deep - 1) // down.stride + 1
        loads = min(deep, down.stride) * min((tile - 1) * stride + reach + 1, tile * size[1])
        return TileUsage(late, loads + tile * (self.kind == "weight"), math.prod(size) * tile, 1)

    def _registers(self, tile: int, size: tuple[int, int]) -> int:
        held = self._held(tile, size)
        return self.words * (math.prod(size) + held.rows * tile + held.loads)

    def _tiles(self, size: tuple[int, int]) -> Iterator[int]:
        first, end = self._made(1)
        step = self.windows[1].stride if self.kind == "image" else 1
        for tile in range(step, max(_MAX_TILE, step) + 1, step):
            if self._registers(tile, size) <= _MAX_REGISTERS:
                yield tile
            if first + tile >= end:
                break

    def choices(self) -> list[TileSizes]:
        """Return the best tile for each number of columns; empty if the window does not fit into registers."""
        size = self.part() if self.kind == "weight" else self.window
        return [self._sizes(tile, size) for tile in self._tiles(size)]

    def _sizes(self, tile: int, size: tuple[int, int]) -> TileSizes:
        held, resident = self._held(tile, size), self._resident(tile, size)
        (top, bottom), (left, right) = self._made(0), self._made(1)
        columns, units = -(-(right - left) // tile), -(-(bottom - top) // held.advance)
        beside = -(-self.channels // self.lanes) * self._parts(size)
        found: list[TileSizes] = []
        for slabs in range(1, units + 1):
            rows = -(-units // slabs)
            if rows * (slabs - 1) >= units:
                continue  # the last would be empty
            items = self.image.shape[0] * columns * slabs
            shares, turns = -(-items // self.groups), 1
            if self.kind == "weight":
                turns = max(1, shares * beside // (resident * self.device.multiprocessors))
                shares = -(-shares // turns)
            busy = max(_BUSY, -(-shares * beside // self.device.multiprocessors))
            halo = (held.rows - 1) / held.advance if slabs > 1 else 0
            cost = busy * turns * (rows + halo) * (held.products + _LOAD * held.loads)
            made = {"TILE": tile, "ROWS": rows * held.advance, "COLUMNS": columns, "SLABS": slabs, "ITEMS": items,
                    "FIRSTY": top, "FIRSTX": left, "BLOCKS": resident}  # fmt: skip
            if self.kind == "weight":
                made |= {"TURN": shares * self.groups, "SHARES": shares, "PARTY": size[0], "PARTX": size[1]}
            found.append(TileSizes(made, shares * beside, cost))
        return min(found, key=lambda sizes: sizes.cost)

    def _resident(self, tile: int, size: tuple[int, int]) -> int:
        """Return the blocks that a multiprocessor holds at once."""
        return min(_MAX_BLOCKS, _REGISTERS // (THREADS * (self._registers(tile, size) + _ADDRESSES)))

    def _parts(self, size: tuple[int, int]) -> int:
        """Return the number of parts that the window is divided into."""
        return math.prod(-(-whole // part) for whole, part in zip(self.window, size, strict=True))

    def part(self) -> tuple[int, int]:
        """Return the number of taps that a thread sums up: all, or equal shares that fit into its registers."""
        height, width = self.window
        across = -(-width // -(-width // _MAX_PART))
        least = min(2, self.result.shape[2])
        for shares in range(1, height + 1):
            size = -(-height // shares), across
            if math.prod(size) * self.words <= _MAX_SUMS and any(tile >= least for tile in self._tiles(size)):
                return size
        return 1, across

    def source(self) -> str:
        """Return the beginning of all kernels."""
        found = definitions(T=self.dtype, A=accumulating_type(self.dtype))
        multiplier = self.channels // self.image.shape[3]
        given: dict[str, int] = {"CHANNELS": self.channels, "MULTIPLIER": multiplier, "LANES": self.lanes}
        given["GROUPS"] = self.groups
        for dim, name in enumerate("YX"):
            window = self.windows[dim]
            given |= {
                f"IN{name}": self.image.shape[1 + dim], f"OUT{name}": self.result.shape[1 + dim],
                f"SIZE{name}": self.weight.shape[1 + dim], f"STRIDE{name}": window.stride,
                f"DILATION{name}": window.dilation, f"BEFORE{name}": window.before,
            }  # fmt: skip
        return found + definitions(**given)


_TYPES = ("Float16", "BFloat16", "Float32", "Float64")
_SIDE_BY_SIDE, _DEEP = 32, 8
"""Weights, and threads for each of them, of a block that adds up the sums of others."""


def depthwise(
    device: Device, kind: str, image: Array, weight: Array, result: Array, windows: Sequence[Sliding]
) -> list[Launch]:
    """Return launches of a depthwise convolution, one for each of several tiles, the likely fastest first; none if no
    kernel takes it. See `Device.convolution` for the arguments."""
    work = work_of(device, kind, image, weight, result, windows)
    if work is None:
        return []
    made = {"forward": result, "image": image, "weight": weight}[kind]
    if not made.size:
        return [lambda: None]
    if not all(array.size for array in (image, weight, result)):
        return [lambda: made.fill(0)]
    return [launch_of(work, sizes) for sizes in best_sizes(work)]


def work_of(
    device: Device, kind: str, image: Array, weight: Array, result: Array, windows: Sequence[Sliding]
) -> Depthwise | None:
    """Return the work, or None if these kernels cannot do it."""
    arrays = (image, weight, result)
    if image.ndim != 4 or any(array.dtype != image.dtype for array in arrays):
        return None
    dtype = dtype_of(image.dtype)
    channels, made = image.shape[1], weight.shape[0]
    if dtype.name not in _TYPES or weight.shape[1] != 1 or not channels or made % channels:
        return None
    if made != channels and (channels == 1 or kind == "image"):
        return None
    seen, found = image.transpose(0, 2, 3, 1), result.transpose(0, 2, 3, 1)
    if not all(array.flags.c_contiguous for array in (seen, weight, found)):
        return None
    flat = weight.reshape(made, *weight.shape[2:])
    return Depthwise(device, kind, seen, flat, found, (windows[0], windows[1]), dtype)


def best_sizes(work: Depthwise) -> list[TileSizes]:
    """Return the sizes of least estimated cost, within 2 % of the fastest (24 convolutions on an H100); none if a
    window does not fit."""
    found = work.choices()
    return [min(found, key=lambda sizes: sizes.cost)] if found else []


def launch_of(work: Depthwise, sizes: TileSizes) -> Launch:
    """Return the kernels with these sizes."""
    source = work.source() + definitions(**sizes.constants)
    if work.kind == "weight":
        return _weight_gradient(work, sizes, source)
    if work.kind == "forward":
        kernel = work.device.kernel(source + source_text("ops/cuda/depthwise.cu"), "depthwise")
        arguments = work.image, work.weight, work.result
    else:
        source += source_text("ops/cuda/depthwise_image_gradient.cu")
        kernel = work.device.kernel(source, "depthwise_image_gradient")
        arguments = work.result, work.weight, work.image
    return lambda: kernel(sizes.blocks, THREADS, arguments)


def _weight_gradient(work: Depthwise, sizes: TileSizes, source: str) -> Launch:
    source += definitions(COUNT=work.weight.size) + source_text("ops/cuda/depthwise_weight_gradient.cu")
    names = "depthwise_weight_gradient", "depthwise_weight_totals"
    first, second = (work.device.kernel(source, name) for name in names)
    partial: Any = work.device.scratch(sizes.constants["SHARES"] * work.weight.size * 4 * work.words)
    given, totals = (work.result, work.image, partial), (partial, work.weight)

    def launch() -> None:
        first(sizes.blocks, THREADS, given)
        second(-(-work.weight.size // _SIDE_BY_SIDE), _SIDE_BY_SIDE * _DEEP, totals)

    return launch
