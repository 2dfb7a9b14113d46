"""CUDA kernels of elementwise operators and of chains, with reductions that close them.

Every operand is read once and every result written once. A result may be an operand's memory: a thread reads elements
before it overwrites them. Reductions have a fixed order: along rows by a warp or a block each, along columns or over
everything in two passes if one has too few results to fill the GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL, FLOAT32, FLOAT64, HALVES, INT32, INT64, UINT32, UINT64, DType, TensorType, dtype_of
from mspc.ops.cuda.text import accumulating_type, address, macros, neutral, one_word, power_of_two, with_arguments
from mspc.ops.device import Array, Device, Launch, all_of, c_type, computing_type, nothing, source_text

# Elements that a kernel reads at other places than its own: slices, joins, transposes and their like within a chain.
#
# The place is a sum of steps along the loop's dimensions. If the elements of a pack of the loop are contiguous in the
# operand, too, they are loaded as one; else each by itself. Elements outside of a slice are not loaded.


Steps = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offset:
    """A position or coordinate: `offset` plus a step along every dimension of a loop."""

    offset: int
    steps: Steps

    def begins_packs(self, pack: int) -> bool:
        """Whether packs of the loop's last dimension are contiguous, each at a multiple of its size."""
        return self.steps[-1:] == (1,) and not any(n % pack for n in (self.offset, *self.steps[:-1]))

    def text(self, coordinates: Sequence[str], type: str) -> str:
        """Return C++ of its value at these coordinates."""
        terms = [f"({type})({c}) * {n}" if n != 1 else f"({type})({c})"
                 for c, n in zip(coordinates, self.steps, strict=True) if n]  # fmt: skip
        return " + ".join([*terms, str(self.offset)] if self.offset or not terms else terms)


@dataclass(frozen=True, slots=True)
class MovedRead:
    """Read of an operand's element at position `at` if begin <= coordinate < end for all (coordinate, begin, end) of
    `where`, else 0. array: None for a read that returns whether the conditions hold."""

    dtype: DType
    array: Any
    at: Offset
    where: tuple[tuple[Offset, int, int], ...] = ()
    index: str = "int"
    """The C++ type of places."""
    begin: str = ""
    """The C++ name of the number `at.offset`, if a kernel gets it as an argument: then one kernel serves many reads."""

    @property
    def vectors(self) -> tuple[Steps, ...]:
        """The steps of all places to which it refers."""
        return (self.at.steps, *(place.steps for place, _, _ in self.where))

    def merged(self, vectors: Sequence[Steps]) -> MovedRead:
        """Return the same along other dimensions, with these steps."""
        conditions = zip(self.where, vectors[1:], strict=True)
        where = tuple((Offset(place.offset, steps), begin, end) for (place, begin, end), steps in conditions)
        return replace(self, at=Offset(self.at.offset, vectors[0]), where=where)

    def holds_for_packs(self, pack: int) -> bool:
        """Whether its conditions hold for all elements of a pack or for none."""
        return all(
            place.steps[-1:] in ((), (0,)) or (place.begins_packs(pack) and begin % pack == 0 and end % pack == 0)
            for place, begin, end in self.where
        )

    def is_contiguous(self) -> bool:
        """Whether elements adjacent along the last dimension are adjacent in the operand."""
        return self.array is not None and self.at.steps[-1:] == (1,)

    def is_packed(self, pack: int) -> bool:
        """Whether a pack is loaded as one."""
        return (
            self.is_contiguous() and self.at.begins_packs(pack) and self.holds_for_packs(pack)
            and address(self.array) % (pack * self.dtype.itemsize) == 0
        )  # fmt: skip

    def is_held(self, pack: int) -> bool:
        """Whether all elements of a pack are the same element."""
        return self.holds_for_packs(pack) and (self.array is None or self.at.steps[-1:] in ((), (0,)))

    def register(self, pack: int) -> str:
        """Return the C++ type of the registers that a pack is loaded into."""
        return c_type(self.dtype) if self.is_held(pack) else f"Pack<{c_type(self.dtype)}, {pack}>"

    def load(self, target: str, name: str, pack: int, coordinates: Callable[[str], Sequence[str]]) -> list[str]:
        """Return statements that load a pack into `target`. name: of the pointer. coordinates: returns C++ for the
        coordinates of the pack's element of a given number."""
        if self.is_held(pack):
            return [f"{target} = {self.element(name, coordinates('0'))};"]
        if self.is_packed(pack):
            first, type = coordinates("0"), self.register(pack)
            load = f"{target} = *(const {type}*)({name} + ({self._place(first)}));"
            holds = self._holds(first)
            clear = f"for (int e = 0; e < {pack}; ++e) {target}.at[e] = {self._zero()};"
            return [load] if holds == "true" else [f"if ({holds}) {load}", f"else {clear}"]
        return [
            "#pragma unroll",
            f"for (int e = 0; e < {pack}; ++e) {target}.at[e] = {self.element(name, coordinates('e'))};",
        ]

    def _zero(self) -> str:
        return f"narrow<{c_type(self.dtype)}>(0)"

    def element(self, name: str, coordinates: Sequence[str]) -> str:
        """Return C++ of the element at these coordinates. name: of the pointer."""
        holds = self._holds(coordinates)
        if self.array is None:
            return f"narrow<{c_type(self.dtype)}>({holds})"
        value = f"{name}[{self._place(coordinates)}]"
        return value if holds == "true" else f"{holds} ? {value} : {self._zero()}"

    def _place(self, coordinates: Sequence[str]) -> str:
        if not self.begin:
            return self.at.text(coordinates, self.index)
        return f"{replace(self.at, offset=0).text(coordinates, self.index)} + {self.begin}"

    def _holds(self, coordinates: Sequence[str]) -> str:
        found: list[str] = []
        for place, begin, end in self.where:
            value = place.text(coordinates, self.index)
            found.append(f"({value}) >= {begin} && ({value}) < {end}")
        return f"({' && '.join(found)})" if found else "true"


def coordinate(number: str, dims: Sequence[int], d: int) -> str:
    """Return C++ of the coordinate along dimension d of element `number` of a tensor of these dimensions."""
    behind = math.prod(dims[d + 1 :])
    divided = number if behind == 1 else f"{number} / {behind}"
    return f"({divided})" if d == 0 else f"({divided} % {dims[d]})"


# Operands of a loop over elements, and its reductions.


PARTIAL = {
    "float": FLOAT32, "double": FLOAT64, "int": INT32, "unsigned int": UINT32, "long long": INT64,
    "unsigned long long": UINT64,
}  # fmt: skip
"""Element types of partial totals by their C++ types."""


@dataclass(frozen=True, slots=True)
class LoopOperand:
    """An operand of a loop: its name, element type, and strides in elements along the loop's dimensions. moved: the
    read to use instead if elements are at other positions."""

    name: str
    dtype: DType
    strides: tuple[int, ...]
    array: Any
    moved: MovedRead | None = None


@dataclass(frozen=True, slots=True)
class LoopReduction:
    """A reduction of the chain's value `value`, by `how` (Sum, Product, Largest, Smallest), into `array`. count: the
    divisor of the total, a mean's number of elements. accumulates: the element type that is reduced."""

    value: str
    how: str
    count: int
    accumulates: DType
    dtype: DType
    array: Any = None

    @property
    def type(self) -> str:
        """The C++ type of the total."""
        return accumulating_type(self.accumulates)


@dataclass(frozen=True, slots=True)
class LoopLine:
    """A value: its name, element type and expression, and the names that this reads. total: the reduction of a row
    that it is. by_row: there is one for every row."""

    name: str
    dtype: DType
    text: str
    reads: tuple[str, ...]
    total: LoopReduction | None = None
    by_row: bool = False


# This module writes CUDA source of loops over elements: loads in packs, a chain of expressions, stores, and the
# reductions that close it.
#
# A loop runs over packs: `pack` contiguous elements in the last dimension, which are loaded and stored at once. Sizes
# and offsets are arguments of the kernels; values that change the code (types, patterns of strides, packs in flight)
# are in the source.


BLOCK = 256
"""Threads of a block."""


@dataclass(slots=True)
class CudaLoop:
    """A loop and the arguments of its kernel. sizes: of the dimensions, adjacent ones merged if every operand allows
    it. chain: the C++ function `chain`, which takes every operand's element and sets the element of every write and the
    value of every total. writes: (name, element type, array) of the results with the loop's shape. pack, flight:
    elements per pack, packs that a thread loads before it uses the first. numbered: the chain takes the element's
    number. step: array with the current step if the chain takes it. seeds: numbers that it takes, see
    `with_arguments`."""

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
        """Add a parameter of the kernel."""
        self.parameters.append(declaration)
        self.arguments.append(value)

    def index(self, name: str, value: int) -> None:
        """Add a parameter of the index type."""
        self.add(f"const I {name}", np.uint64(value) if self.wide else np.uint32(value))

    def divisor(self, name: str, value: int) -> None:
        """Add the parameters that `quotient` takes: the divisor, and the factor and shift by which 32 bits are divided.

        n / d = (n * m) >> (31 + l) for n < 2^31, l = ceil(log2(d)) and m = ceil(2^(31 + l) / d); Granlund and
        Montgomery, Division by Invariant Integers using Multiplication, 1994.
        """
        bits = (value - 1).bit_length()
        self.index(f"n{name}", value)
        self.index(f"m{name}", 0 if value == 1 or self.wide else -(-(1 << (31 + bits)) // value))
        self.index(f"s{name}", max(0, bits - 1))

    # Pieces of code

    def kind(self, read: LoopOperand) -> str:
        """Return the kind of a read: "one" (a single element), "whole" (an element per element of the loop), "row"
        (packs), "held" (an element per pack), "moved" (at other positions)."""
        if read.moved is not None:
            return "moved"
        if not any(read.strides):
            return "one"
        contiguous = tuple(math.prod(self.sizes[d + 1 :]) for d in range(len(self.sizes)))
        if read.strides == contiguous:
            return "whole"
        return "row" if read.strides[-1] else "held"

    def once(self) -> list[str]:
        """Return the loads of single elements, once per thread."""
        lines = [] if self.step is None else ["const u64 running = (u64)*running_at;"]
        return lines + [
            f"const {computing_type(read.dtype)} w{read.name} = wide({read.name}[0]);"
            for read in self.reads
            if self.kind(read) == "one"
        ]

    def places(self) -> list[str]:
        """Return the positions of pack `p` in broadcast operands, as o<name>: in packs, or in elements for "held"
        reads."""
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
        """Return the registers for packs in flight."""
        lines: list[str] = []
        for read in self.reads:
            kind, type = self.kind(read), c_type(read.dtype)
            if read.moved is not None:
                lines.append(f"{read.moved.register(self.pack)} a{read.name}[{self.flight}];")
            elif kind != "one":
                lines.append(f"{type if kind == 'held' else f'Pack<{type}, {self.pack}>'} a{read.name}[{self.flight}];")
        return lines

    def loads(self) -> list[str]:
        """Return the loads of pack `p` into place `u`."""
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
        """Return C++ of an operand's element `j` of the pack at position `u`."""
        if self.kind(read) == "one":
            return f"w{read.name}"
        is_held = read.moved.is_held(self.pack) if read.moved is not None else self.kind(read) == "held"
        return f"wide(a{read.name}[u])" if is_held else f"wide(a{read.name}[u].at[j])"

    def _coordinates(self, element: str) -> list[str]:
        """Return C++ of the coordinates of an element of the pack with coordinates defined by `places`."""
        last = len(self.sizes) - 1
        return [*(f"c{d}" for d in range(last)), f"(c{last} * {self.pack} + {element})"]

    def uses(self) -> list[str]:
        """Return the chain over the elements of pack `p` at place `u`, stores, and the totals' accumulation."""
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
        """Return a call of the chain on these elements, of number `at`; its results are v<name>, and vr0, vr1, ... of
        the totals."""
        lines = [f"{computing_type(dtype)} v{name};" for name, dtype, _ in self.writes]
        lines += [f"{computing_type(total.accumulates)} vr{i};" for i, total in enumerate(self.totals)]
        results = [f"v{name}" for name, _, _ in self.writes] + [f"vr{i}" for i in range(len(self.totals))]
        own = [f"(I)({at})"] * self.numbered + ["running"] * (self.step is not None)
        own += [f"seed{i}" for i in range(len(self.seeds))]
        return [*lines, f"chain({', '.join([*own, *given, *results])});"]

    def flights(self, pack_of: Sequence[str], inside: str) -> list[str]:
        """Return loads, then uses, of `flight` packs; `pack_of` defines p for u if `inside` holds."""
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
        """Return the parameters of the totals' results: arrays of partial totals, or the results themselves."""
        for i, total in enumerate(self.totals):
            if partial is not None:
                self.add(f"{total.type}* z{i}", partial[i])
                continue
            self.add(f"{c_type(total.dtype)}* z{i}", total.array)
            if total.count > 1:
                self.add(f"const double count{i}", np.float64(total.count))

    def result(self, i: int, value: str, partial: bool) -> str:
        """Return a total as it is stored."""
        total = self.totals[i]
        if partial:
            return value
        if total.count > 1:
            value = f"{value} / ({total.type})count{i}"
        return f"narrow<{c_type(total.dtype)}>({value})"

    def source(self, name: str, body: Sequence[str]) -> str:
        """Return the kernel without the text common to all kernels."""
        index = "u64" if self.wide else "unsigned int"
        head = f'extern "C" __global__ void __launch_bounds__({BLOCK}) {name}({", ".join(self.parameters)}) {{'
        return "\n".join([f"typedef {index} I, Index;", self.chain, head, *_indented(body), "}", ""])


def _indented(lines: Sequence[str]) -> list[str]:
    return [line if line.startswith("#") else f"    {line}" for line in lines]


def plain_loop(loop: CudaLoop) -> str:
    """Return the kernel `elementwise`: every pack once; a last pack that is not full, element by element."""
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
    """Return the kernel `rows`: totals of rows, each by `lanes` neighbouring threads, or in `parts` by a block each."""
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
            body.append(f"total{i} = over_group<{total.how}, {lanes}>(total{i});")
        else:
            begin = f"({total.type})({neutral(total.how, total.accumulates)})"
            body.append(f"total{i} = over_block<{total.how}>(total{i}, shared{i}, {begin});")
    stores = [f"z{i}[place] = {loop.result(i, f'total{i}', partial is not None)};" for i in range(len(loop.totals))]
    body += [f"if (lane == 0{' && row < rows' if lanes < BLOCK else ''}) {{", *_indented(stores), "}"]
    return loop.source("rows", body)


def column_loop(loop: CudaLoop, batch: int, height: int, across: int, parts: int, partial: Sequence[Any] | None) -> str:
    """Return the kernel `columns`: totals along the middle of (batch, height, width); a block takes `across` packs of
    the width and one of `parts` spans of the height."""
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


# Totals of columns that a kernel along rows adds up as it goes from row to row: every group of threads that works at a
# row keeps those of its own rows in registers, and a second kernel adds these up. The order of additions never changes.


_ALIGNMENT = 256
_WIDE = 8
"""Minimum number of columns per block: 32 bytes of Float32, a memory sector."""
_MIN_PARTIAL_TOTALS = 4
"""Minimum number of partial totals that a thread adds up."""
_MIN_THREADS, _MAX_THREADS = 256, 1024
"""Threads of a block."""


class ColumnTotals:
    """The totals of a kernel with `parts` groups of threads, each of which works at one row of `columns` at a time.

    partial: room for the groups' own totals, one array for each.
    """

    def __init__(self, device: Device, totals: Sequence[LoopReduction], parts: int, columns: int) -> None:
        self.totals, self.parts, self.columns = totals, parts, columns
        self.partial = partial_totals(device, totals, parts * columns)

    def accumulators(self) -> list[str]:
        """Return C++ before the rows; a thread has V elements of every one of its PACKS."""
        return [
            line
            for i, total in enumerate(self.totals)
            for line in (
                f"{total.type} c{i}[PACKS][V];",
                "#pragma unroll",
                "for (int k = 0; k < PACKS; ++k)",
                "    #pragma unroll",
                f"    for (int j = 0; j < V; ++j) c{i}[k][j] = ({total.type})({_neutral(total)});",
            )
        ]

    def update(self, i: int) -> str:
        """Return C++ that adds an element of pack k to total i, if the row is the group's own."""
        total = self.totals[i]
        return f"if (mine) c{i}[k][j] = {total.how}::of(c{i}[k][j], ({total.type}){total.value});"

    def stores(self) -> list[str]:
        """Return C++ after the rows."""
        writes = [f"w{i}[place] = c{i}[k][j];" for i in range(len(self.totals))]
        return [
            "const size_t part = ((size_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP) * COLUMNS;",
            "#pragma unroll",
            "for (int k = 0; k < PACKS; ++k) {",
            "    #pragma unroll",
            "    for (int j = 0; j < V; ++j) {",
            "        const int column = (k * GROUP + lane) * V + j;",
            "        if (!EXACT && column >= COLUMNS) continue;",
            "        const size_t place = part + column;",
            *(f"        {write}" for write in writes),
            "    }",
            "}",
        ]

    def parameters(self) -> list[tuple[str, Array]]:
        """Return the kernel's parameters for the totals, and the arguments."""
        return [(f"{total.type}* w{i}", self.partial[i]) for i, total in enumerate(self.totals)]

    def launches(self, device: Device) -> list[Launch]:
        """Return launches that add up the groups' own totals."""
        return added_parts(device, self.totals, self.partial, self.parts, self.columns)


def partial_totals(device: Device, totals: Sequence[LoopReduction], count: int) -> list[Array]:
    """Return room in scratch memory for `count` partial totals of each reduction, as bytes."""
    sizes = [-(-count * PARTIAL[total.type].itemsize // _ALIGNMENT) * _ALIGNMENT for total in totals]
    memory = device.scratch(sum(sizes))
    begins = [sum(sizes[:i]) for i in range(len(sizes))]
    return [memory[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]


def added_parts(
    device: Device, totals: Sequence[LoopReduction], partial: Sequence[Array], parts: int, columns: int
) -> list[Launch]:
    """Return launches that add up partial totals of columns, [parts, columns] each: one for those of one kind."""
    kinds: dict[tuple[str, ...], list[tuple[LoopReduction, Array]]] = {}
    for total, own in zip(totals, partial, strict=True):
        kinds.setdefault((total.type, total.how, c_type(total.dtype), _neutral(total)), []).append((total, own))
    return [_added(device, kind, of_kind, parts, columns) for kind, of_kind in kinds.items()]


def _added(
    device: Device, kind: tuple[str, ...], totals: Sequence[tuple[LoopReduction, Array]], parts: int, columns: int
) -> Launch:
    type, how, result, start = kind
    numbers = range(len(totals))
    head = macros(
        KIND=type, RESULT=result, HOW=how, NEUTRAL=f"({type})({start})",
        TARGETS=", ".join(f"const KIND* p{i}, RESULT* t{i}, long long n{i}" for i in numbers),
        CHOICE=" else ".join(f"if (blockIdx.y == {i}) {{ partial = p{i}; to = t{i}; count = n{i}; }}"
                                for i in numbers[:-1]) + " else " * (len(totals) > 1)
        + f"{{ partial = p{numbers[-1]}; to = t{numbers[-1]}; count = n{numbers[-1]}; }}",
    )  # fmt: skip
    kernel = device.kernel(head + source_text("ops/cuda/column_totals.cu"), "column_totals")
    slices = min(_MAX_THREADS // _WIDE, power_of_two(-(-parts // _MIN_PARTIAL_TOTALS)))
    wide = max(_WIDE, _MIN_THREADS // slices)
    each = [argument for total, own in totals for argument in (own, total.array, np.int64(total.count))]
    arguments = [*each, np.int32(parts), np.int32(columns), np.int32(wide)]
    grid = (math.ceil(columns / wide), len(totals), 1)
    return lambda: kernel(grid, slices * wide, arguments)


def _neutral(total: LoopReduction) -> str:
    return neutral(total.how, total.accumulates)


_WAVES = 4
"""Blocks per multiprocessor that a reduction is split into."""
_NAME = re.compile(r"\w+")
_TOKEN = re.compile(r"\{(\d+|[+is])\}|\b[TRE]\b")
_LOOP_NAMES = {"i": "at", "s": "running"}
"""Names of `{i}` and `{s}` of an expression in a kernel."""


def launch_elementwise(device: Device, op: Any, inputs: Sequence[Array], out: Array) -> Launch | None:
    """Return the launch of one operator with a `cuda` expression, or None."""
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
    """Return the operator's `cuda` with the operands' names and the types in place.

    Besides the names in `Op`, `{+}` is the sum of all operands and `E` the type of operand 0 in memory. Comparisons use
    halves as stored: a chain does not round its values, which then would differ from those that another kernel stored.
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
        if match[1] in _LOOP_NAMES:
            return _LOOP_NAMES[match[1]]
        return " + ".join(names) if match[1] == "+" else names[int(match[1])]

    return _TOKEN.sub(put, op.cuda)


def defined(name: str, dtype: DType, value: str) -> str:
    """Return the C++ definition of a value, computed in the computing type of its element type."""
    type = computing_type(dtype)
    return f"const {type} {name} = ({type})({value});"


def type_of(array: Array) -> TensorType:
    """Return the type of an array's tensor."""
    return TensorType(dtype_of(array.dtype), tuple(array.shape))


@dataclass(frozen=True, slots=True)
class KernelOperand:
    """An operand in expressions: its name, its array, and the shape that is broadcast to the loop's. moved: the read to
    use instead, along the dimensions of the loop's shape."""

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
    """Return the launch of a loop over `shape`, or None if it cannot be generated. text: definitions of values from the
    operands' elements. writes: (value, array that receives it). totals: reductions along `axes`, of values."""
    if math.prod(shape) == 0:
        return None if totals else nothing
    text, seeds = with_arguments(text)
    stored = [name for name, _ in writes]
    words = set(_NAME.findall(" ".join([*text, *stored, *(total.value for total in totals)])))
    used = [read for read in reads if read.name in words]
    vectors = [vectors_of(read, shape) for read in used]
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


def _chain(reads: Sequence[LoopOperand], writes: Sequence[Any], totals: Sequence[LoopReduction], text: Sequence[str],
           values: Sequence[str]) -> str:  # fmt: skip
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


def vectors_of(read: KernelOperand, shape: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    """Return the strides of an operand along a loop's dimensions, and those of the conditions of its reads."""
    if read.moved is not None:
        return read.moved.vectors
    lead = (1,) * (len(shape) - len(read.shape)) + read.shape
    return [tuple(0 if n == 1 else math.prod(lead[d + 1 :]) for d, n in enumerate(lead))]


def _operand(read: KernelOperand, vectors: Sequence[tuple[int, ...]]) -> LoopOperand:
    moved = read.moved.merged(vectors) if read.moved is not None else None
    return LoopOperand(read.name, read.dtype, vectors[0], read.array, moved)


def _merged(shape: tuple[int, ...], axes: Sequence[int], vectors: Sequence[tuple[int, ...]], reduces: bool,
            ) -> tuple[tuple[int, ...], tuple[bool, ...], list[tuple[int, ...]]]:  # fmt: skip
    """Return (sizes, reduced or not, each vector of steps) of the loop's dimensions, neighbours merged."""
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
    """Return the elements of a pack: 16 bytes of the widest type, fewer if positions or rows do not allow it."""
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
    beside = [read for read in moved if read.is_contiguous()]
    fitting = (n for n in (16, 8, 4, 2) if n <= pack and all(read.is_packed(n) for read in beside))
    return next(fitting, pack)


def _flight(loop: CudaLoop, packs_per_thread: float, down: bool = False) -> int:
    """Return the packs that a thread has in flight: more for few streams, if there are packs for all threads.

    down: for totals along columns, a thread stays at its columns and has their operands at hand; there are few threads,
    and six packs of each are enough.
    """
    streams = max(1, sum(loop.kind(read) in ("whole", "moved") + ("row",) * (not down) for read in loop.reads))
    most = 6 if down else 8
    return next((n for n in (4, 2) if n * streams <= most and packs_per_thread >= 2 * n), 1)


def _bound(device: Device, source: str, name: str, loop: CudaLoop, blocks: int) -> Launch:
    kernel = device.kernel(source_text("ops/cuda/formulas.cuh") + source, name)
    arguments = tuple(loop.arguments)

    return partial(kernel, blocks, BLOCK, arguments)


def _plain(device: Device, loop: CudaLoop) -> Launch:
    packs = max(1, loop.size // loop.pack)
    loop.flight = _flight(loop, packs / (device.multiprocessors * 2048))
    source = plain_loop(loop)
    return _bound(device, source, "elementwise", loop, -(-packs // (BLOCK * loop.flight)))


def _reduce(device: Device, loop: CudaLoop, labels: Sequence[bool]) -> Launch | None:
    """Launch one pass, or two if the first makes partial totals."""
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
    """Return (threads per row of this number of packs, parts into which the row is split)."""
    if packs <= 32:
        return power_of_two(packs), 1
    if packs <= 512 and rows >= 16 * multiprocessors:
        return 32, 1
    wanted = -(-_WAVES * multiprocessors // rows)
    return BLOCK, max(1, min(wanted, packs // (4 * BLOCK)))


def _by_columns(device: Device, loop: CudaLoop, outer: int, height: int, width: int) -> Launch | None:
    packs = width // loop.pack
    across, parts = column_plan(outer, height, packs, device.multiprocessors)
    down = BLOCK // across
    loop.flight = _flight(loop, height / (down * parts), down=True)
    if sum(BLOCK * loop.pack * (8 if total.type in ("double", "long long") else 4) for total in loop.totals) > 40000:
        return None
    scratch = partial_totals(device, loop.totals, outer * parts * width) if parts > 1 else None
    source = column_loop(loop, outer, height, across, parts, scratch)
    first = _bound(device, source, "columns", loop, outer * parts * -(-packs // across))
    return first if scratch is None else all_of([first, _combine(device, loop, scratch, (outer, parts, width))])


def column_plan(outer: int, height: int, packs: int, multiprocessors: int) -> tuple[int, int]:
    """Return (packs of the width per block, parts into which the height is split)."""
    across = min(32, power_of_two(packs))
    blocks = outer * -(-packs // across)
    wanted = -(-_WAVES * multiprocessors // blocks)
    return across, max(1, min(wanted, height // (4 * (BLOCK // across))))


def _combine(device: Device, loop: CudaLoop, scratch: Sequence[Array], sizes: tuple[int, int, int]) -> Launch:
    """Return the pass over partial totals: (outer, parts, width) -> (outer, width)."""
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
        lanes = min(BLOCK, power_of_two(parts))
        lanes = lanes if lanes <= 32 else BLOCK
        second.flight = _flight(second, parts / lanes)
        source = row_loop(second, outer, lanes, 1, None)
        return _bound(device, source, "rows", second, outer if lanes == BLOCK else -(-outer * lanes // BLOCK))
    across = min(32, power_of_two(width))
    second.flight = _flight(second, parts / (BLOCK // across))
    source = column_loop(second, outer, parts, across, 1, None)
    return _bound(device, source, "columns", second, outer * -(-width // across))
