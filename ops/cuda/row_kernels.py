"""These CUDA kernels read rows and combine each of them: Softmax, the norms, cross entropies, sums along last axes.

One generated kernel: a row belongs to some lanes of a warp, a full warp or a block, by its length. Rows that fit are
held in registers, so that every operand is read once; longer ones are read again for every stage. A row may also lie
along another axis, one thread for each then. Halves are computed in float; the order of additions never changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.source import (
    COMMON,
    Operand,
    accumulating_type,
    address,
    constants,
    grid_of,
    index_type,
    lanes_of,
    neutral,
    threads_of_row,
)
from mspc.ops.device import Array, Device, Launch, c_type
from mspc.ops.operator_arguments import axes_in

_BLOCK = 128
_LONG_BLOCK = 512
_HELD_WORDS = 64
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
    """The computation on every row. In expressions an operand's name is its element's value in the computing type
    `A`, `column` the element's place in the row, `row` the row's number, COLUMNS the length of a row.

    rows, columns: of the full operands seen as (rows, columns). inner: elements between neighbours of a row, 1 where
    rows are contiguous; row r then is along the middle of (rows / inner, columns, inner).
    full: one value per element. by_row: one value per row. by_column: values that repeat along the elements, one per
    column in most cases.
    before: statements at the start of a row. results: (array, expression) with one value per element.
    row_results: the same with one value per row.
    total, split: rows are pieces of `columns` elements of longer rows of `total`, `split` pieces of each.
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
        """The kernel for these arrays; None where there are no elements."""
        if not self.rows * self.columns:
            return None
        source, blocks, threads = self.source(device.multiprocessors)
        kernel = device.kernel(source, self.name)
        arguments = [array for _, _, array in self.pointers]
        grid = grid_of(blocks)
        return lambda: kernel(grid, threads, arguments)

    def lanes(self) -> int:
        """Neighbouring elements that a thread loads at once."""
        if self.inner > 1:
            return 1
        count = math.gcd(self.columns, self.total) if self.total else self.columns
        operands = [(dtype_of(o.array.dtype).itemsize, count, o.array) for o in self.full]
        operands += [(dtype_of(a.dtype).itemsize, count, a) for a, _ in self.results]
        operands += [(dtype_of(o.array.dtype).itemsize, math.gcd(count, o.array.size), o.array) for o in self.by_column]
        return min(lanes_of(*operand) for operand in operands)

    def group(self, lanes: int, multiprocessors: int) -> tuple[int, bool]:
        """(threads of a row, whether the row stays in registers)."""
        words = max(1, (8 if self.dtype.itemsize == 8 else 4) // 4) * max(1, len(self.full))
        if self.inner > 1:
            return 1, self.columns * words <= 32
        group = threads_of_row(-(-self.columns // lanes), self.rows, multiprocessors, lanes * words, _HELD_WORDS)
        return (_LONG_BLOCK, False) if group is None else (group, bool(self.results) or len(self.stages) > 1)

    def source(self, multiprocessors: int) -> tuple[str, int, int]:
        """(C++ of the kernel, blocks, threads of a block)."""
        lanes = self.lanes()
        group, held = self.group(lanes, multiprocessors)
        threads = group if group > 32 else _BLOCK
        packs = -(-self.columns // (lanes * group))
        exact = not self.total and packs * lanes * group == self.columns
        elements = self.rows // self.split * (self.total or self.columns)
        head = f"typedef {accumulating_type(self.dtype)} A;\ntypedef {index_type(elements)} Index;\n" + constants(
            ROWS=self.rows, COLUMNS=self.columns, INNER=self.inner, GROUP=group, THREADS=threads, V=lanes,
            PACKS=packs, HELD=held, EXACT=exact, TOTAL=self.total or self.columns, SPLIT=self.split,
        )  # fmt: skip
        body = self._body(group, held, packs)
        parameters = ", ".join(
            f"{'const ' if name[:2] == 'p_' else ''}{kind}* {self._restrict()}{name}" for name, kind, _ in self.pointers
        )
        kernel = f'extern "C" __global__ void __launch_bounds__(THREADS) {self.name}({parameters}) {{\n{body}}}\n'
        return COMMON + head + kernel, -(-self.rows // (threads // group)), threads

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
        """A loop over the row's packs."""
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
        used = [o for o in self.by_column if any(_mentions(text, o.name) for text in work)]
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


def _mentions(text: str, name: str) -> bool:
    words = "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
    return name in words


def rows_along(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, int, int] | None:
    """(rows, columns, inner) when a tensor's rows lie along `axes`, as `Rows` takes them; None: they are no such rows.

    Dimensions of size 1 count for nothing; the others of `axes` must be neighbours.
    """
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
    """A result of the operands' shape, out of totals along `axis`; all axes where it is ()."""
    shape = full[0].array.shape
    given = (axis,) if isinstance(axis, int) else axis
    found = rows_along(shape, axes_in(name, given, len(shape)) if given else range(len(shape)))
    if found is None:
        return None
    rows, columns, inner = found
    return Rows(name, rows, columns, full[0].dtype, stages, full, results=[(out, result)], inner=inner).launch(device)
