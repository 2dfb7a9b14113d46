"""Element types and their kinds."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir import types
from mspc.ir.types import BFLOAT16, DType
from mspc.mindspore_api.index.module import beside


class _DtypeKind(type):
    """Metaclass: instances of its classes are the element types of one kind."""

    letters: str

    def __new__(mcs, name: str, bases: tuple[type, ...], names: dict[str, Any], letters: str = "") -> _DtypeKind:
        made = super().__new__(mcs, name, bases, names)
        made.letters = letters
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any], letters: str = "") -> None:
        super().__init__(name, bases, names)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, DType) and ("B" if instance == BFLOAT16 else instance.kind) in cls.letters


class Float(metaclass=_DtypeKind, letters="f"):
    """Float16, Float32, Float64."""


class BFloat(metaclass=_DtypeKind, letters="B"):
    """BFloat16, a separate kind in MindSpore."""


class Int(metaclass=_DtypeKind, letters="i"):
    """Int8 to Int64."""


class UInt(metaclass=_DtypeKind, letters="u"):
    """UInt8 to UInt64."""


class Complex(metaclass=_DtypeKind, letters="c"):
    """Complex64, Complex128."""


class Bool(metaclass=_DtypeKind, letters="b"):
    """Bool."""


class Number(metaclass=_DtypeKind, letters="biufcB"):
    """Every element type."""


bool_ = types.BOOL
int8, int16, int32, int64 = types.INT8, types.INT16, types.INT32, types.INT64
uint8, uint16, uint32, uint64 = types.UINT8, types.UINT16, types.UINT32, types.UINT64
float8_e4m3fn, float8_e5m2 = types.FLOAT8_E4M3, types.FLOAT8_E5M2
float16, bfloat16, float32, float64 = types.FLOAT16, types.BFLOAT16, types.FLOAT32, types.FLOAT64
complex64, complex128 = types.COMPLEX64, types.COMPLEX128
byte, short, half, single, double = int8, int16, float16, float32, float64
int_, uint, float_, long = int64, uint64, float64, int64

int_type = (int8, int16, int32, int64)
uint_type = (uint8, uint16, uint32, uint64)
float_type = (float16, float32, float64, bfloat16)
complex_type = (complex64, complex128)
number_type = int_type + uint_type + float_type + complex_type
all_types = (bool_, *number_type)
number, Type, type_none, string, type_type = Number, DType, type(None), types.STRING, type
ubyte, ushort, uintc, uintp, intc, intp = uint8, uint16, uint32, uint64, int32, int64
cfloat, cdouble = complex64, complex128
list_, tuple_, tensor_type, TensorType = list, tuple, types.TensorType, types.TensorType

__getattr__ = beside(__name__)


def dtype_to_nptype(type_: DType) -> Any:
    """Return the NumPy scalar type of an element type."""
    return type_.numpy.type


def pytype_to_dtype(obj: Any) -> DType:
    """Return the element type of a Python or NumPy type."""
    return {bool: bool_, int: int64, float: float64}.get(obj) or types.dtype_of(np.dtype(obj))


def dtype_to_pytype(type_: DType) -> type:
    """Return bool, int, float or complex."""
    if type_.is_complex:
        return complex
    if type_.is_float:
        return float
    return int if type_.is_integer else bool


def get_py_obj_dtype(obj: Any) -> Any:
    """Return the element type of a tensor, of a Python number or type, or of a NumPy one; an element type is returned
    unchanged."""
    if isinstance(obj, DType):
        return obj
    if hasattr(obj, "dtype") and not isinstance(obj, type):
        return obj.dtype if isinstance(obj.dtype, DType) else types.dtype_of(obj.dtype)
    return pytype_to_dtype(obj if isinstance(obj, type) else type(obj))


def promoted_scalar(dtype: DType, scalar: Any) -> DType:
    """Return the element type of an operation on a tensor and a Python number: the tensor's, unless the number is of a
    higher kind."""
    if isinstance(scalar, bool):
        return dtype
    if isinstance(scalar, int):
        return int64 if dtype == bool_ else dtype
    if isinstance(scalar, complex):
        return types.complex_of(dtype)
    return dtype if dtype.is_float or dtype.is_complex else float32


TensorType, TypeNone = tensor_type, type_none
"""Their names in `_c_expression.typing`."""
