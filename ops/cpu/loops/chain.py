"""A chain of lines, elementwise ones and reductions, as a nest of loops."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, TensorType
from mspc.ops.bases import axes_of
from mspc.ops.cuda.chain import Operands, loop_lines
from mspc.ops.cuda.elementwise import LoopLine, LoopReduction
from mspc.ops.cuda.text import accumulating_type, index_type, neutral, with_arguments
from mspc.ops.device import C_TYPES, c_type, computing_type
from mspc.ops.fused.body import BodyLine, expanded, moves_elements, types_of_lines
from mspc.ops.fused.kernel import Space, space_of

# Values that every pass over a unit computes, reloads, or keeps from an earlier pass.


_CALL = re.compile(r"\b(?!real|T\b|float|double|bool|absolute|clip|fabs|i8|u8|i64|u16|u32)[a-z_]\w*(?:<\w+>)?\(")
"""A call that costs more than to store a value and read it again."""
_CHEAP = 4
"""Operations that are recomputed instead of stored."""
_NAME = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class LoopInput:
    """An operand: its name in expressions, its element type, and its step in elements along each dimension, 0 if it is
    broadcast."""

    name: str
    dtype: DType
    strides: tuple[int, ...]


class Passes:
    """Passes of a loop nest. ready: pass in which a value can first be computed; for a row's value the first that can
    read it. first: pass in which an elementwise value is computed. held: values that later passes read from memory."""

    def __init__(
        self, reads: Sequence[LoopInput], lines: Sequence[LoopLine], stored: Sequence[str], columns: int, count: int
    ) -> None:
        """stored: the elements' values that the last pass is for. columns: how many of `count` dimensions are a row."""
        self.reads = {read.name: read for read in reads}
        self.lines = {line.name: line for line in lines}
        self._inner = range(count - columns, count)
        self._places = {read.name: i for i, read in enumerate(reads)}
        self._stored = list(stored)
        self.ready: dict[str, int] = dict.fromkeys(self.reads, 0)
        for line in lines:
            after = max((self.ready[name] for name in line.reads if name in self.ready), default=0)
            self.ready[line.name] = after + (line.total is not None)
        last = max([self.ready[name] for name in self._stored if name in self.ready], default=0)
        ends = [self.ready[line.name] - 1 for line in lines if line.total is not None]
        self.count = max([last, *ends]) + 1
        self.first: dict[str, int] = {}
        self.held: dict[str, LoopLine] = {}
        self._needed: list[list[str]] = []
        for number in range(self.count):
            self._needed.append(self._found(number))
            for name in self._needed[-1]:
                self.first.setdefault(name, number)

    def of_row(self, read: LoopInput) -> bool:
        """Return whether an operand has one element for a row."""
        return bool(self._inner) and not any(read.strides[d] for d in self._inner)

    def totals_of(self, number: int) -> list[tuple[LoopLine, LoopReduction]]:
        """Return the reductions of rows that a pass makes."""
        return [
            (line, line.total)
            for line in self.lines.values()
            if line.total is not None and self.ready[line.name] - 1 == number
        ]

    def needed(self, number: int) -> list[str]:
        """Return the elements' values that a pass needs, in the order of their computation."""
        return self._needed[number]

    def type_of(self, name: str) -> str:
        line = self.lines.get(name)
        return computing_type(line.dtype if line is not None else self.reads[name].dtype)

    def place_of(self, name: str) -> int:
        """Return the number of the operand that has a name."""
        return self._places[name]

    def words(self) -> set[str]:
        """Return all names in expressions."""
        return set(_NAME.findall(" ".join(line.text for line in self.lines.values())))

    def _found(self, number: int) -> list[str]:
        wanted = [line.reads[0] for line, _ in self.totals_of(number)]
        wanted += self._stored if number == self.count - 1 else []
        found: dict[str, None] = {}

        def visit(name: str) -> None:
            line = self.lines.get(name)
            if name in found or (line is None and name not in self.reads) or (line is not None and line.by_row):
                return
            if line is None and self.of_row(self.reads[name]):
                return
            if line is not None and self.first.get(name, number) < number and self._cost(line) > _CHEAP:
                self.held[name] = line
            elif line is not None:
                for other in line.reads:
                    visit(other)
            found[name] = None

        for name in wanted:
            visit(name)
        return list(found)

    def _cost(self, line: LoopLine) -> int:
        """Return the operations of a value of elements and its operands."""
        if line.by_row:
            return 0
        return cost_of(line.text) + sum(self._cost(self.lines[name]) for name in line.reads if name in self.lines)


def cost_of(text: str) -> int:
    """Return the number of operations of an expression."""
    return 2 * _CHEAP if _CALL.search(text) else 1


# A nest of loops, of which C++ is written: units are shared out among threads, and a unit is read once for every
# reduction of its row that others wait for.
#
# A unit is a row, or a run of elements if no reduction is along rows. Reductions have lanes, sums of Float32 totals in
# Float64, and parts whose number depends only on the shape: the order of additions never changes, for any compiler and
# any number of threads.


RUN = 4096
"""Elements of a unit without rows, and elements summed together in a lane's Float32 partial sum."""
_PARTS = 64
_SUMMED_PARTS = 16
"""Upper bound of the parts of the units; if there are totals over units every part has its own."""

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """A reduction over units: the total, and the result's step in elements along each dimension, 0 if reduced."""

    total: LoopReduction
    strides: Strides
    width: int


@dataclass(slots=True)
class Nest:
    """The computation of a function. dims: of the space; the last `columns` are a row, 0 for none. writes, row_writes:
    (value, its type in memory), with one element for each of the space, or of the rows. seeds: how many numbers
    `seed0`, ... lines read."""

    dims: tuple[int, ...]
    columns: int
    reads: Sequence[LoopInput]
    lines: Sequence[LoopLine]
    writes: Sequence[tuple[str, DType]]
    row_writes: Sequence[tuple[str, DType]]
    sums: Sequence[Sum]
    seeds: int = 0

    @property
    def size(self) -> int:
        """Elements of the space."""
        return math.prod(self.dims)

    @property
    def inner(self) -> int:
        """Dimensions inside of a unit."""
        return self.columns or 1

    @property
    def runs(self) -> int:
        """Units that the last dimension is divided into."""
        return 1 if self.columns else -(-self.dims[-1] // RUN)

    @property
    def units(self) -> int:
        return math.prod(self.dims[: len(self.dims) - self.inner]) * self.runs

    @property
    def parts(self) -> int:
        """Number of parts of the units that may be computed at the same time."""
        if not self.sums:
            return min(_PARTS, self.units)
        room = self.size // (4 * max(each.width for each in self.sums))
        return max(1, min(_SUMMED_PARTS, self.units, room))

    @property
    def scratch_bytes(self) -> int:
        """Memory for the totals of all parts."""
        return sum(8 * self.parts * each.width for each in self.sums)

    @property
    def operations(self) -> int:
        """Operations on elements, reads and writes among them."""
        lines = sum(cost_of(line.text) for line in self.lines if not line.by_row)
        return self.size * (lines + len(self.reads) + len(self.writes) + len(self.sums))

    @property
    def contiguous(self) -> Strides:
        """Steps in elements of an array that has them all in their order."""
        return tuple(0 if n == 1 else math.prod(self.dims[d + 1 :]) for d, n in enumerate(self.dims))


Shape = tuple[int, ...]


class Chain:
    """Lines and their nest.

    operands: which operand of the chain every read is. results: for every line that is returned ("write", "row" or
    "sum", its place among these). seeds: the numbers that lines draw with.
    """

    def __init__(self, nest: Nest, operands: Sequence[int], results: Sequence[tuple[str, int]],
                 seeds: Sequence[int]) -> None:  # fmt: skip
        self.nest, self.operands, self.results, self.seeds = nest, operands, results, seeds


def chain_of(steps: Sequence[BodyLine], returns: Sequence[int], given: Sequence[TensorType]) -> Chain | None:
    """Return the chain of these lines on operands of these types; None if it cannot be one nest of loops."""
    if any(moves_elements(step.op) for step in steps):
        return None
    try:
        lines, ends = expanded(steps, returns, given)
        types = types_of_lines(lines, given)
        space = space_of([step.op.name for step in lines], lines, given, types)
    except MspcError:
        return None
    known = all(type.dtype.name in C_TYPES for type in (*given, *types))
    if not known or not space.dims or not math.prod(space.dims):
        return None
    return _Maker(lines, ends, given, types, space).chain()


class _Maker:
    def __init__(self, lines: Sequence[BodyLine], returns: Sequence[int], given: Sequence[TensorType],
                 types: Sequence[TensorType], space: Space) -> None:  # fmt: skip
        self.steps, self.returns, self.given, self.types, self.space = lines, returns, given, types, space
        self.size = math.prod(space.dims)
        self.axes = {
            i: axes_of(space.dims, self._source(i).shape, cast(Any, step.op).axes(self._source(i).rank))
            for i, step in enumerate(lines)
            if step.reduces and self._source(i).size == self.size
        }
        self.columns = space.columns or self._own_columns()

    def _source(self, number: int) -> TensorType:
        """Return the type that a reduction reduces."""
        kind, index = self.steps[number].operands[0]
        return self.given[index] if kind == "x" else self.types[index]

    def _own_columns(self) -> int:
        """Return the last dimensions that are a row because reductions, which nothing reads, are over only these."""
        count = len(self.space.dims)
        rows = {count - axes[0] for axes in self.axes.values() if axes and axes == tuple(range(axes[0], count))}
        rows.discard(count)
        return rows.pop() if len(rows) == 1 else 0

    def _is_by_row(self, number: int) -> bool:
        count = len(self.space.dims)
        if number in self.axes:
            return bool(self.columns) and self.axes[number] == tuple(range(count - self.columns, count))
        return number in self.space.by_row

    def chain(self) -> Chain | None:
        """Return the chain, if every line has C++ and every reduction loops over all elements."""
        given = Operands(self.steps, self.types, self.space, self.given)
        read = {index for step in self.steps for kind, index in step.operands if kind == "t"}
        reduced = [number for number, step in enumerate(self.steps) if step.reduces]
        if any(i not in self.axes or (i in read and not self._is_by_row(i)) for i in reduced):
            return None
        by_row = [number for number in range(len(self.steps)) if self._is_by_row(number)]
        lowered = loop_lines(self.steps, self.types, given, by_row, round_in_store=True)
        if lowered is None:
            return None
        sums = {number: self._sum(total, self.axes[number]) for number, total in lowered.aside.items()}
        return self._complete(given, lowered.made, lowered.names, sums)

    def _complete(
        self, given: Operands, made: Sequence[LoopLine], names: Sequence[str], sums: dict[int, Sum]
    ) -> Chain | None:
        texts, seeds = with_arguments([line.text for line in made])
        lines = [
            LoopLine(line.name, line.dtype, text, line.reads, line.total, line.by_row)
            for line, text in zip(made, texts, strict=True)
        ]
        reads = [LoopInput(name, self.given[i].dtype, _strides(shape)) for name, i, shape in given.reads]
        full = [i for i in self.returns if i not in sums and not self._is_by_row(i)]
        rows = [i for i in self.returns if self._is_by_row(i)]
        if any(self.types[i].size != self.size for i in full):
            return None
        nest = Nest(
            self.space.dims, self.columns, reads, lines,
            [(names[i], self.types[i].dtype) for i in full], [(names[i], self.types[i].dtype) for i in rows],
            list(sums.values()), len(seeds),
        )  # fmt: skip
        order = {i: ("write", place) for place, i in enumerate(full)}
        order |= {i: ("row", place) for place, i in enumerate(rows)}
        order |= {i: ("sum", place) for place, i in enumerate(sums)}
        return Chain(nest, [i for _, i, _ in given.reads], [order[i] for i in self.returns], seeds)

    def _sum(self, total: LoopReduction, axes: Sequence[int]) -> Sum:
        dims = self.space.dims
        kept = tuple(1 if d in axes else n for d, n in enumerate(dims))
        return Sum(total, _strides(kept), math.prod(kept))


def _strides(shape: Shape) -> Shape:
    """Return the steps in elements, 0 along dimensions of one element."""
    return tuple(0 if n == 1 else math.prod(shape[d + 1 :]) for d, n in enumerate(shape))


# The C++ of a nest of loops.


_SIMD = '_Pragma("omp simd")'


def functions(nest: Nest, name: str) -> str:
    """Return the C++ of two functions: `name` works off parts [first, last), `name`_end makes the results of sums.

    The pointers that they take are in the order of reads, writes, writes of rows, and results of sums; then come
    scratch memory for sums, the seeds, and the step.
    """
    return _Writer(nest).functions(name)


class _Writer:
    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        stored = [name for name, _ in nest.writes] + [each.total.value for each in nest.sums]
        self.passes = Passes(nest.reads, nest.lines, stored, nest.columns, len(nest.dims))
        self.words = self.passes.words()
        self.first_write = len(nest.reads)
        self.first_row_write = self.first_write + len(nest.writes)
        self.first_sum = self.first_row_write + len(nest.row_writes)
        self.extras = self.first_sum + len(nest.sums)
        self.outer = range(len(nest.dims) - nest.inner)
        self.middle = range(len(nest.dims) - nest.inner, len(nest.dims) - 1)
        self.places = range(len(nest.dims) - 1)

    def functions(self, name: str) -> str:
        return "\n".join(
            [
                f'extern "C" void {name}(void* const* const a, const i64 first, const i64 last) {{',
                *(f"    {text}" for text in self._parts()),
                "}",
                f'extern "C" void {name}_end(void* const* const a) {{',
                *(f"    {text}" for text in self._end()),
                "}",
                "",
            ]
        )

    def _parts(self) -> Iterator[str]:
        nest = self.nest
        yield f"typedef {index_type(nest.size)} Index;"
        if "running" in self.words:
            yield f"const u64 running = *(const u64*)a[{self.extras + 2}];"
        for i in range(nest.seeds):
            yield f"const u64 seed{i} = ((const u64*)a[{self.extras + 1}])[{i}];"
        row = math.prod(nest.dims[len(nest.dims) - nest.inner :])
        for name, line in self.passes.held.items():
            kind = computing_type(line.dtype)
            yield f"{kind}* const h_{name} = ({kind}*)__builtin_malloc({row} * sizeof({kind}));"
        yield "for (i64 part = first; part < last; ++part) {"
        for i, (kind, total, begin, width) in enumerate(self._totals()):
            yield f"    {kind}* const s{i} = ({kind}*)((char*)a[{self.extras}] + {begin}) + part * {width};"
            yield f"    filled<{kind}>(s{i}, {width}, {_neutral(total, kind)});"
        yield f"    const i64 stop = (part + 1) * {nest.units}ll / {nest.parts};"
        yield f"    for (i64 unit = part * {nest.units}ll / {nest.parts}; unit < stop; ++unit) {{"
        yield from (f"        {text}" for text in self._unit())
        yield "    }"
        yield "}"
        yield from (f"__builtin_free(h_{name});" for name in self.passes.held)

    def _totals(self) -> Iterator[tuple[str, LoopReduction, int, int]]:
        """Return (C++ type, total, first byte in scratch memory, elements) of all sums."""
        begin = 0
        for each in self.nest.sums:
            yield _total_type(each.total), each.total, begin, each.width
            begin += 8 * self.nest.parts * each.width

    def _end(self) -> Iterator[str]:
        """Return the results of the sums from their parts."""
        for i, (kind, total, begin, width) in enumerate(self._totals()):
            parts = f"(const {kind}*)((char*)a[{self.extras}] + {begin}), {self.nest.parts}"
            result = f"({c_type(total.dtype)}*)a[{self.first_sum + i}]"
            yield f"finished<{total.how}>({parts}, {width}, {total.count}, {result});"

    # A unit

    def _unit(self) -> Iterator[str]:
        nest, behind = self.nest, self.nest.runs
        for d in reversed(self.outer):
            whole = "" if d == 0 else f" % {nest.dims[d]}"
            yield f"const i64 u{d} = unit / {behind}{whole}; (void)u{d};"
            behind *= nest.dims[d]
        if not nest.columns:
            begin = f"unit % {nest.runs} * {RUN}" if nest.runs > 1 else "0"
            yield f"const i64 begin = {begin}, length = {_length(nest.dims[-1], nest.runs > 1)};"
        for number, read in enumerate(nest.reads):
            if self.passes.of_row(read):
                source = f"((const {c_type(read.dtype)}*)a[{number}])[{_place(read.strides, self.outer)}]"
                yield f"const {computing_type(read.dtype)} {read.name} = wide({source});"
        if nest.columns and "at" in self.words:
            yield "const Index at = (Index)unit; (void)at;"  # of rows' values, which have an element for each
        yield from self._rows_at(0)
        for number in range(self.passes.count):
            totals = self.passes.totals_of(number)
            for line, total in totals:
                kind = _total_type(total)
                yield f"{kind} R_{line.name} = {_neutral(total, kind)};"
            yield from self._pass(number, totals)
            for line, total in totals:
                share = f" / ({_total_type(total)}){total.count}" if total.count > 1 else ""
                kind = computing_type(line.dtype)
                yield f"const {kind} {line.name} = ({kind})(R_{line.name}{share});"
            yield from self._rows_at(number + 1)
        for i, (name, dtype) in enumerate(nest.row_writes):
            yield f"(({c_type(dtype)}*)a[{self.first_row_write + i}])[unit] = narrow<{c_type(dtype)}>({name});"

    def _rows_at(self, number: int) -> Iterator[str]:
        """Return the values of the row that can be computed before a pass."""
        for line in self.nest.lines:
            if line.by_row and line.total is None and self.passes.ready[line.name] == number:
                kind = computing_type(line.dtype)
                yield f"const {kind} {line.name} = ({kind})({line.text});"

    def _pass(self, number: int, totals: Sequence[tuple[LoopLine, LoopReduction]]) -> Iterator[str]:
        nest = self.nest
        last = nest.dims[-1]
        for d in self.middle:
            yield f"for (i64 u{d} = 0; u{d} < {nest.dims[d]}; ++u{d}) {{"
        if nest.columns and last > RUN:
            yield f"for (i64 begin = 0; begin < {last}; begin += {RUN}) {{"
            yield f"const i64 length = {_length(last, True)};"
        else:
            yield f"{{ const i64 begin = 0, length = {last};" if nest.columns else "{"
        yield from self._run(number, totals)
        yield "}"
        yield from ("}" for _ in self.middle)

    # Neighbouring elements

    def _run(self, number: int, totals: Sequence[tuple[LoopLine, LoopReduction]]) -> Iterator[str]:
        """Return the loop over neighbouring elements, which the compiler vectorises."""
        ahead, element = self._values(number)
        lanes = [(line.name, total, f"R_{line.name}") for line, total in totals]
        if number == self.passes.count - 1:
            for i, each in enumerate(self.nest.sums):
                kind, how = _total_type(each.total), each.total.how
                along = bool(each.strides[-1])
                place = f"{_place(each.strides, self.places)}{' + begin' if along else ''}"
                ahead.append(f"{kind}* const o{i} = s{i} + {place};")
                if along:
                    element.append(f"o{i}[j] = {how}::of(o{i}[j], ({kind})({each.total.value}));")
                else:
                    lanes.append((f"s{i}", each.total, f"*o{i}"))
        yield from ahead
        if lanes:
            yield from self._in_lanes(element, lanes)
        else:
            yield from _loop("i64 j = 0; j < length; ++j", "", element)

    def _values(self, number: int) -> tuple[list[str], list[str]]:
        """Return (text before the loop, text that makes, holds and stores an element's values)."""
        nest, passes = self.nest, self.passes
        inside = f"{_place(nest.contiguous, self.middle)} + begin + j"
        ahead: list[str] = []
        element: list[str] = []
        if "at" in self.words:
            element.append(f"const Index at = (Index)({_place(nest.contiguous, self.places)} + begin + j);")
        for name in passes.needed(number):
            line, kind = passes.lines.get(name), passes.type_of(name)
            if line is None:
                read = passes.reads[name]
                memory, along = _memory_type(read.dtype), bool(read.strides[-1])
                place = f"{_place(read.strides, self.places)}{' + begin' if along else ''}"
                ahead.append(f"const {memory}* const q_{name} = (const {memory}*)a[{passes.place_of(name)}] + {place};")
                if along:
                    element.append(f"const {kind} {name} = wide(q_{name}[j]);")
                else:
                    ahead.append(f"const {kind} {name} = wide(*q_{name});")
            elif name in passes.held and passes.first[name] < number:
                element.append(f"const {kind} {name} = h_{name}[{inside}];")
            else:
                element.append(f"const {kind} {name} = ({kind})({line.text});")
                element += [f"h_{name}[{inside}] = {name};"] if name in passes.held else []
        for i, (name, dtype) in enumerate(nest.writes if number == passes.count - 1 else ()):
            kind, place = _memory_type(dtype), f"{_place(nest.contiguous, self.places)} + begin"
            ahead.append(f"{kind}* const w{i} = ({kind}*)a[{self.first_write + i}] + {place};")
            element.append(f"w{i}[j] = narrow<{kind}>({name});")
        return ahead, element

    def _in_lanes(self, element: list[str], lanes: Sequence[tuple[str, LoopReduction, str]]) -> Iterator[str]:
        """Return the loop that reduces values: (name, total, target of the fold of the lanes)."""
        last = self.nest.dims[-1]
        width = 64 if last >= 512 else 32 if last >= 64 else 16 if last >= 16 else 4
        for name, total, _ in lanes:
            kind = accumulating_type(total.accumulates)
            element.append(f"l_{name}[l] = {total.how}::of(l_{name}[l], ({kind})({total.value}));")
            yield f"{kind} l_{name}[{width}]; filled<{kind}>(l_{name}, {width}, {_neutral(total, kind)});"
        yield f"const i64 whole = length / {width} * {width};"
        yield f"for (i64 block = 0; block < whole; block += {width}) {{"
        yield from _loop(f"int l = 0; l < {width}; ++l", "const i64 j = block + l;", element)
        yield "}"
        if last % width:
            yield from _loop("int l = 0; l < (int)(length - whole); ++l", "const i64 j = whole + l;", element)
        for name, total, target in lanes:
            fold = f"({_total_type(total)})folded<{total.how}, {width}>(l_{name})"
            yield f"{target} = {total.how}::of({target}, {fold});"


def _memory_type(dtype: DType) -> str:
    """Return the C++ type to read and write neighbouring elements in: compilers vectorise no `bool` in memory."""
    return "unsigned char" if dtype.kind == "b" else c_type(dtype)


def _loop(head: str, begin: str, element: Sequence[str]) -> Iterator[str]:
    yield f"{_SIMD} for ({head}) {{ {begin}"
    yield from (f"    {text}" for text in element)
    yield "}"


def _place(strides: Strides, dims: Sequence[int]) -> str:
    return " + ".join(f"u{d} * {strides[d]}" for d in dims if strides[d]) or "0"


def _length(size: int, in_runs: bool) -> str:
    """Return C++ for the number of elements from `begin` on, at most those of a run."""
    return f"{size} - begin < {RUN} ? {size} - begin : {RUN}" if in_runs else str(size)


def _total_type(total: LoopReduction) -> str:
    """Return the C++ type that lanes and parts are combined in: Float64 for sums of Float32."""
    kind = accumulating_type(total.accumulates)
    return "double" if kind == "float" and total.how == "Sum" else kind


def _neutral(total: LoopReduction, kind: str) -> str:
    return f"({kind})({neutral(total.how, total.accumulates)})"
