"""A chain along rows (see `row_chain`) is one CUDA kernel.

A row belongs to some lanes of a warp, or to a block, by its length. The kernel passes over a row once for every
reduction that others wait for. What later passes need stays in registers where it fits there; longer rows are read, and
computed, again for every pass, from shared memory where that has room for them, else from cache; of those a softmax's
largest element and sum take one pass together (`RowChain.merged`). Results are stored in the last pass, so that they
may lie in the memory of operands. The order of additions never changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of
from mspc.ops.cuda import rank_sums
from mspc.ops.cuda.column_totals import ColumnTotals
from mspc.ops.cuda.elementwise import KernelOperand, all_of
from mspc.ops.cuda.loop_parts import LoopReduction
from mspc.ops.cuda.loops import HELPERS
from mspc.ops.cuda.math import MATH
from mspc.ops.cuda.moved import coordinate
from mspc.ops.cuda.random import RANDOM, with_arguments
from mspc.ops.cuda.row_chain import RowChain, RowLine
from mspc.ops.cuda.row_totals import end_of_total, kind_of, merged_update, neutral_of
from mspc.ops.cuda.source import COMMON, constants, grid_of, index_type, threads_of_row
from mspc.ops.device import Array, Device, Launch, c_type, computing_type

_BLOCK = 128
_LONG_BLOCK = 512
_HELD_WORDS = 48
"""Registers of a thread of a small block that may hold a row's values; half of it in blocks above 256 threads."""
_RESIDENT = 1024
"""Threads of a multiprocessor where blocks add up totals of columns, each of as many rows as the others."""
_FETCHING = 512
"""Threads of a multiprocessor where operands come from other ranks: as many bytes are under way as NVLink needs, and
some rows are stored while others come."""
_RESERVED = 2 << 10
"""Bytes of shared memory of a block that are not for rows."""
_MEMORY = "alignas(16) extern __shared__ unsigned char memory[];\n"


@dataclass(frozen=True)
class Division:
    """How rows are shared out.

    group: threads of a row. held: whether what later passes need stays in registers. places: where a block puts the
    elements of operands in shared memory, in bytes, when it reads them for the first time; these are of the types that
    they have in memory. shared: bytes of it.
    """

    group: int
    held: bool
    places: Mapping[str, int]
    shared: int = 0

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.group if self.group > 32 else _BLOCK


def launch_rows(device: Device, chain: RowChain) -> Launch | None:
    """The kernel of a chain; None where it would read again what lies on other ranks."""
    plan = _PassPlan(chain)
    lanes = chain.lanes()
    division = _divided(device, chain, plan, lanes)
    if not division.held:
        chain.merged = True
        plan = _PassPlan(chain)
        division = _divided(device, chain, plan, lanes)
    name, summed = chain.summed or ("", None)
    if summed is not None and not (division.held or name in division.places or plan.reading(name) == 1):
        return None
    group, threads = division.group, division.threads
    rows = math.prod(chain.dims) // chain.length
    packs, blocks = -(-chain.length // (lanes * group)), -(-rows // (threads // group))
    totals = None
    if summed is not None:
        blocks = min(blocks, device.multiprocessors * max(1, _FETCHING // threads))
    if chain.totals:
        blocks = min(blocks, device.multiprocessors * (_RESIDENT // threads))
        totals = ColumnTotals(device, chain.totals, blocks * (threads // group), chain.length)
    body, seeds = with_arguments(plan.body(division, min(packs, packs if division.held else 4), totals))
    given: list[tuple[str, Any]] = [
        (f"const {_c(read.array)}* p_{read.name}", read.array) for read in chain.reads if read.array is not None
    ]
    given += [(f"{_c(array)}* y{i}", array) for i, (_, array) in enumerate(chain.writes)]
    given += [(f"{_c(array)}* z{i}", array) for i, (_, array) in enumerate(chain.row_writes)]
    given += totals.parameters() if totals else []
    draws = any("running" in line.reads for line in chain.lines)
    if draws:
        given.append(("const long long* running_at", device.step))
    given += [(f"const u64 seed{i}", np.uint64(seed)) for i, seed in enumerate(seeds)]
    head = f"typedef {index_type(math.prod(chain.dims))} I, Index;\n" + constants(
        ROWS=rows, COLUMNS=chain.length, GROUP=group, THREADS=threads, V=lanes, PACKS=packs, BLOCKS=blocks,
        EXACT=packs * lanes * group == chain.length, RAGGED=chain.length % lanes != 0,
    )  # fmt: skip
    begin = ["const u64 running = (u64)*running_at;"] if draws else []
    given += rank_sums.parameters(summed) if summed else []
    parameters = ", ".join([*(declaration for declaration, _ in given), *([rank_sums.PLACE] if summed else [])])
    if summed is not None:
        begin, body = [*rank_sums.begin(summed), *begin], [*body, *rank_sums.end()]
    lines = "".join(f"    {line}\n" for line in [*begin, *body])
    text = f'extern "C" __global__ void __launch_bounds__(THREADS) row_chain({parameters}) {{\n{lines}}}\n'
    parts = (MATH, HELPERS, COMMON, RANDOM if draws else "", head, rank_sums.definitions(summed) if summed else "",
             _MEMORY if division.shared else "", text)  # fmt: skip
    kernel = device.kernel("".join(parts), "row_chain")
    grid, arguments, shared = grid_of(blocks), [value for _, value in given], division.shared

    def along_rows() -> None:
        kernel(grid, threads, arguments + (rank_sums.place(summed) if summed else []), shared)

    return all_of([along_rows, *totals.launches(device)]) if totals else along_rows


def takes_totals(device: Device, chain: RowChain, totals: Sequence[LoopReduction]) -> bool:
    """Whether the kernel of a chain adds up totals of columns, too: where rows stay in registers beside these."""
    return _group(device, chain, _PassPlan(chain), chain.lanes(), len(totals)) is not None


def _group(device: Device, chain: RowChain, plan: _PassPlan, lanes: int, totals: int) -> int | None:
    """Threads of a row that stays in registers beside so many totals of columns; None where it does not."""
    packs, rows = -(-chain.length // lanes), math.prod(chain.dims) // chain.length
    words = lanes * (plan.words() + totals)
    return threads_of_row(packs, rows, device.multiprocessors, words, _HELD_WORDS)


def _divided(device: Device, chain: RowChain, plan: _PassPlan, lanes: int) -> Division:
    packs = -(-chain.length // lanes)
    group = _group(device, chain, plan, lanes, len(chain.totals))
    return _in_shared(device, chain, plan, packs * lanes) if group is None else Division(group, True, {})


def _in_shared(device: Device, chain: RowChain, plan: _PassPlan, elements: int) -> Division:
    """For rows that do not fit into registers: those operands that are read again lie in shared memory as far as there
    is room, the narrowest first."""
    again = [read for read in chain.reads if chain.is_packed(read) and plan.reading(read.name) > 1]
    places, shared = dict[str, int](), 0
    for read in sorted(again, key=lambda read: read.array.itemsize):
        nbytes = -(-elements * read.array.itemsize // 16) * 16
        if shared + nbytes > device.block_memory - _RESERVED:
            break
        places[read.name] = shared
        shared += nbytes
    # Where few blocks share a multiprocessor they are large ones.
    few = shared > 0 and device.block_memory // (shared + _RESERVED) < 3
    return Division(2 * _LONG_BLOCK if few else _LONG_BLOCK, False, places, shared)


class _PassPlan:
    """Which values every pass computes, loads and holds."""

    def __init__(self, chain: RowChain) -> None:
        self.chain = chain
        self.ready, self.passes = chain.stages()
        self.merges = chain.merges()
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
            self.merges.get(line.name, line).reads[0]
            for line in self.chain.lines
            if line.total is not None and self.ready[line.name] - 1 == number
        ]
        found += [total.value for total in self.chain.totals if self.ready[total.value] == number]
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

    def reading(self, name: str) -> int:
        """How many passes read an operand's elements where none stays in registers."""
        return sum(name in self._needed(number, held=False) for number in range(self.passes))

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

    def body(self, division: Division, unroll: int, sums: ColumnTotals | None) -> list[str]:
        """The kernel's statements. sums: totals of columns. A block works at one row after the other for these, and
        where parts of an operand are on other ranks."""
        lane = "const int lane = threadIdx.x % GROUP;"
        rows = self._rows(division, unroll, sums)
        if sums is None and self.chain.summed is None:
            return [lane, "const I base = (I)blockIdx.x * (THREADS / GROUP);", *rows]
        loop = "for (I base = (I)blockIdx.x * (THREADS / GROUP); base < ROWS; base += (I)BLOCKS * (THREADS / GROUP)) {"
        rows = [loop, *(f"    {line}" for line in rows), "}"]
        return [lane, *(sums.accumulators() if sums else []), *rows, *(sums.stores() if sums else [])]

    def _rows(self, division: Division, unroll: int, sums: ColumnTotals | None) -> list[str]:
        """The statements for the rows of a block from `base` on."""
        chain, group, held = self.chain, division.group, division.held
        lines = [
            "const I wanted = base + threadIdx.x / GROUP;",
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
            lines += [f"{kind_of(line)} r_{line.name} = {neutral_of(line)};" for line in own]
            lines += self._pass(number, division, unroll, own, sums)
            for line in own:
                end = end_of_total(line, group, self.merges.get(line.name))
                lines.append(f"const {computing_type(line.dtype)} {line.name} = {end};")
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

    def _pass(self, number: int, division: Division, unroll: int, totals: Sequence[RowLine],
              sums: ColumnTotals | None) -> list[str]:  # fmt: skip
        """A loop over the row's packs."""
        chain, held = self.chain, division.held
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
                text = line.text.replace(f"(at % {chain.length})", "column")  # without a division
                element.append(f"const {kind} {name} = ({kind})({text});")
            else:
                read = self.reads[name]
                place = f"b_{name} + {self._offset(read, rows=False)}" if read.moved is None else ""
                if read.moved is not None:
                    element.append(f"const {kind} {name} = wide({self._moved(read, loads)});")
                elif chain.is_packed(read):
                    loads += self._load(name, number, division)
                    element.append(f"const {kind} {name} = wide(a_{name}.at[j]);")
                else:
                    element.append(f"const {kind} {name} = wide(p_{name}[{place}]);")
            if held and name in self.again:
                element.append(f"h_{name}[k][j] = {name};")
        for line in totals:
            assert line.total is not None
            if line.name in self.merges:
                element.append(merged_update(line, self.merges[line.name]))
            if line.name in self.merges or line in self.merges.values():
                continue
            how, kind = line.total.how, kind_of(line)
            element.append(f"r_{line.name} = {how}::of(r_{line.name}, ({kind}){line.total.value});")
        if sums is not None:
            element += [sums.update(i) for i, each in enumerate(chain.totals) if self.ready[each.value] == number]
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

    def _load(self, name: str, number: int, division: Division) -> list[str]:
        """C++ of an operand's elements for a pack, in pass `number`."""
        kind = _c(self.reads[name].array)
        ahead = f"const auto a_{name} = pack_at<{kind}, V>"
        first = f"{ahead}(p_{name} + b_{name} + start);"
        if self.chain.summed is not None and name == self.chain.summed[0]:
            computing = computing_type(self.reads[name].dtype)
            first = f"const auto a_{name} = summed_pack<{kind}, V, {computing}>(parts, b_{name} + start);"
        if name not in division.places:
            return [first]
        place = f"({kind}*)(memory + {division.places[name]}) + start"
        if any(name in self._needed(earlier, held=False) for earlier in range(number)):
            return [f"{ahead}({place});"]
        return [first, f"put_pack<{kind}, V>({place}, a_{name});"]

    def _moved(self, read: KernelOperand, loads: list[str]) -> str:
        """C++ of the element of a read at other places; what is loaded for a pack at once goes to `loads`."""
        chain, moved, lanes = self.chain, read.moved, self.chain.lanes()
        assert moved is not None
        if chain.dims[-1] % lanes or not (moved.is_packed(lanes) or moved.is_held(lanes)):
            return moved.element(f"p_{read.name}", chain.coordinates("column"))
        loads.append(f"{moved.register(lanes)} a_{read.name};")
        loads += moved.load(f"a_{read.name}", f"p_{read.name}", lanes, lambda e: chain.coordinates(f"(start + {e})"))
        return f"a_{read.name}" if moved.is_held(lanes) else f"a_{read.name}.at[j]"

    def _offset(self, read: KernelOperand, rows: bool) -> str:
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
