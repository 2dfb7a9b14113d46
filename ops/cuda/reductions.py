"""These CUDA kernels read rows and combine each of them: Softmax, the norms, cross entropies, sums along last axes.

One generated kernel: a row belongs to some lanes of a warp, a full warp or a block, by its length. Rows that fit are
held in registers, so that every operand is read once; longer ones are read again for every stage. A row may also be
along another axis, one thread for each then. Halves are computed in float; the order of additions never changes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import field, replace
from itertools import groupby

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.text import (
    Operand,
    accumulating_type,
    address,
    definitions,
    grid_of,
    index_type,
    lanes_of,
    neutral,
    threads_of_row,
)
from mspc.ops.device import Array, Device, Launch, c_type, in_order, source_text
from mspc.ops.operator_arguments import axes_in

_ROW_BLOCK = 128
_LONG_BLOCK = 512
_REGISTER_WORDS = 64
"""Registers of a thread of a small block that may hold operands; half of it in blocks above 256 threads."""


@dataclass(frozen=True, slots=True)
class RowPass:
    """One pass over a row.

    change: statements on an element's values; later stages see them changed. totals: (variable, how, expression),
    how is one of Sum, Product, Largest, Smallest. then: statements on the totals, once a row.
    """

    totals: tuple[tuple[str, str, str], ...]
    change: str = ""
    then: str = ""


@dataclass(slots=True)
class Rows:
    """The computation on every row. In expressions an operand's name is its element's value in the computing type `A`,
    `column` the element's position in the row, `row` the row's number, COLUMNS the length of a row.

    rows, columns: of the full operands seen as (rows, columns). inner: elements between neighbours of a row, 1 for
    contiguous rows; row r then is along the middle of (rows / inner, columns, inner). full: one value per element.
    by_row: one value per row. by_column: values that repeat along the elements, one per column in most cases. before:
    statements at the start of a row. results: (array, expression) with one value per element. row_results: the same
    with one value per row. total, split: rows are pieces of `columns` elements of longer rows of `total`, `split`
    pieces of each.
    """

    name: str
    rows: int
    columns: int
    dtype: DType
    stages: Sequence[RowPass]
    full: Sequence[Operand] = ()
    by_row: Sequence[Operand] = ()
    by_column: Sequence[Operand] = ()
    results: Sequence[tuple[Array, str]] = ()
    row_results: Sequence[tuple[Array, str]] = ()
    before: str = ""
    inner: int = 1
    total: int = 0
    split: int = 1
    pointers: list[tuple[str, str, Array]] = field(default_factory=list[tuple[str, str, Array]], init=False)

    def launch(self, device: Device) -> Launch | None:
        """Return the launch for these arrays; None if there are no elements."""
        if not self.rows * self.columns:
            return None
        source, blocks, threads = self.source(device.multiprocessors)
        kernel = device.kernel(source, self.name)
        arguments = [array for _, _, array in self.pointers]
        grid = grid_of(blocks)
        return lambda: kernel(grid, threads, arguments)

    def lanes(self) -> int:
        """Return the number of neighbouring elements that a thread loads at once."""
        if self.inner > 1:
            return 1
        count = math.gcd(self.columns, self.total) if self.total else self.columns
        operands = [(dtype_of(o.array.dtype).itemsize, count, o.array) for o in self.full]
        operands += [(dtype_of(a.dtype).itemsize, count, a) for a, _ in self.results]
        operands += [(dtype_of(o.array.dtype).itemsize, math.gcd(count, o.array.size), o.array) for o in self.by_column]
        return min(lanes_of(*operand) for operand in operands)

    def group(self, lanes: int, multiprocessors: int) -> tuple[int, bool]:
        """Return (threads of a row, whether the row stays in registers)."""
        words = max(1, (8 if self.dtype.itemsize == 8 else 4) // 4) * max(1, len(self.full))
        if self.inner > 1:
            return 1, self.columns * words <= 32
        group = threads_of_row(-(-self.columns // lanes), self.rows, multiprocessors, lanes * words, _REGISTER_WORDS)
        return (_LONG_BLOCK, False) if group is None else (group, bool(self.results) or len(self.stages) > 1)

    def source(self, multiprocessors: int) -> tuple[str, int, int]:
        """Return (C++ of the kernel, blocks, threads of a block)."""
        lanes = self.lanes()
        group, held = self.group(lanes, multiprocessors)
        threads = group if group > 32 else _ROW_BLOCK
        packs = -(-self.columns // (lanes * group))
        exact = not self.total and packs * lanes * group == self.columns
        elements = self.rows // self.split * (self.total or self.columns)
        head = definitions(
            A=accumulating_type(self.dtype), Index=index_type(elements),
            ROWS=self.rows, COLUMNS=self.columns, INNER=self.inner, GROUP=group, THREADS=threads, V=lanes,
            PACKS=packs, HELD=held, EXACT=exact, TOTAL=self.total or self.columns, SPLIT=self.split,
        )  # fmt: skip
        body = self._body(group, held, packs)
        parameters = ", ".join(
            f"{'const ' if name[:2] == 'p_' else ''}{kind}* {self._restrict()}{name}" for name, kind, _ in self.pointers
        )
        kernel = f'extern "C" __global__ void __launch_bounds__(THREADS) {self.name}({parameters}) {{\n{body}}}\n'
        return head + kernel, -(-self.rows // (threads // group)), threads

    def _restrict(self) -> str:
        taken = {address(o.array) for o in (*self.full, *self.by_row, *self.by_column)}
        given = (array for array, _ in (*self.results, *self.row_results))
        return "" if any(address(array) in taken for array in given) else "__restrict__ "

    def _body(self, group: int, held: bool, packs: int) -> str:
        self.pointers = [(f"p_{o.name}", c_type(o.dtype), o.array) for o in (*self.full, *self.by_row, *self.by_column)]
        lines = [
            "const int lane = threadIdx.x % GROUP;",
            "const Index wanted = (Index)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;",
            "const bool mine = wanted < ROWS;",
            "const Index row = mine ? wanted : ROWS - 1;",  # all lanes take part in shuffles
            "const Index first = INNER > 1 ? row / INNER * ((Index)COLUMNS * INNER) + row % INNER"
            " : row / SPLIT * (Index)TOTAL + row % SPLIT * (Index)COLUMNS;",
            "const long long left = (long long)TOTAL - (long long)(row % SPLIT) * COLUMNS;",
            "const int limit = SPLIT > 1 && left < COLUMNS ? (left > 0 ? (int)left : 0) : (int)COLUMNS;",
        ]
        if group > 32:
            lines.append("__shared__ A shared[32];")
        lines += [f"const auto {o.name} = wide(p_{o.name}[row]);" for o in self.by_row]
        lines += [f"A held_{o.name}[HELD ? PACKS : 1][V];" for o in self.full]
        lines.append(self.before)
        unroll = packs if held else min(packs, 8)
        changes: list[str] = []
        for number, stage in enumerate(self.stages):
            again = [*changes, stage.change] if not held or number == 0 else [stage.change]
            changes.append(stage.change)
            lines += [f"A {name} = {neutral(how, self.dtype)};" for name, how, _ in stage.totals]
            updates = [f"{name} = {how}::of({name}, (A)({text}));" for name, how, text in stage.totals]
            lines += self._pass(unroll, not held or number == 0, [*again, *updates])
            for name, how, _ in stage.totals:
                combined = (
                    f"over_group<{how}, GROUP>({name})"
                    if group <= 32
                    else f"over_block<{how}, A>({name}, shared, {neutral(how, self.dtype)})"
                )
                lines.append(f"{name} = {combined};")
            lines.append(stage.then)
        for index, (array, text) in enumerate(self.row_results):
            kind = c_type(dtype_of(array.dtype))
            self.pointers.append((f"row_out{index}", kind, array))
            lines.append(f"if (mine && lane == 0) row_out{index}[row] = narrow<{kind}>((A)({text}));")
        if self.results:
            writes: list[str] = []
            for index, (array, text) in enumerate(self.results):
                kind = c_type(dtype_of(array.dtype))
                self.pointers.append((f"out{index}", kind, array))
                writes.append(f"made{index}.at[j] = narrow<{kind}>((A)({text}));")
            makes = [f"Pack<{c_type(dtype_of(a.dtype))}, V> made{i};" for i, (a, _) in enumerate(self.results)]
            stores = [f"put_pack<{c_type(dtype_of(a.dtype))}, V>(out{i} + at, made{i});"
                      for i, (a, _) in enumerate(self.results)]  # fmt: skip
            again = [] if held else changes
            load = not held or not self.stages
            lines += self._pass(unroll, load, [*again, *writes], makes, [f"if (mine) {{ {' '.join(stores)} }}"])
        return "".join(f"    {line}\n" for line in lines if line)

    def _pass(self, unroll: int, load: bool, work: Sequence[str], makes: Sequence[str] = (),
              stores: Sequence[str] = ()) -> list[str]:  # fmt: skip
        """Return a loop over the row's packs."""
        lines = [
            f"#pragma unroll {unroll}",
            "for (int k = 0; k < PACKS; ++k) {",
            "    const int start = (k * GROUP + lane) * V;",
            "    if (EXACT || start < limit) {",
            "        const Index at = first + (Index)start * INNER;",
            "        const int slot = HELD ? k : 0;",
        ]
        if load:
            lines += [
                f"        const auto packed_{o.name} = pack_at<{c_type(o.dtype)}, V>(p_{o.name} + at);"
                for o in self.full
            ]
        used = [o for o in self.by_column if any(re.search(rf"\b{o.name}\b", text) for text in work)]
        for o in used:
            place = "start" if o.array.size == self.columns else f"(at % {o.array.size})"
            lines.append(f"        const auto packed_{o.name} = pack_at<{c_type(o.dtype)}, V>(p_{o.name} + {place});")
        lines += [f"        {make}" for make in makes]
        lines += ["        #pragma unroll", "        for (int j = 0; j < V; ++j) {"]
        lines.append("            const int column = start + j; (void)column;")
        for o in self.full:
            lines.append(f"            A& {o.name} = held_{o.name}[slot][j];")
            if load:
                lines.append(f"            {o.name} = (A)wide(packed_{o.name}.at[j]);")
        lines += [f"            const A {o.name} = (A)wide(packed_{o.name}.at[j]);" for o in used]
        lines += [f"            {text}" for text in work if text]
        lines += ["        }", *(f"        {store}" for store in stores), "    }", "}"]
        return lines


def rows_along(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, int, int] | None:
    """Return (rows, columns, inner) for `Rows` if the reduction `axes` are adjacent, else None. Dimensions of size 1 do
    not count."""
    taken = [d for d in sorted(axes) if shape[d] > 1]
    size = math.prod(shape)
    if size == 0:
        return None
    if not taken:
        return size, 1, 1
    between = [d for d in range(taken[0], taken[-1] + 1) if shape[d] > 1]
    if between != taken:
        return None
    columns = math.prod(shape[d] for d in taken)
    return size // columns, columns, math.prod(shape[taken[-1] + 1 :])


def normalise(device: Device, name: str, axis: int | tuple[int, ...], full: Sequence[Operand], out: Array,
              stages: Sequence[RowPass], result: str) -> Launch | None:  # fmt: skip
    """Return the launch of a result of the operands' shape, from totals along `axis`; all axes for ()."""
    shape = full[0].array.shape
    given = (axis,) if isinstance(axis, int) else axis
    found = rows_along(shape, axes_in(name, given, len(shape)) if given else range(len(shape)))
    if found is None:
        return None
    rows, columns, inner = found
    return Rows(name, rows, columns, full[0].dtype, stages, full, results=[(out, result)], inner=inner).launch(device)


# These CUDA reductions over any axes combine a value that is computed from operands of one shape.
#
# Neighbouring axes are merged, which leaves a sum along rows (the last axes), along columns (others), or both one after
# the other. If one pass has too few results to fill the GPU, it makes partial ones, which a second pass combines: no
# atomics, the same order at every run.


_BLOCK = 256
_ALIGNMENT = 256


_HOW = {
    "sum": "Sum", "mean": "Sum", "max": "Largest", "min": "Smallest", "prod": "Product", "all": "Smallest",
    "any": "Largest",
}  # fmt: skip
_HOW_BOOL = {"Sum": "Largest", "Product": "Smallest"}


def how_of(reduction: str, is_bool: bool) -> str:
    """Return how a reduction of this name combines elements. A sum of Bool is Bool: whether any element is true."""
    how = _HOW[reduction]
    return _HOW_BOOL.get(how, how) if is_bool else how


@dataclass(frozen=True, slots=True)
class Reduction:
    """totals of `text` along axes, combined by `how`: Sum, Product, Largest or Smallest.

    In `text`, an operand's name is its element as the computing type A; `at` is the element's place in the operand.
    after: expression of the final result in `total`. before_each, before_row: statements before `text` and before the
    elements of one `row` of the operand, seen as rows of elements that remain; they read operands of other shapes
    through their pointers `p_<name>`.
    """

    name: str
    how: str
    text: str
    after: str = "total"
    before_each: str = ""
    before_row: str = ""


@dataclass(frozen=True, slots=True)
class _Pass:
    """Reduces the middle of (outer, count, inner) into (outer, parts, inner)."""

    outer: int
    count: int
    inner: int
    parts: int

    @property
    def results(self) -> int:
        return self.outer * self.parts * self.inner


def reduce(device: Device, reduction: Reduction, shape: Sequence[int], axes: Sequence[int],
           full: Sequence[Operand], out: Array, others: Sequence[Operand] = ()) -> Launch | None:  # fmt: skip
    """Return the launch of a reduction of operands of `shape` along `axes`; None if there is nothing to reduce."""
    if math.prod(shape) == 0:
        return None
    dtype = full[0].dtype
    passes = _passes(shape, axes, device.multiprocessors, lanes_of(dtype.itemsize, shape[-1] if shape else 1))
    word = 8 if accumulating_type(dtype) in ("double", "long long", "u64", "unsigned long long") else 4
    sizes = [-(-each.results * word // _ALIGNMENT) * _ALIGNMENT for each in passes[:-1]]
    scratch = device.scratch(sum(sizes)) if sizes else None
    launches: list[Launch | None] = []
    begin = 0
    source, step = tuple(full), reduction
    for number, each in enumerate(passes):
        last = number == len(passes) - 1
        if last:
            target = out
        else:
            assert scratch is not None
            target = scratch[begin : begin + each.results * word].view(_scratch_dtype(dtype).numpy)
            begin += sizes[number]
        step = replace(step, after=reduction.after if last else "total")
        if each.inner == 1 and not others:
            launches.append(_along_rows(device, step, each, dtype, source, target))
        else:
            launches.append(_along_columns(device, step, each, dtype, source, others, target))
        source, step, others = (Operand("x", target),), Reduction(reduction.name, reduction.how, "x"), ()
    return in_order(*launches)


def _scratch_dtype(dtype: DType) -> DType:
    names = {"float": "Float32", "double": "Float64", "int": "Int32", "unsigned int": "UInt32"}
    return dtype_of(names.get(accumulating_type(dtype), dtype.name))


def _passes(shape: Sequence[int], axes: Sequence[int], multiprocessors: int, lanes: int) -> list[_Pass]:
    """Return the passes of a reduction, the innermost reduced axes first."""
    dims = [(d in axes, n) for d, n in enumerate(shape) if n != 1]
    groups = [(reduced, math.prod(n for _, n in part)) for reduced, part in groupby(dims, key=lambda pair: pair[0])]
    passes: list[_Pass] = []
    while any(reduced for reduced, _ in groups):
        place = max(i for i, (reduced, _) in enumerate(groups) if reduced)
        outer, inner = math.prod(n for _, n in groups[:place]), math.prod(n for _, n in groups[place + 1 :])
        count = groups[place][1]
        parts = _parts(outer, count, inner, multiprocessors, lanes)
        passes.append(_Pass(outer, count, inner, parts))
        if parts > 1:
            passes.append(_Pass(outer, parts, inner, 1))
        rest = [(reduced, n) for i, (reduced, n) in enumerate(groups) if i != place]
        groups = [(reduced, math.prod(n for _, n in part)) for reduced, part in groupby(rest, key=lambda pair: pair[0])]
    return passes or [_Pass(math.prod(shape), 1, 1, 1)]


def _parts(outer: int, count: int, inner: int, multiprocessors: int, lanes: int) -> int:
    """Return how many partial results replace each one to fill the GPU."""
    if inner == 1:
        # A block for each partial result; it should have some packs for each of its threads.
        if outer >= multiprocessors * 2:
            return 1
        return max(1, min(multiprocessors * 4 // outer, count // (_BLOCK * lanes * 4)))
    wide = _wide(outer, inner, multiprocessors, lanes)
    if wide:
        return 1
    blocks = outer * -(-inner // (32 * lanes))
    return max(1, min(multiprocessors * 8 // blocks, count // 32))


def _wide(outer: int, inner: int, multiprocessors: int, lanes: int) -> bool:
    """Return True if there are results enough for a thread to make complete ones."""
    return outer * inner // lanes >= multiprocessors * 1024


def _along_rows(device: Device, reduction: Reduction, each: _Pass, dtype: DType, full: Sequence[Operand],
                out: Array) -> Launch | None:  # fmt: skip
    stage = RowPass((("total", reduction.how, reduction.text),))
    results = [(out, reduction.after)]
    if each.parts == 1:
        rows = Rows(reduction.name, each.outer, each.count, dtype, (stage,), full, row_results=results)
        return rows.launch(device)
    lanes = min(lanes_of(o.dtype.itemsize, each.count, o.array) for o in full)
    length = -(-each.count // (each.parts * lanes)) * lanes
    # With longer pieces the last ones may be empty; they still write the neutral element.
    rows = Rows(reduction.name, each.outer * each.parts, length, dtype, (stage,), full, row_results=results,
                total=each.count, split=each.parts)  # fmt: skip
    return rows.launch(device)


def _along_columns(device: Device, reduction: Reduction, each: _Pass, dtype: DType, full: Sequence[Operand],
                   others: Sequence[Operand], out: Array) -> Launch:  # fmt: skip
    size = max(o.dtype.itemsize for o in full)
    lanes = min(lanes_of(o.dtype.itemsize, each.inner, o.array) for o in full)
    wide = _wide(each.outer, each.inner, device.multiprocessors, lanes) or each.count < 8
    if not wide and each.parts == 1 and each.inner * each.outer < device.multiprocessors * 32 * lanes:
        lanes = 1  # narrow: more threads rather than wider loads
    high = 1 if wide else 32 if lanes == 1 and each.count >= 64 else 8
    across = _BLOCK if high == 1 else 32
    if high == 1:
        lanes = min(lanes, max(1, 16 // size))
    made = dtype_of(out.dtype)
    operands = (*full, *others)
    source = definitions(
        A=accumulating_type(dtype), Index=index_type(each.outer * each.count * each.inner), R=made, COUNT=each.count,
        INNER=each.inner, PARTS=each.parts, V=lanes, X=across, Y=high, LENGTH=-(-each.count // each.parts),
        PACKED=lanes_of(made.itemsize, lanes, out) == lanes,
    )  # fmt: skip
    parameters = [f"const {c_type(o.dtype)}* __restrict__ p_{o.name}" for o in operands]
    loads = [f"const auto packed_{o.name} = pack_at<{c_type(o.dtype)}, V>(p_{o.name} + at0);" for o in full]
    values = [f"const A {o.name} = (A)wide(packed_{o.name}.at[j]);" for o in full]
    source += source_text(
        "ops/cuda/column_reduction.cu", name=reduction.name, parameters=", ".join([*parameters, "R* __restrict__ out"]),
        how=reduction.how, neutral=neutral(reduction.how, dtype), loads=" ".join(loads), values=" ".join(values),
        each=reduction.before_each, row=reduction.before_row, text=reduction.text, after=reduction.after,
    )  # fmt: skip
    kernel = device.kernel(source, reduction.name)
    grid = (-(-each.inner // (across * lanes)) * each.parts * each.outer, 1, 1)
    arguments = [*(o.array for o in operands), out]
    return lambda: kernel(grid, across * high, arguments)
