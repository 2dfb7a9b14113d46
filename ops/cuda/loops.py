"""This module writes CUDA source of loops over elements: loads in packs, a chain of expressions, stores, and the
reductions that close it.

A loop runs over packs: `pack` elements side by side in the last dimension, which are loaded and stored at once. Sizes
and offsets are arguments of the kernels; what changes the code (types, patterns of strides, packs in flight) is in the
source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType
from mspc.ops.cuda.loop_parts import LoopOperand, LoopReduction
from mspc.ops.cuda.random import RANDOM
from mspc.ops.cuda.source import neutral
from mspc.ops.device import c_type, computing_type

BLOCK = 256
"""Threads of a block."""

HELPERS = r"""
// n / d for n below 2^31; m and s stand for d, see `divisor`.
__device__ __forceinline__ unsigned int quotient(unsigned int n, unsigned int d, unsigned int m, unsigned int s) {
    return m ? __umulhi(n, m) >> s : n;
}
__device__ __forceinline__ u64 quotient(u64 n, u64 d, u64 m, u64 s) { return n / d; }
// Combined over N neighbouring lanes of a warp.
template <class How, int N, class V> __device__ __forceinline__ V over_lanes(V v) {
    for (int offset = N / 2; offset; offset >>= 1) v = How::of(v, __shfl_xor_sync(0xffffffffu, v, offset));
    return v;
}
"""


@dataclass(slots=True)
class CudaLoop:
    """A loop and the arguments of its kernel.

    sizes: of the dimensions, neighbours merged where every operand allows it. chain: definitions of the function
    `chain`, which takes every operand's element and sets the element of every write and the value of every total.
    writes: (name, element type, array) of the results of the loop's shape. pack, flight: elements of a pack, packs
    that a thread loads before it uses the first. numbered: the chain takes the number of the element. step: the array
    of the running step where the chain takes it. seeds: numbers that it takes, see `with_arguments`.
    """

    sizes: tuple[int, ...]
    reads: tuple[LoopOperand, ...]
    writes: tuple[tuple[str, DType, Any], ...]
    totals: tuple[LoopReduction, ...]
    chain: str
    pack: int
    flight: int
    wide: bool
    numbered: bool = False
    step: Any = None
    seeds: Sequence[int] = ()
    parameters: list[str] = field(default_factory=list[str])
    arguments: list[Any] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        for read in self.reads:
            if read.array is not None:
                self.add(f"const {c_type(read.dtype)}* {read.name}", read.array)
                if read.moved is not None:
                    number = np.int32 if read.moved.index == "int" else np.int64
                    self.add(f"const {read.moved.index} f{read.name}", number(read.moved.at.offset))
        for name, dtype, array in self.writes:
            self.add(f"{c_type(dtype)}* {name}", array)
        if self.step is not None:
            self.add("const long long* running_at", self.step)
        for i, seed in enumerate(self.seeds):
            self.add(f"const u64 seed{i}", np.uint64(seed))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    def add(self, declaration: str, value: Any) -> None:
        """A parameter of the kernel."""
        self.parameters.append(declaration)
        self.arguments.append(value)

    def index(self, name: str, value: int) -> None:
        """A parameter of the index type."""
        self.add(f"const I {name}", np.uint64(value) if self.wide else np.uint32(value))

    def divisor(self, name: str, value: int) -> None:
        """Parameters that `quotient` takes: the divisor, and the factor and shift by which 32 bits are divided.

        n / d = (n * m) >> (31 + l) for n < 2^31, l = ceil(log2(d)) and m = ceil(2^(31 + l) / d); Granlund and
        Montgomery, Division by Invariant Integers using Multiplication, 1994.
        """
        bits = (value - 1).bit_length()
        self.index(f"n{name}", value)
        self.index(f"m{name}", 0 if value == 1 or self.wide else -(-(1 << (31 + bits)) // value))
        self.index(f"s{name}", max(0, bits - 1))

    # Pieces of code

    def kind(self, read: LoopOperand) -> str:
        """one: a single element. whole: an element for each of the loop. row: packs; held: one element a pack. moved:
        at other places."""
        if read.moved is not None:
            return "moved"
        if not any(read.strides):
            return "one"
        contiguous = tuple(math.prod(self.sizes[d + 1 :]) for d in range(len(self.sizes)))
        if read.strides == contiguous:
            return "whole"
        return "row" if read.strides[-1] else "held"

    def once(self) -> list[str]:
        """Loads of single elements, once a thread."""
        lines = [] if self.step is None else ["const u64 running = (u64)*running_at;"]
        return lines + [
            f"const {computing_type(read.dtype)} w{read.name} = wide({read.name}[0]);"
            for read in self.reads
            if self.kind(read) == "one"
        ]

    def places(self) -> list[str]:
        """Places of pack `p` in operands that are broadcast, as o<name>: in packs, or elements of a held one."""
        broadcast = [read for read in self.reads if self.kind(read) in ("row", "held")]
        if not broadcast and all(read.moved is None for read in self.reads):
            return []
        last = len(self.sizes) - 1
        lines: list[str] = []
        rest = "p"
        for d in range(last, 0, -1):
            self.divisor(str(d), self.sizes[d] // (self.pack if d == last else 1))
            lines.append(f"const I q{d} = quotient({rest}, n{d}, m{d}, s{d}), c{d} = {rest} - q{d} * n{d};")
            rest = f"q{d}"
        lines.append(f"const I c0 = {rest};")
        for read in broadcast:
            packed = self.kind(read) == "row"
            terms: list[str] = []
            for d, stride in enumerate(read.strides):
                if not stride:
                    continue
                if d == last:
                    terms.append(f"c{d}")
                    continue
                step = stride // self.pack if packed else stride
                if step == 1:
                    terms.append(f"c{d}")
                    continue
                self.index(f"k{d}{read.name}", step)
                terms.append(f"c{d} * k{d}{read.name}")
            lines.append(f"const I o{read.name} = {' + '.join(terms)};")
        return lines

    def holds(self) -> list[str]:
        """Registers that hold what is in flight."""
        lines: list[str] = []
        for read in self.reads:
            kind, type = self.kind(read), c_type(read.dtype)
            if read.moved is not None:
                lines.append(f"{read.moved.register(self.pack)} a{read.name}[{self.flight}];")
            elif kind != "one":
                lines.append(f"{type if kind == 'held' else f'Pack<{type}, {self.pack}>'} a{read.name}[{self.flight}];")
        return lines

    def loads(self) -> list[str]:
        """Loads of pack `p` into place `u`."""
        lines = self.places()
        for read in self.reads:
            kind, type = self.kind(read), c_type(read.dtype)
            if read.moved is not None:
                moved = replace(read.moved, begin=f"f{read.name}")
                lines += moved.load(f"a{read.name}[u]", read.name, self.pack, self._coordinates)
            elif kind == "held":
                lines.append(f"a{read.name}[u] = {read.name}[o{read.name}];")
            elif kind != "one":
                place = "p" if kind == "whole" else f"o{read.name}"
                lines.append(f"a{read.name}[u] = ((const Pack<{type}, {self.pack}>*){read.name})[{place}];")
        return lines

    def _value(self, read: LoopOperand) -> str:
        """C++ of an operand's element `j` of the pack at place `u`."""
        if self.kind(read) == "one":
            return f"w{read.name}"
        is_held = read.moved.is_held(self.pack) if read.moved is not None else self.kind(read) == "held"
        return f"wide(a{read.name}[u])" if is_held else f"wide(a{read.name}[u].at[j])"

    def _coordinates(self, element: str) -> list[str]:
        """C++ of the coordinates of an element of the pack whose coordinates `places` has defined."""
        last = len(self.sizes) - 1
        return [*(f"c{d}" for d in range(last)), f"(c{last} * {self.pack} + {element})"]

    def uses(self) -> list[str]:
        """The chain over the elements of pack `p` at place `u`, stores, and the totals' accumulation."""
        lines = [f"Pack<{c_type(dtype)}, {self.pack}> b{name};" for name, dtype, _ in self.writes]
        given = [self._value(read) for read in self.reads]
        inner = self.called(given, f"p * {self.pack} + j")
        inner += [f"b{name}.at[j] = narrow<{c_type(dtype)}>(v{name});" for name, dtype, _ in self.writes]
        inner += [
            f"r{i}[j] = {total.how}::of(r{i}[j], ({total.type})vr{i});" for i, total in enumerate(self.totals)
        ]
        lines += ["#pragma unroll", f"for (int j = 0; j < {self.pack}; ++j) {{", *_indented(inner), "}"]
        for name, dtype, _ in self.writes:
            lines.append(f"((Pack<{c_type(dtype)}, {self.pack}>*){name})[p] = b{name};")
        return lines

    def called(self, given: Sequence[str], at: str) -> list[str]:
        """A call of the chain on these elements, of number `at`; its results are v<name>, and vr0, vr1, ... of the
        totals."""
        lines = [f"{computing_type(dtype)} v{name};" for name, dtype, _ in self.writes]
        lines += [f"{computing_type(total.accumulates)} vr{i};" for i, total in enumerate(self.totals)]
        results = [f"v{name}" for name, _, _ in self.writes] + [f"vr{i}" for i in range(len(self.totals))]
        own = [f"(I)({at})"] * self.numbered + ["running"] * (self.step is not None)
        own += [f"seed{i}" for i in range(len(self.seeds))]
        return [*lines, f"chain({', '.join([*own, *given, *results])});"]

    def flights(self, pack_of: Sequence[str], inside: str) -> list[str]:
        """Loads, then uses, of `flight` packs; `pack_of` defines p for u where `inside` holds."""
        lines = self.holds()
        for work in (self.loads(), self.uses()):
            lines += [
                "#pragma unroll",
                f"for (int u = 0; u < {self.flight}; ++u) {{",
                *_indented([*pack_of[:-1], f"if ({inside}) {{", *_indented([pack_of[-1], *work]), "}"]),
                "}",
            ]
        return lines

    def accumulators(self) -> list[str]:
        lines: list[str] = []
        for i, total in enumerate(self.totals):
            begin = f"({total.type})({neutral(total.how, total.accumulates)})"
            lines += [
                f"{total.type} r{i}[{self.pack}];",
                "#pragma unroll",
                f"for (int j = 0; j < {self.pack}; ++j) r{i}[j] = {begin};",
            ]
        return lines

    def targets(self, partial: Sequence[Any] | None) -> None:
        """Parameters of the totals' results: arrays of partial totals, or the results themselves."""
        for i, total in enumerate(self.totals):
            if partial is not None:
                self.add(f"{total.type}* z{i}", partial[i])
                continue
            self.add(f"{c_type(total.dtype)}* z{i}", total.array)
            if total.count > 1:
                self.add(f"const double count{i}", np.float64(total.count))

    def result(self, i: int, value: str, partial: bool) -> str:
        """A total as it is stored."""
        total = self.totals[i]
        if partial:
            return value
        if total.count > 1:
            value = f"{value} / ({total.type})count{i}"
        return f"narrow<{c_type(total.dtype)}>({value})"

    def source(self, name: str, body: Sequence[str]) -> str:
        """The kernel, without what stands before all kernels."""
        index = "u64" if self.wide else "unsigned int"
        head = f'extern "C" __global__ void __launch_bounds__({BLOCK}) {name}({", ".join(self.parameters)}) {{'
        common = [RANDOM] if self.step is not None else []
        return "\n".join([*common, f"typedef {index} I, Index;", self.chain, head, *_indented(body), "}", ""])


def _indented(lines: Sequence[str]) -> list[str]:
    return [line if line.startswith("#") else f"    {line}" for line in lines]


def plain_loop(loop: CudaLoop) -> str:
    """The kernel `elementwise`: every pack once; a last pack that is not full, element by element."""
    packs, left = divmod(loop.size, loop.pack)
    loop.index("packs", packs)
    step = BLOCK * loop.flight
    body = [*loop.once(), f"const I first = blockIdx.x * (I){step} + threadIdx.x;"]
    body += loop.flights((f"const I p = first + u * {BLOCK};", ""), "p < packs")
    if left:
        loop.index("left", left)
        given = [f"w{read.name}" if loop.kind(read) == "one" else f"wide({read.name}[i])" for read in loop.reads]
        stores = [f"{name}[i] = narrow<{c_type(dtype)}>(v{name});" for name, dtype, _ in loop.writes]
        body += [
            "if (blockIdx.x == gridDim.x - 1 && threadIdx.x < left) {",
            *_indented([f"const I i = packs * {loop.pack} + threadIdx.x;", *loop.called(given, "i"), *stores]),
            "}",
        ]
    return loop.source("elementwise", body)


def row_loop(loop: CudaLoop, rows: int, lanes: int, parts: int, partial: Sequence[Any] | None) -> str:
    """The kernel `rows`: totals of rows, each by `lanes` neighbouring threads, or in `parts` by a block each."""
    width = loop.size // rows // loop.pack
    loop.targets(partial)
    loop.index("rows", rows)
    loop.index("width", width)
    body = loop.once()
    if lanes < BLOCK:
        body += [
            f"const I row = blockIdx.x * (I){BLOCK // lanes} + threadIdx.x / {lanes};",
            f"const I lane = threadIdx.x % {lanes}, begin = 0, end = row < rows ? width : 0, place = row;",
        ]
    else:
        loop.index("parts", parts)
        loop.index("span", -(-width // parts))
        body += [
            "const I row = blockIdx.x / parts, lane = threadIdx.x, begin = (blockIdx.x - row * parts) * span;",
            "const I end = begin + span < width ? begin + span : width, place = blockIdx.x;",
        ]
        body += [f"__shared__ {total.type} shared{i}[32];" for i, total in enumerate(loop.totals)]
    body += loop.accumulators()
    inner = loop.flights((f"const I q = at + u * {lanes};", "const I p = row * width + q;"), "q < end")
    body += [f"for (I at = begin + lane; at < end; at += {lanes * loop.flight}) {{", *_indented(inner), "}"]
    for i, total in enumerate(loop.totals):
        body += [
            f"{total.type} total{i} = r{i}[0];",
            "#pragma unroll",
            f"for (int j = 1; j < {loop.pack}; ++j) total{i} = {total.how}::of(total{i}, r{i}[j]);",
        ]
        if lanes < BLOCK:
            body.append(f"total{i} = over_lanes<{total.how}, {lanes}>(total{i});")
        else:
            begin = f"({total.type})({neutral(total.how, total.accumulates)})"
            body.append(f"total{i} = over_block<{total.how}>(total{i}, shared{i}, {begin});")
    stores = [f"z{i}[place] = {loop.result(i, f'total{i}', partial is not None)};" for i in range(len(loop.totals))]
    body += [f"if (lane == 0{' && row < rows' if lanes < BLOCK else ''}) {{", *_indented(stores), "}"]
    return loop.source("rows", body)


def column_loop(loop: CudaLoop, batch: int, height: int, across: int, parts: int, partial: Sequence[Any] | None) -> str:
    """The kernel `columns`: totals along the middle of (batch, height, width); a block takes `across` packs of the
    width and one of `parts` spans of the height."""
    width = loop.size // batch // height // loop.pack
    down = BLOCK // across
    loop.targets(partial)
    loop.index("height", height)
    loop.index("width", width)
    loop.index("tiles", -(-width // across))
    loop.index("parts", parts)
    loop.index("span", -(-height // parts))
    body = [
        *loop.once(),
        "const I step = blockIdx.x / tiles, batch = step / parts, begin = (step - batch * parts) * span;",
        f"const I column = (blockIdx.x - step * tiles) * {across} + threadIdx.x % {across};",
        f"const unsigned int x = threadIdx.x % {across}, y = threadIdx.x / {across};",
        "const I stop = begin + span < height ? begin + span : height, end = column < width ? stop : 0;",
        *loop.accumulators(),
    ]
    inner = loop.flights(
        (f"const I row = at + u * {down};", "const I p = (batch * height + row) * width + column;"), "row < end"
    )
    body += [f"for (I at = begin + y; at < end; at += {down * loop.flight}) {{", *_indented(inner), "}"]
    for i, total in enumerate(loop.totals):
        place = f"shared{i}[(y * {loop.pack} + j) * {across} + x]"
        other = f"shared{i}[((y + half) * {loop.pack} + j) * {across} + x]"
        body += [
            f"__shared__ {total.type} shared{i}[{BLOCK * loop.pack}];",
            "#pragma unroll",
            f"for (int j = 0; j < {loop.pack}; ++j) {place} = r{i}[j];",
            f"for (unsigned int half = {down // 2}; half; half >>= 1) {{",
            "    __syncthreads();",
            f"    if (y < half) for (int j = 0; j < {loop.pack}; ++j) {place} = {total.how}::of({place}, {other});",
            "}",
        ]
    at = f"(step * width + column) * {loop.pack} + j"
    stores = [
        f"z{i}[{at}] = {loop.result(i, f'shared{i}[j * {across} + x]', partial is not None)};"
        for i in range(len(loop.totals))
    ]
    body += [
        f"if (y == 0 && column < width) for (int j = 0; j < {loop.pack}; ++j) {{",
        *_indented(stores),
        "}",
    ]
    return loop.source("columns", body)
