"""These operators compare, or compute with truth values, elementwise with broadcasting; Select chooses between tensors
by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import BOOL, DType, TensorType
from mspc.ops.bases import Elementwise, Predicate, Unary, require_same
from mspc.ops.op import ArrayBackend, NotDifferentiable, sample
from mspc.ops.tensor.broadcast import sum_to_shape
from mspc.sharding.rules import broadcast_rule

_BOOLEAN = NotDifferentiable("its result is Bool")
_COMPARED = (
    sample((8, 16), (8, 16), gradient=False),
    sample((8, 16), (16,), dtypes=("Int32", "Int32"), gradient=False),
    sample((8, 1), (), gradient=False),
)
_LOGICAL = (
    sample((8, 16), (8, 16), dtypes=("Bool", "Bool"), gradient=False),
    sample((8, 16), (8, 1), dtypes=("Bool", "Bool"), gradient=False),
)


class _Comparison(Predicate, abstract=True):
    """This is what comparisons of two numbers share."""

    bprop = _BOOLEAN
    samples = _COMPARED


class Equal(_Comparison):
    """x == y."""

    array_function = "equal"
    takes_all_bits = True
    cuda = "{0} == {1}"


class NotEqual(_Comparison):
    """x != y."""

    array_function = "not_equal"
    takes_all_bits = True
    cuda = "{0} != {1}"


class Greater(_Comparison):
    """x > y."""

    array_function = "greater"
    cuda = "{0} > {1}"


class GreaterEqual(_Comparison):
    """x >= y."""

    array_function = "greater_equal"
    cuda = "{0} >= {1}"


class Less(_Comparison):
    """x < y."""

    array_function = "less"
    cuda = "{0} < {1}"


class LessEqual(_Comparison):
    """x <= y."""

    array_function = "less_equal"
    cuda = "{0} <= {1}"


def _require_bool(name: str, *types: TensorType) -> None:
    for index, operand in enumerate(types):
        if operand.dtype != BOOL:
            raise MspcError(f"{name}: input {index} is {operand.dtype}, not Bool", kind=TypeError)


class _Logical(Predicate, abstract=True):
    """Numbers count as true where they are not 0."""

    promotes = "bool"
    bprop = _BOOLEAN
    samples = _LOGICAL

    def check(self, *types: TensorType) -> None:
        _require_bool(self.name, *types)


class LogicalAnd(_Logical):
    """x and y."""

    array_function = "logical_and"
    joins = "all"
    cuda = "{0} && {1}"


class LogicalOr(_Logical):
    """x or y."""

    array_function = "logical_or"
    joins = "any"
    cuda = "{0} || {1}"


class LogicalXor(_Logical):
    """x or y, not both."""

    array_function = "logical_xor"
    cuda = "{0} != {1}"


class LogicalNot(Unary):
    """not x."""

    array_function = "logical_not"
    cuda = "!{0}"
    promotes = "bool"
    bprop = _BOOLEAN
    samples = (sample((8, 16), dtypes=("Bool",), gradient=False),)

    def check(self, *types: TensorType) -> None:
        _require_bool(self.name, *types)


class _FloatPredicate(Unary, abstract=True):
    """Integers and Bool are looked at as Float32."""

    float_only = True
    promotes = "float"

    def result_dtype(self, *types: TensorType) -> DType:
        return BOOL


class IsNan(_FloatPredicate):
    """Where x is not a number."""

    array_function = "isnan"
    cuda = "{0} != {0}"
    bprop = _BOOLEAN
    samples = (sample((8, 16), gradient=False),)


class IsInf(_FloatPredicate):
    """Where x is an infinity."""

    array_function = "isinf"
    cuda = "{0} == {0} && {0} - {0} != {0} - {0}"
    bprop = _BOOLEAN
    samples = (sample((8, 16), gradient=False),)


class IsFinite(_FloatPredicate):
    """Where x is neither an infinity nor not a number."""

    array_function = "isfinite"
    cuda = "{0} - {0} == T(0)"
    bprop = _BOOLEAN
    samples = (sample((8, 16), gradient=False),)


class Select(Elementwise):
    """x where the condition holds, y elsewhere; all three are broadcast against each other."""

    promotes = "common"
    promotes_from = 1
    cuda = "{0} ? {1} : {2}"

    def rule(self, condition: TensorType, input: TensorType, other: TensorType) -> str:
        return broadcast_rule((condition.shape, input.shape, other.shape))

    def result_dtype(self, *types: TensorType) -> DType:
        return types[1].dtype

    def check(self, *types: TensorType) -> None:
        _require_bool(self.name, types[0])
        require_same(self.name, *types[1:])

    def bprop(
        self, b: Builder, condition: Value, x: Value, y: Value, out: Value, dout: Value
    ) -> Sequence[Value | None]:
        zero = b.constant(0, dout.tensor_type.dtype)
        dx = b.emit(Select(), condition, dout, zero)
        dy = b.emit(Select(), condition, zero, dout)
        return None, sum_to_shape(b, dx, x.shape), sum_to_shape(b, dy, y.shape)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return be.xp.where

    samples = (
        sample((8, 16), (8, 16), (8, 16), dtypes=("Bool", "Float64", "Float64")),
        sample((8, 1), (16,), (), dtypes=("Bool", "Float64", "Float64")),
    )
