"""A kernel that joins what two slices of the keys give the same queries: one thread for each element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mspc.ir.types import dtype_of
from mspc.ops.device import Array, Device, Launch, c_type

THREADS = 256
_SOURCE = r"""
typedef long long i64;
extern "C" __global__ void join_attention(
    const A* one, const W* of_one, const B* other, const W* of_other, W* out, W* statistics, i64 count,
    i64 heads, i64 queries, i64 depth, i64 batch_step, i64 head_step, i64 query_step
) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    const i64 d = at % depth, row = at / depth, q = row % queries, h = row / queries % heads;
    const i64 here = row / queries / heads * batch_step + h * head_step + q * query_step + d;
    const W left = of_one[row], right = of_other[row], highest = Largest::of(left, right);
    const W none = -INFINITE, top = highest == none ? (W)0 : highest;
    const W a = EXP(left - top), b = EXP(right - top), total = a + b;
    const W safe = total == 0 ? (W)1 : total;
    out[here] = (W)wide(one[here]) * (a / safe) + (W)wide(other[here]) * (b / safe);
    if (d == 0) statistics[row] = total == 0 ? none : top + LOG(safe);
}
"""


def launch_join(device: Device, layout: str, inputs: Sequence[Array], out: Sequence[Array]) -> Launch:
    """Fill out, of (attention, statistics, other attention, other statistics); see `JoinAttention`."""
    one, of_one, other, of_other = inputs
    batch, heads, queries, _ = of_one.shape
    double = of_one.dtype == np.float64
    depth = one.size // max(1, of_one.size)
    defined = {
        "A": c_type(dtype_of(one.dtype)), "B": c_type(dtype_of(other.dtype)), "W": "double" if double else "float",
        "EXP": "exp" if double else "expf", "LOG": "log" if double else "logf",
        "INFINITE": "(W)__int_as_float(0x7f800000)",
    }  # fmt: skip
    text = "".join(f"#define {name} {value}\n" for name, value in defined.items())
    kernel = device.kernel(text + _SOURCE, "join_attention")
    row = heads * depth
    steps = {
        "BNSD": (queries * row, queries * depth, depth), "SBH": (row, depth, batch * row),
    }.get(layout, (queries * row, depth, row))  # fmt: skip
    sizes = [np.int64(n) for n in (one.size, heads, queries, depth, *steps)]
    grid = max(1, -(-one.size // THREADS))

    def launch() -> None:
        kernel(grid, THREADS, [one, of_one, other, of_other, *out, *sizes])

    return launch
