"""A nest of loops is the C++ function of one chain: units are shared out among threads, and a unit is passed over once
for every reduction of its row that others wait for.

A unit is a row, or a run of elements where nothing goes along rows. Reductions have lanes, sums of Float32 totals in
Float64, and parts whose number depends on the shape alone: the order of additions never changes, whatever compiles it
and on however many threads it runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType
from mspc.ops.cpu.loops.passes import Line, Passes, Read, Total, cost_of
from mspc.ops.cuda.source import accumulating_type, index_type, neutral
from mspc.ops.device import c_type, computing_type

_RUN = 4096
"""Elements of a unit where there are no rows, and elements that a lane's Float32 sums come from together."""
_PARTS = 64
_SUMMED_PARTS = 16
"""Parts of the units at most; where there are totals over units every part has its own."""
_SIMD = '_Pragma("omp simd")'

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """A reduction over units: the total, and the result's step in elements along each dimension, 0 where reduced."""

    total: Total
    strides: Strides
    width: int


@dataclass(slots=True)
class Nest:
    """What the function computes.

    dims: of the space; the last `columns` are a row, 0 for none. writes, row_writes: (value, its type in memory), with
    one element for each of the space, or of the rows. seeds: how many numbers `seed0`, ... lines read. Pointers are in
    the order of reads, writes, row_writes, results of sums, then scratch memory of sums, seeds and the step.
    """

    dims: tuple[int, ...]
    columns: int
    reads: Sequence[Read]
    lines: Sequence[Line]
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
        return 1 if self.columns else -(-self.dims[-1] // _RUN)

    @property
    def units(self) -> int:
        return math.prod(self.dims[: len(self.dims) - self.inner]) * self.runs

    @property
    def parts(self) -> int:
        """Parts of the units that may be worked off at the same time."""
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

    def function(self, name: str) -> str:
        """The C++ of two functions: `name` works off parts [first, last), `name`_end makes the sums' results."""
        return _Writer(self).function(name)


class _Writer:
    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.passes = Passes(nest.reads, nest.lines, nest.writes, nest.sums, nest.columns, len(nest.dims))
        count = len(nest.reads)
        self.first_write = count
        self.first_row_write = count + len(nest.writes)
        self.first_sum = self.first_row_write + len(nest.row_writes)
        self.extras = self.first_sum + len(nest.sums)

    def function(self, name: str) -> str:
        nest, parts = self.nest, self.nest.parts
        used = self.passes.words()
        body = [f"typedef {index_type(nest.size)} Index;"]
        if "running" in used:
            body.append(f"const u64 running = *(const u64*)a[{self.extras + 2}];")
        body += [f"const u64 seed{i} = ((const u64*)a[{self.extras + 1}])[{i}];" for i in range(nest.seeds)]
        row = math.prod(nest.dims[len(nest.dims) - nest.inner :])
        for name_, line in self.passes.held.items():
            kind = computing_type(line.dtype)
            body.append(f"{kind}* const h_{name_} = ({kind}*)__builtin_malloc({row} * sizeof({kind}));")
        body.append("for (i64 part = first; part < last; ++part) {")
        before = 0
        for i, each in enumerate(nest.sums):
            kind = _total_type(each.total)
            body.append(f"    {kind}* const s{i} = ({kind}*)((char*)a[{self.extras}] + {before}) + part * {each.width};")
            body.append(f"    filled<{kind}>(s{i}, {each.width}, {_neutral(each.total, kind)});")
            before += 8 * parts * each.width
        body.append(f"    const i64 stop = (part + 1) * {nest.units}ll / {parts};")
        body.append(f"    for (i64 unit = part * {nest.units}ll / {parts}; unit < stop; ++unit) {{")
        body += [f"        {text}" for text in self._unit()]
        body += ["    }", "}"]
        body += [f"__builtin_free(h_{name_});" for name_ in self.passes.held]
        return "\n".join(
            [
                f'extern "C" void {name}(void* const* const a, const i64 first, const i64 last) {{',
                *(f"    {text}" for text in body),
                "}",
                f'extern "C" void {name}_end(void* const* const a) {{',
                *(f"    {text}" for text in self._end()),
                "}",
                "",
            ]
        )

    def _end(self) -> Iterator[str]:
        """The results of the sums from their parts."""
        before = 0
        for i, each in enumerate(self.nest.sums):
            kind, out = _total_type(each.total), c_type(each.total.dtype)
            yield (
                f"finished<{each.total.how}>((const {kind}*)((char*)a[{self.extras}] + {before}), {self.nest.parts}, "
                f"{each.width}, {each.total.count}, ({out}*)a[{self.first_sum + i}]);"
            )
            before += 8 * self.nest.parts * each.width

    def _unit(self) -> Iterator[str]:
        nest = self.nest
        outer = len(nest.dims) - nest.inner
        behind = nest.runs
        for d in reversed(range(outer)):
            whole = "" if d == 0 else f" % {nest.dims[d]}"
            yield f"const i64 u{d} = unit / {behind}{whole}; (void)u{d};"
            behind *= nest.dims[d]
        last = nest.dims[-1]
        if nest.runs > 1:
            yield f"const i64 begin = unit % {nest.runs} * {_RUN};"
            yield f"const i64 length = {last} - begin < {_RUN} ? {last} - begin : {_RUN};"
        elif not nest.columns:
            yield f"const i64 begin = 0, length = {last};"
        for number, read in enumerate(nest.reads):
            if self.passes.of_row(read):
                kind = c_type(read.dtype)
                place = self._place(read.strides, range(outer))
                yield f"const {computing_type(read.dtype)} {read.name} = wide(((const {kind}*)a[{number}])[{place}]);"
        yield from self._rows_at(0)
        for number in range(self.passes.count):
            totals = self.passes.totals_of(number)
            for line in totals:
                assert line.total is not None
                kind = _total_type(line.total)
                yield f"{kind} R_{line.name} = {_neutral(line.total, kind)};"
            yield from self._pass(number, totals)
            for line in totals:
                assert line.total is not None
                kind, count = _total_type(line.total), line.total.count
                share = f" / ({kind}){count}" if count > 1 else ""
                yield f"const {computing_type(line.dtype)} {line.name} = ({computing_type(line.dtype)})(R_{line.name}{share});"
            yield from self._rows_at(number + 1)
        for i, (name, dtype) in enumerate(nest.row_writes):
            yield f"(({c_type(dtype)}*)a[{self.first_row_write + i}])[unit] = narrow<{c_type(dtype)}>({name});"

    def _rows_at(self, number: int) -> Iterator[str]:
        for line in self.nest.lines:
            if line.by_row and line.total is None and self.passes.ready[line.name] == number:
                kind = computing_type(line.dtype)
                yield f"const {kind} {line.name} = ({kind})({line.text});"

    def _place(self, strides: Strides, dims: Sequence[int]) -> str:
        """C++ of the part of an element's place that these dimensions give."""
        return " + ".join(f"u{d} * {strides[d]}" for d in dims if strides[d]) or "0"

    def _pass(self, number: int, totals: Sequence[Line]) -> Iterator[str]:
        """The loops over a unit's elements."""
        nest = self.nest
        count = len(nest.dims)
        middle = range(count - nest.inner, count - 1)
        for d in middle:
            yield f"for (i64 u{d} = 0; u{d} < {nest.dims[d]}; ++u{d}) {{"
        length = str(nest.dims[-1]) if nest.columns else "length"
        if nest.columns and nest.dims[-1] > _RUN:
            yield f"for (i64 begin = 0; begin < {nest.dims[-1]}; begin += {_RUN}) {{"
            yield f"const i64 length = {nest.dims[-1]} - begin < {_RUN} ? {nest.dims[-1]} - begin : {_RUN};"
            length = "length"
        elif nest.columns:
            yield "{ const i64 begin = 0;"
        else:
            yield "{"
        yield from self._run(number, totals, length)
        yield "}"
        for _ in middle:
            yield "}"

    def _run(self, number: int, totals: Sequence[Line], length: str) -> Iterator[str]:
        """The loop over neighbouring elements, which the compiler vectorises."""
        nest, passes = self.nest, self.passes
        dims = range(len(nest.dims) - 1)
        is_last = number == passes.count - 1
        strides = nest.contiguous
        element: list[str] = []
        if "at" in passes.words():
            element.append(f"const Index at = (Index)({self._place(strides, dims)} + begin + j);")
        inside = self._place(strides, range(len(nest.dims) - nest.inner, len(nest.dims) - 1))
        for name in passes.needed(number):
            line, kind = passes.lines.get(name), passes.type_of(name)
            if line is None:
                place, read = passes.place_of(name), passes.reads[name]
                step = read.strides[-1]
                yield (
                    f"const {c_type(read.dtype)}* const q_{name} = (const {c_type(read.dtype)}*)a[{place}] + "
                    f"{self._place(read.strides, dims)}{' + begin' if step else ''};"
                )
                if step:
                    element.append(f"const {kind} {name} = wide(q_{name}[j]);")
                else:
                    yield f"const {kind} {name} = wide(*q_{name});"
            elif name in passes.held and passes.first[name] < number:
                element.append(f"const {kind} {name} = h_{name}[{inside} + begin + j];")
            else:
                element.append(f"const {kind} {name} = ({kind})({line.text});")
                if name in passes.held:
                    element.append(f"h_{name}[{inside} + begin + j] = {name};")
        if is_last:
            for i, (name, dtype) in enumerate(nest.writes):
                kind = c_type(dtype)
                place = f"{self._place(strides, dims)} + begin"
                yield f"{kind}* const w{i} = ({kind}*)a[{self.first_write + i}] + {place};"
                element.append(f"w{i}[j] = narrow<{kind}>({name});")
        folds: list[str] = []
        lanes: list[tuple[str, Total]] = []
        for line in totals:
            assert line.total is not None
            lanes.append((line.name, line.total))
            kind = _total_type(line.total)
            folds.append(f"R_{line.name} = {line.total.how}::of(R_{line.name}, ({kind})LANES_OF({line.name}));")
        for i, each in enumerate(nest.sums if is_last else ()):
            kind, how = _total_type(each.total), each.total.how
            place = self._place(each.strides, dims)
            yield f"{kind}* const o{i} = s{i} + {place}{' + begin' if each.strides[-1] else ''};"
            if each.strides[-1]:
                element.append(f"o{i}[j] = {how}::of(o{i}[j], ({kind})({each.total.value}));")
            else:
                lanes.append((f"s{i}", each.total))
                folds.append(f"*o{i} = {how}::of(*o{i}, ({kind})LANES_OF(s{i}));")
        if not lanes:
            yield f"{_SIMD} for (i64 j = 0; j < {length}; ++j) {{"
            yield from (f"    {text}" for text in element)
            yield "}"
            return
        width = _lanes(nest.dims[-1])
        for name, total in lanes:
            kind = accumulating_type(total.accumulates)
            element.append(f"l_{name}[l] = {total.how}::of(l_{name}[l], ({kind})({total.value}));")
            yield f"{kind} l_{name}[{width}]; filled<{kind}>(l_{name}, {width}, {_neutral(total, kind)});"
        yield f"const i64 whole = {length} / {width} * {width};"
        yield f"for (i64 block = 0; block < whole; block += {width}) {{"
        yield f"    {_SIMD} for (int l = 0; l < {width}; ++l) {{ const i64 j = block + l;"
        yield from (f"        {text}" for text in element)
        yield "    }"
        yield "}"
        if nest.dims[-1] % width:
            yield f"{_SIMD} for (int l = 0; l < (int)({length} - whole); ++l) {{ const i64 j = whole + l;"
            yield from (f"    {text}" for text in element)
            yield "}"
        for text, (name, total) in zip(folds, lanes, strict=True):
            yield text.replace(f"LANES_OF({name})", f"folded<{total.how}, {width}>(l_{name})")


def _lanes(length: int) -> int:
    """Lanes of a reduction over runs of this length."""
    return 64 if length >= 512 else 32 if length >= 64 else 16 if length >= 16 else 4


def _total_type(total: Total) -> str:
    """The C++ type in which lanes and parts are put together: sums of Float32 in Float64."""
    kind = accumulating_type(total.accumulates)
    return "double" if kind == "float" and total.how == "Sum" else kind


def _neutral(total: Total, kind: str) -> str:
    return f"({kind})({neutral(total.how, total.accumulates)})"
