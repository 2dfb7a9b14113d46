"""These CUDA kernels compute all gradients of LayerNorm at once: dout and x are read once for three results.

As many blocks run as the GPU holds, and each works one row after the other. A row belongs to one or several full
warps; their threads copy what they read of the next rows to shared memory while they work a row, so that the memory is
never idle. Sums for gamma and beta stay in registers over all rows of a thread, are added within a block at its end,
and over the blocks by a second kernel. The order of additions never changes.
"""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import dtype_of
from mspc.ops.cuda.norm_kernels import GRADIENTS, INSTRUCTIONS, ROWS, TOTALS
from mspc.ops.cuda.source import COMMON, accumulating_type, constants, lanes_of
from mspc.ops.device import Array, Device, Launch, c_type

LONGEST = 8192
"""Columns of a row that the threads of a block can hold."""

# The fastest division of those measured on an H200 with 8192 rows of 1024 halves: 21.7 us where one block of 8 warps
# takes 22.5 us and a copy of as many bytes 17.6 us. More warps would leave a thread too few registers for its columns.
_EACH = 128
"""Bytes of a thread's columns at most, as they are computed with; longer rows take more warps."""
_WARPS = 4
"""Of a block, at least."""
_RESIDENT_WARPS = 8
"""Of a multiprocessor."""
_MOST_WARPS = 16
"""Of a row."""

_SHARED = 200 << 10
"""Bytes of shared memory of a multiprocessor that rows on their way may take."""
_ON_THE_WAY = 96 << 10
"""Bytes that a multiprocessor should have asked for while it works: the memory's rate times its delay is 25 KB."""
_MOST_STAGES = 8


def fits(columns: int) -> bool:
    """Whether there are kernels for rows of this length."""
    return 0 < columns <= LONGEST and columns % 32 == 0


def layer_norm_gradients(device: Device, terms: tuple[Array, Array | None], x: Array, mean: Array, variance: Array,
                         gamma: Array, addend: Array | None, out: tuple[Array, Array, Array],
                         epsilon: float) -> Launch:  # fmt: skip
    """(dx + addend, dgamma, dbeta) into `out`; rows are gamma's length, for which `fits` holds.

    Args:
        terms: the gradient of what LayerNorm gave is their sum.
    """
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
    while across < _MOST_WARPS and _columns_each(columns, lanes, across) * size > _EACH:
        across *= 2
    warps = max(_WARPS, across)
    resident = max(1, _RESIDENT_WARPS // warps)
    abreast = warps // across
    stage = 32 * warps * _columns_each(columns, lanes, across) * sum(dtype_of(array.dtype).itemsize for array in read)
    wanted = 1 + -(-_ON_THE_WAY // (resident * stage))
    stages = max(1, min(wanted, _MOST_STAGES, _SHARED // resident // stage))
    blocks = max(1, min(device.multiprocessors * resident, -(-rows // abreast)))
    # At the end the sums of the rows abreast lie in the same memory.
    shared = max(stages * stage, 2 * abreast * columns * size if abreast > 1 else 0)

    source = COMMON + INSTRUCTIONS + f"typedef {computing} A;\n"
    types = {"G": dout, "X": x, "M": mean, "S": gamma, "D": dx, "E": dout if other is None else other}
    source += "".join(f"typedef {c_type(dtype_of(array.dtype))} {name};\n" for name, array in types.items())
    source += constants(
        ROWS=rows, COLUMNS=columns, WARPS=warps, W=across, V=lanes, STAGES=stages, BLOCKS=blocks, RESIDENT=resident,
        ADDS=addend is not None, JOINS=other is not None,
        P=lanes_of(dtype_of(gamma.dtype).itemsize, lanes, gamma),
    )  # fmt: skip
    source += f"#define EPSILON {epsilon!r}\n" + ROWS
    first = device.kernel(source + GRADIENTS, "layer_norm_gradients")
    second = device.kernel(source + TOTALS, "layer_norm_totals")
    partial: Any = device.scratch(blocks * 2 * columns * size)
    added = (dx if addend is None else addend, dout if other is None else other)
    given = (dout, x, mean, variance, gamma, *added, dx, partial)

    def launch() -> None:
        first(blocks, 32 * warps, given, shared)
        second(2 * columns // 32, 1024, (partial, dgamma, dbeta))

    return launch


def _lanes(columns: int, read: list[Array], dx: Array) -> int:
    """Neighbouring columns that a thread moves at once: so few that short rows keep all threads of a warp busy."""
    sizes = [dtype_of(array.dtype).itemsize for array in (*read, dx)]
    lanes = min(lanes_of(size, columns, array) for size, array in zip(sizes, (*read, dx), strict=True))
    while lanes * 32 > columns and lanes * min(sizes[:-1]) > 4:
        lanes //= 2
    return lanes


def _columns_each(columns: int, lanes: int, across: int) -> int:
    """Columns of a thread where a row belongs to `across` warps."""
    return -(-columns // (lanes * 32 * across)) * lanes
