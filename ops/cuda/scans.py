"""These CUDA kernels run along lines of a tensor: sums so far, and the largest elements in their order."""

from __future__ import annotations

import math

from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.rows_by_number import ABREAST, BLOCK, chunk_of, divided
from mspc.ops.cuda.text import accumulating_type, definitions, grid_of, index_type, is_contiguous, macros
from mspc.ops.device import C_TYPES, Array, Device, Launch
from mspc.ops.source_files import source_text

_BLOCK = 256
_LINES = 4096
"""Lines from which a thread for each is enough."""


def running_sum(device: Device, axis: int, exclusive: bool, reverse: bool, x: Array, out: Array) -> Launch | None:
    """Return the launch of cumulative sums along an axis; a block adds up one line if there are few."""
    if not math.prod(x.shape):
        return None
    dtype = dtype_of(x.dtype)
    inner, count = math.prod(x.shape[axis + 1 :]), x.shape[axis]
    lines = math.prod(x.shape) // count
    each = lines >= _LINES or count <= 32
    source = definitions(
        T=dtype, A=accumulating_type(dtype), Index=index_type(math.prod(x.shape) + _BLOCK * inner), LINES=lines,
        COUNT=count, INNER=inner, EXCLUSIVE=exclusive, REVERSE=reverse, THREADS=_BLOCK,
    )  # fmt: skip
    source += source_text("ops/cuda/running_sum_of_thread.cu" if each else "ops/cuda/running_sum.cu")
    kernel = device.kernel(source, "running_sum")
    grid = grid_of(-(-lines // _BLOCK) if each else lines)
    return lambda: kernel(grid, _BLOCK, [x, out])


def top_elements(device: Device, x: Array, values: Array, places: Array, smallest: bool = False) -> Launch | None:
    """Return the launch of the largest elements of every row in descending order, or the smallest in ascending order,
    and their positions; as many as the results have."""
    count, most = x.shape[-1], values.shape[-1]
    rows = math.prod(x.shape[:-1])
    if not rows or count >= 2**31:
        return None
    dtype = dtype_of(x.dtype)
    threads = 32 if count <= 512 else _BLOCK
    source = definitions(
        T=dtype, A=accumulating_type(dtype), Place=dtype_of(places.dtype), SMALLEST=smallest, COUNT=count, K=most,
        THREADS=threads,
    ) + source_text("ops/cuda/top_elements.cu")  # fmt: skip
    kernel = device.kernel(source, "top_elements")
    return lambda: kernel(grid_of(rows), threads, [x, values, places])


# These CUDA kernels sort the lines of a tensor along an axis, equal elements in their order.
#
# Elements are compared as integers without a sign that have their order. A chunk is sorted by counting, for each of its
# elements, those that come before it; an element's place in its line is the sum of its places in the chunks.


MAX_COUNTED_LINE = 1 << 17
"""Maximum number of elements of a line for which counting and searching are faster than CuPy's sort."""


def sort_lines(
    device: Device, x: Array, axis: int, descending: bool, out: Array, places: Array, held: int = 0
) -> Launch | None:  # fmt: skip
    """Return the launch of the elements of x sorted along an axis, and their original positions. None for lines that
    are too long. held: bytes at the start of the scratch memory that are in use."""
    count, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    if not math.prod(x.shape) or count > MAX_COUNTED_LINE:
        return None
    lines, chunk = math.prod(x.shape) // count, chunk_of(count)
    source = _keys(dtype_of(x.dtype), descending) + definitions(
        Place=dtype_of(places.dtype), Index=index_type(lines * count + BLOCK * inner), LINES=lines, COUNT=count,
        INNER=inner, CHUNK=chunk, BLOCK=BLOCK, ABREAST=ABREAST,
    ) + source_text("ops/cuda/sort_lines.cu")  # fmt: skip
    wide = 8 if x.dtype.itemsize == 8 else 4
    several = count > chunk
    keys, chunks = divided(device, held, (wide * lines * count, 4 * lines * count) if several else (1, 1))
    sort = device.kernel(source, "sort_chunks")
    merge = device.kernel(source, "merge_chunks") if several else None
    grid = grid_of(lines * -(-count // BLOCK))

    def launch() -> None:
        sort(grid, BLOCK, [x, keys, chunks, out, places])
        if merge is not None:
            merge(grid_of(-(-lines * count // BLOCK)), BLOCK, [x, keys, chunks, out, places])

    return launch


def _keys(dtype: DType, descending: bool) -> str:
    wide = dtype.itemsize == 8
    types = definitions(T=dtype, Key="u64" if wide else "unsigned int", DESCENDING=descending)
    if dtype.is_float:
        bits = macros(BITS="(Key)__double_as_longlong" if wide else "__float_as_uint")
        return types + definitions(V="double" if wide else "float") + bits
    return types + definitions(V="long long" if wide else "int", SIGNED=dtype.kind == "i")


# This CUDA kernel finds the place of the largest or smallest element along one axis, the first of several.


_WARP, _MAX_THREADS, _EACH = 32, 1024, 4


def place_of_extremum(device: Device, x: Array, axis: int, out: Array, largest: bool) -> Launch | None:
    """Return the launch of the positions of extrema along `axis`; None for unsupported operands."""
    shape = x.shape
    rows = math.prod(shape[:axis]) * math.prod(shape[axis + 1 :])
    if not is_contiguous(x, tuple(C_TYPES)) or not rows or rows >= 1 << 31:
        return None
    threads = _WARP
    while threads < min(_MAX_THREADS, shape[axis] // _EACH):
        threads *= 2
    dtype = dtype_of(x.dtype)
    source = definitions(
        T=dtype, A=accumulating_type(dtype), R=dtype_of(out.dtype), COLUMNS=shape[axis],
        INNER=math.prod(shape[axis + 1 :]), LARGEST=largest,
    ) + source_text("ops/cuda/place_of_extremum.cu")  # fmt: skip
    kernel = device.kernel(source, "place_of_extremum")
    return lambda: kernel(grid_of(rows), threads, [x, out])
