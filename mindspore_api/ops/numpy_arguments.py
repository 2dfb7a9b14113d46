"""Checks and conversions of arguments of `mindspore.numpy`, made when a network is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.types import BOOL, FLOAT32, INT32, DType, dtype_of
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.ops.operator_arguments import describe

_NARROWED = {"int64": np.int32, "float64": np.float32}
"""Numbers of Python become tensors of 32 bits."""


def number_kind(value: Any) -> DType:
    """Return the element type of a Python number."""
    return BOOL if isinstance(value, bool) else INT32 if isinstance(value, int) else FLOAT32


def made_of(name: str, obj: Any, dtype: Any = None) -> Tensor:
    """Return a tensor of numbers, of nested lists of numbers, or of tensors known when the network is compiled. Raise
    TypeError if it is something else, ValueError for lists of different lengths."""
    if isinstance(obj, Tensor):
        return obj if dtype is None else obj.astype(dtype_of(dtype))
    try:
        array = np.asarray(_plain(obj))
    except ValueError:
        raise ApiValueError(f"{name}(): the lists in {describe(obj)} are not of one length") from None
    if array.dtype.kind not in "biufc":
        raise ApiTypeError(f"{name}(): {describe(obj)} is neither numbers nor a list of them")
    if dtype is None and not isinstance(obj, np.ndarray):
        array = array.astype(_NARROWED.get(array.dtype.name, array.dtype))
    return Tensor(array if dtype is None else array.astype(dtype_of(dtype).numpy))


def _plain(obj: Any) -> Any:
    if isinstance(obj, (tuple, list)):
        return [_plain(item) for item in obj]
    return obj.asnumpy() if isinstance(obj, Tensor) else obj


def float_type(dtype: DType) -> DType:
    """Return the element type in which a function of real numbers computes."""
    return dtype if dtype.is_float or dtype.is_complex else FLOAT32


def joint(first: DType, second: DType) -> DType:
    """Return the element type of a result of two tensors: the wider one of the higher kind, integers below floats."""
    ranks = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    if first == second or ranks[first.kind] != ranks[second.kind]:
        return first if ranks[first.kind] >= ranks[second.kind] else second
    if {first.name, second.name} == {"Float16", "BFloat16"}:
        return FLOAT32
    if first.kind != second.kind:
        return dtype_of(np.promote_types(first.numpy, second.numpy))
    return first if first.itemsize >= second.itemsize else second


def joint_of(dtypes: Sequence[DType]) -> DType:
    """Return the element type of a result of some tensors."""
    found = dtypes[0]
    for dtype in dtypes[1:]:
        found = joint(found, dtype)
    return found


def spaced(name: str, values: Any, num: Any) -> int:
    """Return the number of elements. Raise TypeError or ValueError for an invalid number."""
    if isinstance(num, bool) or not isinstance(num, int):
        raise ApiTypeError(f"{name}(): num must be an int, not {describe(num)}")
    if num < 0:
        raise ApiValueError(f"{name}(): num {num} must be at least 0")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ApiTypeError(f"{name}(): start and stop must be numbers, not {describe(value)}")
    return num


def line(start: float, stop: float, num: int, endpoint: bool) -> np.ndarray:
    """Return `num` numbers from start to stop, Float64."""
    return np.linspace(start, stop, num, endpoint=endpoint)


def made_line(values: np.ndarray, dtype: Any) -> Tensor:
    """Return the values as a tensor, Float32 unless `dtype` is given."""
    return Tensor(values.astype((FLOAT32 if dtype is None else dtype_of(dtype)).numpy))


def pieces(name: str, size: int, wanted: Any, equal: bool) -> list[tuple[int, int]]:
    """Return (begin, end) of every part of a dimension, for a number of parts or split positions. Raise ValueError if
    `equal` parts are requested and impossible."""
    if isinstance(wanted, int):
        if wanted < 1 or (equal and size % wanted):
            raise ApiValueError(f"{name}(): {size} elements cannot be split into {wanted} equal parts")
        ends = np.cumsum([size // wanted + (i < size % wanted) for i in range(wanted)]).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))
    places = [slice(0, place).indices(size)[1] for place in wanted]
    return list(zip([0, *places], [*places, size], strict=True))


def refuse(name: str, what: str) -> None:
    """Raise ValueError for an unsupported request."""
    raise ApiValueError(f"numpy.{name}(): {what} is not supported")
