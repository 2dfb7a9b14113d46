"""CUDA kernels that move elements: transposes, slices, joins, repetition, padding, definitions, triangles.

Moves read no value: an element is a number of bytes, and neighbours that stay neighbours are moved as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.text import (
    PACK_BYTES,
    WORDS,
    accumulating_type,
    address,
    combining,
    definitions,
    grid_of,
    index_type,
    lanes_of,
)
from mspc.ops.device import Array, Device, Launch, c_type, in_order, source_text

_BLOCK = 256
_MOVES_PER_LAUNCH = 8
"""Moves in one launch at most."""


@dataclass(frozen=True, slots=True)
class Move:
    """target[target_offset + i . target_strides] = source[source_offset + i . source_strides] for all i below sizes.

    Strides and offsets are in elements; source strides may be 0 or below.
    """

    source: Array
    target: Array
    sizes: tuple[int, ...]
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]
    source_offset: int = 0
    target_offset: int = 0

    def merged(self) -> Move:
        """Return the same with as few dimensions as possible."""
        found: list[list[int]] = []
        for n, s, t in zip(self.sizes, self.source_strides, self.target_strides, strict=True):
            if n == 1:
                continue
            if found and found[-1][1] == s * n and found[-1][2] == t * n:
                found[-1] = [found[-1][0] * n, s, t]
            else:
                found.append([n, s, t])
        sizes, sources, targets = (tuple(column) for column in zip(*found, strict=True)) if found else ((), (), ())
        return replace(self, sizes=sizes, source_strides=sources, target_strides=targets)

    def lanes(self, size: int) -> int:
        """Return the number of elements of `size` bytes that can be moved as one."""
        lanes = PACK_BYTES // size
        if not self.sizes or self.source_strides[-1] != 1 or self.target_strides[-1] != 1:
            return 1
        steps = [*self.source_strides[:-1], *self.target_strides[:-1], self.sizes[-1]]
        steps += [self.source_offset, self.target_offset]
        places = (address(self.source), address(self.target))
        while lanes > 1 and (any(n % lanes for n in steps) or any(p % (lanes * size) for p in places)):
            lanes //= 2
        return lanes

    def packed(self, lanes: int) -> Move:
        """Return the same move of packs of `lanes` elements."""
        if lanes == 1:
            return self
        return replace(
            self,
            sizes=(*self.sizes[:-1], self.sizes[-1] // lanes),
            source_strides=(*(n // lanes for n in self.source_strides[:-1]), 1),
            target_strides=(*(n // lanes for n in self.target_strides[:-1]), 1),
            source_offset=self.source_offset // lanes,
            target_offset=self.target_offset // lanes,
        )


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in elements."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def move(device: Device, name: str, moves: Sequence[Move]) -> Launch | None:
    """Return the launch of all moves, few kernels for all."""
    wanted = [each.merged() for each in moves if math.prod(each.sizes)]
    if not wanted:
        return None
    size = dtype_of(wanted[0].source.dtype).itemsize
    single = wanted[0] if len(wanted) == 1 else None
    if single is not None and _transposes(single):
        return _transposed(device, name, single, size)
    parts = [wanted[i : i + _MOVES_PER_LAUNCH] for i in range(0, len(wanted), _MOVES_PER_LAUNCH)]
    return in_order(*(_moved(device, name, part, size) for part in parts))


def _place(strides: Sequence[int], offset: str) -> str:
    terms = [f"i{d} * {n}ll" for d, n in enumerate(strides) if n]
    return " + ".join([*terms, offset])


def coordinates(sizes: Sequence[int], rest: str) -> str:
    """Return definitions of i0, i1, ... from the number `rest` of an element, the last dimension fastest."""
    lines: list[str] = []
    for d in reversed(range(len(sizes))):
        # As a signed number, so that strides may be negative.
        lines.append(f"const long long i{d} = {rest}{f' % {sizes[d]}' if d else ''};")
        if d:
            lines.append(f"const Index rest{d} = {rest} / {sizes[d]};")
            rest = f"rest{d}"
    return " ".join(lines)


def _moved(device: Device, name: str, moves: Sequence[Move], size: int) -> Launch:
    calls: list[str] = []
    offsets: list[np.int64] = []
    most, biggest = 0, 0
    for number, each in enumerate(moves):
        lanes = each.lanes(size)
        packed = each.packed(lanes)
        count = math.prod(packed.sizes)
        splat = not lanes > 1 and bool(packed.sizes) and packed.source_strides[-1] == 0 and _packs(packed, size)
        word = WORDS[lanes * size]
        if splat:
            # One element repeated along the last dimension: packs of it are written.
            lanes = _packs(packed, size)
            packed = replace(
                packed,
                sizes=(*packed.sizes[:-1], packed.sizes[-1] // lanes),
                target_strides=(*(n // lanes for n in packed.target_strides[:-1]), 1),
                target_offset=packed.target_offset // lanes,
            )
            count = math.prod(packed.sizes)
        element = f"Pack<{word}, {lanes}>" if splat else word
        offsets += [np.int64(packed.source_offset), np.int64(packed.target_offset)]
        value = f"((const {word}*)from{number})[{_place(packed.source_strides, f'read{number}')}]"
        if splat:
            filled = f"{element} v; const {word} one = {value}; for (int j = 0; j < {lanes}; ++j) v.at[j] = one;"
        else:
            filled = f"const {element} v = {value};"
        place = _place(packed.target_strides, f"written{number}")
        index = index_type(count)
        calls.append(
            f"    if (blockIdx.y == {number}) {{ typedef {index} Index;\n"
            f"        const Index at = (Index)blockIdx.x * {_BLOCK} + threadIdx.x;\n"
            f"        if (at < {count}ull) {{ {coordinates(packed.sizes, 'at')}\n"
            f"            {filled}\n            (({element}*)to{number})[{place}] = v;\n        }}\n    }}\n"
        )
        most = max(most, count)
        biggest = max(biggest, lanes)
    numbers = range(len(moves))
    parameters = ", ".join(f"const void* from{i}, void* to{i}" for i in numbers)
    parameters += "".join(f", const long long read{i}, const long long written{i}" for i in numbers)
    source = f'extern "C" __global__ void __launch_bounds__({_BLOCK}) {name}({parameters}) {{\n{"".join(calls)}}}\n'
    kernel = device.kernel(source, name)
    arguments = [*(array for each in moves for array in (each.source, each.target)), *offsets]
    grid = (-(-most // _BLOCK), len(moves), 1)
    return lambda: kernel(grid, _BLOCK, arguments)


def _packs(move: Move, size: int) -> int:
    """Return the elements that are written as one if the source repeats one element along the last dimension; 0: one
    only."""
    lanes = PACK_BYTES // size
    if move.target_strides[-1] != 1:
        return 0
    steps = [*move.target_strides[:-1], move.sizes[-1], move.target_offset]
    while lanes > 1 and (any(n % lanes for n in steps) or address(move.target) % (lanes * size)):
        lanes //= 2
    return lanes if lanes > 1 else 0


def _transposes(move: Move) -> bool:
    """Return True if the source has neighbours along a dimension other than the target's last."""
    if not move.sizes or move.target_strides[-1] != 1 or move.source_strides[-1] in (0, 1):
        return False
    return 1 in move.source_strides and min(move.sizes[-1], move.sizes[move.source_strides.index(1)]) >= 2


def _transposed(device: Device, name: str, move: Move, size: int) -> Launch:
    """Move through tiles in shared memory: both sides are read and written along their neighbours."""
    along = move.source_strides.index(1)
    last = len(move.sizes) - 1
    others = [d for d in range(last) if d != along]
    # All of a side that is shorter than a tile is taken, and more of the other with it.
    side, room = (64, 4096) if size < 4 else (32, 1024)
    height, width = move.sizes[along], move.sizes[last]
    high = min(height, side if width >= side else room // min(width, side))
    wide = min(width, room // high)
    down, across = -(-height // high), -(-width // wide)
    batch = math.prod(move.sizes[d] for d in others)
    word = WORDS[size]
    base = {
        side: " + ".join([*(f"o{i} * {strides[d]}ll" for i, d in enumerate(others)), f"{offset}ll"])
        for side, strides, offset in (
            ("source", move.source_strides, move.source_offset),
            ("target", move.target_strides, move.target_offset),
        )
    }
    lines: list[str] = []
    rest = "number"
    for i in reversed(range(len(others))):
        n = move.sizes[others[i]]
        lines.append(f"const long long o{i} = {rest}{f' % {n}' if i else ''};")
        lines.append(f"const unsigned int rest{i} = {rest} / {n};")
        rest = f"rest{i}"
    source = definitions(
        W=word, HIGH=high, WIDE=wide, DOWN=down, ACROSS=across, HEIGHT=height, WIDTH=width, PITCH=_pitch(high, size),
    ) + f"constexpr long long OUT = {move.target_strides[along]}ll, IN = {move.source_strides[last]}ll;\n"  # fmt: skip
    source += source_text("ops/cuda/transpose.cu", name=name, others=" ".join(lines), **base)
    kernel = device.kernel(source, name)
    grid = grid_of(batch * down * across)
    return lambda: kernel(grid, _BLOCK, [move.source, move.target])


def transpose_bytes(device: Device, source: Array, target: Array) -> Launch:
    """Return the transposition of a matrix whose elements are bytes and whose sizes are multiples of 4."""
    kernel = device.kernel(source_text("ops/cuda/transpose_bytes.cu"), "transpose_bytes")
    rows, columns = source.shape
    grid = -(-columns // 64), -(-rows // 64), 1
    return lambda: kernel(grid, 256, [source, target, np.int32(rows), np.int32(columns)])


def _pitch(length: int, size: int) -> int:
    """Return the elements of a row of `length` in shared memory: an odd number of words, so that columns use all
    banks."""
    each = max(1, 4 // size)
    return (-(-length // each) | 1) * each


def put_values(device: Device, name: str, out: Array, text: str, operands: Sequence[tuple[str, Array]] = (),
               before: str = "", common: str = "") -> Launch | None:  # fmt: skip
    """Fill `out` element by element: `text` is the C++ of element number `at`, of type R, from pointers to operands.

    before: statements of every thread before its elements. common: definitions before the kernel.
    """
    count = math.prod(out.shape)
    if not count:
        return None
    dtype = dtype_of(out.dtype)
    lanes = PACK_BYTES // dtype.itemsize
    while lanes > 1 and (address(out) % (lanes * dtype.itemsize) or count < 4096):
        lanes //= 2
    parameters = ", ".join([*(f"const {c_type(dtype_of(a.dtype))}* {n}" for n, a in operands), "R* out"])
    source = common + definitions(R=dtype, Index=index_type(count + _BLOCK * lanes), SIZE=count, V=lanes)
    source += source_text("ops/cuda/put_values.cu", name=name, parameters=parameters, before=before, text=text)
    kernel = device.kernel(source, name)
    grid = grid_of(-(-count // (_BLOCK * lanes)))
    arguments = [*(array for _, array in operands), out]
    return lambda: kernel(grid, _BLOCK, arguments)


def put_inside(device: Device, name: str, source: Array, out: Array,
               cuts: Sequence[tuple[int, int, int]]) -> Launch | None:  # fmt: skip
    """Fill `out` with zeros and the elements of `source`. cuts: (start, step, size) of every dimension of `out`:
    element k of `source` along it goes to start + step * k."""
    lines = [coordinates(out.shape, "at")]
    terms: list[str] = []
    tests: list[str] = []
    stride = math.prod(size for _, _, size in cuts)
    for d, (start, step, size) in enumerate(cuts):
        stride //= max(1, size)
        lines.append(f"const long long away{d} = {f'i{d} - {start}' if step > 0 else f'{start} - i{d}'};")
        tests += [f"away{d} >= 0", f"away{d} / {abs(step)} < {size}"]
        if abs(step) > 1:
            tests.append(f"away{d} % {abs(step)} == 0")
        terms.append(f"away{d} / {abs(step)} * {stride}ll")
    inside, place = " && ".join(tests) or "true", " + ".join(terms) or "0"
    text = f"[&] {{ {' '.join(lines)} return {inside} ? source[{place}] : narrow<R>(0); }}()"
    return put_values(device, name, out, text, [("source", source)])


def literal(value: float | int | bool, dtype: DType) -> str:
    """Return the C++ constant of an element type's number."""
    if dtype.kind == "b":
        return str(bool(value)).lower()
    if dtype.is_integer:
        number = int(value)
        return f"{number}ull" if number >= 0 else f"({number + 1}ll - 1)"
    kind = {2: "uint16", 4: "uint32", 8: "uint64"}[dtype.itemsize]
    bits = hex(int(np.array(value, np.float64).astype(dtype.numpy).view(kind)))
    if dtype.itemsize == 2:
        return f"R{{{bits}}}"
    return f"__int_as_float((int){bits}u)" if dtype.itemsize == 4 else f"__longlong_as_double((long long){bits}ull)"


# These CUDA kernels look rows up by integers, and add elements up by them along a dimension.


@dataclass(frozen=True, slots=True)
class RowLookup:
    """The positions of a lookup: rows of `inner` elements in a table (batch, middle, size, inner), named by ids[batch,
    count]; the looked-up rows are (batch, middle, count, inner).

    offset: of the first row of this slice of the table. total: rows of the global table, which negative ids count back
    from; 0: negative ids are no rows. An id that is no row of this slice takes zeros and adds nothing.
    """

    batch: int
    middle: int
    size: int
    inner: int
    count: int
    offset: int = 0
    total: int = 0


def gather(device: Device, name: str, lookup: RowLookup, table: Array, ids: Array, out: Array) -> Launch | None:
    """Return the launch that looks rows up."""
    if not math.prod(out.shape):
        return None
    size = dtype_of(table.dtype).itemsize
    lanes = lanes_of(size, lookup.inner, table, out)
    packs = math.prod(out.shape) // lanes
    most = lookup.batch * lookup.middle * max(lookup.size, lookup.count) * lookup.inner
    source = definitions(
        W=WORDS[size * lanes], I=dtype_of(ids.dtype), Index=index_type(most), MIDDLE=lookup.middle, SIZE=lookup.size,
        INNER=lookup.inner // lanes, COUNT=lookup.count, OFFSET=lookup.offset, TOTAL=lookup.total, PACKS=packs,
    )  # fmt: skip
    source += source_text("ops/cuda/gather.cu", name=name)
    kernel = device.kernel(source, name)
    grid = grid_of(-(-packs // _BLOCK))
    return lambda: kernel(grid, _BLOCK, [table, ids, out])


def add_along(device: Device, name: str, outer: int, size: int, count: int, inner: int, ids: Array, rows: Array,
              out: Array, base: Array | None = None, how: str = "Sum") -> Launch | None:  # fmt: skip
    """Return the launch of out[o, ids[o, p, i], i] += rows[o, p, i], from `base` or zeros, in the order of p: a thread
    for every (o, i). how: as in `NamedRows`."""
    if not math.prod(out.shape):
        return None
    dtype = dtype_of(rows.dtype)
    source = definitions(
        T=dtype, A=accumulating_type(dtype), I=dtype_of(ids.dtype), Index=index_type(outer * inner * max(size, count)),
        OUTER=outer, SIZE=size, COUNT=count, INNER=inner, BASED=base is not None,
    )  # fmt: skip
    source += combining(how, dtype) + source_text("ops/cuda/add_along.cu", name=name)
    kernel = device.kernel(source, name)
    grid = grid_of(-(-outer * inner // _BLOCK))
    return lambda: kernel(grid, _BLOCK, [ids, rows, out if base is None else base, out])


# This CUDA kernel resamples images: every place of the result is a weighted sum of places of the image around it.


def resample(device: Device, name: str, matrices: Sequence[Any], inner: int, x: Array, out: Array) -> Launch | None:
    """Return the launch of out = the matrices [positions of the result, positions of the image], one a dimension,
    applied to x. The dimensions of an image are adjacent. inner: elements after them that belong to one position."""
    dtype = dtype_of(x.dtype)
    if math.prod(x.shape) >= 2**31 or not dtype.is_float:
        return None
    wide = np.float64 if dtype.name == "Float64" else np.float32
    parts = [_support(matrix) for matrix in matrices]
    firsts = np.concatenate([first for first, _ in parts]).astype(np.int32)
    weights = np.concatenate([rows.reshape(-1) for _, rows in parts]).astype(wide)
    lines = [f"const Index i = at % {inner}; Index rest = at / {inner};", "A total = 0;"]
    loops: list[str] = []
    index = "rest"
    for d in reversed(range(len(matrices))):
        count, width = parts[d][1].shape
        begin, weight = sum(len(first) for first, _ in parts[:d]), sum(rows.size for _, rows in parts[:d])
        lines.append(f"const Index q{d} = rest % {count}; rest /= {count}; const int f{d} = firsts[{begin} + q{d}];")
        lines.append(f"const A* const w{d} = weights + {weight} + q{d} * {width};")
    for d, matrix in enumerate(matrices):
        width, length = parts[d][1].shape[1], matrix.shape[1]
        share = f"s{d - 1} * w{d}[k{d}]" if d else f"w{d}[k{d}]"
        loops.append(f"for (int k{d} = 0; k{d} < {width} && f{d} + k{d} < {length}; ++k{d}) {{ const A s{d} = {share};")
        index = f"({index} * {length} + f{d} + k{d})"
    share = f"s{len(matrices) - 1}"
    lines += [*loops, f"total += {share} * (A)wide(x[{index} * {inner} + i]);", "}" * len(loops)]
    common = definitions(A="double" if wide is np.float64 else "float")
    text = f"[&] {{ {' '.join(lines)} return narrow<R>(total); }}()"
    operands = [("x", x), ("firsts", device.xp.asarray(firsts)), ("weights", device.xp.asarray(weights))]
    return put_values(device, name, out, text, operands, common=common)


def _support(matrix: Any) -> tuple[Any, Any]:
    """Return (the first position with a weight, [positions of the result, most weights]) of a matrix."""
    given = matrix != 0
    first = np.argmax(given, axis=1)
    last = matrix.shape[1] - np.argmax(given[:, ::-1], axis=1)
    width = max(1, int((last - first).max()))
    places = first[:, None] + np.arange(width)
    rows = np.take_along_axis(matrix, np.minimum(places, matrix.shape[1] - 1), axis=1)
    return first, np.where(places < last[:, None], rows, 0)
