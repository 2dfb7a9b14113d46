"""Python's operators on Tensors outside of a compiled graph are computed by NumPy, in element types as MindSpore's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from mspc.api.common.dtype import promoted_scalar
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.ir.diagnostics import value_repr
from mspc.ir.types import FLOAT32, dtype_of
from mspc.ops.bases import promoted


class TensorOperators:
    """Mixed into Tensor, which supplies `array` and `_derived`."""

    array: np.ndarray
    _derived: Any

    def _binary(
        self, other: Any, function: Callable[..., Any], swapped: bool, divide: bool = False, symbol: str = ""
    ) -> Any:
        """`function` of both; a `symbol` is that of an operator on integers and Bool alone."""
        left = self.array
        if isinstance(other, (TensorOperators, np.ndarray)):
            right = other.array if isinstance(other, TensorOperators) else other
            kind = promoted(dtype_of(left.dtype), dtype_of(right.dtype))
        elif isinstance(other, (bool, int, float, np.generic)):
            right = other
            kind = promoted_scalar(
                dtype_of(left.dtype), other.item() if isinstance(other, np.generic) else other
            )
        else:
            return NotImplemented
        if divide and not kind.has_gradient:
            kind = FLOAT32
        if symbol and kind.is_float:
            raise ApiTypeError(f"operator {symbol} takes integers and Bool, not {kind}")
        try:
            operands = (np.asarray(left, kind.numpy), np.asarray(right, kind.numpy))
        except OverflowError:
            raise ApiValueError(f"{value_repr(right)} is no number of {kind}") from None
        try:
            return self._derived(function(*(operands[::-1] if swapped else operands)), other)
        except TypeError:
            name = getattr(function, "__name__", "operator")
            raise ApiTypeError(f"{name}() takes no {kind}") from None
        except ValueError as error:
            if function is np.power and "power" in str(error):
                raise ApiValueError("operator **: integers have no negative powers that are integers") from None
            raise ApiValueError(f"shapes {left.shape} and {np.shape(right)} do not fit") from None

    def __neg__(self) -> Self:
        if self.array.dtype == bool:
            raise ApiTypeError("operator -: the tensor is Bool, which has no sign; logical_not turns it round")
        return self._derived(-self.array)

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self._derived(np.abs(self.array))

    def __invert__(self) -> Self:
        if self.array.dtype.kind not in "biu":
            raise ApiTypeError(f"operator ~ takes integers and Bool, not {dtype_of(self.array.dtype)}")
        return self._derived(~self.array)

    def __matmul__(self, other: Any) -> Any:
        return self._binary(other, np.matmul, False)

    def __rmatmul__(self, other: Any) -> Any:
        return self._binary(other, np.matmul, True)


def _binary_method(
    function: Callable[..., Any], swapped: bool, divide: bool = False, symbol: str = ""
) -> Callable[..., Any]:
    def method(self: TensorOperators, other: Any) -> Any:
        return self._binary(other, function, swapped, divide, symbol)

    return method


_ARITHMETIC: dict[str, tuple[Any, bool, str]] = {
    "add": (np.add, False, ""), "sub": (np.subtract, False, ""), "mul": (np.multiply, False, ""),
    "truediv": (np.true_divide, True, ""), "floordiv": (np.floor_divide, False, ""), "mod": (np.mod, False, ""),
    "pow": (np.power, False, ""), "and": (np.bitwise_and, False, "&"), "or": (np.bitwise_or, False, "|"),
    "xor": (np.bitwise_xor, False, "^"),
}  # fmt: skip
for _name, (_function, _divide, _symbol) in _ARITHMETIC.items():
    setattr(TensorOperators, f"__{_name}__", _binary_method(_function, False, _divide, _symbol))
    setattr(TensorOperators, f"__r{_name}__", _binary_method(_function, True, _divide, _symbol))
for _name, _function in {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal,
}.items():  # fmt: skip
    setattr(TensorOperators, f"__{_name}__", _binary_method(_function, False))
