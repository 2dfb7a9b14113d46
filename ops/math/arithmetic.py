"""Elementwise arithmetic, comparisons and logic of two tensors, of floating-point numbers and of integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.types import BOOL, DType, TensorType
from mspc.ops.bases import Binary, Elementwise, Family, Predicate, Unary, operator
from mspc.ops.cpu.blocks import written
from mspc.ops.op import ArrayBackend, Gradients, NotDifferentiable, Op, require_same, sample
from mspc.ops.operator_arguments import sequence_of
from mspc.ops.tensor.reshape import sum_to_shape
from mspc.sharding.rules import broadcast_rule, same_rule


def constant(b: Builder, number: float, like: Value) -> Value:
    """Return a scalar of the element type of `like`."""
    return b.constant(number, like.tensor_type.dtype)


def scaled(b: Builder, number: float, value: Value) -> Value:
    return b.emit(Mul(), value, constant(b, number, value))


class Term:
    """A value in the formula of a gradient: arithmetic on it emits operators, and numbers are of its element type."""

    def __init__(self, b: Builder, value: Value) -> None:
        self.b, self.value = b, value

    def into(self, op: Op, *others: Term | float) -> Term:
        """Return the result of an operator on this value and others."""
        return Term(self.b, self.b.emit(op, self.value, *map(self._operand, others)))

    def _operand(self, other: Term | float) -> Value:
        return other.value if isinstance(other, Term) else constant(self.b, other, self.value)

    def __add__(self, other: Term | float) -> Term:
        return self.into(Add(), other)

    def __sub__(self, other: Term | float) -> Term:
        return self.into(Sub(), other)

    def __rsub__(self, other: float) -> Term:
        return Term(self.b, self.b.emit(Sub(), self._operand(other), self.value))

    def __mul__(self, other: Term | float) -> Term:
        return self.into(Mul(), other)

    def __truediv__(self, other: Term | float) -> Term:
        return self.into(Div(), other)

    def __neg__(self) -> Term:
        return self.into(Neg())

    def conjugate(self) -> Term:
        """Return the conjugate of a complex tensor, and a real one itself: gradients are those of the real and of the
        imaginary part as one complex number, so that that of x * y in x is dout * conj(y)."""
        return self.into(Conj()) if self.value.tensor_type.dtype.is_complex else self


def select(condition: Term, x: Term, other: Term | float) -> Term:
    """Return x if the condition is true, else the other."""
    return condition.into(Select(), x, other if isinstance(other, Term) else Term(x.b, constant(x.b, other, x.value)))


Formula = Callable[[Term, Term, Term], Term]
"""The gradient of an operand from the operand, the result and the gradient of the result."""


def unary(
    name: str, text: str, base: type[Family], gradient: Formula, run: Callable[[Any, Any], Any] | None = None,
    **declared: Any,
) -> type[Family]:  # fmt: skip
    """Make an operator of one tensor from a row of its family's table. gradient: see `Formula`. run: the kernel, of the
    array module and the operand; None: `array_function` names it."""

    def bprop(self: Op, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (gradient(Term(b, x), Term(b, out), Term(b, dout)).value,)

    return operator(name, text, base, bprop=bprop, **_kernel(run), **declared)


def binary(
    name: str, text: str, base: type[Family], gradient: Callable[..., tuple[Term | None, Term | None]],
    run: Callable[[Any, Any, Any], Any] | None = None, **declared: Any,
) -> type[Family]:  # fmt: skip
    """Make an operator of two tensors, as `unary` does. gradient: of both operands, from these, the result and its
    gradient; the terms are then summed to the operands' shapes."""

    def bprop(self: Op, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        found = gradient(*(Term(b, value) for value in (x, y, out, dout)))
        pairs = zip(found, (x, y), strict=True)
        return tuple(None if term is None else sum_to_shape(b, term.value, value.shape) for term, value in pairs)

    return operator(name, text, base, bprop=bprop, **_kernel(run), **declared)


def _kernel(run: Callable[..., Any] | None) -> dict[str, Any]:
    """Return the declaration of a kernel that is a function of the array module and the operands."""

    def compute(self: Op, xp: Any, *inputs: Any) -> Any:
        assert run is not None
        return run(xp, *inputs)

    return {} if run is None else {"compute": compute}


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
    """Base of comparisons of two numbers."""

    bprop = _BOOLEAN
    samples = _COMPARED


Equal = operator(
    "Equal", "x == y.", _Comparison, array_function="equal", takes_all_bits=True, takes_complex=True, cuda="{0} == {1}"
)
NotEqual = operator(
    "NotEqual", "x != y.", _Comparison, array_function="not_equal", takes_all_bits=True, takes_complex=True,
    cuda="{0} != {1}",
)
Greater = operator("Greater", "x > y.", _Comparison, array_function="greater", cuda="{0} > {1}")
GreaterEqual = operator("GreaterEqual", "x >= y.", _Comparison, array_function="greater_equal", cuda="{0} >= {1}")
Less = operator("Less", "x < y.", _Comparison, array_function="less", cuda="{0} < {1}")
LessEqual = operator("LessEqual", "x <= y.", _Comparison, array_function="less_equal", cuda="{0} <= {1}")


def _require_bool(name: str, *types: TensorType) -> None:
    for index, operand in enumerate(types):
        if operand.dtype != BOOL:
            raise MspcError(f"{name}: input {index} is {operand.dtype}, not Bool", kind=TypeError, code="E0304")


class _Logical(Predicate, abstract=True):
    """Base of logical operators; numbers count as true if they are not 0."""

    promotes = "bool"
    bprop = _BOOLEAN
    samples = _LOGICAL

    def check(self, *types: TensorType) -> None:
        _require_bool(self.name, *types)


LogicalAnd = operator("LogicalAnd", "x and y.", _Logical, array_function="logical_and", joins="all", cuda="{0} && {1}")
LogicalOr = operator("LogicalOr", "x or y.", _Logical, array_function="logical_or", joins="any", cuda="{0} || {1}")
LogicalXor = operator("LogicalXor", "x or y, not both.", _Logical, array_function="logical_xor", cuda="{0} != {1}")


LogicalNot = operator(
    "LogicalNot", "not x.", Unary, array_function="logical_not", cuda="!{0}", promotes="bool", bprop=_BOOLEAN,
    check=_Logical.check, samples=(sample((8, 16), dtypes=("Bool",), gradient=False),), __module__=__name__,
)  # fmt: skip


class _FloatPredicate(Unary, abstract=True):
    """Predicates that take integers and Bool as Float32."""

    float_only = True
    takes_complex = True
    promotes = "float"
    bprop = _BOOLEAN
    result_dtypes = (BOOL,)
    samples = (sample((8, 16), gradient=False),)


IsNan = operator("IsNan", "True for NaN.", _FloatPredicate, array_function="isnan", cuda="{0} != {0}")
IsInf = operator(
    "IsInf", "True for an infinity.", _FloatPredicate,
    array_function="isinf", cuda="{0} == {0} && {0} - {0} != {0} - {0}",
)  # fmt: skip
IsFinite = operator(
    "IsFinite", "True unless x is NaN or an infinity.", _FloatPredicate,
    array_function="isfinite", cuda="{0} - {0} == T(0)",
)  # fmt: skip


class Select(Elementwise):
    """x if the condition is true, else y; all three are broadcast against each other."""

    takes_complex = True
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

    def bprop(self, b: Builder, condition: Value, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
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

BINARY_SAMPLES = (
    sample((8, 16), (8, 16)),
    sample((8, 16), (16,)),
    sample((8, 16), ()),
    sample((8, 1), (1, 16)),
)
POSITIVE_SAMPLES = (
    sample((8, 16), (8, 16), low=0.5),
    sample((16,), (8, 16), low=0.5),
    sample((), (8, 16), low=0.5),
)


def gradients(b: Builder, x: Value, y: Value, dx: Value, dy: Value) -> Gradients:
    """Return the gradients of two broadcast operands, summed to their shapes."""
    return sum_to_shape(b, dx, x.shape), sum_to_shape(b, dy, y.shape)


Conj = unary(
    "Conj", "The complex conjugate; a real number is its own.", Unary, lambda x, y, d: d.into(Conj()), takes_bool=False,
    takes_complex=True, array_function="conjugate", linear_in=(0,), cuda="{0}", samples=(sample((8, 16)),),
    __module__=__name__,
)  # fmt: skip


Add = binary(
    "Add", "x + y.", Binary, lambda x, y, out, d: (d, d), takes_complex=True, array_function="add", additive=True,
    joins="sum", cuda="{0} + {1}", __module__=__name__,
    samples=(*BINARY_SAMPLES, sample((8, 16), (16,), dtypes=("Int32", "Int32"), gradient=False)),
)  # fmt: skip


class Sub(Binary):
    """x - y."""

    takes_bool = False
    takes_complex = True
    array_function = "subtract"
    additive = True
    cuda = "{0} - {1}"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        return sum_to_shape(b, dout, x.shape), b.emit(Neg(), sum_to_shape(b, dout, y.shape))

    samples = BINARY_SAMPLES


Mul = binary(
    "Mul", "x * y.", Binary, lambda x, y, out, d: (d * y.conjugate(), d * x.conjugate()), takes_complex=True,
    array_function="multiply", linear_in=(0, 1), joins="prod", cuda="{0} * {1}", samples=BINARY_SAMPLES,
    __module__=__name__,
)  # fmt: skip


class _Quotient(Binary, abstract=True):
    """True division; integers have to be cast to floating point first."""

    takes_complex = True
    array_function = "divide"
    promotes = "float"
    float_only = True
    linear_in = (0,)
    cuda = "{0} / {1}"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        dx = Term(b, dout).into(type(self)(), Term(b, y).conjugate())
        dy = sum_to_shape(b, (dx * Term(b, out).conjugate()).value, y.shape)
        return sum_to_shape(b, dx.value, x.shape), b.emit(Neg(), dy)

    samples = POSITIVE_SAMPLES


Div = operator("Div", "x / y.", _Quotient)
RealDiv = operator("RealDiv", "x / y.", _Quotient)


class Neg(Unary):
    """-x."""

    takes_complex = True
    array_function = "negative"
    linear_in = (0,)
    cuda = "-{0}"

    def check(self, *types: TensorType) -> None:
        if types[0].dtype == BOOL:
            text = f"{self.name}: input is Bool, which has no sign; logical_not turns it round"
            raise MspcError(text, kind=TypeError)
        super().check(*types)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Neg(), dout),)

    samples = (sample((8, 16)), sample((8,), dtypes=("Int32",), gradient=False), sample(()))


class _Division(Binary, abstract=True):
    """Division with a quotient without fraction, whose derivative is 0, or with a remainder."""

    takes_bool = False
    samples = (
        sample((8, 16), (16,), low=0.5),
        sample((8, 16), (8, 1), dtypes=("Int32", "Int32"), low=1, high=9, gradient=False),
    )


FloorDiv = binary(
    "FloorDiv", "The quotient rounded down; its derivative is 0.", _Division, lambda x, y, out, d: (None, None),
    array_function="floor_divide", cuda="floor_over({0}, {1})",
    samples=tuple(replace(each, gradient=False) for each in _Division.samples),
)  # fmt: skip
FloorMod = binary(
    "FloorMod", "x - floor(x / y) * y; the sign is that of y.", _Division,
    lambda x, y, out, d: (d, -(d * x.into(FloorDiv(), y))), array_function="remainder", cuda="floor_rest({0}, {1})",
)  # fmt: skip
_TRUNCATED = "The remainder of the division truncated towards 0; the sign is that of x."
Mod = binary(
    "Mod", _TRUNCATED, _Division,
    lambda x, y, out, d: (d, -(d * ((x - out) / y))),  # exact up to rounding: x - out is a multiple of y
    array_function="fmod", cuda="rest({0}, {1})",
)  # fmt: skip


class _Extremum(Binary, abstract=True):
    """The gradient goes to one operand; half to each if both are equal."""

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        left, right = (x, y) if self.array_function == "maximum" else (y, x)
        zero = b.constant(0, dout.tensor_type.dtype)
        half = b.emit(Mul(), dout, b.constant(0.5, dout.tensor_type.dtype))
        shared = b.emit(Select(), b.emit(Equal(), x, y), half, dout)
        dx = b.emit(Select(), b.emit(Less(), left, right), zero, shared)
        dy = b.emit(Select(), b.emit(Greater(), left, right), zero, shared)
        return gradients(b, x, y, dx, dy)

    samples = BINARY_SAMPLES


Maximum = operator(
    "Maximum", "The larger of x and y; half the gradient goes to each if they are equal.", _Extremum,
    array_function="maximum", joins="max", cuda="Largest::of({0}, {1})",
)  # fmt: skip
Minimum = operator(
    "Minimum", "The smaller of x and y; half the gradient goes to each if they are equal.", _Extremum,
    array_function="minimum", joins="min", cuda="Smallest::of({0}, {1})",
)  # fmt: skip


class SquaredDifference(Binary):
    """(x - y) ** 2."""

    takes_bool = False
    cuda = "({0} - {1}) * ({0} - {1})"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        two = b.constant(2, dout.tensor_type.dtype)
        dx = b.emit(Mul(), b.emit(Mul(), dout, two), b.emit(Sub(), x, y))
        return sum_to_shape(b, dx, x.shape), b.emit(Neg(), sum_to_shape(b, dx, y.shape))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        subtract, square = be.xp.subtract, be.xp.square
        return lambda x, y: square(subtract(x, y))

    samples = BINARY_SAMPLES


class DivNoNan(Binary):
    """x / y, and 0 if y is 0."""

    float_only = True
    promotes = "float"
    linear_in = (0,)
    cuda = "{1} == T(0) ? T(0) : {0} / {1}"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        dx = b.emit(DivNoNan(), dout, y)
        return gradients(b, x, y, dx, b.emit(Neg(), b.emit(Mul(), dx, out)))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        where, divide = be.xp.where, be.xp.divide

        def divide_no_nan(x: Any, y: Any) -> Any:
            safe = where(y == 0, 1, y).astype(y.dtype)
            return where(y == 0, 0, divide(x, safe)).astype(x.dtype)

        return divide_no_nan

    samples = POSITIVE_SAMPLES


class AddN(Elementwise):
    """The sum of several tensors of one shape. Called as `AddN()((a, b, c))`."""

    takes_complex = True
    may_alias = True
    additive = True
    joins = "sum"
    fills = True
    cuda = "{+}"

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        return self, sequence_of(self.name, args)

    def rule(self, *types: TensorType) -> str:
        if not types:
            raise MspcError("AddN needs at least one tensor")
        return same_rule(types[0].shape, len(types))

    def bprop(self, b: Builder, *values: Value) -> Gradients:
        *inputs, _, dout = values
        return tuple(dout for _ in inputs)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        xp = be.xp

        def add_n(first: Any, *rest: Any, out: Any = None) -> Any:
            if not rest:
                return first if out is None else written(first, out)
            total = xp.add(first, rest[0])
            for value in rest[1:]:
                total = total + value
            return total if out is None else written(total, out)

        return add_n

    samples = (sample((8, 16), (8, 16), (8, 16)), sample((8,)), sample((), ()))


class Lerp(Elementwise):
    """start + weight * (end - start), all broadcast against each other."""

    float_only = True
    promotes = "common"
    cuda = "{0} + {2} * ({1} - {0})"

    def rule(self, start: TensorType, end: TensorType, weight: TensorType) -> str:
        return broadcast_rule((start.shape, end.shape, weight.shape))

    def bprop(self, b: Builder, start: Value, end: Value, weight: Value, out: Value, dout: Value) -> Gradients:
        dend = b.emit(Mul(), dout, weight)
        dstart = b.emit(Sub(), dout, dend)
        dweight = b.emit(Mul(), dout, b.emit(Sub(), end, start))
        return (
            sum_to_shape(b, dstart, start.shape),
            sum_to_shape(b, dend, end.shape),
            sum_to_shape(b, dweight, weight.shape),
        )

    def compute(self, xp: Any, start: Any, end: Any, weight: Any) -> Any:
        return start + weight * (end - start)

    samples = (sample((8, 16), (8, 16), (8, 16)), sample((8, 16), (16,), ()))


_SHIFTS = (
    sample((8, 16), (8, 16), dtypes=("Int32", "Int32"), low=0, high=9, gradient=False),
    sample((8, 16), (16,), dtypes=("UInt8", "UInt8"), low=0, high=7, gradient=False),
)
_INTEGER = NotDifferentiable("its result is an integer")
_SAMPLES = (
    sample((8, 16), (8, 16), dtypes=("Int32", "Int32"), low=0, high=99, gradient=False),
    sample((8, 16), (16,), dtypes=("Int64", "Int64"), low=-9, high=9, gradient=False),
)


class _Bitwise(Binary, abstract=True):
    bprop = _INTEGER
    samples = _SAMPLES

    def check(self, *types: TensorType) -> None:
        require_same(self.name, *types)
        for index, operand in enumerate(types):
            if operand.dtype.is_float:
                raise MspcError(
                    f"{self.name}: input {index} is {operand.dtype}, not an integer or Bool tensor",
                    kind=TypeError, code="E0304",
                )


BitwiseAnd = operator(
    "BitwiseAnd", "The bits that both have.", _Bitwise, array_function="bitwise_and", cuda="{0} & {1}"
)
BitwiseOr = operator(
    "BitwiseOr", "The bits that one of both has.", _Bitwise, array_function="bitwise_or", cuda="{0} | {1}"
)
BitwiseXor = operator(
    "BitwiseXor", "The bits that exactly one has.", _Bitwise, array_function="bitwise_xor", cuda="{0} ^ {1}"
)


class _Shift(_Bitwise, abstract=True):
    """Shifts by the number of bits or more leave no digit."""

    def check(self, *types: TensorType) -> None:
        super().check(*types)
        if types[0].dtype == BOOL:
            raise MspcError(f"{self.name}: input 0 is Bool, not an integer tensor", kind=TypeError)


LeftShift = operator(
    "LeftShift", "x with its bits shifted left by `other`.", _Shift, array_function="left_shift",
    cuda="(unsigned long long){1} < 8 * sizeof(T) ? {0} << {1} : T(0)", samples=_SHIFTS,
)  # fmt: skip
RightShift = operator(
    "RightShift", "x with its bits shifted right by `other`; arithmetic for negative numbers.", _Shift,
    array_function="right_shift", cuda="(unsigned long long){1} < 8 * sizeof(T) ? {0} >> {1} : T({0} < T(0) ? -1 : 0)",
    samples=_SHIFTS,
)  # fmt: skip


TruncateDiv = binary(
    "TruncateDiv", "The quotient truncated towards 0; its derivative is 0.", _Division,
    lambda x, y, out, d: (None, None),
    lambda xp, x, y: xp.trunc(xp.divide(x, y)) if x.dtype.kind == "f" else (x - xp.fmod(x, y)) // y,
    cuda="over({0}, {1})", samples=tuple(replace(each, gradient=True) for each in _Division.samples),
)  # fmt: skip
TruncateMod = operator("TruncateMod", _TRUNCATED, Mod)
