"""Chains of elementwise operators that go along rows, and read what was reduced of a row, are one CUDA kernel.

A row belongs to some lanes of a warp, or to a block, by its length. The kernel passes over a row once for every
reduction that others wait for. What later passes need stays in registers where it fits there; longer rows are read, and
computed, again for every pass, from cache. Results are stored in the last pass, so that they may lie in the memory of
operands. The order of additions never changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.elementwise import Read
from mspc.ops.cuda.loop_parts import LoopReduction
from mspc.ops.cuda.loops import HELPERS
from mspc.ops.cuda.math import MATH
from mspc.ops.cuda.moved import coordinate
from mspc.ops.cuda.random import RANDOM, with_arguments
from mspc.ops.cuda.source import COMMON, accumulating_type, address, constants, grid_of, index_type, neutral
from mspc.ops.device import Array, Device, Launch, c_type, computing_type

_BLOCK = 128
_LONG_BLOCK = 512
_HELD_WORDS = 48
"""Registers of a thread of a small block that may hold a row's values; half of it in blocks above 256 threads."""


@dataclass(frozen=True, slots=True)
class RowLine:
    """A value: its name, element type and expression, and the names that this reads. total: the reduction that it is,
    of `value`. by_row: there is one for every row."""

    name: str
    dtype: DType
    text: str
    reads: tuple[str, ...]
    total: LoopReduction | None = None
    by_row: bool = False


@dataclass(slots=True)
class RowChain:
    """The computation on every row.

    dims: of the space; the last `columns` of them are a row. writes, row_writes: (name of a value, where it is stored),
    with one element for each of the space, or for each row. Arrays with an element for each of the space may have a gap
    behind every row (`row_pitch`); nothing is wrong with what a kernel leaves there.
    """

    dims: tuple[int, ...]
    columns: int
    reads: Sequence[Read]
    lines: Sequence[RowLine]
    writes: Sequence[tuple[str, Array]]
    row_writes: Sequence[tuple[str, Array]]
    _parameters: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Array]], init=False)

    def launch(self, device: Device) -> Launch | None:
        """The kernel for these arrays."""
        source, blocks, threads = self.source(device)
        kernel = device.kernel(MATH + HELPERS + source, "row_chain")
        arguments = [array for _, array in self._parameters]
        grid = grid_of(blocks)
        return lambda: kernel(grid, threads, arguments)

    # What the kernel is made of

    @property
    def length(self) -> int:
        """Elements of a row."""
        return math.prod(self.dims[len(self.dims) - self.columns :])

    def held_columns(self, read: Read) -> str:
        """all: the operand has an element for every column. none: one for a row. some: it is broadcast along a part."""
        if read.moved is not None:
            return "all"
        behind = [(n, size) for n, size in zip(read.shape, self.dims, strict=True)][len(self.dims) - self.columns :]
        if all(n == size for n, size in behind):
            return "all"
        return "none" if all(n == 1 for n, _ in behind) else "some"

    def lanes(self) -> int:
        """Neighbouring elements that a thread loads at once."""
        arrays = [read.array for read in self.reads if self.is_packed(read)] + [array for _, array in self.writes]
        lanes = 16 // max((array.dtype.itemsize for array in arrays), default=4)
        steps = [self.row_step(array) for array in arrays] or [self.length]
        while lanes > 1 and (
            any(step % lanes for step in steps) or any(address(a) % (lanes * a.dtype.itemsize) for a in arrays)
        ):
            lanes //= 2
        return lanes

    def row_step(self, array: Array) -> int:
        """Elements from the begin of a row to that of the next, of an array with an element for each of the space or
        for each column."""
        is_full = array.ndim > 1 and array.size == math.prod(self.dims) and self.length == array.shape[-1]
        return array.strides[-2] // array.itemsize if is_full and array.shape[-2] > 1 else self.length

    @property
    def has_gaps(self) -> bool:
        """Whether an array has gaps between its rows."""
        arrays = [read.array for read in self.reads if read.moved is None] + [array for _, array in self.writes]
        return any(self.row_step(array) != self.length for array in arrays)

    def is_packed(self, read: Read) -> bool:
        """Whether an operand is loaded in packs: where a row does not fill its last one there must be a gap to read."""
        if read.moved is not None:
            return False
        is_full = read.array.size == math.prod(self.dims)
        return self.held_columns(read) == "all" and (is_full or not self.has_gaps)

    def coordinates(self, element: str) -> list[str]:
        """C++ of the coordinates of the element of this number in its row."""
        kept = len(self.dims) - self.columns
        return [f"r{d}" for d in range(kept)] + [coordinate(element, self.dims[kept:], d) for d in range(self.columns)]

    def stages(self) -> tuple[dict[str, int], int]:
        """(the pass in which a value can be computed, how many passes there are). Of a row's value it is the first pass
        that can read it."""
        ready: dict[str, int] = {read.name: 0 for read in self.reads}
        for line in self.lines:
            after = max((ready[name] for name in line.reads if name in ready), default=0)
            ready[line.name] = after + (line.total is not None)
        last = max([ready[name] for name, _ in self.writes], default=0)
        last = max([last, *(ready[line.name] - 1 for line in self.lines if line.total is not None)])
        return ready, last + 1

    def group(self, lanes: int, words: int, device: Device) -> tuple[int, bool]:
        """(threads of a row, whether values stay in registers, `words` of them for an element)."""
        packs = -(-self.length // lanes)
        rows = math.prod(self.dims) // self.length

        def fits(group: int, limit: int) -> bool:
            return -(-packs // group) * lanes * words <= limit

        group = 1
        while group < 32 and group < packs:
            group *= 2
        if group == 32 and not fits(group, _HELD_WORDS):
            group = 64
            while group < 1024 and not fits(group, _HELD_WORDS // 2):
                group *= 2
            if not fits(group, _HELD_WORDS // 2):
                return _LONG_BLOCK, False
        while 32 <= group < 512 and rows * group < device.multiprocessors * 1024 and group < packs:
            group *= 2
        return group, True

    def source(self, device: Device) -> tuple[str, int, int]:
        """(C++ of the kernel, blocks, threads of a block)."""
        plan = _PassPlan(self)
        lanes = self.lanes()
        group, held = self.group(lanes, plan.words(), device)
        threads = group if group > 32 else _BLOCK
        rows = math.prod(self.dims) // self.length
        packs = -(-self.length // (lanes * group))
        used = {name for line in self.lines for name in line.reads}
        body, seeds = with_arguments(plan.body(group, held, min(packs, packs if held else 4)))
        given = [read for read in self.reads if read.array is not None]
        self._parameters = [(f"const {_c(read.array)}* p_{read.name}", read.array) for read in given]
        self._parameters += [(f"{_c(array)}* y{i}", array) for i, (_, array) in enumerate(self.writes)]
        self._parameters += [(f"{_c(array)}* z{i}", array) for i, (_, array) in enumerate(self.row_writes)]
        draws = "running" in used
        if draws:
            self._parameters.append(("const long long* running_at", device.step))
        self._parameters += [(f"const u64 seed{i}", np.uint64(seed)) for i, seed in enumerate(seeds)]
        head = f"typedef {index_type(math.prod(self.dims))} I, Index;\n" + constants(
            ROWS=rows, COLUMNS=self.length, GROUP=group, THREADS=threads, V=lanes, PACKS=packs,
            EXACT=packs * lanes * group == self.length, RAGGED=self.length % lanes != 0,
        )  # fmt: skip
        parameters = ", ".join(declaration for declaration, _ in self._parameters)
        begin = ["const u64 running = (u64)*running_at;"] if draws else []
        lines = "".join(f"    {line}\n" for line in [*begin, *body])
        kernel = f'extern "C" __global__ void __launch_bounds__(THREADS) row_chain({parameters}) {{\n{lines}}}\n'
        random = RANDOM if draws else ""
        return COMMON + random + head + kernel, -(-rows // (threads // group)), threads


class _PassPlan:
    """Which values every pass computes, loads and holds."""

    def __init__(self, chain: RowChain) -> None:
        self.chain = chain
        self.ready, self.passes = chain.stages()
        self.lines = {line.name: line for line in chain.lines}
        self.reads = {read.name: read for read in chain.reads}
        self.made: list[list[str]] = []
        """By pass, what it makes of an element: operands' elements and lines, in their order."""
        self.first: dict[str, int] = {}
        self.again: dict[str, None] = {}
        """What a later pass needs of an earlier one."""
        for number in range(self.passes):
            seen = self._needed(number, held=True)
            self.made.append([name for name in seen if name not in self.first])
            self.again.update(dict.fromkeys(name for name in seen if name in self.first))
            self.first.update(dict.fromkeys(self.made[-1], number))

    def _wanted(self, number: int) -> list[str]:
        """The values that pass `number` is for: what it reduces and, if it is the last, stores."""
        found = [
            line.reads[0] for line in self.chain.lines if line.total is not None and self.ready[line.name] - 1 == number
        ]
        return found + [name for name, _ in self.chain.writes] * (number == self.passes - 1)

    def _needed(self, number: int, held: bool) -> list[str]:
        """The elements' values that a pass needs, in the order of their computation; held: of those that an earlier
        pass has made nothing that is behind them."""
        found: dict[str, None] = {}
        known = {name for name, made in self.first.items() if held and made < number}

        def visit(name: str) -> None:
            line = self.lines.get(name)
            if name in found or (line is None and name not in self.reads) or (line is not None and line.by_row):
                return
            if line is None and self.chain.held_columns(self.reads[name]) == "none":
                return
            if line is not None and name not in known:
                for other in line.reads:
                    visit(other)
            found[name] = None

        for name in self._wanted(number):
            visit(name)
        return list(found)

    def words(self) -> int:
        """Registers for an element's values that wait for later passes; what a pass works on itself is not counted."""
        most = 0
        for number in range(1, self.passes):
            later = [name for at in range(number, self.passes) for name in self._needed(at, held=True)]
            alive = {name for name in later if self.first[name] < number}
            most = max(most, sum(2 if self._type(n) in ("double", "long long", "u64") else 1 for n in alive))
        return max(1, most)

    def _type(self, name: str) -> str:
        line = self.lines.get(name)
        return computing_type(line.dtype if line is not None else self.reads[name].dtype)

    # C++

    def body(self, group: int, held: bool, unroll: int) -> list[str]:
        """The kernel's statements."""
        chain = self.chain
        lines = [
            "const int lane = threadIdx.x % GROUP;",
            "const I wanted = (I)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;",
            "const bool mine = wanted < ROWS;",
            "const I row = mine ? wanted : ROWS - 1;",  # all lanes take part in shuffles
            "const I first = row * COLUMNS;",
            "const I at = row; (void)at;",  # of rows' values, which have an element for each
        ]
        totals = [line for line in chain.lines if line.total is not None]
        if group > 32:
            kinds = dict.fromkeys(line.total.type for line in totals if line.total is not None)
            lines += [f"__shared__ {kind} shared_{kind.replace(' ', '_')}[32];" for kind in kinds]
        if any(read.moved is not None for read in chain.reads):
            kept = chain.dims[: len(chain.dims) - chain.columns]
            lines += [f"const I r{d} = {coordinate('row', kept, d)};" for d in range(len(kept))]
        for read in chain.reads:
            if read.moved is not None:
                continue
            lines.append(f"const I b_{read.name} = {self._offset(read, rows=True)};")
            if chain.held_columns(read) == "none":
                lines.append(f"const {self._type(read.name)} {read.name} = wide(p_{read.name}[b_{read.name}]);")
        if held:
            lines += [f"{self._type(name)} h_{name}[PACKS][V];" for name in self.again]
        lines += self._rows_at(0)
        for number in range(self.passes):
            own = [line for line in totals if self.ready[line.name] - 1 == number]
            lines += [f"{_kind(line)} r_{line.name} = {_neutral(line)};" for line in own]
            lines += self._pass(number, held, unroll, own)
            lines += [f"const {computing_type(line.dtype)} {line.name} = {_total(line, group)};" for line in own]
            lines += self._rows_at(number + 1)
        stores = [
            f"z{i}[row] = narrow<{_c(array)}>({name});" for i, (name, array) in enumerate(chain.row_writes)
        ]
        if stores:
            lines.append(f"if (mine && lane == 0) {{ {' '.join(stores)} }}")
        return lines

    def _rows_at(self, number: int) -> list[str]:
        """Values of the row that can be computed ahead of pass `number`."""
        return [
            f"const {computing_type(line.dtype)} {line.name} = ({computing_type(line.dtype)})({line.text});"
            for line in self.chain.lines
            if line.by_row and line.total is None and self.ready[line.name] == number
        ]

    def _pass(self, number: int, held: bool, unroll: int, totals: Sequence[RowLine]) -> list[str]:
        """A loop over the row's packs."""
        chain = self.chain
        last = number == self.passes - 1
        loads: list[str] = []
        element = ["const int column = start + j; (void)column;", "const I at = first + column; (void)at;"]
        element.append("if (RAGGED && column >= COLUMNS) continue;")
        for name in self._needed(number, held):
            kind, line = self._type(name), self.lines.get(name)
            if held and self.first[name] < number:
                element.append(f"const {kind} {name} = h_{name}[k][j];")
                continue
            if line is not None:
                element.append(f"const {kind} {name} = ({kind})({line.text});")
            else:
                read = self.reads[name]
                place = f"b_{name} + {self._offset(read, rows=False)}" if read.moved is None else ""
                if read.moved is not None:
                    element.append(f"const {kind} {name} = wide({self._moved(read, loads)});")
                elif chain.is_packed(read):
                    loads.append(f"const auto a_{name} = pack_at<{_c(read.array)}, V>(p_{name} + b_{name} + start);")
                    element.append(f"const {kind} {name} = wide(a_{name}.at[j]);")
                else:
                    element.append(f"const {kind} {name} = wide(p_{name}[{place}]);")
            if held and name in self.again:
                element.append(f"h_{name}[k][j] = {name};")
        for line in totals:
            assert line.total is not None
            how, kind = line.total.how, _kind(line)
            element.append(f"r_{line.name} = {how}::of(r_{line.name}, ({kind}){line.total.value});")
        stores: list[str] = []
        for i, (name, array) in enumerate(chain.writes if last else ()):
            loads.append(f"Pack<{_c(array)}, V> m{i};")
            element.append(f"m{i}.at[j] = narrow<{_c(array)}>({name});")
            stores.append(f"put_pack<{_c(array)}, V>(y{i} + row * {chain.row_step(array)} + start, m{i});")
        return [
            f"#pragma unroll {unroll}",
            "for (int k = 0; k < PACKS; ++k) {",
            "    const int start = (k * GROUP + lane) * V;",
            "    if (EXACT || start < COLUMNS) {",
            *(f"        {load}" for load in loads),
            "        #pragma unroll",
            "        for (int j = 0; j < V; ++j) {",
            *(f"            {text}" for text in element),
            "        }",
            *([f"        if (mine) {{ {' '.join(stores)} }}"] if stores else []),
            "    }",
            "}",
        ]

    def _moved(self, read: Read, loads: list[str]) -> str:
        """C++ of the element of a read at other places; what is loaded for a pack at once goes to `loads`."""
        chain, moved, lanes = self.chain, read.moved, self.chain.lanes()
        assert moved is not None
        if chain.dims[-1] % lanes or not (moved.is_packed(lanes) or moved.is_held(lanes)):
            return moved.element(f"p_{read.name}", chain.coordinates("column"))
        loads.append(f"{moved.register(lanes)} a_{read.name};")
        loads += moved.load(f"a_{read.name}", f"p_{read.name}", lanes, lambda e: chain.coordinates(f"(start + {e})"))
        return f"a_{read.name}" if moved.is_held(lanes) else f"a_{read.name}.at[j]"

    def _offset(self, read: Read, rows: bool) -> str:
        """C++ of the part of an operand's place that the row gives, or the column."""
        dims, kept = self.chain.dims, len(self.chain.dims) - self.chain.columns
        step = self.chain.row_step(read.array)
        if rows and step != self.chain.length:
            return f"row * {step}"
        terms: list[str] = []
        stride = math.prod(read.shape[kept:]) if rows else 1
        behind = 1
        for d in reversed(range(kept) if rows else range(kept, len(dims))):
            if read.shape[d] != 1:
                whole = d == 0 if rows else d == kept
                place = f"{'row' if rows else 'column'} / {behind}" + ("" if whole else f" % {dims[d]}")
                terms.append(f"(I)({place}) * {stride}")
                stride *= read.shape[d]
            behind *= dims[d]
        return " + ".join(terms) or "0"


def _c(array: Array) -> str:
    return c_type(dtype_of(array.dtype))


def _kind(line: RowLine) -> str:
    """The C++ type of a line's total."""
    assert line.total is not None
    return accumulating_type(line.total.accumulates)


def _neutral(line: RowLine) -> str:
    assert line.total is not None
    return f"({_kind(line)})({neutral(line.total.how, line.total.accumulates)})"


def _total(line: RowLine, group: int) -> str:
    """C++ of a line's end result from every thread's own total."""
    assert line.total is not None
    how, kind = line.total.how, _kind(line)
    if group <= 32:
        value = f"over_group<{how}, GROUP>(r_{line.name})"
    else:
        value = f"over_block<{how}, {kind}>(r_{line.name}, shared_{kind.replace(' ', '_')}, {_neutral(line)})"
    if line.total.count > 1:
        value = f"{value} / ({kind}){line.total.count}"
    return f"({computing_type(line.dtype)})({value})"
