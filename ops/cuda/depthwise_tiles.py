"""Sizes of the kernels of depthwise convolutions: which part of the work a thread has, and how many threads there are.

They are chosen by what has to be issued: elements that a thread loads cost some instructions each, so that wide tiles
are better, until too few blocks are left for the multiprocessors. See `depthwise_kernels.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from mspc.ir.types import DType
from mspc.ops.cuda.source import accumulating_type, constants
from mspc.ops.device import Array, Device, Sliding, c_type

THREADS = 128
"""Of a block."""
_LANES = 32
"""Channels that a block works on at most."""
_REGISTERS = 65536
"""Of a multiprocessor."""
_MOST_REGISTERS = 180
"""Of a thread, for what it holds, beside those for addresses."""
_ADDRESSES = 40
"""Registers for addresses, counters and what is on its way."""
_MOST_BLOCKS = 12
"""Of a multiprocessor at once."""
_MOST_TILE = 8
_MOST_SUMS = 64
"""Words for sums of the gradient of the weights that a thread holds."""
_MOST_PART = 7
"""Columns of a window that a block sums up for."""
_LOAD = 4
"""Instructions that an element takes that is loaded: its test, the load and what it is turned into."""
_BUSY = 2
"""Blocks that a multiprocessor needs to be busy."""


class TileUsage(NamedTuple):
    """What a thread holds and does for a tile: rows of sums (or of what is needed again), elements it loads at every
    step, products of a step, and rows that a step completes."""

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
        """Of the result."""
        return self.result.shape[3]

    @property
    def words(self) -> int:
        """Registers for a sum."""
        return 2 if accumulating_type(self.dtype) == "double" else 1

    @property
    def lanes(self) -> int:
        """Channels of a block."""
        return min(_LANES, 1 << (self.channels - 1).bit_length())

    @property
    def groups(self) -> int:
        """Items that a block works on at once."""
        return THREADS // self.lanes

    @property
    def channel_tiles(self) -> int:
        """Blocks side by side for all channels."""
        return -(-self.channels // self.lanes)

    @property
    def window(self) -> tuple[int, int]:
        """Its rows and columns."""
        return self.weight.shape[1], self.weight.shape[2]

    def _made(self, dim: int) -> tuple[int, int]:
        """The first place along rows (0) or columns (1) that threads share out, and the end of them."""
        if self.kind != "image":
            return 0, self.result.shape[1 + dim]
        before, stride = self.windows[dim].before, self.windows[dim].stride
        return before // stride * stride, self.image.shape[1 + dim] + before

    def _held(self, tile: int, size: tuple[int, int]) -> TileUsage:
        """For `size` places of the window."""
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
        """For what a thread holds."""
        held = self._held(tile, size)
        return self.words * (math.prod(size) + held.rows * tile + held.loads)

    def _tiles(self, size: tuple[int, int]) -> Iterator[int]:
        """Columns that a thread may work on."""
        first, end = self._made(1)
        step = self.windows[1].stride if self.kind == "image" else 1
        for tile in range(step, max(_MOST_TILE, step) + 1, step):
            if self._registers(tile, size) <= _MOST_REGISTERS:
                yield tile
            if first + tile >= end:
                break

    def choices(self) -> list[TileSizes]:
        """The best for each number of columns; none where the window does not fit into registers."""
        size = self.part() if self.kind == "weight" else self.window
        return [self._sizes(tile, size) for tile in self._tiles(size)]

    def wide_sizes(self, tile: int) -> TileSizes:
        """For single rows of so many columns."""
        turned = self.kind == "image"
        rows, width = (self.image if turned else self.result).shape[1:3]
        top, left = (window.before if turned else 0 for window in self.windows)
        items = self.image.shape[0] * rows * -(-width // tile)
        made = {"TILE": tile, "ROWS": 1, "COLUMNS": -(-width // tile), "SLABS": rows, "ITEMS": items, "FIRSTY": top,
                "FIRSTX": left}  # fmt: skip
        return TileSizes(made, -(-items // self.groups) * self.channel_tiles, 0)

    def _sizes(self, tile: int, size: tuple[int, int]) -> TileSizes:
        """The best for a tile of these columns and so many places of the window."""
        held, resident = self._held(tile, size), self._resident(tile, size)
        (top, bottom), (left, right) = self._made(0), self._made(1)
        columns, units = -(-(right - left) // tile), -(-(bottom - top) // held.advance)
        beside = self.channel_tiles * self._parts(size)
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
        """Blocks that a multiprocessor holds at once."""
        return min(_MOST_BLOCKS, _REGISTERS // (THREADS * (self._registers(tile, size) + _ADDRESSES)))

    def _parts(self, size: tuple[int, int]) -> int:
        """Into how many parts of these places the window is divided."""
        return math.prod(-(-whole // part) for whole, part in zip(self.window, size, strict=True))

    def part(self) -> tuple[int, int]:
        """Places of the window that a thread sums up for: all of them, or equal shares that fit into its registers."""
        height, width = self.window
        across = -(-width // -(-width // _MOST_PART))
        least = min(2, self.result.shape[2])
        for shares in range(1, height + 1):
            size = -(-height // shares), across
            if math.prod(size) * self.words <= _MOST_SUMS and any(tile >= least for tile in self._tiles(size)):
                return size
        return 1, across

    def source(self) -> str:
        """What all kernels begin with."""
        dtype = c_type(self.dtype)
        found = f"typedef {dtype} T;\ntypedef {accumulating_type(self.dtype)} A;\n"
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
        return found + constants(**given)
