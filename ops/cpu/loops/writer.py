"""The C++ of a nest of loops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mspc.ir.types import DType
from mspc.ops.cpu.loops.nest import RUN, Nest, Strides
from mspc.ops.cpu.loops.passes import LoopValue, Passes, Total
from mspc.ops.cuda.source import accumulating_type, index_type, neutral
from mspc.ops.device import c_type, computing_type

_SIMD = '_Pragma("omp simd")'


def functions(nest: Nest, name: str) -> str:
    """The C++ of two functions: `name` works off parts [first, last), `name`_end makes the results of sums.

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
        """The loop over parts."""
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

    def _totals(self) -> Iterator[tuple[str, Total, int, int]]:
        """(C++ type, total, first byte in scratch memory, elements) of all sums."""
        begin = 0
        for each in self.nest.sums:
            yield _total_type(each.total), each.total, begin, each.width
            begin += 8 * self.nest.parts * each.width

    def _end(self) -> Iterator[str]:
        """The results of the sums from their parts."""
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
        """Values of the row that can be computed ahead of a pass."""
        for line in self.nest.lines:
            if line.by_row and line.total is None and self.passes.ready[line.name] == number:
                kind = computing_type(line.dtype)
                yield f"const {kind} {line.name} = ({kind})({line.text});"

    def _pass(self, number: int, totals: Sequence[tuple[LoopValue, Total]]) -> Iterator[str]:
        """The loops over a unit's elements."""
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

    def _run(self, number: int, totals: Sequence[tuple[LoopValue, Total]]) -> Iterator[str]:
        """The loop over neighbouring elements, which the compiler vectorises."""
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
        """(what stands ahead of the loop, what makes, holds and stores an element's values)."""
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

    def _in_lanes(self, element: list[str], lanes: Sequence[tuple[str, Total, str]]) -> Iterator[str]:
        """The loop where values are reduced: (name, total, where the fold of the lanes goes)."""
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
    """The C++ type in which neighbouring elements are read and written: compilers vectorise no `bool` in memory."""
    return "unsigned char" if dtype.kind == "b" else c_type(dtype)


def _loop(head: str, begin: str, element: Sequence[str]) -> Iterator[str]:
    yield f"{_SIMD} for ({head}) {{ {begin}"
    yield from (f"    {text}" for text in element)
    yield "}"


def _place(strides: Strides, dims: Sequence[int]) -> str:
    """C++ of the part of an element's place that these dimensions give."""
    return " + ".join(f"u{d} * {strides[d]}" for d in dims if strides[d]) or "0"


def _length(size: int, in_runs: bool) -> str:
    """C++ of the number of elements behind `begin`, of which a run has so many at most."""
    return f"{size} - begin < {RUN} ? {size} - begin : {RUN}" if in_runs else str(size)


def _total_type(total: Total) -> str:
    """The C++ type in which lanes and parts are put together: sums of Float32 in Float64."""
    kind = accumulating_type(total.accumulates)
    return "double" if kind == "float" and total.how == "Sum" else kind


def _neutral(total: Total, kind: str) -> str:
    return f"({kind})({neutral(total.how, total.accumulates)})"
