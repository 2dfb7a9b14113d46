"""An elementwise operator is one CUDA kernel; here are the loops of it and of chains, with reductions that close them.

Every operand is read once and every result written once. A result may be an operand's memory: a thread reads what it
overwrites before. Reductions have a fixed order: along rows by a warp or a block each, along columns or over everything
in two passes where one has too few results to fill the GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL, HALVES, DType, TensorType, dtype_of
from mspc.ops.cuda.column_totals import added_parts, partial_totals
from mspc.ops.cuda.loop_parts import PARTIAL, LoopOperand, LoopReduction
from mspc.ops.cuda.loops import BLOCK, HELPERS, CudaLoop, column_loop, plain_loop, row_loop
from mspc.ops.cuda.math import MATH, one_word
from mspc.ops.cuda.moved import MovedRead
from mspc.ops.cuda.random import with_arguments
from mspc.ops.cuda.source import address
from mspc.ops.device import Array, Device, Launch, c_type, computing_type

_WAVES = 4
"""Blocks per multiprocessor that a reduction is split into."""
_NAME = re.compile(r"\w+")
_TOKEN = re.compile(r"\{(\d+|[+is])\}|\b[TRE]\b")
_OWN = {"i": "at", "s": "running"}
"""What `{i}` and `{s}` of an expression are called in a kernel."""


def launch_elementwise(device: Device, op: Any, inputs: Sequence[Array], out: Array) -> Launch | None:
    """Launch of one operator that has a `cuda` expression; None where it has none."""
    if not op.cuda:
        return None
    types = [type_of(array) for array in inputs]
    result = dtype_of(out.dtype)
    text = defined("t0", result, expression(op, [f"x{i}" for i in range(len(inputs))], types, result))
    reads = [
        KernelOperand(f"x{i}", array, type.shape) for i, (array, type) in enumerate(zip(inputs, types, strict=True))
    ]
    return launch_loop(device, reads, [text], [("t0", out)], [], tuple(out.shape), ())


def expression(op: Any, names: Sequence[str], types: Sequence[TensorType], result: DType) -> str:
    """The operator's `cuda` with the operands' names and the types in place.

    Beside what `Op` says, `{+}` is the sum of all operands and `E` the type of operand 0 in memory. What is true or not
    is decided by halves as memory holds them: a chain does not round its values, which then would not equal those that
    another kernel has stored.
    """
    if result == BOOL:
        names = [
            f"wide(narrow<{c_type(type.dtype)}>({name}))" if type.dtype in HALVES else name
            for name, type in zip(names, types, strict=True)
        ]
    own = types[0].dtype if types else result
    words = {"T": one_word(computing_type(own)), "R": one_word(computing_type(result)), "E": one_word(c_type(own))}

    def put(match: re.Match[str]) -> str:
        if match[1] is None:
            return words[match[0]]
        if match[1] in _OWN:
            return _OWN[match[1]]
        return " + ".join(names) if match[1] == "+" else names[int(match[1])]

    return _TOKEN.sub(put, op.cuda)


def defined(name: str, dtype: DType, value: str) -> str:
    """The C++ definition of a value, computed in the type that its element type asks for."""
    type = computing_type(dtype)
    return f"const {type} {name} = ({type})({value});"


def type_of(array: Array) -> TensorType:
    """The type of an array's tensor."""
    return TensorType(dtype_of(array.dtype), tuple(array.shape))


@dataclass(frozen=True, slots=True)
class KernelOperand:
    """An operand as expressions know it: its name, its array, and the shape that is broadcast to the loop's.

    moved: what is read instead, along the dimensions of the loop's shape.
    """

    name: str
    array: Array
    shape: tuple[int, ...]
    moved: MovedRead | None = None

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.moved.dtype if self.moved is not None else dtype_of(self.array.dtype)


def launch_loop(
    device: Device, reads: Sequence[KernelOperand], text: Sequence[str], writes: Sequence[tuple[str, Array]],
    totals: Sequence[LoopReduction], shape: tuple[int, ...], axes: tuple[int, ...],
) -> Launch | None:  # fmt: skip
    """Launch of a loop over `shape`; None where it cannot be generated.

    Args:
        text: definitions of values from the operands' elements. writes: (value, where it is stored). totals: reductions
        along `axes`, of values.
    """
    if math.prod(shape) == 0:
        return None if totals else _nothing
    text, seeds = with_arguments(text)
    stored = [name for name, _ in writes]
    words = set(_NAME.findall(" ".join([*text, *stored, *(total.value for total in totals)])))
    used = [read for read in reads if read.name in words]
    vectors = [_vectors_of(read, shape) for read in used]
    sizes, labels, merged = _merged(shape, axes, [each for own in vectors for each in own], bool(totals))
    operands = tuple(
        _operand(read, [next(steps) for _ in own])
        for steps in [iter(merged)]
        for read, own in zip(used, vectors, strict=True)
    )
    written = tuple((f"y{i}", dtype_of(array.dtype), array) for i, (_, array) in enumerate(writes))
    loop = CudaLoop(
        sizes, operands, written, tuple(totals), _chain(operands, written, totals, text, stored),
        pack=1, flight=1, wide=math.prod(shape) >= 2**31, numbered="at" in words,
        step=device.step if "running" in words else None, seeds=seeds,
    )  # fmt: skip
    loop.pack = _pack(loop)
    if not totals:
        return _plain(device, loop)
    return _reduce(device, loop, labels)


def _nothing() -> None:
    """Of no elements."""


def _chain(reads: Sequence[LoopOperand], writes: Sequence[Any], totals: Sequence[LoopReduction], text: Sequence[str],
           values: Sequence[str]) -> str:  # fmt: skip
    """The function `chain` of one element."""
    words = set(_NAME.findall(" ".join(text)))
    given = [f"const {kind} {name}" for name, kind in (("at", "I"), ("running", "u64")) if name in words]
    given += [f"const u64 seed{i}" for i in range(sum(name.startswith("seed") for name in words))]
    given += [f"const {computing_type(read.dtype)} {read.name}" for read in reads]
    given += [f"{computing_type(dtype)}& {name}" for name, dtype, _ in writes]
    given += [f"{computing_type(total.accumulates)}& r{i}" for i, total in enumerate(totals)]
    sets = [f"{name} = {value};" for (name, _, _), value in zip(writes, values, strict=True)]
    sets += [f"r{i} = {total.value};" for i, total in enumerate(totals)]
    body = "\n".join(f"    {line}" for line in [*text, *sets])
    return f"__device__ __forceinline__ void chain({', '.join(given)}) {{\n{body}\n}}"


def _vectors_of(read: KernelOperand, shape: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    """The steps of all places of an operand along the dimensions of a shape."""
    if read.moved is not None:
        return read.moved.vectors
    lead = (1,) * (len(shape) - len(read.shape)) + read.shape
    return [tuple(0 if n == 1 else math.prod(lead[d + 1 :]) for d, n in enumerate(lead))]


def _operand(read: KernelOperand, vectors: Sequence[tuple[int, ...]]) -> LoopOperand:
    """The operand of a loop along whose dimensions its places have these steps."""
    moved = read.moved.merged(vectors) if read.moved is not None else None
    return LoopOperand(read.name, read.dtype, vectors[0], read.array, moved)


def _merged(shape: tuple[int, ...], axes: Sequence[int], vectors: Sequence[tuple[int, ...]], reduces: bool,
            ) -> tuple[tuple[int, ...], tuple[bool, ...], list[tuple[int, ...]]]:  # fmt: skip
    """(sizes, whether each is reduced, each of the vectors of steps) of the loop's dimensions, neighbours merged."""
    found: list[tuple[int, bool, tuple[int, ...]]] = []
    for d in range(len(shape)):
        if shape[d] == 1:
            continue
        strides = tuple(steps[d] for steps in vectors)
        size, reduced = shape[d], d in axes
        if found and found[-1][1] == reduced and all(
            outer == inner * size for outer, inner in zip(found[-1][2], strides, strict=True)
        ):  # fmt: skip
            size *= found.pop()[0]
        found.append((size, reduced, strides))
    if not found or (reduces and not any(reduced for _, reduced, _ in found)):
        found.append((1, reduces, (0,) * len(vectors)))
    sizes, labels, steps = zip(*found, strict=True)
    return tuple(sizes), tuple(labels), [tuple(step[i] for step in steps) for i in range(len(vectors))]


def _pack(loop: CudaLoop) -> int:
    """Elements of a pack: as many as 16 bytes hold of the widest type; fewer where places or rows do not allow it."""
    packed = [(read.dtype, read.array) for read in loop.reads if loop.kind(read) in ("whole", "row")]
    packed += [(dtype, array) for _, dtype, array in loop.writes]
    pack = 16 // max((dtype.itemsize for dtype, _ in packed), default=4)
    if loop.totals:
        pack = min(pack, 8)
    moved = [read.moved for read in loop.reads if read.moved is not None]
    divides = len(loop.sizes) > 1 or bool(loop.totals) or bool(moved)  # else the rest is done element by element
    while pack > 1 and (
        (divides and math.prod(loop.sizes[-1:]) % pack)
        or any(address(array) % (pack * dtype.itemsize) for dtype, array in packed)
        or any(loop.kind(read) == "row" and stride % pack for read in loop.reads for stride in read.strides[:-1])
    ):
        pack //= 2
    beside = [read for read in moved if read.lies_side_by_side()]
    fitting = (n for n in (16, 8, 4, 2) if n <= pack and all(read.is_packed(n) for read in beside))
    return next(fitting, pack)


def _flight(loop: CudaLoop, packs_per_thread: float) -> int:
    """Packs that a thread has in flight: more for few streams, as far as there are packs for all threads."""
    streams = max(1, sum(loop.kind(read) in ("whole", "row", "moved") for read in loop.reads))
    return next((n for n in (4, 2) if n * streams <= 8 and packs_per_thread >= 2 * n), 1)


def _flight_down(loop: CudaLoop, packs_per_thread: float) -> int:
    """The same for totals along columns, where a thread stays at its columns, and what has an element for each of them
    alone is at hand; there are few threads, and six packs of each are enough."""
    streams = max(1, sum(loop.kind(read) in ("whole", "moved") for read in loop.reads))
    return next((n for n in (4, 2) if n * streams <= 6 and packs_per_thread >= 2 * n), 1)


def _bound(device: Device, source: str, name: str, loop: CudaLoop, blocks: int) -> Launch:
    kernel = device.kernel(MATH + HELPERS + source, name)
    arguments = tuple(loop.arguments)

    def launch() -> None:
        kernel(blocks, BLOCK, arguments)

    return launch


def _plain(device: Device, loop: CudaLoop) -> Launch:
    packs = max(1, loop.size // loop.pack)
    loop.flight = _flight(loop, packs / (device.multiprocessors * 2048))
    source = plain_loop(loop)
    return _bound(device, source, "elementwise", loop, -(-packs // (BLOCK * loop.flight)))


def _reduce(device: Device, loop: CudaLoop, labels: Sequence[bool]) -> Launch | None:
    """One pass, or two where the first makes partial totals."""
    runs = [(reduced, math.prod(n for n, _ in group)) for reduced, group in groupby(
        zip(loop.sizes, labels, strict=True), key=lambda pair: pair[1])]  # fmt: skip
    kinds = [reduced for reduced, _ in runs]
    counts = [count for _, count in runs]
    if kinds[-1]:
        outer, height, width = 1, 1, math.prod(counts[:-1])
        if len(kinds) > 4:
            return None
        if len(kinds) > 2:  # rows first; their totals are then combined over the reduced dimension further out
            outer, height, width = (*[1] * (4 - len(kinds)), *counts[:-1])
        return _by_rows(device, loop, counts[-1], outer, height, width)
    if len(kinds) > 3:
        return None
    outer, height, width = (*[1] * (3 - len(kinds)), *counts)
    return _by_columns(device, loop, outer, height, width)


def _by_rows(device: Device, loop: CudaLoop, length: int, outer: int, height: int, width: int) -> Launch | None:
    rows = outer * height * width
    packs = length // loop.pack
    lanes, parts = row_plan(rows, packs, device.multiprocessors)
    parts = parts if height == 1 else 1
    partial = parts > 1 or height > 1
    loop.flight = _flight(loop, packs / (lanes * parts))
    scratch = partial_totals(device, loop.totals, rows * parts) if partial else None
    source = row_loop(loop, rows, lanes, parts, scratch)
    first = _bound(device, source, "rows", loop, rows * parts if lanes == BLOCK else -(-rows * lanes // BLOCK))
    if scratch is None:
        return first
    return all_of([first, _combine(device, loop, scratch, (rows, parts, 1) if parts > 1 else (outer, height, width))])


def row_plan(rows: int, packs: int, multiprocessors: int) -> tuple[int, int]:
    """(threads that share a row of so many packs, parts into which it is split)."""
    if packs <= 32:
        return 1 << max(0, packs - 1).bit_length(), 1
    if packs <= 512 and rows >= 16 * multiprocessors:
        return 32, 1
    wanted = -(-_WAVES * multiprocessors // rows)
    return BLOCK, max(1, min(wanted, packs // (4 * BLOCK)))


def _by_columns(device: Device, loop: CudaLoop, outer: int, height: int, width: int) -> Launch | None:
    packs = width // loop.pack
    across, parts = column_plan(outer, height, packs, device.multiprocessors)
    down = BLOCK // across
    loop.flight = _flight_down(loop, height / (down * parts))
    if sum(BLOCK * loop.pack * (8 if total.type in ("double", "long long") else 4) for total in loop.totals) > 40000:
        return None
    scratch = partial_totals(device, loop.totals, outer * parts * width) if parts > 1 else None
    source = column_loop(loop, outer, height, across, parts, scratch)
    first = _bound(device, source, "columns", loop, outer * parts * -(-packs // across))
    return first if scratch is None else all_of([first, _combine(device, loop, scratch, (outer, parts, width))])


def column_plan(outer: int, height: int, packs: int, multiprocessors: int) -> tuple[int, int]:
    """(packs of the width that a block takes, parts into which the height is split)."""
    across = min(32, 1 << max(0, packs - 1).bit_length())
    blocks = outer * -(-packs // across)
    wanted = -(-_WAVES * multiprocessors // blocks)
    return across, max(1, min(wanted, height // (4 * (BLOCK // across))))


def _combine(device: Device, loop: CudaLoop, scratch: Sequence[Array], sizes: tuple[int, int, int]) -> Launch:
    """The pass over partial totals: (outer, parts, width) -> (outer, width)."""
    outer, parts, width = sizes
    if outer == 1 and width > 1:
        return all_of(added_parts(device, loop.totals, scratch, parts, width))
    shape = tuple(sizes)
    types = [PARTIAL[total.type] for total in loop.totals]
    strides = (parts * width, width, 1)
    if width == 1:
        shape, strides = (outer, parts), (parts, 1)
    given = enumerate(zip(types, scratch, strict=True))
    reads = tuple(LoopOperand(f"x{i}", type, strides, array) for i, (type, array) in given)
    totals = tuple(
        replace(total, value=f"x{i}", accumulates=type)
        for i, (total, type) in enumerate(zip(loop.totals, types, strict=True))
    )
    second = CudaLoop(shape, reads, (), totals, _chain(reads, (), totals, (), ()), pack=1, flight=1, wide=loop.wide)
    if width == 1:
        lanes = min(BLOCK, 1 << max(0, parts - 1).bit_length())
        lanes = lanes if lanes <= 32 else BLOCK
        second.flight = _flight(second, parts / lanes)
        source = row_loop(second, outer, lanes, 1, None)
        return _bound(device, source, "rows", second, outer if lanes == BLOCK else -(-outer * lanes // BLOCK))
    across = min(32, 1 << max(0, width - 1).bit_length())
    second.flight = _flight(second, parts / (BLOCK // across))
    source = column_loop(second, outer, parts, across, 1, None)
    return _bound(device, source, "columns", second, outer * -(-width // across))


def all_of(launches: Sequence[Launch]) -> Launch:
    """One after the other."""
    if len(launches) == 1:
        return launches[0]

    def launch() -> None:
        for each in launches:
            each()

    return launch
