"""Types of values: element types, tensors and tuples. They are frozen and printable; every layer may import them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.limits import LARGEST_SIZE


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """Element type of a tensor: its name in the text form and its size in bytes. Equal types are one object."""

    name: str
    itemsize: int
    kind: str

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def has_gradient(self) -> bool:
        """Whether a loss can be differentiated by such numbers: floats and complex numbers."""
        return self.kind in "fc"

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; for BFloat16 and Float8 that of the package ml_dtypes."""
        if self.name in _OF_ML_DTYPES:
            import ml_dtypes  # late: only networks in narrow types need it

            return np.dtype(getattr(ml_dtypes, _OF_ML_DTYPES[self.name]))
        return np.dtype(str if self.kind == "U" else self.name.lower())

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype_of, (self.name,)


_OF_ML_DTYPES = {"BFloat16": "bfloat16", "Float8E4M3": "float8_e4m3fn", "Float8E5M2": "float8_e5m2"}

BOOL = DType("Bool", 1, "b")
INT8 = DType("Int8", 1, "i")
INT16 = DType("Int16", 2, "i")
INT32 = DType("Int32", 4, "i")
INT64 = DType("Int64", 8, "i")
UINT8 = DType("UInt8", 1, "u")
UINT16 = DType("UInt16", 2, "u")
UINT32 = DType("UInt32", 4, "u")
UINT64 = DType("UInt64", 8, "u")
FLOAT8_E4M3 = DType("Float8E4M3", 1, "f")
FLOAT8_E5M2 = DType("Float8E5M2", 1, "f")
FLOAT16 = DType("Float16", 2, "f")
BFLOAT16 = DType("BFloat16", 2, "f")
FLOAT32 = DType("Float32", 4, "f")
FLOAT64 = DType("Float64", 8, "f")
COMPLEX64 = DType("Complex64", 8, "c")
COMPLEX128 = DType("Complex128", 16, "c")

STRING = DType("String", 4, "U")
"""The element type of tensors of strings, which data sets return. No operator takes it, so it is not in `DTYPES`."""

AS_STRINGS = "x.asnumpy() is an array of the strings"

HALVES = (FLOAT16, BFLOAT16)
"""Element types in which sums, and especially squares, soon overflow or lose digits."""

EIGHTS = {FLOAT8_E4M3: 448.0, FLOAT8_E5M2: 57344.0}
"""Floating-point types of 8 bits with their largest numbers: E4M3 without infinities, as NVIDIA has it, and E5M2."""

DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        BOOL, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64,
        FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, BFLOAT16, FLOAT32, FLOAT64, COMPLEX64, COMPLEX128,
    )
}  # fmt: skip
_BY_LOWER = {name.lower(): dtype for name, dtype in DTYPES.items()}
_BY_LOWER |= {numpy: DTYPES[name] for name, numpy in _OF_ML_DTYPES.items()}


def dtype_of(value: Any) -> DType:
    """Return the DType named by `value`: a DType, its name in any case, or anything NumPy takes as a dtype. Raise
    MspcError if `value` names no element type that mspc knows."""
    if isinstance(value, DType) and value is not STRING:
        return value
    if value is STRING:
        value = STRING.numpy
    found = _BY_LOWER.get(value.lower()) if isinstance(value, str) else _of_numpy(np.dtype(value))
    if found is None:
        if not isinstance(value, str) and np.dtype(value).kind in "US":
            raise MspcError("no operator takes a tensor of strings", notes=[AS_STRINGS], kind=TypeError)
        name = value if isinstance(value, str) else np.dtype(value).name
        raise MspcError(f"unknown element type {name!r}; known are {', '.join(DTYPES)}", code="E0906")
    return found


@functools.lru_cache(maxsize=256)
def _of_numpy(dtype: np.dtype[Any]) -> DType | None:
    """Return the DType of a NumPy dtype, or None. Cached because NumPy is slow to make the name."""
    return _BY_LOWER.get(dtype.name.lower())


def real_of(dtype: DType) -> DType:
    """Return the element type of the real part of a complex number; any other type is returned as it is."""
    return {COMPLEX64: FLOAT32, COMPLEX128: FLOAT64}.get(dtype, dtype)


def complex_of(dtype: DType) -> DType:
    """Return the complex element type with parts that hold this type: Complex128 for Float64, else Complex64. A complex
    type is returned as it is."""
    return dtype if dtype.is_complex else COMPLEX128 if dtype == FLOAT64 else COMPLEX64


def is_too_large(shape: Iterable[int]) -> bool:
    """Return whether a tensor of this shape has more elements than any memory holds, so that no text may have it."""
    return product_exceeds(filter(None, shape), LARGEST_SIZE)


def product_exceeds(sizes: Iterable[int], most: int) -> bool:
    """Return whether the product of positive sizes exceeds a bound, without computing thousands of digits."""
    product = 1
    for size in sizes:
        product *= size
        if product > most:
            return True
    return False


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor of one element type with a static shape; () is a scalar tensor."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(self.dtype, tuple(shape))

    def __str__(self) -> str:
        return f"<Tensor[{self.dtype}], ({', '.join(map(str, self.shape))})>"


@dataclass(frozen=True, slots=True)
class StackType(TensorType):
    """Tensors of one element type and shape, one for every iteration of a loop; their number is not known yet.

    dtype, shape, size and nbytes are those of one tensor. depth: the number of nested loops; a stack of depth 2 has a
    stack of depth 1 for every iteration.
    """

    depth: int = 1

    @property
    def entry(self) -> TensorType:
        """The type of the entry of one iteration."""
        if self.depth > 1:
            return StackType(self.dtype, self.shape, self.depth - 1)
        return TensorType(self.dtype, self.shape)

    @staticmethod
    def of(entry: TensorType) -> StackType:
        """Return the type of a stack of such entries."""
        return StackType(entry.dtype, entry.shape, entry.depth + 1 if isinstance(entry, StackType) else 1)

    @property
    def kind(self) -> str:
        """`Stack[Float32]`; with depth 2 `Stack[Stack[Float32]]`."""
        return f"{'Stack[' * self.depth}{self.dtype}{']' * self.depth}"

    def with_shape(self, shape: tuple[int, ...]) -> StackType:
        return StackType(self.dtype, tuple(shape), self.depth)

    def __str__(self) -> str:
        return f"<{self.kind}, ({', '.join(map(str, self.shape))})>"


@dataclass(frozen=True, slots=True)
class TupleType:
    """A tuple of tensors, the result of operators with several outputs."""

    elements: tuple[TensorType, ...]

    @property
    def nbytes(self) -> int:
        return sum(element.nbytes for element in self.elements)

    def __str__(self) -> str:
        names: list[str] = []
        run = 0
        for i, element in enumerate(self.elements):
            run += 1
            following = self.elements[i + 1] if i + 1 < len(self.elements) else None
            if following is None or following.with_shape(()) != element.with_shape(()):
                kind = element.kind if isinstance(element, StackType) else f"Tensor[{element.dtype}]"
                names.append(kind + (f"*{run}" if run > 1 else ""))
                run = 0
        shapes = ", ".join(f"({', '.join(map(str, e.shape))})" for e in self.elements)
        return f"<Tuple[{','.join(names)}], TupleShape({shapes})>"


@dataclass(frozen=True, slots=True)
class OpaqueType:
    """A type of another compiler's dump, held only as its text with the angle brackets."""

    text: str

    @property
    def nbytes(self) -> int:
        return 0

    def __str__(self) -> str:
        return self.text


Type = TensorType | TupleType | OpaqueType
