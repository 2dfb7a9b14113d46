"""These CUDA reductions over any axes combine a value that is computed from operands of one shape.

Neighbouring axes are merged; what is left is a sum along rows (the last axes), along columns (others), or both one
after the other. Where one pass has too few results to fill the GPU, it makes partial ones, which a second pass
combines: no atomics, the same order at every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.row_kernels import RowPass, Rows
from mspc.ops.cuda.source import (
    COMMON,
    Operand,
    accumulating_type,
    constants,
    index_type,
    lanes_of,
    neutral,
)
from mspc.ops.device import Array, Device, Launch, c_type, in_order

_BLOCK = 256
_ALIGNMENT = 256


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
    """Launch of a reduction of operands of `shape` along `axes`; None where there is nothing to reduce."""
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
    """The passes of a reduction, the innermost reduced axes first."""
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
    """How many partial results replace each one, so that the GPU is full."""
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
    """Whether there are results enough for a thread to make complete ones."""
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
    # With longer pieces the last ones may have nothing left; they still write what changes nothing.
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
    kind, made = c_type(dtype_of(out.dtype)), dtype_of(out.dtype).itemsize
    operands = (*full, *others)
    source = COMMON + f"typedef {accumulating_type(dtype)} A;\n"
    source += f"typedef {index_type(each.outer * each.count * each.inner)} Index;\ntypedef {kind} R;\n"
    source += constants(COUNT=each.count, INNER=each.inner, PARTS=each.parts, V=lanes, X=across, Y=high,
                        LENGTH=-(-each.count // each.parts), PACKED=lanes_of(made, lanes, out) == lanes)  # fmt: skip
    parameters = [f"const {c_type(o.dtype)}* __restrict__ p_{o.name}" for o in operands]
    loads = [f"const auto packed_{o.name} = pack_at<{c_type(o.dtype)}, V>(p_{o.name} + at0);" for o in full]
    values = [f"const A {o.name} = (A)wide(packed_{o.name}.at[j]);" for o in full]
    source += _COLUMNS
    for key, text in {
        "NAME": reduction.name, "PARAMETERS": ", ".join([*parameters, "R* __restrict__ out"]), "HOW": reduction.how,
        "NEUTRAL": neutral(reduction.how, dtype), "LOADS": " ".join(loads), "VALUES": " ".join(values),
        "EACH": reduction.before_each, "ROW": reduction.before_row, "TEXT": reduction.text, "AFTER": reduction.after,
    }.items():  # fmt: skip
        source = source.replace(f"@{key}@", text)
    kernel = device.kernel(source, reduction.name)
    grid = (-(-each.inner // (across * lanes)) * each.parts * each.outer, 1, 1)
    arguments = [*(o.array for o in operands), out]
    return lambda: kernel(grid, across * high, arguments)


_COLUMNS = r"""
// Sums along the middle of (outer, COUNT, INNER), whose elements are divided into PARTS of LENGTH: X threads side by
// side with V columns each, Y of them below each other.
constexpr int TILES = (INNER + X * V - 1) / (X * V);
extern "C" __global__ void __launch_bounds__(X * Y) @NAME@(@PARAMETERS@) {
    const int lane = threadIdx.x % X, deep = threadIdx.x / X;
    const Index part = blockIdx.x / TILES % PARTS, outer = blockIdx.x / TILES / PARTS;
    const Index column = ((Index)(blockIdx.x % TILES) * X + lane) * V;
    A totals[V];
    #pragma unroll
    for (int j = 0; j < V; ++j) totals[j] = @NEUTRAL@;
    if (column < INNER) {
        const Index begin = part * LENGTH;
        const Index end = begin + LENGTH < COUNT ? begin + LENGTH : COUNT;
        #pragma unroll 8
        for (Index r = begin + deep; r < end; r += Y) {
            const Index at0 = (outer * COUNT + r) * INNER + column;
            @LOADS@
            const Index row = outer * COUNT + r; (void)row;
            @ROW@
            #pragma unroll
            for (int j = 0; j < V; ++j) {
                const Index at = at0 + j; (void)at;
                @VALUES@
                @EACH@
                totals[j] = @HOW@::of(totals[j], (A)(@TEXT@));
            }
        }
    }
    if (Y == 1) {
        if (column < INNER) {
            Pack<R, V> made;
            #pragma unroll
            for (int j = 0; j < V; ++j) {
                const A total = totals[j];
                made.at[j] = narrow<R>((A)(@AFTER@));
            }
            if (PACKED) put_pack<R, V>(out + (outer * PARTS + part) * INNER + column, made);
            else for (int j = 0; j < V; ++j) out[(outer * PARTS + part) * INNER + column + j] = made.at[j];
        }
        return;
    }
    __shared__ A all[Y][V][X];
    #pragma unroll
    for (int j = 0; j < V; ++j) all[deep][j][lane] = totals[j];
    __syncthreads();
    for (int t = threadIdx.x; t < X * V; t += X * Y) {
        A total = all[0][t % V][t / V];
        #pragma unroll
        for (int d = 1; d < Y; ++d) total = @HOW@::of(total, all[d][t % V][t / V]);
        const Index place = (Index)(blockIdx.x % TILES) * (X * V) + t;
        if (place < INNER) out[(outer * PARTS + part) * INNER + place] = narrow<R>((A)(@AFTER@));
    }
}
"""
