"""The description of an attention on a GPU, and small kernels around fused ones: constants, addends, joins of
results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of
from mspc.ops.device import Array, Device, Launch, c_type
from mspc.ops.nn.attention_kernel import Scores, Shape

_ALIGNED = 256
_THREADS = 256
LOWEST = {"float16": -65504.0, "bfloat16": -1.7e38}
"""The value of a masked score if the fused kernel takes no masks: the softmax makes 0 of it; minus infinity could make
NaN of a query that looks at no key."""


@dataclass(frozen=True)
class Attention:
    """Operands on a GPU: query, key, value (and the gradient of the result) by head, the statistics."""

    shape: Shape
    scores: Scores
    operands: Sequence[Array]
    statistics: Array


_CONSTANTS = r"""
extern "C" __global__ void attention_constants(W* ones, long long count, E* zero) {
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) ones[at] = 1;
    if (at == 0) *zero = narrow<E>((W)0);
}
"""
"""E: elements in memory, W: those of the statistics."""
_ADDEND = r"""
typedef long long i64;
// An addend for kernels that know no masks: shift, or `lowest` where a query does not look at a key.
extern "C" __global__ void attention_addend(
    E* to, i64 count, int heads, int queries, int keys, float lowest, const F* shift, i64 f_b, i64 f_n, i64 f_i,
    i64 f_j, const M* mask, i64 m_b, i64 m_n, i64 m_i, i64 m_j) {
    i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    i64 row = at / keys, b = row / queries / heads, n = row / queries % heads, i = row % queries, j = at % keys;
    float value = SHIFTED ? (float)wide(shift[b * f_b + n * f_n + i * f_i + j * f_j]) : 0;
    if (MASKED && mask[b * m_b + n * m_n + i * m_i + j * m_j]) value = lowest;
    to[at] = narrow<E>(value < lowest ? lowest : value);
}
"""
"""E: elements in memory, F: of the shift, M: of the mask."""


def aligned_bytes(nbytes: int) -> int:
    """Return the bytes that an array of `nbytes` bytes takes in scratch memory."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def fill_constants(device: Device, ones: Array, zero: Array) -> Launch:
    """Return the launch that fills the placeholders of attention's second and third result."""
    types = f"#define E {c_type(dtype_of(zero.dtype))}\n#define W {c_type(dtype_of(ones.dtype))}\n"
    kernel = device.kernel(types + _CONSTANTS, "attention_constants")
    return partial(kernel, max(1, -(-ones.size // _THREADS)), _THREADS, (ones, np.int64(ones.size), zero))


def addend_of(device: Device, attention: Attention) -> tuple[Array, Launch | None]:
    """Return the tensor that a fused kernel for halves adds to the scores, [batch or 1, heads or 1, queries, keys] in
    the operands' type, and the launch that fills it, if any."""
    shape, shift, mask = attention.shape, attention.scores.shift, attention.scores.mask
    dtype = attention.operands[0].dtype
    parts = [part for part in (shift, mask) if part is not None]
    full = (max(part.shape[0] for part in parts), max(part.shape[1] for part in parts), shape.queries, shape.keys)
    if mask is None and shift.shape == full and shift.dtype == dtype:
        return shift, None
    made = device.scratch(math.prod(full) * dtype.itemsize).view(dtype).reshape(full)
    kinds = [c_type(dtype_of((attention.statistics if part is None else part).dtype)) for part in (shift, mask)]
    known = {
        "E": c_type(dtype_of(dtype)), "F": kinds[0], "M": kinds[1], "SHIFTED": int(shift is not None),
        "MASKED": int(mask is not None),
    }  # fmt: skip
    text = "".join(f"#define {name} {value}\n" for name, value in known.items())
    kernel = device.kernel(text + _ADDEND, "attention_addend")
    sizes = np.int64(made.size), *map(np.int32, full[1:]), np.float32(LOWEST[dtype.name])
    terms = addends(attention)[:10]  # of shift and mask
    return made, partial(kernel, -(-made.size // _THREADS), _THREADS, (made, *sizes, *terms))


def addends(attention: Attention) -> list[Any]:
    """Return shift, mask and the addend of each key, with their strides in elements, 0 along repeated dimensions. The
    statistics replace a missing one, which is not read."""
    arguments: list[Any] = []
    scores = attention.scores
    every = (0, 1, 2, 3)
    for array, dimensions in ((scores.shift, every), (scores.mask, every), (scores.key_shift, (0, 1, 3))):
        if array is None:
            arguments += [attention.statistics, *[np.int64(0)] * len(dimensions)]
            continue
        strides = [0 if array.shape[d] == 1 else array.strides[d] // array.itemsize for d in dimensions]
        arguments += [array, *map(np.int64, strides)]
    return arguments


def first_row(array: Array) -> Array:
    """Return the start of a view by head, for kernels that get its strides: rows are contiguous, it need not be."""
    return array[:1, :1, :1]


# A kernel that joins the results of two slices of the keys for the same queries: one thread for each element.


_JOIN = r"""
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
    kernel = device.kernel(text + _JOIN, "join_attention")
    row = heads * depth
    steps = {
        "BNSD": (queries * row, queries * depth, depth), "SBH": (row, depth, batch * row),
    }.get(layout, (queries * row, depth, row))  # fmt: skip
    sizes = [np.int64(n) for n in (one.size, heads, queries, depth, *steps)]
    grid = max(1, -(-one.size // _THREADS))

    return partial(kernel, grid, _THREADS, [one, of_one, other, of_other, *out, *sizes])
