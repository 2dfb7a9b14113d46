"""CUDA kernels of LayerNorm's gradients, which load rows into shared memory during computation, and of batch norm."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from mspc.ir.types import dtype_of
from mspc.ops.cuda.text import accumulating_type, definitions, index_type, lanes_of, macros, power_of_two
from mspc.ops.device import Array, Device, Kernel, Launch, source_text

# These CUDA kernels compute all gradients of LayerNorm at once: dout and x are read once for three results.
#
# As many blocks run as fit on the GPU at once, and each works one row after the other. A row belongs to one or several
# full warps; their threads copy the next rows to shared memory while they work on a row, so that the memory is never
# idle. Sums for gamma and beta stay in registers over all rows of a thread, are added within a block at its end, and
# over the blocks by a second kernel. The order of additions never changes.


LONGEST = 8192
"""Columns of a row that the threads of a block can hold."""

# The fastest division of those measured on an H200 with 8192 rows of 1024 halves: 21.7 us; one block of 8 warps takes
# 22.5 us and a copy of as many bytes 17.6 us. More warps would leave a thread too few registers for its columns.
_MAX_THREAD_BYTES = 128
"""Upper bound of the bytes of a thread's columns in the computing type; longer rows take more warps."""
_WARPS = 4
"""Minimum number of warps per block."""
_RESIDENT_WARPS = 8
"""Warps of a multiprocessor."""
_MAX_WARPS = 16
"""Upper bound of the warps of a row."""

_SHARED = 200 << 10
"""Bytes of a multiprocessor's shared memory that rows in flight may use."""
_ON_THE_WAY = 96 << 10
"""Bytes that a multiprocessor should have asked for while it works: the memory's rate times its delay is 25 KB."""
_MAX_STAGES = 8


def fits(columns: int) -> bool:
    """Whether there are kernels for rows of this length."""
    return 0 < columns <= LONGEST and columns % 32 == 0


def layer_norm_gradients(device: Device, terms: tuple[Array, Array | None], x: Array, mean: Array, variance: Array,
                         gamma: Array, addend: Array | None, out: tuple[Array, Array, Array],
                         epsilon: float) -> Launch:  # fmt: skip
    """Write (dx + addend, dgamma, dbeta) to `out`; rows are gamma's length, for which `fits` holds. terms: the gradient
    of LayerNorm's result is their sum."""
    dout, other = terms
    dx, dgamma, dbeta = out
    columns, rows = gamma.size, math.prod(x.shape) // gamma.size
    computing = accumulating_type(dtype_of(x.dtype))
    if dtype_of(gamma.dtype).name == "Float64":
        computing = "double"
    size = 8 if computing == "double" else 4
    read = [dout, x, *(array for array in (addend, other) if array is not None)]
    lanes = _lanes(columns, read, dx)
    across = 1
    while across < _MAX_WARPS and _columns_per_thread(columns, lanes, across) * size > _MAX_THREAD_BYTES:
        across *= 2
    warps = max(_WARPS, across)
    resident = max(1, _RESIDENT_WARPS // warps)
    abreast = warps // across
    stage = (
        32 * warps * _columns_per_thread(columns, lanes, across) * sum(dtype_of(array.dtype).itemsize for array in read)
    )
    wanted = 1 + -(-_ON_THE_WAY // (resident * stage))
    stages = max(1, min(wanted, _MAX_STAGES, _SHARED // resident // stage))
    blocks = max(1, min(device.multiprocessors * resident, -(-rows // abreast)))
    # At the end the sums of the rows abreast use the same memory.
    shared = max(stages * stage, 2 * abreast * columns * size if abreast > 1 else 0)

    types = {"G": dout, "X": x, "M": mean, "S": gamma, "D": dx, "E": dout if other is None else other}
    source = definitions(
        A=computing, **{name: dtype_of(array.dtype) for name, array in types.items()},
        ROWS=rows, COLUMNS=columns, WARPS=warps, W=across, V=lanes, STAGES=stages, BLOCKS=blocks, RESIDENT=resident,
        ADDS=addend is not None, JOINS=other is not None,
        P=lanes_of(dtype_of(gamma.dtype).itemsize, lanes, gamma),
    )  # fmt: skip
    source += macros(EPSILON=repr(epsilon)) + source_text("ops/cuda/layer_norm_gradients.cu")
    first, second = (device.kernel(source, name) for name in ("layer_norm_gradients", "layer_norm_totals"))
    partial: Any = device.scratch(blocks * 2 * columns * size)
    added = (dx if addend is None else addend, dout if other is None else other)
    given = (dout, x, mean, variance, gamma, *added, dx, partial)

    def launch() -> None:
        first(blocks, 32 * warps, given, shared)
        second(2 * columns // 32, 1024, (partial, dgamma, dbeta))

    return launch


def _lanes(columns: int, read: list[Array], dx: Array) -> int:
    """Return the neighbouring columns that a thread moves at once: so few that short rows keep all threads of a warp
    busy."""
    sizes = [dtype_of(array.dtype).itemsize for array in (*read, dx)]
    lanes = min(lanes_of(size, columns, array) for size, array in zip(sizes, (*read, dx), strict=True))
    while lanes * 32 > columns and lanes * min(sizes[:-1]) > 4:
        lanes //= 2
    return lanes


def _columns_per_thread(columns: int, lanes: int, across: int) -> int:
    """Return the columns of a thread if a row belongs to `across` warps."""
    return -(-columns // (lanes * 32 * across)) * lanes


# These CUDA kernels compute the mean and variance of every channel of an image, whose channels come last or second.
#
# One pass over the image: a thread adds up the differences of its elements from the first of them, and their squares,
# which keeps the digits that matter; partial means and variances are combined pair by pair (Chan, Golub and LeVeque,
# 1979), first within a block and then over the blocks. The order never changes.


_BLOCK = 256
_WAVES = 4
"""Blocks per multiprocessor."""
_MIN_THREAD_ELEMENTS = 8
"""Minimum number of a channel's elements that a thread adds up, if there are as many."""
_ACROSS, _DEEP = 8, 128
"""Channels, and threads for each of them, of a block that combines: few parts for a thread, one after the other."""


def launch_statistics(device: Device, x: Array, mean: Array, variance: Array, channel: int,
                      moving: tuple[Array, Array] | None = None, momentum: float = 0.0) -> Launch | None:  # fmt: skip
    """Return the launch of mean and variance of every channel; the moving ones, if any, become (1 - momentum) * moving
    + momentum * own, of the variance with the unbiased estimate, unless the step was stopped. channel: the dimension of
    x that counts the channels, its last or its second."""
    shape = tuple(x.shape)
    if not x.size:
        return None
    channels = shape[channel]
    inner = math.prod(shape[channel + 1 :])
    count = x.size // channels
    dtype = dtype_of(x.dtype)
    if inner == 1:
        lanes = lanes_of(dtype.itemsize, channels, x)
        across = min(32, power_of_two(-(-channels // lanes)))
        tiles, deep, length = -(-channels // (across * lanes)), _BLOCK // across, count
    else:
        lanes = lanes_of(dtype.itemsize, inner, x)
        across, tiles, deep, length = 1, channels, _BLOCK, count // lanes
    parts = max(1, min(_WAVES * device.multiprocessors // tiles, length // (deep * _MIN_THREAD_ELEMENTS)))
    share = -(-length // parts)
    parts = -(-length // share)
    source = definitions(
        A=accumulating_type(dtype), T=dtype, Index=index_type(x.size), R=dtype_of(mean.dtype), CHANNELS=channels,
        INNER=inner, LENGTH=length, SHARE=share, PARTS=parts, V=lanes, X=across, Y=deep, TILES=tiles, ACROSS=_ACROSS,
        DEEP=_DEEP, COUNT=count, EACH=1 if inner == 1 else lanes,
    )  # fmt: skip
    place = "last" if inner == 1 else "second"
    first = device.kernel(source + source_text(f"ops/cuda/statistics_{place}.cu"), "statistics")
    moves = "" if moving is None else _moving_source(moving, momentum)
    second = device.kernel(source + moves + source_text("ops/cuda/statistics_totals.cu"), "statistics_totals")
    word = 8 if accumulating_type(dtype) == "double" else 4
    partial: Any = device.scratch(2 * parts * channels * word)
    given = (partial, mean, variance) if moving is None else (partial, mean, variance, *moving, device.stop)

    def launch() -> None:
        first(tiles * parts, _BLOCK, (x, partial))
        second(-(-channels // _ACROSS), _ACROSS * _DEEP, given)

    return launch


def launch_moving(device: Device, mean: Array, moving: tuple[Array, Array], variance: Array, out: Array, count: int,
                  momentum: float) -> Launch:  # fmt: skip
    """Return the launch of moving statistics from those of `count` elements, as in `launch_statistics`; `out` becomes
    the mean."""
    source = _typed(mean) + _moving_source(moving, momentum) + definitions(CHANNELS=mean.size, COUNT=count)
    kernel = device.kernel(source + source_text("ops/cuda/moving_statistics.cu"), "moving_statistics")
    return _per_channel(kernel, mean.size, (mean, *moving, variance, out, device.stop))


def launch_joined(device: Device, gathered: Array, moving: tuple[Array, Array], mean: Array, variance: Array,
                  count: int, momentum: float) -> Launch:  # fmt: skip
    """Return the launch of mean and variance of `count` elements, of which parts of equal size have the gathered ones
    [parts, 2, channels], and moving statistics, as in `launch_statistics`."""
    source = _typed(mean) + _moving_source(moving, momentum)
    source += definitions(CHANNELS=mean.size, COUNT=count, PARTS=gathered.shape[0])
    kernel = device.kernel(source + source_text("ops/cuda/joined_statistics.cu"), "joined_statistics")
    return _per_channel(kernel, mean.size, (gathered, *moving, mean, variance, device.stop))


def _per_channel(kernel: Kernel, channels: int, given: tuple[Array, ...]) -> Launch:
    return partial(kernel, -(-channels // _BLOCK), _BLOCK, given)


def _typed(statistic: Array) -> str:
    dtype = dtype_of(statistic.dtype)
    return definitions(A=accumulating_type(dtype), R=dtype)


def _moving_source(moving: tuple[Array, Array], momentum: float) -> str:
    """Return the type and the momentum of moving statistics, for moved_statistics.cuh."""
    return definitions(M=dtype_of(moving[0].dtype)) + macros(MOMENTUM=f"((A){momentum!r})")
