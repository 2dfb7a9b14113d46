"""Chains of elementwise operators along rows that read reductions of a row: the computation, the positions of
operands along a row, and the CUDA kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of
from mspc.ops.cuda.elementwise import ColumnTotals, KernelOperand, LoopLine, LoopReduction, coordinate
from mspc.ops.cuda.text import (
    accumulating_type,
    address,
    definitions,
    grid_of,
    index_type,
    neutral,
    threads_of_row,
    with_arguments,
)
from mspc.ops.device import Array, Device, Launch, RankSum, all_of, c_type, computing_type, source_text

_HIT = re.compile(r"\(i64\)(\w+)( - \d+)? == \(i64\)\(at % (\d+)\) \? (\w+) : (\w+)")
"""The C++ of an element of OneHot along a row, see `_Hit` in the operator's module."""


class OneColumn(NamedTuple):
    """C++ of a value that is the same in all columns of a row but one. column: the number of that column. value: the
    value in the others, if `condition` is true."""

    column: str
    condition: str
    value: str


@dataclass(slots=True)
class RowChain:
    """The computation on every row.

    dims: of the space; the last `columns` of them are a row. writes, row_writes: (name of a value, array that receives
    it), with one element for each of the space, or for each row. totals: of columns over all rows. Arrays with an
    element for each of the space may have a gap after every row (`row_pitch`), which a kernel may overwrite. merged: a
    row's largest element and the sum of exponentials of differences from it come from one pass, which scales the sum so
    far on a larger element. summed: the name of an operand of which every rank holds a part, and the addresses of
    these.
    """

    dims: tuple[int, ...]
    columns: int
    reads: Sequence[KernelOperand]
    lines: Sequence[LoopLine]
    writes: Sequence[tuple[str, Array]]
    row_writes: Sequence[tuple[str, Array]]
    totals: Sequence[LoopReduction] = ()
    merged: bool = False
    summed: tuple[str, RankSum] | None = None

    @property
    def length(self) -> int:
        """Elements of a row."""
        return math.prod(self.dims[len(self.dims) - self.columns :])

    def operand_columns(self, read: KernelOperand) -> str:
        """Return the columns of a row that an operand has: "all", "none" (one element per row) or "some" (broadcast
        along some dimensions)."""
        if read.moved is not None:
            return "all"
        behind = [(n, size) for n, size in zip(read.shape, self.dims, strict=True)][len(self.dims) - self.columns :]
        if all(n == size for n, size in behind):
            return "all"
        return "none" if all(n == 1 for n, _ in behind) else "some"

    def lanes(self) -> int:
        """Return the number of neighbouring elements that a thread loads at once."""
        arrays = [read.array for read in self.reads if self.is_packed(read)] + [array for _, array in self.writes]
        lanes = 16 // max((array.dtype.itemsize for array in arrays), default=4)
        steps = [self.row_step(array) for array in arrays] or [self.length]
        while lanes > 1 and (
            any(step % lanes for step in steps) or any(address(a) % (lanes * a.dtype.itemsize) for a in arrays)
        ):
            lanes //= 2
        return lanes

    def row_step(self, array: Array) -> int:
        """Return the elements between starts of consecutive rows of an array with one element per element or per
        column."""
        is_full = array.ndim > 1 and array.size == math.prod(self.dims) and self.length == array.shape[-1]
        return array.strides[-2] // array.itemsize if is_full and array.shape[-2] > 1 else self.length

    @property
    def has_gaps(self) -> bool:
        """Whether an array has gaps between its rows."""
        arrays = [read.array for read in self.reads if read.moved is None] + [array for _, array in self.writes]
        return any(self.row_step(array) != self.length for array in arrays)

    def is_packed(self, read: KernelOperand) -> bool:
        """Return True if an operand is loaded in packs: a row that does not fill its last one needs a gap to read."""
        if read.moved is not None:
            return False
        is_full = read.array.size == math.prod(self.dims)
        return self.operand_columns(read) == "all" and (is_full or not self.has_gaps)

    def coordinates(self, element: str) -> list[str]:
        """Return C++ of the coordinates of the element of this number in its row."""
        kept = len(self.dims) - self.columns
        return [f"r{d}" for d in range(kept)] + [coordinate(element, self.dims[kept:], d) for d in range(self.columns)]

    def merges(self) -> dict[str, LoopLine]:
        """Return the maximum's line by the name of such a sum; empty if the chain is not `merged`."""
        found: dict[str, LoopLine] = {}
        lines = {line.name: line for line in self.lines}
        for line in self.lines if self.merged else ():
            if line.total is None or line.total.how != "Sum" or line.total.count > 1:
                continue
            power = lines.get(line.reads[0])
            below = lines.get(power.reads[0]) if power is not None and len(power.reads) == 1 else None
            most = lines.get(below.reads[-1]) if below is not None and len(below.reads) == 2 else None
            if power is None or below is None or most is None or most.total is None or most.total.how != "Largest":
                continue
            is_power = power.text == f"exp({below.name})" and below.text == f"{most.reads[0]} - {most.name}"
            same = len({line.total.type, most.total.type}) == 1 and line.total.type in ("float", "double")
            if is_power and same and most not in found.values():
                found[line.name] = most
        return found

    def one_columns(self) -> dict[str, OneColumn]:
        """Return the lines of OneHot and those that compute with them, by name, if they are the same in all columns of
        a row but one."""
        found: dict[str, OneColumn] = {}
        by_row = {read.name for read in self.reads if self.operand_columns(read) == "none"}
        by_row |= {line.name for line in self.lines if line.by_row}
        for line in self.lines:
            hit, given = _HIT.fullmatch(line.text), [found[name] for name in line.reads if name in found]
            others = [name for name in line.reads if name not in found and name not in by_row]
            if hit and int(hit[3]) == self.length and not others:
                found[line.name] = OneColumn(f"(i64){hit[1]}{hit[2] or ''}", "true", hit[5])
            if line.by_row or not given or any(each.column != given[0].column for each in given):
                continue
            values = {name: found[name].value if name in found else name for name in line.reads}
            conditions, text = [each.condition for each in given], line.text
            if len(line.reads) == 3 and text == "{} ? {} : {}".format(*line.reads) and others == [line.reads[1]]:
                conditions.append(f"!({values[line.reads[0]]})")
                others, text = list[str](), line.reads[2]
            if not others and "at" not in re.findall(r"\w+", text):
                for name, value in values.items():
                    text = re.sub(rf"\b{name}\b", value, text)
                value = f"({computing_type(line.dtype)})({text})"
                found[line.name] = OneColumn(given[0].column, " && ".join(dict.fromkeys(conditions)), value)
        return found

    def stages(self) -> tuple[dict[str, int], int]:
        """Return (the first pass in which a value can be computed, or read if it is a row's, the number of passes)."""
        ready: dict[str, int] = {read.name: 0 for read in self.reads}
        merges = self.merges()
        for line in self.lines:
            after = max((ready[name] for name in line.reads if name in ready), default=0)
            if line.name in merges:
                after = ready[merges[line.name].name] - 1
            ready[line.name] = after + (line.total is not None)
        last = max([ready[name] for name, _ in self.writes], default=0)
        last = max([last, *(ready[line.name] - 1 for line in self.lines if line.total is not None)])
        last = max([last, *(ready[total.value] for total in self.totals)])
        return ready, last + 1


# Sums along a row, in C++: how a sum begins, takes an element and ends on all threads of the row.


def kind_of(line: LoopLine) -> str:
    """Return the C++ type of a line's total."""
    assert line.total is not None
    return accumulating_type(line.total.accumulates)


def neutral_of(line: LoopLine) -> str:
    """Return C++ of the initial value of a line's total."""
    assert line.total is not None
    return f"({kind_of(line)})({neutral(line.total.how, line.total.accumulates)})"


def merged_update(line: LoopLine, most: LoopLine) -> list[str]:
    """Return C++ by which a sum of exponentials, and the largest element of the row, take a pack of elements, `v` with
    the name of the largest one: one scaling for the pack."""
    name, top, pack = f"r_{line.name}", f"r_{most.name}", f"v_{most.name}"
    return [
        f"{kind_of(line)} top_{line.name} = {top};",
        f"for (int j = 0; j < V; ++j) top_{line.name} = Largest::of(top_{line.name}, {pack}[j]);",
        f"if (top_{line.name} != {top}) {{ {name} *= exp({top} - top_{line.name}); {top} = top_{line.name}; }}",
        f"if ({top} == {neutral_of(most)}) top_{line.name} = 0;",
        f"for (int j = 0; j < V; ++j) {name} += exp({pack}[j] - top_{line.name});",
    ]


def end_of_total(line: LoopLine, group: int, most: LoopLine | None) -> str:
    """Return C++ of a line's end result from every thread's own total. most: the largest element of a row, to which a
    thread's sum of exponentials is scaled."""
    assert line.total is not None
    how, kind = line.total.how, kind_of(line)
    own = f"r_{line.name}" if most is None else f"r_{line.name} * exp(r_{most.name} - {most.name})"
    if group <= 32:
        value = f"over_group<{how}, GROUP>({own})"
    else:
        value = f"over_block<{how}, {kind}>({own}, shared_{kind.replace(' ', '_')}, {neutral_of(line)})"
    if line.total.count > 1:
        value = f"{value} / ({kind}){line.total.count}"
    return f"({computing_type(line.dtype)})({value})"


# An operand of a kernel that is the sum of parts of several ranks, each in its own memory: the kernel loads it from all
# of them, and adds up.
#
# The first block signals to the peers that this rank's part is ready, and every block waits for theirs. The last block
# to end signals that all is read, and waits until they have read this rank's, so that later work may overwrite it. The
# order of additions is that of the group's ranks, halves are added in Float32 and rounded, so that all ranks get the
# same bits, the same as from a separate reduction.


PLACE = "volatile long long* sum_place, const long long sum_mark"
"""The kernel's last parameters."""


def sum_definitions(summed: RankSum) -> str:
    """Return C++ before the kernel."""
    sizes = definitions(RANKS=len(summed.addresses), OWN=summed.own, STEP_SHIFT=summed.shift)
    return sizes + source_text("ops/cuda/rank_sums.cuh")


def sum_parameters(summed: RankSum) -> list[tuple[str, Any]]:
    """Return the kernel's parameters before PLACE, and the arguments."""
    numbers = [(f"s{i}", address) for i, address in enumerate(summed.addresses)]
    numbers += [(f"g{i}", address) for i, address in enumerate(summed.signs)]
    found: list[tuple[str, Any]] = [(f"const u64 {name}", np.uint64(number)) for name, number in numbers]
    return [*found, ("unsigned int* sum_state", summed.state), ("const long long* sum_step", summed.step)]


def sum_place(summed: RankSum) -> list[Any]:
    """Return the arguments for PLACE of the launch being made."""
    where, mark = summed.mark()
    return [np.uint64(where), np.int64(mark)]


def sum_begin(summed: RankSum) -> list[str]:
    """Return the kernel's first statements."""
    parts, signs = (", ".join(f"{letter}{i}" for i in range(len(summed.addresses))) for letter in "sg")
    return [
        f"const u64 parts[RANKS] = {{{parts}}}, signs[RANKS] = {{{signs}}};",
        "const unsigned int call = begin_sum(signs, sum_state, sum_step, sum_place, sum_mark);",
    ]


# A chain along rows (see `row_chain`) is one CUDA kernel.
#
# A row belongs to some lanes of a warp, or to a block, by its length. The kernel passes over a row once for every
# reduction that others wait for. Values that later passes need stay in registers if they fit; longer rows are read, and
# computed, again for every pass, from shared memory if it has room for them, else from cache; of those a softmax's
# largest element and sum take one pass together (`RowChain.merged`). Results are stored in the last pass, so that they
# may be in the memory of operands. The order of additions never changes.


_BLOCK = 128
_LONG_BLOCK = 512
_REGISTER_WORDS = 48
"""Registers of a thread of a small block that may hold a row's values; half of it in blocks above 256 threads."""
_RESIDENT = 1024
"""Threads per multiprocessor if blocks add up column totals, each over equally many rows."""
_FETCHING = 512
"""Threads per multiprocessor if operands are in other ranks' memory: enough bytes in flight for NVLink, with loads
overlapping stores."""
_RESERVED = 2 << 10
"""Bytes of shared memory of a block that are not for rows."""
_MEMORY = "alignas(16) extern __shared__ unsigned char memory[];\n"


@dataclass(frozen=True)
class Division:
    """How rows are divided.

    group: threads of a row. held: values for later passes stay in registers. places: the offsets in bytes of operands
    in shared memory, filled when first read, in the types that they have in memory. shared: bytes of it.
    """

    group: int
    held: bool
    places: Mapping[str, int]
    shared: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.group if self.group > 32 else _BLOCK


def launch_rows(device: Device, chain: RowChain) -> Launch | None:
    """Return the launch of a chain; None if it would read other ranks' memory twice."""
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
    head = definitions(
        Index=index_type(math.prod(chain.dims)), I="Index",
        ROWS=rows, COLUMNS=chain.length, GROUP=group, THREADS=threads, V=lanes, PACKS=packs, BLOCKS=blocks,
        EXACT=packs * lanes * group == chain.length, RAGGED=chain.length % lanes != 0,
    )  # fmt: skip
    begin = ["const u64 running = (u64)*running_at;"] if draws else []
    given += sum_parameters(summed) if summed else []
    parameters = ", ".join([*(declaration for declaration, _ in given), *([PLACE] if summed else [])])
    if summed is not None:
        begin, body = [*sum_begin(summed), *begin], [*body, "end_sum(signs, sum_state, call);"]
    lines = "".join(f"    {line}\n" for line in [*begin, *body])
    text = f'extern "C" __global__ void __launch_bounds__(THREADS) row_chain({parameters}) {{\n{lines}}}\n'
    parts = (source_text("ops/cuda/formulas.cuh"), head, sum_definitions(summed) if summed else "",
             _MEMORY if division.shared else "", text)  # fmt: skip
    kernel = device.kernel("".join(parts), "row_chain")
    grid, arguments, shared = grid_of(blocks), [value for _, value in given], division.shared

    def along_rows() -> None:
        kernel(grid, threads, arguments + (sum_place(summed) if summed else []), shared)

    return all_of([along_rows, *totals.launches(device)]) if totals else along_rows


def takes_totals(device: Device, chain: RowChain, totals: Sequence[LoopReduction]) -> bool:
    """Return True if the kernel of a chain also adds up totals of columns: if rows stay in registers beside these."""
    return _group(device, chain, _PassPlan(chain), chain.lanes(), len(totals)) is not None


def _group(device: Device, chain: RowChain, plan: _PassPlan, lanes: int, totals: int) -> int | None:
    """Return the threads per row that keep a row in registers together with this number of column totals, or None."""
    packs, rows = -(-chain.length // lanes), math.prod(chain.dims) // chain.length
    words = lanes * (plan.words() + totals)
    return threads_of_row(packs, rows, device.multiprocessors, words, _REGISTER_WORDS)


def _divided(device: Device, chain: RowChain, plan: _PassPlan, lanes: int) -> Division:
    packs = -(-chain.length // lanes)
    group = _group(device, chain, plan, lanes, len(chain.totals))
    return _in_shared(device, chain, plan, packs * lanes) if group is None else Division(group, True, {})


def _in_shared(device: Device, chain: RowChain, plan: _PassPlan, elements: int) -> Division:
    """Copy operands that are read again to shared memory, as far as it suffices, narrowest first, for rows that do not
    fit into registers."""
    again = [read for read in chain.reads if chain.is_packed(read) and plan.reading(read.name) > 1]
    places, shared = dict[str, int](), 0
    for read in sorted(again, key=lambda read: read.array.itemsize):
        nbytes = -(-elements * read.array.itemsize // 16) * 16
        if shared + nbytes > device.block_memory - _RESERVED:
            break
        places[read.name] = shared
        shared += nbytes
    # If few blocks share a multiprocessor they are large ones.
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
        self.short = {} if chain.summed is not None else self._short_passes()
        """Passes that only add up values that are 0 in all columns but one: they may read that column alone."""
        self.made: list[list[str]] = []
        """By pass, the names that it computes of an element: operands' elements and lines, in their order."""
        self.first: dict[str, int] = {}
        self.again: dict[str, None] = {}
        """Names of earlier passes that a later pass needs."""
        for number in range(self.passes):
            seen = self._needed(number, held=True)
            self.made.append([name for name in seen if name not in self.first])
            self.again.update(dict.fromkeys(name for name in seen if name in self.first))
            self.first.update(dict.fromkeys(self.made[-1], number))

    def _short_passes(self) -> dict[int, OneColumn]:
        chain, columns, found = self.chain, self.chain.one_columns(), dict[int, OneColumn]()
        for number in range(self.passes - bool(chain.writes)):
            own = [line for line in chain.lines if line.total is not None and self.ready[line.name] - 1 == number]
            known = [columns[line.total.value] for line in own
                     if line.total and line.total.how == "Sum" and line.total.value in columns]  # fmt: skip
            reads_one = len(known) == len(own) and len({each.column for each in known}) == 1
            if reads_one and all(self.ready[total.value] != number for total in chain.totals):
                condition = " && ".join(f"{each.condition} && {each.value} == 0" for each in known)
                found[number] = OneColumn(known[0].column, condition, "0")
        return found

    def _wanted(self, number: int) -> list[str]:
        """Return the values that pass `number` reduces and, if it is the last, stores."""
        found = [
            self.merges.get(line.name, line).reads[0]
            for line in self.chain.lines
            if line.total is not None and self.ready[line.name] - 1 == number
        ]
        found += [total.value for total in self.chain.totals if self.ready[total.value] == number]
        return found + [name for name, _ in self.chain.writes] * (number == self.passes - 1)

    def _needed(self, number: int, held: bool) -> list[str]:
        """Return the elementwise values that a pass needs, in topological order. held: without operands of values of
        earlier passes."""
        found: dict[str, None] = {}
        known = {name for name, made in self.first.items() if held and made < number}

        def visit(name: str) -> None:
            line = self.lines.get(name)
            if name in found or (line is None and name not in self.reads) or (line is not None and line.by_row):
                return
            if line is None and self.chain.operand_columns(self.reads[name]) == "none":
                return
            if line is not None and name not in known:
                for other in line.reads:
                    visit(other)
            found[name] = None

        for name in self._wanted(number):
            visit(name)
        return list(found)

    def reading(self, name: str) -> int:
        """Return how many passes read an operand's elements if none stays in registers, without short passes."""
        whole = set(range(self.passes)) - self.short.keys()
        return sum(name in self._needed(number, held=False) for number in whole)

    def words(self) -> int:
        """Return the registers for an element's values that wait for later passes, without those that a pass works
        on."""
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
        """Return the kernel's statements. sums: column totals. With them, or if an operand is a sum over ranks, a block
        processes one row after the other."""
        lane = "const int lane = threadIdx.x % GROUP;"
        rows = self._rows(division, unroll, sums)
        if sums is None and self.chain.summed is None:
            return [lane, "const I base = (I)blockIdx.x * (THREADS / GROUP);", *rows]
        loop = "for (I base = (I)blockIdx.x * (THREADS / GROUP); base < ROWS; base += (I)BLOCKS * (THREADS / GROUP)) {"
        rows = [loop, *(f"    {line}" for line in rows), "}"]
        return [lane, *(sums.accumulators() if sums else []), *rows, *(sums.stores() if sums else [])]

    def _rows(self, division: Division, unroll: int, sums: ColumnTotals | None) -> list[str]:
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
            if chain.operand_columns(read) == "none":
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
        """Return the values of the row that can be computed before pass `number`."""
        return [
            f"const {computing_type(line.dtype)} {line.name} = ({computing_type(line.dtype)})({line.text});"
            for line in self.chain.lines
            if line.by_row and line.total is None and self.ready[line.name] == number
        ]

    def _pass(self, number: int, division: Division, unroll: int, totals: Sequence[LoopLine],
              sums: ColumnTotals | None) -> list[str]:  # fmt: skip
        chain, held = self.chain, division.held
        last = number == self.passes - 1
        loads, after = list[str](), list[str]()
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
                most = self.merges[line.name]
                loads.append(f"{kind_of(most)} v_{most.name}[V];")
                if chain.length % chain.lanes():  # columns after the last one
                    loads.append(f"for (int j = 0; j < V; ++j) v_{most.name}[j] = {neutral_of(most)};")
                element.append(f"v_{most.name}[j] = {most.reads[0]};")
                after += merged_update(line, most)
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
            *self._loop_over_packs(number, held, unroll),
            "    const int start = (k * GROUP + lane) * V;",
            "    if (EXACT || start < COLUMNS) {",
            *(f"        {load}" for load in loads),
            "        #pragma unroll",
            "        for (int j = 0; j < V; ++j) {",
            *(f"            {text}" for text in element),
            "        }",
            *(f"        {text}" for text in after),
            *([f"        if (mine) {{ {' '.join(stores)} }}"] if stores else []),
            "    }",
            "}",
        ]

    def _loop_over_packs(self, number: int, held: bool, unroll: int) -> list[str]:
        """Return the first lines of a pass: a short one visits the packs with its column."""
        if number not in self.short or held:
            return [f"#pragma unroll {unroll}", "for (int k = 0; k < PACKS; ++k) {"]
        short, only, begin, end = self.short[number], f"only{number}", f"begin{number}", f"end{number}"
        return [
            f"const i64 {only} = {short.column}; int {begin} = 0, {end} = PACKS;",
            f"if ({short.condition}) {{",
            f"    {begin} = {only} < 0 || {only} >= COLUMNS ? PACKS : (int)({only} / (GROUP * V));",
            f"    {end} = {begin} < PACKS ? {begin} + 1 : PACKS;",
            "}",
            f"for (int k = {begin}; k < {end}; ++k) {{",
        ]

    def _load(self, name: str, number: int, division: Division) -> list[str]:
        kind = _c(self.reads[name].array)
        ahead = f"const auto a_{name} = pack_at<{kind}, V>"
        first = f"{ahead}(p_{name} + b_{name} + start);"
        if self.chain.summed is not None and name == self.chain.summed[0]:
            computing = computing_type(self.reads[name].dtype)
            first = f"const auto a_{name} = summed_pack<{kind}, V, {computing}>(parts, b_{name} + start);"
        if name not in division.places:
            return [first]
        place = f"({kind}*)(memory + {division.places[name]}) + start"
        if any(name in self._needed(earlier, held=False) for earlier in range(number) if earlier not in self.short):
            return [f"{ahead}({place});"]
        return [first, f"put_pack<{kind}, V>({place}, a_{name});"]

    def _moved(self, read: KernelOperand, loads: list[str]) -> str:
        """Return C++ of the element of a read at other positions; loads of whole packs go to `loads`."""
        chain, moved, lanes = self.chain, read.moved, self.chain.lanes()
        assert moved is not None
        if chain.dims[-1] % lanes or not (moved.is_packed(lanes) or moved.is_held(lanes)):
            return moved.element(f"p_{read.name}", chain.coordinates("column"))
        loads.append(f"{moved.register(lanes)} a_{read.name};")
        loads += moved.load(f"a_{read.name}", f"p_{read.name}", lanes, lambda e: chain.coordinates(f"(start + {e})"))
        return f"a_{read.name}" if moved.is_held(lanes) else f"a_{read.name}.at[j]"

    def _offset(self, read: KernelOperand, rows: bool) -> str:
        """Return C++ of the part of an operand's position that depends on the row, or on the column."""
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
