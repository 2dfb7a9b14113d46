"""These CUDA kernels run along lines of a tensor: scans, and the largest elements in their order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.rows_by_number import ABREAST, BLOCK, chunk_of, divided
from mspc.ops.cuda.text import (
    accumulating_type,
    definitions,
    grid_of,
    index_type,
    is_contiguous,
    lanes_of,
    macros,
    neutral,
    power_of_two,
)  # fmt: skip
from mspc.ops.device import C_TYPES, Array, Device, Launch, c_type, nothing, source_text

_BLOCK = 256
_LINE_BYTES = 32
"""Bytes of neighbouring lines that a memory access moves at least."""


class ScanKernel(NamedTuple):
    """The parts of ops/cuda/scan.cu for one scan. state: C++ type of successive elements. element: that of element i,
    p in the order of the scan. begin: statements before the elements. results: element i of each result. how: the
    reduction with the neutral element. words: numbers of a state. beyond: the element of operand y after its end."""

    state: str
    element: str
    results: tuple[str, ...] = ("run[i].result()",)
    begin: str = ""
    how: str = "Sum"
    words: int = 1
    beyond: int = 0


_EXTREME = ("State::element(u[i], REVERSE ? COUNT - 1 - p : p)", ("run[i].result()", "run[i].place"))
_OWN = "State::element(u[i], p)"
SCANS = {
    "sum": ScanKernel("Total<Sum>", _OWN),
    "product": ScanKernel("Total<Product>", _OWN, how="Product"),
    "logarithms": ScanKernel("LogTotal<A>", _OWN, how="Largest", words=2),
    "maximum": ScanKernel("Extremum<Largest>", *_EXTREME, how="Largest", words=2),
    "minimum": ScanKernel("Extremum<Smallest>", *_EXTREME, how="Smallest", words=2),
    "linear": ScanKernel("Linear", "State{p ? u[i] : (A)0, v[i]}", words=2),
    "logarithms' gradient": ScanKernel(
        "LogLinear<A>", "State::element(v[i], w[i])", ("exp_of(u[i] - v[i]) * run[i].b",), words=2,
    ),
    "linear gradient": ScanKernel(
        "Linear", "State{i ? u[i - 1] : last, w[i]}", ("run[i].b * (i + 1 < EACH ? v[i + 1] : next)", "run[i].b"),
        "const A last = one(x_of, line, first - 1, end, 0), next = one(y_of, line, first + EACH, end, BEYOND);",
        words=2,
    ),
}  # fmt: skip


_TEXTS = ("fields", "held", "loads", "names_of_raw", "x", "y", "z")


class ScanOperands(NamedTuple):
    """The operands of a scan: their number, shape and element type, the arrays that a kernel reads with their C++
    names. texts: C++ that computes operands `x`, `y`, `z` (see ops/cuda/scan.cu); none if each is an array."""

    count: int
    shape: tuple[int, ...]
    dtype: DType
    arrays: dict[str, Array]
    texts: dict[str, str]


def plain_operands(arrays: Sequence[Array]) -> ScanOperands:
    """Return operands that are arrays."""
    names: dict[str, Array] = dict(zip("xyz", [*arrays, arrays[0], arrays[0]], strict=False))
    return ScanOperands(len(arrays), arrays[0].shape, dtype_of(arrays[0].dtype), names, {})


def _division(lines: int, chunks: int, least: int, multiprocessors: int) -> tuple[int, int, int, int]:
    """Return (lines of a block, number of such blocks, blocks that share their lines, tiles of each of these).

    chunks: of a line, one for each thread. least: neighbouring lines that a block reads, 1 if there are no such."""
    own = _BLOCK // min(_BLOCK, power_of_two(chunks))
    columns = own if least == 1 else max(own, 32)
    while columns > max(own, least) and -(-lines // columns) * _BLOCK < multiprocessors * 1024:
        columns //= 2
    blocks, tiles = -(-lines // columns), -(-chunks * columns // _BLOCK)
    few = blocks < multiprocessors
    parts = max(1, min(tiles // 2, 4 * multiprocessors // blocks)) if few else 1
    share = -(-tiles // parts)
    return columns, blocks, -(-tiles // share), share


def scan(
    device: Device, kind: str, axis: int, operands: ScanOperands, outs: Sequence[Array], *, exclusive: bool = False,
    reverse: bool = False, beyond: int = 0,
) -> Launch | None:  # fmt: skip
    """Return the launch of a scan of SCANS along an axis. A block scans several lines, or several blocks share one."""
    shape, dtype, row, inputs = operands.shape, operands.dtype, SCANS[kind], [*operands.arrays.values()]
    if not math.prod(shape):
        return nothing
    if not all(is_contiguous(x, tuple(C_TYPES)) for x in inputs):
        return None
    inner, count = math.prod(shape[axis + 1 :]), shape[axis]
    lines = math.prod(shape) // count
    sizes = [array.dtype.itemsize for array in (*inputs, *outs)]
    lanes = lanes_of(max(sizes), count if inner == 1 and not operands.texts else 1, *inputs, *outs)
    each = max(lanes, min(16 // row.words, power_of_two(count)))
    least = 1 if inner == 1 else max(1, _LINE_BYTES // min(sizes))
    columns, blocks, parts, share = _division(lines, -(-count // each), least, device.multiprocessors)
    tile = _BLOCK // columns * each
    source = definitions(
        T=dtype_of(outs[0].dtype), A=accumulating_type(dtype), Also=dtype_of(outs[-1].dtype),
        Index=index_type(lines * count + 2 * tile * inner), LINES=lines, COUNT=count, INNER=inner, EXCLUSIVE=exclusive,
        REVERSE=reverse, THREADS=_BLOCK, COLUMNS=columns, CHUNKS=_BLOCK // columns, ADJACENT=inner == 1, EACH=each,
        LANES=lanes, PARTS=parts, PART=share * tile, BEYOND=beyond,
        OPERANDS=operands.count,
    ) + macros(NEUTRAL=neutral(row.how, dtype), State=row.state, COMPUTED=len(operands.texts),
             SEVERAL_PARTS=int(parts > 1))  # fmt: skip
    puts = [
        f"put({to}, line, first, end, [&](int i) {{ return {change}({value}); }});"
        for to, change, value in zip(("out", "also"), ("narrow<T>", "narrow<Also>"), row.results, strict=False)
    ]
    source += source_text("ops/cuda/formulas.cuh") if operands.texts else ""
    source += source_text(
        "ops/cuda/scan.cu", begin=row.begin, element=row.element, end="\n        ".join(puts),
        parameters=", ".join(f"const {c_type(dtype_of(a.dtype))}* {name}" for name, a in operands.arrays.items()),
        arguments=", ".join(operands.arrays), **dict.fromkeys(_TEXTS, "") | operands.texts,
    )  # fmt: skip
    words = row.words * max(dtype.itemsize, 8)
    carries = device.scratch(words * parts * lines if parts > 1 else 1)
    kernel = device.kernel(source, "scan")
    totals = device.kernel(source, "scan_totals") if parts > 1 else None
    arguments = [*inputs, outs[0], outs[-1], carries]

    def launch() -> None:
        if totals is not None:
            totals(grid_of(blocks * parts), _BLOCK, arguments)
        kernel(grid_of(blocks * parts), _BLOCK, arguments)

    return launch


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
