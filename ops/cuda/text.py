"""Source common to CUDA kernels: element types, packs, sizes as constants, functions of `cuda` expressions, random
words.

Kernels are written for one shape: sizes are constants of the C++, so that the compiler divides by multiplying and
unrolls. A network has few different shapes, and compiled kernels are cached on disk.
"""

from __future__ import annotations

import math
import re
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
"""The C++ type for a number of bytes whose value does not matter; `move.MOVE` has the last."""

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
    """Return the address of an array of NumPy or CuPy."""
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def lanes_of(size: int, count: int, *arrays: Array) -> int:
    """Return the elements of `size` bytes that a thread moves at once for rows of `count`: a power of two."""
    lanes = max(1, PACK_BYTES // size)
    while lanes > 1 and (count % lanes or any(address(array) % (lanes * size) for array in arrays)):
        lanes //= 2
    return lanes


def threads_of_row(packs: int, rows: int, multiprocessors: int, words: int, most: int) -> int | None:
    """Return the threads of a row whose values stay in their registers, `words` for each pack; None if they do not fit.

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
    """Return the C++ type that values are reduced in: at least 32 bits, which the shuffles of a warp take."""
    if dtype.is_float:
        return "double" if dtype.name == "Float64" else "float"
    if dtype.name in ("Int64", "UInt64", "UInt32"):
        return c_type(dtype)
    return "int"


def neutral(how: str, dtype: DType) -> str:
    """Return the C++ constant that changes nothing when combined by `how`."""
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
    """Return C++ definitions of integers and flags."""
    return "".join(
        f"constexpr {'bool' if isinstance(v, bool) else 'long long' if abs(v) >= 2**31 else 'int'} {name} = "
        f"{str(v).lower()}{'ll' if abs(v) >= 2**31 else ''};\n"
        for name, v in values.items()
    )  # fmt: skip


def index_type(elements: int) -> str:
    """Return the C++ type for places among this number of elements."""
    return "unsigned int" if elements < 2**31 else "u64"


def size_of(array: Array) -> int:
    """Return the number of elements."""
    return math.prod(array.shape)


def grid_of(blocks: int) -> tuple[int, int, int]:
    """Return a grid of that many blocks along x."""
    return (max(1, blocks), 1, 1)


def is_contiguous(array: Array, dtypes: Sequence[str]) -> bool:
    """Whether an array has one of these element types, elements, and all of them in their order."""
    return dtype_of(array.dtype).name in dtypes and array.size > 0 and bool(array.flags.c_contiguous)


# The `cuda` expressions of elementwise operators use these C++ functions in addition to CUDA's own.


TYPES = r"""
// Types of several words by one.
typedef signed char i8; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32;
"""
"""Names of types in expressions."""

INSTRUCTIONS = r"""
// 2 to the power v, and 1 / v for v from 1: one instruction each, 2 units in the last place.
__device__ __forceinline__ float power_of_two(float v) {
    float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r;
}
__device__ __forceinline__ float inverse(float v) {
    float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r;
}
// As `FORMULAS` has them of Float64.
__device__ __forceinline__ float sigmoid(float v) { return inverse(1.0f + power_of_two(v * -1.44269504f)); }
__device__ __forceinline__ float gelu_gate(float v) {
    return inverse(1.0f + power_of_two(v * fmaf(v * v, -0.10294324f, -2.3022082f)));
}
"""
"""Single instructions of a GPU, and functions of Float32 that are made of these."""

FORMULAS = r"""
// The type in which numbers that are no integers meet a T, as NumPy has it.
template <class T> struct Real { typedef double Type; };
template <> struct Real<float> { typedef float Type; };
template <class T, class V> __device__ __forceinline__ typename Real<T>::Type real(V v) {
    return (typename Real<T>::Type)v;
}
__device__ __forceinline__ double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }

template <class E> __device__ __forceinline__ double greatest();
template <> __device__ __forceinline__ double greatest<f16>() { return 65504.0; }
template <> __device__ __forceinline__ double greatest<bf16>() { return 3.3895313892515355e38; }
template <> __device__ __forceinline__ double greatest<float>() { return 3.4028234663852886e38; }
template <> __device__ __forceinline__ double greatest<double>() { return 1.7976931348623157e308; }

__device__ __forceinline__ float absolute(float v) { return fabsf(v); }
__device__ __forceinline__ double absolute(double v) { return fabs(v); }
template <class V> __device__ __forceinline__ V absolute(V v) { return v < V(0) ? V(-v) : v; }

template <class V> __device__ __forceinline__ V sign_of(V v) {  // 0 for NaN
    return v > V(0) ? V(1) : v < V(0) ? V(-1) : V(0);
}
template <class V> __device__ __forceinline__ V clip(V v, V low, V high) { return v < low ? low : v > high ? high : v; }

// Division as NumPy has it: rounded down, or truncated; integers over 0 are 0.
template <class V> __device__ __forceinline__ V over(V a, V b) {
    if (b == V(0)) return V(0);
    return V(-1) < V(0) && b == V(-1) ? V(V(0) - a) : V(a / b);
}
template <class V> __device__ __forceinline__ V rest(V a, V b) {
    return b == V(0) || (V(-1) < V(0) && b == V(-1)) ? V(0) : V(a % b);
}
__device__ __forceinline__ float over(float a, float b) { return truncf(a / b); }
__device__ __forceinline__ double over(double a, double b) { return trunc(a / b); }
__device__ __forceinline__ float rest(float a, float b) { return fmodf(a, b); }
__device__ __forceinline__ double rest(double a, double b) { return fmod(a, b); }

template <class V> __device__ __forceinline__ V floor_rest(V a, V b) {
    V r = rest(a, b);
    return r != V(0) && (r < V(0)) != (b < V(0)) ? V(r + b) : r;
}
template <class V> __device__ __forceinline__ V real_floor_rest(V a, V b) {
    V r = rest(a, b);
    if (b == V(0)) return r;
    return r != V(0) ? (b < V(0)) != (r < V(0)) ? r + b : r : copysign(V(0), b);
}
__device__ __forceinline__ float floor_rest(float a, float b) { return real_floor_rest(a, b); }
__device__ __forceinline__ double floor_rest(double a, double b) { return real_floor_rest(a, b); }

template <class V> __device__ __forceinline__ V floor_over(V a, V b) {
    return V(over(a, b) - V(rest(a, b) != V(0) && (a < V(0)) != (b < V(0))));
}
template <class V> __device__ __forceinline__ V real_floor_over(V a, V b) {
    if (b == V(0)) return a / b;
    V r = rest(a, b);
    V q = (a - r) / b;
    if (r != V(0) && (b < V(0)) != (r < V(0))) q -= V(1);
    if (q == V(0)) return copysign(V(0), a / b);
    V whole = floor(q);
    return q - whole > V(0.5) ? whole + V(1) : whole;
}
__device__ __forceinline__ float floor_over(float a, float b) { return real_floor_over(a, b); }
__device__ __forceinline__ double floor_over(double a, double b) { return real_floor_over(a, b); }

template <class V> __device__ __forceinline__ V power(V a, V b) {
    if (b < V(0)) return a == V(1) ? V(1) : a == V(-1) ? V(b % 2 ? -1 : 1) : V(0);
    V result = 1;
    for (; b > V(0); b = V(b / 2)) {
        if (b % 2) result = V(result * a);
        a = V(a * a);
    }
    return result;
}
// Squares, cubes and their gradients are no more than products: an exponent that is a constant chooses at compile time.
__device__ __forceinline__ float power(float a, float b) {
    return b == 2.0f ? a * a : b == 3.0f ? a * a * a : b == 1.0f ? a : powf(a, b);
}
__device__ __forceinline__ double power(double a, double b) {
    return b == 2.0 ? a * a : b == 3.0 ? a * a * a : b == 1.0 ? a : pow(a, b);
}

// 1 / (1 + exp(-v)); where the exponential overflows this is 0.
__device__ __forceinline__ double sigmoid(double v) { return 1.0 / (1.0 + exp(-v)); }
template <class V> __device__ __forceinline__ V softplus(V v) {  // log(1 + exp(v))
    return log1p(exp(-absolute(v))) + (v < V(0) ? V(0) : v);
}

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)) for u = sqrt(2 / pi) (v + 0.044715 v^3): no cancellation, no tanh.
__device__ __forceinline__ double gelu_gate(double v) {
    return 1.0 / (1.0 + exp(v * (v * v * -0.07135481627260025 - 1.5957691216057308)));
}
template <class V> __device__ __forceinline__ V gelu(V v) { return v * gelu_gate(v); }
template <class V> __device__ __forceinline__ V gelu_slope(V v) {
    V gate = gelu_gate(v);
    return gate * (V(1) + (V(1) - gate) * v * (v * v * V(0.21406444881780076) + V(1.5957691216057308)));
}
"""
"""All other functions; another processor puts its own in the place of `INSTRUCTIONS` before them."""

MATH = TYPES + INSTRUCTIONS + FORMULAS
"""Put between `PRELUDE` and a generated kernel."""


def number(value: float) -> str:
    """Return a number in an expression: a float if the operand is computed in float, else a double."""
    if math.isnan(value):
        return "real<T>(infinity() - infinity())"
    if math.isinf(value):
        return f"real<T>({'-' if value < 0 else ''}infinity())"
    return f"real<T>({float(value)!r})"


_WORDS = {
    "signed char": "i8", "long long": "i64", "unsigned char": "u8", "unsigned short": "u16", "unsigned int": "u32",
    "unsigned long long": "u64",
}  # fmt: skip


def one_word(type: str) -> str:
    """Return a C++ type by a name of one word, as `T(1)` needs it."""
    return _WORDS.get(type, type)


# The generator of random masks in C++, see `ops/random/words.py` and `ops/random/words.py`.


_SEED = re.compile(r"\bseed_(\d+)\b")


def seed_name(value: int) -> str:
    """Return how an expression names a number of seeds that kernels get as an argument, so that operators share
    them."""
    return f"seed_{value}"


def with_arguments(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return (texts in which seeds are called seed0, seed1, ..., their values in this order)."""
    values = list(dict.fromkeys(int(found) for text in texts for found in _SEED.findall(text)))
    return [_SEED.sub(lambda match: f"seed{values.index(int(match[1]))}", text) for text in texts], values


RANDOM = """
constexpr u64 GOLDEN = 0x9E3779B97F4A7C15ull;
__device__ __forceinline__ u64 mixed(u64 word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    return word ^ (word >> 31);
}
// The word that decides the element at a place, its sixteen bits of it, and whether they keep it.
__device__ __forceinline__ u64 word_of_place(u64 place) { return place >> 4 << 2 | (place >> 1 & 3); }
__device__ __forceinline__ unsigned int bits_at(u64 place, u64 key) {
    const u64 word = mixed(word_of_place(place) * GOLDEN + key + GOLDEN);
    return (unsigned int)(word >> (((place & 1) | (place >> 2 & 2)) * 16)) & 0xffff;
}
__device__ __forceinline__ bool keeps(u64 place, u64 key, unsigned int count) { return bits_at(place, key) < count; }
"""
"""Put before a kernel that draws."""
