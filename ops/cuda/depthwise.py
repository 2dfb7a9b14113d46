"""CUDA kernels of depthwise convolutions and their gradients, for images with their channels last.

Products are those of Float32 (of Float64, for its own), rounded once at the end. Places beside an image count as
zeros. Nothing is added up by atomics, and the order is the same at every run on one kind of GPU. In the gradient of the
weights a value of the image that is not finite may spread to places of the window that do not meet it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.text import accumulating_type, constants
from mspc.ops.device import Array, Device, Launch, Sliding, c_type

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


COMMON = r"""
constexpr int TAPS = SIZEY * SIZEX, CHANNEL_TILES = (CHANNELS + LANES - 1) / LANES;
constexpr int THREADS = LANES * GROUPS, READ = CHANNELS / MULTIPLIER;

struct Item { int image, begin, end, column; };  // rows begin to end - 1, and columns from `column` on
__device__ __forceinline__ Item item_of(int number, int last) {
    Item item;
    item.column = FIRSTX + number % COLUMNS * TILE; number /= COLUMNS;
    item.begin = FIRSTY + number % SLABS * ROWS;
    item.image = number / SLABS;
    item.end = item.begin + ROWS < last ? item.begin + ROWS : last;
    return item;
}

// What one thread reads of a row: COUNT columns from `column` on, and zeros beside the image.
template <int COUNT> struct Row { T at[COUNT]; };
template <int HEIGHT, int WIDTH, int PITCH> __device__ __forceinline__ const T* place_of(
        const T* from, int image, int row, int column) {
    return from + (((long long)image * HEIGHT + row) * WIDTH + column) * PITCH;
}
template <int HEIGHT, int WIDTH, int PITCH, int COUNT> __device__ __forceinline__ void load(
        Row<COUNT>& to, const T* __restrict__ from, int image, int row, int column) {
    const bool there = row >= 0 && row < HEIGHT;
    const T* place = place_of<HEIGHT, WIDTH, PITCH>(from, image, row, column);
    #pragma unroll
    for (int v = 0; v < COUNT; ++v)
        to.at[v] = there && (unsigned int)(column + v) < WIDTH ? place[v * (long long)PITCH] : T{};
}
// One of its columns, v, in the next row at `place`. What is beside the image remains 0, and so does what is left of a
// row that is not there, where CLEARS is not set.
template <bool CLEARS, int WIDTH, int PITCH, int COUNT> __device__ __forceinline__ void replace(
        Row<COUNT>& to, const T* __restrict__ place, bool there, int column, int v) {
    if (there && (unsigned int)(column + v) < WIDTH) to.at[v] = place[v * (long long)PITCH];
    else if (CLEARS) to.at[v] = T{};
}
// Columns of a row that a thread has made, as far as there are any.
template <int HEIGHT, int WIDTH> __device__ __forceinline__ void store(
        T* __restrict__ to, const A (&made)[TILE], int image, int row, int column) {
    T* place = to + (((long long)image * HEIGHT + row) * WIDTH + column) * CHANNELS;
    #pragma unroll
    for (int u = 0; u < TILE; ++u)
        if ((unsigned int)(column + u) < WIDTH) place[u * (long long)CHANNELS] = narrow<T>(made[u]);
}
"""

WINDOW = r"""
// The weights of a channel, which the block brings through shared memory.
constexpr int PITCH = TAPS | 1;
struct Window { A at[SIZEY][SIZEX]; };
__device__ __forceinline__ void load_window(
        Window& to, A (&held)[LANES * PITCH], const T* __restrict__ weight, int first, int lane) {
    #pragma unroll 16
    for (int n = 0; n < (LANES * TAPS + THREADS - 1) / THREADS; ++n) {
        const int i = n * THREADS + threadIdx.x;
        const long long place = (long long)first * TAPS + i;
        if (i < LANES * TAPS && place < (long long)CHANNELS * TAPS)
            held[i + i / TAPS * (PITCH - TAPS)] = (A)wide(weight[place]);
    }
    __syncthreads();
    #pragma unroll
    for (int a = 0; a < SIZEY; ++a)
        #pragma unroll
        for (int b = 0; b < SIZEX; ++b) to.at[a][b] = held[lane * PITCH + a * SIZEX + b];
}
"""

FORWARD = r"""
// Positions whose windows hold a row of the image are LATE rows at most; a step reads the STRIDEY rows from one
// position to the next, and completes a row of positions.
constexpr int LATE = (SIZEY - 1) * DILATIONY / STRIDEY + 1;
constexpr int SPAN = (TILE - 1) * STRIDEX + (SIZEX - 1) * DILATIONX + 1;
constexpr int STEP = STRIDEY < (SIZEY - 1) * DILATIONY + 1 ? STRIDEY : (SIZEY - 1) * DILATIONY + 1;
constexpr int ABOVE = BEFOREY < STEP ? 0 : (BEFOREY - STEP) / STRIDEY + 1;  // steps that read nothing
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise(
        const T* __restrict__ image, const T* __restrict__ weight, T* __restrict__ result) {
    const int lane = threadIdx.x % LANES, first = blockIdx.x % CHANNEL_TILES * LANES, channel = first + lane;
    __shared__ A held[LANES * PITCH];
    const int number = blockIdx.x / CHANNEL_TILES * GROUPS + threadIdx.x / LANES;
    const bool works = number < ITEMS && channel < CHANNELS;
    const Item item = item_of(number, OUTY);
    const int left = item.column * STRIDEX - BEFOREX, last = item.end + LATE - 1;
    const int start = item.begin > ABOVE ? item.begin : last < ABOVE ? last : ABOVE;
    image += channel / MULTIPLIER;
    result += channel;
    Row<SPAN> x[STEP];
    #pragma unroll
    for (int t = 0; t < STEP; ++t)
        load<INY, INX, READ>(x[t], image, item.image, works ? start * STRIDEY - BEFOREY + t : -1, left);
    Window window;
    load_window(window, held, weight, first, lane);
    if (!works) return;
    A total[LATE][TILE];
    #pragma unroll
    for (int r = 0; r < LATE; ++r)
        #pragma unroll
        for (int u = 0; u < TILE; ++u) total[r][u] = 0;
    const auto complete = [&](int q) {
        const int row = q - (LATE - 1);
        if (row >= item.begin) store<OUTY, OUTX>(result, total[0], item.image, row, item.column);
        #pragma unroll
        for (int r = 0; r < LATE; ++r)
            #pragma unroll
            for (int u = 0; u < TILE; ++u) total[r][u] = r + 1 < LATE ? total[r + 1][u] : 0;
    };
    int q = item.begin;
    #pragma unroll 1
    for (; q < start; ++q) complete(q);
    #pragma unroll 1
    for (; q < last && q * STRIDEY - BEFOREY < INY; ++q) {
        #pragma unroll
        for (int t = 0; t < STEP; ++t) {
            const int next = (q + 1) * STRIDEY - BEFOREY + t;
            const T* place = place_of<INY, INX, READ>(image, item.image, next, left);
            #pragma unroll
            for (int v = 0; v < SPAN; ++v) {
                const A own = (A)wide(x[t].at[v]);
                #pragma unroll
                for (int a = SIZEY - 1; a >= 0; --a)
                    #pragma unroll
                    for (int b = 0; b < SIZEX; ++b) {
                        const int u = (v - b * DILATIONX) / STRIDEX;
                        if (a * DILATIONY % STRIDEY == t && v == u * STRIDEX + b * DILATIONX && u >= 0 && u < TILE)
                            total[LATE - 1 - a * DILATIONY / STRIDEY][u] += own * window.at[a][b];
                    }
                replace<(STRIDEY > 1), INX, READ>(x[t], place, next < INY, left, v);
            }
        }
        complete(q);
    }
    #pragma unroll 1
    for (; q < last; ++q) complete(q);  // below it
}
"""

IMAGE_GRADIENT = r"""
// Rows and columns are counted from the first place that a window may look at: FIRST is a multiple of the stride, and
// TILE and ROWS are. A step reads a row of the result's gradient and completes STRIDEY rows.
constexpr int DEEP = (SIZEY - 1) * DILATIONY + 1 > STRIDEY ? (SIZEY - 1) * DILATIONY + 1 : STRIDEY;
constexpr int ABOVE = (SIZEY - 1) * DILATIONY / STRIDEY, LEFT = (SIZEX - 1) * DILATIONX / STRIDEX;
constexpr int SPAN = (TILE - 1) / STRIDEX + LEFT + 1;
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise_image_gradient(
        const T* __restrict__ given, const T* __restrict__ weight, T* __restrict__ image) {
    const int lane = threadIdx.x % LANES, first = blockIdx.x % CHANNEL_TILES * LANES, channel = first + lane;
    __shared__ A held[LANES * PITCH];
    const int number = blockIdx.x / CHANNEL_TILES * GROUPS + threadIdx.x / LANES;
    const bool works = number < ITEMS && channel < CHANNELS;
    const Item item = item_of(number, INY + BEFOREY);
    const int left = item.column / STRIDEX - LEFT, top = item.begin / STRIDEY - ABOVE;
    given += channel;
    image += channel;
    Row<SPAN> x;
    load<OUTY, OUTX, CHANNELS>(x, given, item.image, !works ? -1 : top < 0 ? 0 : top, left);
    Window window;
    load_window(window, held, weight, first, lane);
    if (!works) return;
    A total[DEEP][TILE];
    #pragma unroll
    for (int r = 0; r < DEEP; ++r)
        #pragma unroll
        for (int u = 0; u < TILE; ++u) total[r][u] = 0;
    const auto complete = [&](int q) {
        #pragma unroll
        for (int t = 0; t < STRIDEY; ++t) {
            const int row = q * STRIDEY + t;
            if (row >= item.begin && row < item.end && row >= BEFOREY)
                store<INY, INX>(image, total[t], item.image, row - BEFOREY, item.column - BEFOREX);
        }
        #pragma unroll
        for (int r = 0; r < DEEP; ++r)
            #pragma unroll
            for (int u = 0; u < TILE; ++u) total[r][u] = r + STRIDEY < DEEP ? total[r + STRIDEY][u] : 0;
    };
    int q = top;
    #pragma unroll 1
    for (; q < 0 && q * STRIDEY < item.end; ++q) complete(q);  // above the result
    #pragma unroll 1
    for (; q < OUTY && q * STRIDEY < item.end; ++q) {
        const T* place = place_of<OUTY, OUTX, CHANNELS>(given, item.image, q + 1, left);
        #pragma unroll
        for (int v = SPAN - 1; v >= 0; --v) {
            const A own = (A)wide(x.at[v]);
            #pragma unroll
            for (int a = 0; a < SIZEY; ++a)
                #pragma unroll
                for (int b = 0; b < SIZEX; ++b) {
                    const int u = (v - LEFT) * STRIDEX + b * DILATIONX;
                    if (u >= 0 && u < TILE) total[a * DILATIONY][u] += own * window.at[a][b];
                }
            replace<false, OUTX, CHANNELS>(x, place, q + 1 < OUTY, left, v);
        }
        complete(q);
    }
    #pragma unroll 1
    for (; q * STRIDEY < item.end; ++q) complete(q);  // below it
}
"""

WEIGHT_GRADIENT = r"""
// A block sums up PARTY by PARTX places of the window over items of every TURN-th number, one after the other; then
// over its groups. Another kernel adds up what blocks have found.
constexpr int PARTSX = (SIZEX + PARTX - 1) / PARTX, PARTS = PARTSX * ((SIZEY + PARTY - 1) / PARTY);
constexpr int LATE = (PARTY - 1) * DILATIONY / STRIDEY + 1;
constexpr int SPAN = (TILE - 1) * STRIDEX + (PARTX - 1) * DILATIONX + 1;
constexpr int STEP = STRIDEY < (PARTY - 1) * DILATIONY + 1 ? STRIDEY : (PARTY - 1) * DILATIONY + 1;
constexpr int ROOM = 32768 / (THREADS * (int)sizeof(A)), CHUNK = ROOM < PARTY * PARTX ? ROOM : PARTY * PARTX;
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise_weight_gradient(
        const T* __restrict__ given, const T* __restrict__ image, A* __restrict__ partial) {
    __shared__ A found[CHUNK * THREADS];
    const int lane = threadIdx.x % LANES, channel = blockIdx.x % CHANNEL_TILES * LANES + lane;
    const int part = blockIdx.x / CHANNEL_TILES % PARTS, share = blockIdx.x / CHANNEL_TILES / PARTS;
    const int above = part / PARTSX * PARTY, before = part % PARTSX * PARTX;
    A sum[PARTY * PARTX];
    #pragma unroll
    for (int i = 0; i < PARTY * PARTX; ++i) sum[i] = 0;
    given += channel;
    image += channel / MULTIPLIER;
    #pragma unroll 1
    for (int number = share * GROUPS + threadIdx.x / LANES; number < ITEMS && channel < CHANNELS; number += TURN) {
        const Item item = item_of(number, OUTY);
        const int left = item.column * STRIDEX - BEFOREX + before * DILATIONX;
        const int top = above * DILATIONY - BEFOREY;
        A dout[LATE][TILE];
        #pragma unroll
        for (int r = 0; r < LATE; ++r)
            #pragma unroll
            for (int u = 0; u < TILE; ++u) dout[r][u] = 0;
        Row<TILE> next;
        load<OUTY, OUTX, CHANNELS>(next, given, item.image, item.begin, item.column);
        const auto advance = [&](int q) {
            #pragma unroll
            for (int r = 0; r < LATE; ++r)
                #pragma unroll
                for (int u = 0; u < TILE; ++u) dout[r][u] = r + 1 < LATE ? dout[r + 1][u] : (A)wide(next.at[u]);
            const T* place = place_of<OUTY, OUTX, CHANNELS>(given, item.image, q + 1, item.column);
            #pragma unroll
            for (int u = 0; u < TILE; ++u) replace<true, OUTX, CHANNELS>(next, place, q + 1 < item.end, item.column, u);
        };
        const int last = item.end + LATE - 1;
        int q = item.begin;
        #pragma unroll 1
        for (; q < last && q * STRIDEY + top + STEP <= 0; ++q) advance(q);  // above the image
        Row<SPAN> x[STEP];
        #pragma unroll
        for (int t = 0; t < STEP; ++t) load<INY, INX, READ>(x[t], image, item.image, q * STRIDEY + top + t, left);
        #pragma unroll 1
        for (; q < last && q * STRIDEY + top < INY; ++q) {
            advance(q);
            #pragma unroll
            for (int t = 0; t < STEP; ++t) {
                const int row = (q + 1) * STRIDEY + top + t;
                const T* place = place_of<INY, INX, READ>(image, item.image, row, left);
                #pragma unroll
                for (int v = 0; v < SPAN; ++v) {
                    const A own = (A)wide(x[t].at[v]);
                    #pragma unroll
                    for (int a = 0; a < PARTY; ++a)
                        #pragma unroll
                        for (int b = 0; b < PARTX; ++b) {
                            const int u = (v - b * DILATIONX) / STRIDEX;
                            if (a * DILATIONY % STRIDEY == t && v == u * STRIDEX + b * DILATIONX && u >= 0 && u < TILE)
                                sum[a * PARTX + b] += dout[LATE - 1 - a * DILATIONY / STRIDEY][u] * own;
                        }
                    replace<(STRIDEY > 1), INX, READ>(x[t], place, row < INY, left, v);
                }
            }
        }
    }
    #pragma unroll
    for (int begin = 0; begin < PARTY * PARTX; begin += CHUNK) {
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < CHUNK; ++i)
            if (begin + i < PARTY * PARTX) found[i * THREADS + threadIdx.x] = sum[begin + i];
        __syncthreads();
        for (int i = threadIdx.x; i < CHUNK * LANES; i += THREADS) {
            const int place = begin + i / LANES, a = above + place / PARTX, b = before + place % PARTX;
            const int own = blockIdx.x % CHANNEL_TILES * LANES + i % LANES;
            if (place >= PARTY * PARTX || a >= SIZEY || b >= SIZEX || own >= CHANNELS) continue;
            A total = 0;
            for (int g = 0; g < GROUPS; ++g) total += found[i / LANES * THREADS + g * LANES + i % LANES];
            partial[((long long)share * CHANNELS + own) * TAPS + a * SIZEX + b] = total;
        }
    }
}
"""

WEIGHT_TOTALS = r"""
// The sums of SHARES blocks for each of COUNT weights: WIDE weights side by side, DEEP threads for each of them.
constexpr int WIDE = 32, DEEP = 8;
extern "C" __global__ void __launch_bounds__(WIDE * DEEP) depthwise_weight_totals(
        const A* __restrict__ partial, T* __restrict__ weight) {
    __shared__ A found[WIDE * DEEP];
    const long long own = (long long)blockIdx.x * WIDE + threadIdx.x % WIDE;
    A total = 0;
    if (own < COUNT)
        #pragma unroll 4
        for (int share = threadIdx.x / WIDE; share < SHARES; share += DEEP)
            total += partial[(long long)share * COUNT + own];
    found[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x >= WIDE || own >= COUNT) return;
    for (int deep = 1; deep < DEEP; ++deep) total += found[deep * WIDE + threadIdx.x];
    weight[own] = narrow<T>(total);
}
"""


# Sizes of the kernels of depthwise convolutions: the part of the work of a thread, and the number of threads.
#
# They are chosen by the number of instructions: elements that a thread loads cost some instructions each, so that wide
# tiles are better, until too few blocks are left for the multiprocessors. See `depthwise_kernels.py`.


THREADS = 128
"""Threads of a block."""
_LANES = 32
"""Channels that a block works on at most."""
_REGISTERS = 65536
"""Registers of a multiprocessor."""
_MOST_REGISTERS = 180
"""Registers of a thread for its data, in addition to those for addresses."""
_ADDRESSES = 40
"""Registers for addresses, counters and loads in flight."""
_MOST_BLOCKS = 12
"""Upper bound of the blocks that a multiprocessor runs at once."""
_MOST_TILE = 8
_MOST_SUMS = 64
"""Words for sums of the gradient of the weights that a thread holds."""
_MOST_PART = 7
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
        for tile in range(step, max(_MOST_TILE, step) + 1, step):
            if self._registers(tile, size) <= _MOST_REGISTERS:
                yield tile
            if first + tile >= end:
                break

    def choices(self) -> list[TileSizes]:
        """Return the best tile for each number of columns; none if the window does not fit into registers."""
        size = self.part() if self.kind == "weight" else self.window
        return [self._sizes(tile, size) for tile in self._tiles(size)]

    def _sizes(self, tile: int, size: tuple[int, int]) -> TileSizes:
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
        """Return the blocks that a multiprocessor holds at once."""
        return min(_MOST_BLOCKS, _REGISTERS // (THREADS * (self._registers(tile, size) + _ADDRESSES)))

    def _parts(self, size: tuple[int, int]) -> int:
        """Return the number of parts that the window is divided into."""
        return math.prod(-(-whole // part) for whole, part in zip(self.window, size, strict=True))

    def part(self) -> tuple[int, int]:
        """Return the number of places of the window that a thread sums up: all of them, or equal shares that fit into
        its registers."""
        height, width = self.window
        across = -(-width // -(-width // _MOST_PART))
        least = min(2, self.result.shape[2])
        for shares in range(1, height + 1):
            size = -(-height // shares), across
            if math.prod(size) * self.words <= _MOST_SUMS and any(tile >= least for tile in self._tiles(size)):
                return size
        return 1, across

    def source(self) -> str:
        """Return the beginning of all kernels."""
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
    return [launch_of(work, sizes) for sizes in chosen(work)]


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


def chosen(work: Depthwise) -> list[TileSizes]:
    """Return the sizes of least cost, within 2 % of the fastest (24 convolutions on an H100); none if a window does not
    fit."""
    found = work.choices()
    return [min(found, key=lambda sizes: sizes.cost)] if found else []


def launch_of(work: Depthwise, sizes: TileSizes) -> Launch:
    """Return the kernels with these sizes."""
    source = work.source() + constants(**sizes.constants) + COMMON
    if work.kind == "weight":
        return _weight_gradient(work, sizes, source)
    if work.kind == "forward":
        kernel = work.device.kernel(source + WINDOW + FORWARD, "depthwise")
        arguments = work.image, work.weight, work.result
    else:
        kernel = work.device.kernel(source + WINDOW + IMAGE_GRADIENT, "depthwise_image_gradient")
        arguments = work.result, work.weight, work.image
    return lambda: kernel(sizes.blocks, THREADS, arguments)


def _weight_gradient(work: Depthwise, sizes: TileSizes, source: str) -> Launch:
    first = work.device.kernel(source + WEIGHT_GRADIENT, "depthwise_weight_gradient")
    second = work.device.kernel(source + constants(COUNT=work.weight.size) + WEIGHT_TOTALS, "depthwise_weight_totals")
    partial: Any = work.device.scratch(sizes.constants["SHARES"] * work.weight.size * 4 * work.words)
    given, totals = (work.result, work.image, partial), (partial, work.weight)

    def launch() -> None:
        first(sizes.blocks, THREADS, given)
        second(-(-work.weight.size // _SIDE_BY_SIDE), _SIDE_BY_SIDE * _DEEP, totals)

    return launch
