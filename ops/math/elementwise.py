"""Functions of one tensor, element by element: powers, exponentials, rounding, angles, complex numbers,
and special functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Value
from mspc.ir.types import DType, TensorType, complex_of, real_of
from mspc.ops.bases import ArrayFunction, Binary, Unary, operator
from mspc.ops.cpu.special_functions import erf, scipy_module
from mspc.ops.math.arithmetic import (
    Add,
    Div,
    DivNoNan,
    Equal,
    Formula,
    Greater,
    Mul,
    Neg,
    NotEqual,
    Select,
    Sub,
    Term,
    binary,
    constant,
    gradients,
    select,
    unary,
)
from mspc.ops.op import Gradients, Op, require_float, sample
from mspc.ops.tensor.creation import ZerosLike
from mspc.sharding.rules import broadcast_rule

UNARY_SAMPLES = (sample((8, 16)), sample((2, 4, 8)), sample(()))
POSITIVE_INPUT = (sample((8, 16), low=0.25), sample((), low=0.25))
_INTEGERS = (*UNARY_SAMPLES, sample((8,), dtypes=("Int32",), gradient=False))


class Smooth(Unary, abstract=True):
    """A function of floating-point numbers; integers and Bool become Float32."""

    float_only = True
    promotes = "float"
    samples = UNARY_SAMPLES


def smooth(
    name: str, text: str, gradient: Formula, function: str, cuda: str = "", samples: tuple[Any, ...] = UNARY_SAMPLES
) -> type[Smooth]:
    """Make an operator of a function of NumPy. cuda: its name in CUDA C++, by default the same."""
    cuda = f"{cuda or function}({{0}})"
    return unary(name, text, Smooth, gradient, array_function=function, cuda=cuda, samples=samples)


Square = unary(
    "Square", "x * x.", Unary, lambda x, y, d: x * 2 * d, array_function="square", cuda="{0} * {0}", takes_bool=False,
    samples=_INTEGERS, __module__=__name__,
)  # fmt: skip
Sqrt = smooth("Sqrt", "The square root of x.", lambda x, y, d: d * 0.5 / y, "sqrt", samples=POSITIVE_INPUT)


Rsqrt = unary(
    "Rsqrt", "1 over the square root of x.", Smooth, lambda x, y, d: d * -0.5 * (y / x),
    lambda xp, x: xp.reciprocal(xp.sqrt(x)), cuda="rsqrt({0})", samples=POSITIVE_INPUT,
)  # fmt: skip


def _slope_of_reciprocal(x: Term, y: Term, d: Term) -> Term:
    return -(d * y.into(Square()))


_RECIPROCAL: dict[str, Any] = {"array_function": "reciprocal", "cuda": "T(1) / {0}", "samples": POSITIVE_INPUT}
Reciprocal = unary("Reciprocal", "1 / x.", Smooth, _slope_of_reciprocal, **_RECIPROCAL)
Inv = unary("Inv", "1 / x.", Smooth, _slope_of_reciprocal, **_RECIPROCAL)


class Pow(Binary):
    """x to the power y."""

    takes_bool = False
    array_function = "power"
    cuda = "power({0}, {1})"

    def rule(self, input: TensorType, exponent: TensorType) -> str:  # type: ignore[override]  # named as in scripts
        return super().rule(input, exponent)

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        lower = b.emit(Pow(), x, b.emit(Sub(), _or_one(b, y), constant(b, 1, y)))
        dx = b.emit(Mul(), b.emit(Mul(), dout, y), lower)
        one = constant(b, 1, x)
        base = b.emit(Select(), b.emit(Greater(), x, constant(b, 0, x)), x, one)  # 0 ** y has derivative 0 in y
        dy = b.emit(Mul(), b.emit(Mul(), dout, out), b.emit(Log(), base))
        return gradients(b, x, y, dx, dy)

    samples = (
        sample((8, 16), (8, 16), low=0.5),
        sample((8, 16), (), low=0.5),
        sample((8, 16), (8, 1), low=1, high=4, dtypes=("Int32", "Int32"), gradient=False),
    )


def _or_one(b: Builder, exponent: Value) -> Value:
    """Return the exponent, and 1 if it is 0: x ** 0 has derivative 0, and 0 * x ** -1 is none if x is 0."""
    if isinstance(exponent, Constant) and np.all(exponent.value):
        return exponent
    return b.emit(Select(), b.emit(Equal(), exponent, constant(b, 0, exponent)), constant(b, 1, exponent), exponent)


Exp = smooth("Exp", "e to the power x.", lambda x, y, d: d * y, "exp")
Expm1 = smooth("Expm1", "e to the power x, minus 1, accurate for small x.", lambda x, y, d: d * x.into(Exp()), "expm1")
Log = smooth("Log", "The natural logarithm of x.", lambda x, y, d: d / x, "log", samples=POSITIVE_INPUT)
Log1p = smooth(
    "Log1p", "The natural logarithm of 1 + x, accurate for small x.",
    lambda x, y, d: d / (x + 1), "log1p", samples=POSITIVE_INPUT,
)  # fmt: skip


class Abs(Unary):
    """The absolute value, of complex numbers a real one; its derivative at 0 is 0."""

    takes_complex = True
    array_function = "abs"
    cuda = "absolute({0})"

    def result_dtype(self, *types: TensorType) -> DType:
        return real_of(types[0].dtype)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        if x.tensor_type.dtype.is_complex:
            raise MspcError(f"{self.name} has no gradient of complex numbers; ComplexAbs has one", code="E0310")
        return (b.emit(Mul(), dout, b.emit(Sign(), x)),)

    samples = _INTEGERS


class _Step(Unary, abstract=True):
    """A function that is constant between jumps: its derivative is 0."""

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (None,)


class Sign(_Step):
    """-1, 0 or 1; 0 for NaN."""

    takes_bool = False
    cuda = "sign_of({0})"
    samples = (sample((8, 16)), sample((8,), dtypes=("Int32",), gradient=False))

    def compute(self, xp: Any, x: Any) -> Any:
        found = xp.sign(x)
        return xp.where(x == x, found, xp.zeros((), x.dtype)) if x.dtype.kind == "f" else found


class _Rounding(_Step, abstract=True):
    float_only = True
    samples = (sample((8, 16)),)


Floor = operator("Floor", "The largest integer not above x.", _Rounding, array_function="floor", cuda="floor({0})")
Ceil = operator("Ceil", "The smallest integer not below x.", _Rounding, array_function="ceil", cuda="ceil({0})")
_NEAREST = "The nearest integer, halves to the even one."
Round = operator("Round", _NEAREST, _Rounding, array_function="rint", cuda="rint({0})")
Rint = operator("Rint", _NEAREST, _Rounding, array_function="rint", cuda="rint({0})")
Trunc = operator("Trunc", "x without its fraction.", _Rounding, array_function="trunc", cuda="trunc({0})")


Identity = unary(
    "Identity", "x itself.", Unary, lambda x, y, d: d, lambda xp, x: x, cuda="{0}", linear_in=(0,), is_view=True,
    samples=UNARY_SAMPLES, __module__=__name__,
)  # fmt: skip
_INSIDE = (sample((8, 16), low=-0.9, high=0.9),)
_ABOVE_1 = (sample((8, 16), low=1.5, high=4.0),)


def _root(x: Term) -> Term:
    """Return the square root of 1 - x * x."""
    return (1 - x.into(Square())).into(Sqrt())


Sin = smooth("Sin", "Sine, x in radians.", lambda x, y, d: d * x.into(Cos()), "sin")
Cos = smooth("Cos", "Cosine, x in radians.", lambda x, y, d: -(d * x.into(Sin())), "cos")
Tan = smooth("Tan", "Tangent, x in radians.", lambda x, y, d: d / x.into(Cos()).into(Square()), "tan", samples=_INSIDE)
Asin = smooth("Asin", "Inverse sine, in radians.", lambda x, y, d: d / _root(x), "arcsin", "asin", samples=_INSIDE)
ACos = smooth("ACos", "Inverse cosine, in radians.", lambda x, y, d: -(d / _root(x)), "arccos", "acos", samples=_INSIDE)
Atan = smooth("Atan", "Inverse tangent, in radians.", lambda x, y, d: d / (x.into(Square()) + 1), "arctan", "atan")
Sinh = smooth("Sinh", "Hyperbolic sine.", lambda x, y, d: d * x.into(Cosh()), "sinh")
Cosh = smooth("Cosh", "Hyperbolic cosine.", lambda x, y, d: d * x.into(Sinh()), "cosh")
Asinh = smooth("Asinh", "Inverse hyperbolic sine.", lambda x, y, d: d / y.into(Cosh()), "arcsinh", "asinh")
Acosh = smooth(
    "Acosh", "Inverse hyperbolic cosine of x above 1.",
    lambda x, y, d: d / y.into(Sinh()), "arccosh", "acosh", samples=_ABOVE_1,
)  # fmt: skip
Atanh = smooth(
    "Atanh", "Inverse hyperbolic tangent of x between -1 and 1.",
    lambda x, y, d: d / (1 - x.into(Square())), "arctanh", "atanh", samples=_INSIDE,
)  # fmt: skip


def _slopes_of_angle(x: Term, y: Term, out: Term, d: Term) -> tuple[Term, Term]:
    share = d / (x.into(Square()) + y.into(Square()))
    return share * y, -(share * x)


Atan2 = binary(
    "Atan2", "The angle of the point (y, x), of the first operand over the second.", Binary, _slopes_of_angle,
    array_function="arctan2", float_only=True, promotes="float", cuda="atan2({0}, {1})", __module__=__name__,
    samples=(sample((8, 16), (8, 16), low=0.3), sample((8, 16), (16,), low=0.3)),
)  # fmt: skip


class _ComplexPart(Op, abstract=True):
    """A real number of a complex one, element by element; of a real number as of one without an imaginary part."""

    takes_complex = True
    linear_in = (0,)

    def rule(self, input: TensorType) -> str:
        return broadcast_rule((input.shape,))

    def result_dtype(self, *types: TensorType) -> DType:
        return real_of(types[0].dtype)


def _as_operand(b: Builder, x: Value, real: Value, imag: Value) -> Value:
    """Return the gradient of an operand that may be a real number."""
    return b.emit(Complex(), real, imag) if x.tensor_type.dtype.is_complex else real


class Real(_ComplexPart):
    """The real part."""

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (_as_operand(b, x, dout, b.emit(ZerosLike(), dout)),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.array(inputs[0].real)

    samples = (sample((8, 16)), sample((4,), dtypes=("Complex128",), gradient=False))


class Imag(_ComplexPart):
    """The imaginary part; 0 of a real number."""

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        none = b.emit(ZerosLike(), dout)
        return (_as_operand(b, x, none, dout),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.array(inputs[0].imag)

    samples = (sample((8, 16), gradient=False), sample((4,), dtypes=("Complex128",), gradient=False))


class ComplexAbs(_ComplexPart):
    """The absolute value sqrt(re * re + im * im); its gradient at 0 is 0."""

    linear_in = ()

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        share = b.emit(DivNoNan(), dout, out)
        real, imag = (b.emit(Mul(), share, b.emit(part(), x)) for part in (Real, Imag))
        return (_as_operand(b, x, real, imag),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.abs(inputs[0])

    samples = (sample((8, 16), low=0.5), sample((4,), dtypes=("Complex128",), gradient=False))


class Complex(Op):
    """real + i * imag, of real tensors of one element type, broadcast against each other."""

    promotes: ClassVar[str] = "common"
    additive = True
    samples = (sample((8, 16), (8, 16), gradient=False), sample((8, 1), (16,), gradient=False))

    def rule(self, x: TensorType, y: TensorType) -> str:
        return broadcast_rule((x.shape, y.shape))

    def check(self, *types: TensorType) -> None:
        require_float(self.name, *types)
        if types[0].dtype != types[1].dtype or types[0].dtype.itemsize < 4:
            raise MspcError(
                f"{self.name}: inputs are {types[0].dtype} and {types[1].dtype}, not both Float32 or Float64",
                kind=TypeError, code="E0304",
            )

    def result_dtype(self, *types: TensorType) -> DType:
        return complex_of(types[0].dtype)

    def bprop(self, b: Builder, real: Value, imag: Value, out: Value, dout: Value) -> Gradients:
        return gradients(b, real, imag, b.emit(Real(), dout), b.emit(Imag(), dout))

    def compute(self, xp: Any, real: Any, imag: Any) -> Any:
        dtype = xp.complex128 if real.dtype == xp.float64 else xp.complex64
        out = xp.empty(xp.broadcast_shapes(real.shape, imag.shape), dtype)
        out.real, out.imag = real, imag
        return out


# Special functions ------------------------------------------------------------------------------------
# Error functions, Bessel functions, the gamma function and its relatives.


def _bell(x: Term) -> Term:
    """Return exp(-x * x)."""
    return (-x.into(Square())).into(Exp())


Erf = unary(
    "Erf", "The error function.", Smooth, lambda x, y, d: d * (_bell(x) * (2 / math.sqrt(math.pi))), erf,
    cuda="erf({0})", samples=(*UNARY_SAMPLES, sample((8, 16), low=-7, high=7)), __module__=__name__,
)  # fmt: skip
Erfc = unary(
    "Erfc", "1 minus the error function; for large x relative accuracy is lost.", Smooth,
    lambda x, y, d: d * (_bell(x) * (-2 / math.sqrt(math.pi))),
    lambda xp, x: (1 - erf(xp, x.astype(xp.float64))).astype(x.dtype), cuda="erfc({0})", __module__=__name__,
)  # fmt: skip


class Xlogy(Binary):
    """x * log(y), and 0 if x is 0."""

    float_only = True
    promotes = "float"
    linear_in = (0,)
    cuda = "{0} * log({0} == T(0) ? T(1) : {1})"
    samples = (
        sample((8, 16), (8, 16), low=0.5),
        sample((8, 16), (16,), low=0.5),
        sample((), (8, 16), low=0.5),
    )

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        some = b.emit(NotEqual(), x, constant(b, 0, x))
        safe = b.emit(Select(), some, y, constant(b, 1, y))
        dx = b.emit(Select(), some, b.emit(Mul(), dout, b.emit(Log(), safe)), constant(b, 0, x))
        return gradients(b, x, y, dx, b.emit(Div(), b.emit(Mul(), dout, x), safe))

    def compute(self, xp: Any, x: Any, y: Any) -> Any:
        return x * xp.log(xp.where(x == 0, xp.ones_like(y), y))


class _Rare(ArrayFunction, abstract=True):
    """A function of SciPy."""

    samples = UNARY_SAMPLES


def _wide(name: str, at_infinity: Callable[[Any], Any] | None = None) -> Callable[[Any, Any], Any]:
    """Return a kernel that computes a function of SciPy in Float64. at_infinity: its value for infinite numbers, if it
    is not SciPy's."""

    def run(xp: Any, x: Any) -> Any:
        found = getattr(scipy_module("special", xp), name)(x.astype(xp.float64))
        found = found if at_infinity is None else xp.where(xp.isinf(x), at_infinity(x), found)
        return xp.asarray(found, x.dtype)

    return run


def _over(y: Term, x: Term) -> Term:
    """Return y / x, and 1/2 at 0, the limit of I and J of order 1 divided by x."""
    zero = x.into(Equal(), 0)
    one, half = (Term(x.b, constant(x.b, number, x.value)) for number in (1, 0.5))
    return select(zero, half, y / select(zero, one, x))


def _slope_of_i1e(x: Term, y: Term) -> Term:
    falling = x.into(Sign()) * y + _over(y, x)
    return x.into(BesselI0e()) - falling


BesselI0 = unary(
    "BesselI0", "The modified Bessel function of the first kind, of order 0.", _Rare,
    lambda x, y, d: d * x.into(BesselI1()), _wide("i0"),
)  # fmt: skip
BesselI1 = unary(
    "BesselI1", "The modified Bessel function of the first kind, of order 1.", _Rare,
    lambda x, y, d: d * (x.into(BesselI0()) - _over(y, x)), _wide("i1"),
)  # fmt: skip
BesselI0e = unary(
    "BesselI0e", "exp(-|x|) times the modified Bessel function of the first kind, of order 0.", _Rare,
    lambda x, y, d: d * (x.into(BesselI1e()) - x.into(Sign()) * y), _wide("i0e"),
)  # fmt: skip
BesselI1e = unary(
    "BesselI1e", "exp(-|x|) times the modified Bessel function of the first kind, of order 1.", _Rare,
    lambda x, y, d: d * _slope_of_i1e(x, y), _wide("i1e"),
)  # fmt: skip


Erfinv = unary(
    "Erfinv", "The y with erf(y) = x: infinite at -1 and 1, NaN beyond.", _Rare,
    lambda x, y, d: d * (y.into(Square()).into(Exp()) * (math.sqrt(math.pi) / 2)), _wide("erfinv"),
    samples=(sample((8, 16), low=-0.9, high=0.9), sample((), low=-0.9, high=0.9)),
)  # fmt: skip
Lgamma = unary(
    "Lgamma", "log |gamma(x)|.", _Rare, lambda x, y, d: d * x.into(Digamma()), _wide("gammaln", abs),
    samples=(sample((8, 16), low=0.1, high=5), sample((4,), low=-0.9, high=-0.1)),
)  # fmt: skip
Digamma = unary(
    "Digamma", "The derivative of Lgamma.", _Rare,
    lambda x, y, d: d * Term(x.b, x.b.emit(Zeta(), constant(x.b, 2, x.value), x.value)), _wide("psi"),
    samples=(sample((8, 16), low=0.2, high=5), sample((4,), low=-0.9, high=-0.1)),
)  # fmt: skip


class Zeta(Op):
    """Hurwitz' zeta function: the sum of (q + n)^-x over n from 0 on. By x it has no gradient, as in MindSpore."""

    promotes: ClassVar[str] = "float"
    float_only = True
    one_type = True
    samples = (
        sample((8, 16), (8, 16), low=1.5, high=6, gradient=False),
        sample((4, 1), (8,), low=1.5, high=3, gradient=False),
    )

    def rule(self, x: TensorType, q: TensorType) -> str:
        return broadcast_rule((x.shape, q.shape))

    def bprop(self, b: Builder, x: Value, q: Value, out: Value, dout: Value) -> Gradients:
        more = b.emit(Zeta(), b.emit(Add(), x, constant(b, 1, x)), q)
        slope = b.emit(Neg(), b.emit(Mul(), x, more))
        return None, gradients(b, x, q, dout, b.emit(Mul(), dout, slope))[1]

    def compute(self, xp: Any, *inputs: Any) -> Any:
        x, q = (array.astype(xp.float64) for array in inputs)
        is_odd_pole = (q <= 0) & (q == xp.floor(q)) & (x % 2 != 0)  # there MindSpore's is NaN, and SciPy's infinite
        found = xp.where(is_odd_pole, xp.nan, scipy_module("special", xp).zeta(x, q))
        return xp.asarray(found, inputs[0].dtype)
