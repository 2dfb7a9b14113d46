"""The CUDA kernels of rows, reductions and moves share this source: element types, packs, and sizes as constants.

Kernels are written for one shape: sizes are constants of the C++, so that the compiler divides by multiplying and
unrolls. A network has few different shapes, and a compiled kernel is kept on disk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, dtype_of
from mspc.ops.device import Array, c_type

PACK_BYTES = 16
"""Bytes that one instruction of a thread loads or stores at most."""

NANOSECONDS = r"""
__device__ __forceinline__ long long nanoseconds() {
    long long at;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(at));
    return at;
}
"""
"""The GPU's clock, for kernels that take time."""

WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "u64", 16: "Sixteen"}
"""The C++ type for so many bytes whose value does not matter; `move.MOVE` has the last."""

COMMON = r"""
__device__ __forceinline__ float exp_of(float v) { return expf(v); }
__device__ __forceinline__ double exp_of(double v) { return exp(v); }
__device__ __forceinline__ float log_of(float v) { return logf(v); }
__device__ __forceinline__ double log_of(double v) { return log(v); }
__device__ __forceinline__ float sqrt_of(float v) { return sqrtf(v); }
__device__ __forceinline__ double sqrt_of(double v) { return sqrt(v); }
template <class V> __device__ __forceinline__ V magnitude(V v) { return v < 0 ? -v : v; }
template <class T, int N> __device__ __forceinline__ Pack<T, N> pack_at(const T* p) { return *(const Pack<T, N>*)p; }
template <class T, int N> __device__ __forceinline__ void put_pack(T* p, const Pack<T, N>& v) { *(Pack<T, N>*)p = v; }
// Combined over GROUP neighbouring lanes of a warp, on all of them.
template <class How, int GROUP, class V> __device__ __forceinline__ V over_group(V v) {
    for (int offset = GROUP / 2; offset; offset >>= 1) v = How::of(v, __shfl_xor_sync(0xffffffffu, v, offset));
    return v;
}
"""


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a generated kernel: its name in the expressions, its array."""

    name: str
    array: Array

    @property
    def dtype(self) -> DType:
        return dtype_of(self.array.dtype)


def address(array: Array) -> int:
    """Where an array of NumPy or CuPy begins."""
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def lanes_of(size: int, count: int, *arrays: Array) -> int:
    """Elements of `size` bytes that a thread moves at once where rows have `count` of them: a power of two."""
    lanes = max(1, PACK_BYTES // size)
    while lanes > 1 and (count % lanes or any(address(array) % (lanes * size) for array in arrays)):
        lanes //= 2
    return lanes


def threads_of_row(packs: int, rows: int, multiprocessors: int, words: int, most: int) -> int | None:
    """Threads of a row that its values stay in registers of, `words` for each pack; None where they do not fit.

    most: registers of a thread of a small block that values may take; half of them in blocks above 256 threads. Few
    rows get more threads each, so that every multiprocessor has work.
    """

    def fits(threads: int, limit: int) -> bool:
        return -(-packs // threads) * words <= limit

    threads = 1
    while threads < 32 and threads < packs:
        threads *= 2
    if threads == 32 and not fits(threads, most):
        threads = 64
        while threads < 1024 and not fits(threads, most // 2):
            threads *= 2
        if not fits(threads, most // 2):
            return None
    while 32 <= threads < 512 and rows * threads < multiprocessors * 1024 and threads < packs:
        threads *= 2
    return threads


def accumulating_type(dtype: DType) -> str:
    """The C++ type that values are reduced in: at least 32 bits, which the shuffles of a warp take."""
    if dtype.is_float:
        return "double" if dtype.name == "Float64" else "float"
    if dtype.name in ("Int64", "UInt64", "UInt32"):
        return c_type(dtype)
    return "int"


def neutral(how: str, dtype: DType) -> str:
    """The C++ constant that changes nothing when combined by `how`."""
    if how == "Sum":
        return "0"
    if how == "Product":
        return "1"
    sign = "-" if how == "Largest" else ""
    if dtype.name == "Float64":
        return f"{sign}__longlong_as_double(0x7ff0000000000000ll)"
    if dtype.is_float:
        return f"{sign}__int_as_float(0x7f800000)"
    bits = 8 * dtype.itemsize
    if dtype.kind in "ub":
        return "0" if how == "Largest" else "1" if dtype.kind == "b" else f"{2**bits - 1}ull"
    return f"(-{2 ** (bits - 1) - 1}ll - 1)" if how == "Largest" else f"{2 ** (bits - 1) - 1}ll"


def constants(**values: Any) -> str:
    """C++ definitions of integers and flags."""
    return "".join(
        f"constexpr {'bool' if isinstance(v, bool) else 'long long' if abs(v) >= 2**31 else 'int'} {name} = "
        f"{str(v).lower()}{'ll' if abs(v) >= 2**31 else ''};\n"
        for name, v in values.items()
    )  # fmt: skip


def index_type(elements: int) -> str:
    """The C++ type for places among so many elements."""
    return "unsigned int" if elements < 2**31 else "u64"


def size_of(array: Array) -> int:
    """Number of elements."""
    return math.prod(array.shape)


def grid_of(blocks: int) -> tuple[int, int, int]:
    """A grid of that many blocks along x."""
    return (max(1, blocks), 1, 1)


def is_contiguous(array: Array, dtypes: Sequence[str]) -> bool:
    """Whether an array has one of these element types, elements, and all of them in their order."""
    return dtype_of(array.dtype).name in dtypes and array.size > 0 and bool(array.flags.c_contiguous)
