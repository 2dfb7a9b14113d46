"""Parts of the source of CUDA kernels: element types, sizes as constants, and numbers in expressions.

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


WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "u64", 16: "Sixteen"}
"""C++ type of a number of raw bytes; prelude.cuh defines the last."""


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
    """Return the threads per row that keep its values in registers, `words` per pack; None if they do not fit. most:
    registers of a thread for values in a small block; half of them in blocks above 256 threads. Few rows get more
    threads each, to fill every multiprocessor."""

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
    """Return the C++ accumulation type: at least 32 bits, as warp shuffles require."""
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


def definitions(**values: Any) -> str:
    """Return C++ definitions of types (a C++ type or an element type), of integers and of flags."""
    return "".join(_definition(name, value) for name, value in values.items())


def _definition(name: str, value: Any) -> str:
    if isinstance(value, str | DType):
        return f"typedef {value if isinstance(value, str) else c_type(value)} {name};\n"
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};\n"
    wide = abs(value) >= 2**31
    return f"constexpr {'long long' if wide else 'int'} {name} = {value}{'ll' if wide else ''};\n"


def macros(**values: object) -> str:
    """Return C++ definitions of macros."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def index_type(elements: int) -> str:
    """Return the C++ type of indices below this number of elements."""
    return "unsigned int" if elements < 2**31 else "u64"


def size_of(array: Array) -> int:
    """Return the number of elements."""
    return math.prod(array.shape)


def grid_of(blocks: int) -> tuple[int, int, int]:
    """Return a grid of that many blocks along x."""
    return (max(1, blocks), 1, 1)


def power_of_two(least: int) -> int:
    """Return the smallest power of two that is at least so large."""
    return 1 << max(0, least - 1).bit_length()


def is_contiguous(array: Array, dtypes: Sequence[str]) -> bool:
    """Whether an array has one of these element types, elements, and all of them in their order."""
    return dtype_of(array.dtype).name in dtypes and array.size > 0 and bool(array.flags.c_contiguous)


def number(value: float) -> str:
    """Return a number in an expression: a float if the operand is computed in float, else a double."""
    if math.isnan(value):
        return "real<T>(infinity() - infinity())"
    if math.isinf(value):
        return f"real<T>({'-' if value < 0 else ''}infinity())"
    return f"real<T>({float(value)!r})"


def combining(how: str, dtype: DType) -> str:
    """Return the definitions of how kernels combine elements."""
    return definitions(How=how) + macros(NEUTRAL=neutral(how, dtype))


_WORDS = {
    "signed char": "i8", "long long": "i64", "unsigned char": "u8", "unsigned short": "u16", "unsigned int": "u32",
    "unsigned long long": "u64",
}  # fmt: skip


def one_word(type: str) -> str:
    """Return a C++ type by a name of one word, as `T(1)` needs it."""
    return _WORDS.get(type, type)


_SEED = re.compile(r"\bseed_(\d+)\b")


def seed_name(value: int) -> str:
    """Return how an expression names a number of seeds that kernels get as an argument, so that operators share
    them."""
    return f"seed_{value}"


def with_arguments(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return (texts with seeds named seed0, seed1, ..., their values in this order)."""
    values = list(dict.fromkeys(int(found) for text in texts for found in _SEED.findall(text)))
    return [_SEED.sub(lambda match: f"seed{values.index(int(match[1]))}", text) for text in texts], values
