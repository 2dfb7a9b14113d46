"""Special functions: error functions, Bessel functions, the gamma function and its relatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.bases import ArrayFunction, Binary
from mspc.ops.cpu.special_functions import erf, scipy_module
from mspc.ops.math.arithmetic import (
    Add,
    Div,
    Equal,
    Mul,
    Neg,
    NotEqual,
    Select,
    Term,
    constant,
    gradients,
    select,
    unary,
)
from mspc.ops.math.elementwise import UNARY_SAMPLES, Exp, Log, Sign, Smooth, Square
from mspc.ops.op import Gradients, Op, sample
from mspc.sharding.rules import broadcast_rule


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
