"""The numbers by which exported programs name element types, layouts and memory formats, schema 8."""

from __future__ import annotations

from mspc.ir.types import (
    BFLOAT16,
    BOOL,
    COMPLEX64,
    COMPLEX128,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)  # fmt: skip

ELEMENT_TYPES: dict[int, DType] = {
    1: UINT8, 2: INT8, 3: INT16, 4: INT32, 5: INT64, 6: FLOAT16, 7: FLOAT32, 8: FLOAT64, 10: COMPLEX64, 11: COMPLEX128,
    12: BOOL, 13: BFLOAT16, 28: UINT16, 34: UINT32, 35: UINT64,
}  # fmt: skip
NOT_HERE: dict[int, str] = {
    9: "complex32", 29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
}  # fmt: skip
"""Element types that PyTorch has and mspc has not."""
LAYOUTS: dict[int, str] = {
    1: "sparse_coo", 2: "sparse_csr", 3: "sparse_csc", 4: "sparse_bsr", 5: "sparse_bsc", 6: "mkldnn", 7: "strided",
}  # fmt: skip
STRIDED = 7
MEMORY_FORMATS: dict[int, str] = {
    1: "contiguous_format", 2: "channels_last", 3: "channels_last_3d", 4: "preserve_format",
}  # fmt: skip


def element_type(code: object, where: str) -> DType:
    """The element type of a number. Raises ValueError: there is none, or mspc does not have it."""
    found = ELEMENT_TYPES.get(code) if type(code) is int else None
    if found is None:
        name = NOT_HERE.get(code) if type(code) is int else None
        if name is not None:
            raise ValueError(f"{where} is of {name}, which mspc does not have")
        raise ValueError(f"{where} has element type {code!r:.40}, which no version of the format knows")
    return found


def named(code: object, names: dict[int, str], where: str) -> str:
    """The name of a number. Raises ValueError: it has none."""
    found = names.get(code) if type(code) is int else None
    if found is None:
        raise ValueError(f"{where} is {code!r:.40}, which no version of the format knows")
    return found
