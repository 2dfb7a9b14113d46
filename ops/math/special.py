"""Special functions: error functions, Bessel functions, the gamma function and its relatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.bases import ArrayFunction, Binary
from mspc.ops.cpu.special_functions import bessel_i, erf
from mspc.ops.math.arithmetic import Add, Div, Equal, Mul, Neg, NotEqual, Select, gradients
from mspc.ops.math.elementwise import (
    UNARY_SAMPLES,
    Exp,
    Log,
    Sign,
    Smooth,
    Square,
    Term,
    constant,
    scaled,
    select,
    unary,
)
from mspc.ops.op import Gradients, Op, sample
from mspc.sharding.rules import broadcast_rule


class _ErrorFunction(Smooth, abstract=True):
    """Smooth, but named in this module."""


def _bell(x: Term) -> Term:
    """Return exp(-x * x)."""
    return (-x.into(Square())).into(Exp())


Erf = unary(
    "Erf", "The error function.", _ErrorFunction, lambda x, y, d: d * (_bell(x) * (2 / math.sqrt(math.pi))), erf,
    cuda="erf({0})", samples=(*UNARY_SAMPLES, sample((8, 16), low=-7, high=7)),
)  # fmt: skip
Erfc = unary(
    "Erfc", "1 minus the error function; for large x relative accuracy is lost.", _ErrorFunction,
    lambda x, y, d: d * (_bell(x) * (-2 / math.sqrt(math.pi))),
    lambda xp, x: (1 - erf(xp, x.astype(xp.float64))).astype(x.dtype), cuda="erfc({0})",
)  # fmt: skip


class _WithZero(Binary, abstract=True):
    """0 if x is 0, whatever y is."""

    float_only = True
    promotes = "float"
    linear_in = (0,)
    samples = (
        sample((8, 16), (8, 16), low=0.5),
        sample((8, 16), (16,), low=0.5),
        sample((), (8, 16), low=0.5),
    )

    def safe(self, b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
        """Return (whether x is not 0, y with 1 if x is 0)."""
        some = b.emit(NotEqual(), x, constant(b, 0, x))
        return some, b.emit(Select(), some, y, constant(b, 1, y))


class Xlogy(_WithZero):
    """x * log(y), and 0 if x is 0."""

    cuda = "{0} * log({0} == T(0) ? T(1) : {1})"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        some, safe = self.safe(b, x, y)
        dx = b.emit(Select(), some, b.emit(Mul(), dout, b.emit(Log(), safe)), constant(b, 0, x))
        return gradients(b, x, y, dx, b.emit(Div(), b.emit(Mul(), dout, x), safe))

    def compute(self, xp: Any, x: Any, y: Any) -> Any:
        return x * xp.log(xp.where(x == 0, xp.ones_like(y), y))


class Erfinv(ArrayFunction):
    """The y with erf(y) = x: infinite at -1 and 1, NaN beyond."""

    samples = (sample((8, 16), low=-0.9, high=0.9), sample((), low=-0.9, high=0.9))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        slope = scaled(b, math.sqrt(math.pi) / 2, b.emit(Exp(), b.emit(Square(), out)))
        return (b.emit(Mul(), dout, slope),)

    def compute(self, xp: Any, x: Any) -> Any:
        wide = x.astype(xp.float64)
        inside = xp.abs(wide) < 1
        size = xp.where(inside, xp.abs(wide), 0)
        y = _near(xp, size)
        for _ in range(_STEPS):
            near = erf(xp, y) - size
            far = (1 - size) - _rest(xp, xp.maximum(y, _FAR))
            miss = xp.where(y > _FAR, far, near) / (2 / math.sqrt(math.pi) * xp.exp(-y * y))
            y = y - miss / (1 + y * miss)  # Halley's method: the second derivative of erf is -2 y times the first
        y = xp.where(inside, y, xp.where(xp.abs(wide) == 1, math.inf, math.nan))
        return xp.where(wide < 0, -y, y).astype(x.dtype)


_STEPS = 3
"""Each triples the digits, and the first guess has two."""
_FAR = 1.3
"""From here on 1 - erf is computed by itself, or the last digits of x would be lost."""


def _rest(xp: Any, y: Any) -> Any:
    """Return 1 - erf(y) for y from `_FAR` on, by its continued fraction."""
    fraction = y
    for n in range(_TERMS, 0, -1):
        fraction = y + n / 2 / fraction
    return xp.exp(-y * y) / (math.sqrt(math.pi) * fraction)


_TERMS = 120
"""Enough for all digits at `_FAR`."""


def _near(xp: Any, x: Any) -> Any:
    """Return a guess for x from 0 on with a relative error below 0.003: Winitzki's formula."""
    a = 0.147
    logarithm = xp.log((1 - x) * (1 + x))
    t = 2 / (math.pi * a) + logarithm / 2
    return xp.sqrt(xp.maximum(xp.sqrt(t * t - logarithm / a) - t, 0))


class _Bessel(ArrayFunction, abstract=True):
    samples = UNARY_SAMPLES


def _wide(function: Callable[..., Any], *options: Any) -> Callable[[Any, Any], Any]:
    """Return a kernel that computes in Float64."""
    return lambda xp, x: function(xp, x.astype(xp.float64), *options).astype(x.dtype)


def _over(y: Term, x: Term) -> Term:
    """Return y / x, and 1/2 at 0, the limit of I and J of order 1 divided by x."""
    zero = x.into(Equal(), 0)
    one, half = (Term(x.b, constant(x.b, number, x.value)) for number in (1, 0.5))
    return select(zero, half, y / select(zero, one, x))


def _slope_of_i1e(x: Term, y: Term) -> Term:
    falling = x.into(Sign()) * y + _over(y, x)
    return x.into(BesselI0e()) - falling


BesselI0 = unary(
    "BesselI0", "The modified Bessel function of the first kind, of order 0.", _Bessel,
    lambda x, y, d: d * x.into(BesselI1()), _wide(bessel_i, 0, False),
)  # fmt: skip
BesselI1 = unary(
    "BesselI1", "The modified Bessel function of the first kind, of order 1.", _Bessel,
    lambda x, y, d: d * (x.into(BesselI0()) - _over(y, x)), _wide(bessel_i, 1, False),
)  # fmt: skip
BesselI0e = unary(
    "BesselI0e", "exp(-|x|) times the modified Bessel function of the first kind, of order 0.", _Bessel,
    lambda x, y, d: d * (x.into(BesselI1e()) - x.into(Sign()) * y), _wide(bessel_i, 0, True),
)  # fmt: skip
BesselI1e = unary(
    "BesselI1e", "exp(-|x|) times the modified Bessel function of the first kind, of order 1.", _Bessel,
    lambda x, y, d: d * _slope_of_i1e(x, y), _wide(bessel_i, 1, True),
)  # fmt: skip


FAR = 12
"""From here on the asymptotic series have all digits of Float64."""
ZETA_FAR = 32
"""The same for Euler and Maclaurin's formula, as far as the sum has not converged by then."""
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""B2, B4, ... B16."""
TERMS = 20_000
"""The most terms of a power series: enough for arguments up to some thousands."""


def log_gamma(xp: Any, x: Any) -> Any:
    """Return log |gamma(x)|, infinite at 0 and the negative integers."""
    infinite = xp.isinf(x)
    x = xp.where(infinite, 1.0, x)
    mirrored = x < 0.5
    y = xp.where(mirrored, 1 - x, x)
    product, far = xp.ones_like(y), xp.array(y)
    for _ in range(FAR):
        near = far < FAR
        product, far = xp.where(near, product * far, product), xp.where(near, far + 1, far)
    series = sum(c / (2 * k * (2 * k - 1)) * far ** (1 - 2 * k) for k, c in enumerate(BERNOULLI, 1))
    found = (far - 0.5) * xp.log(far) - far + 0.5 * math.log(2 * math.pi) + series - xp.log(product)
    sine = xp.abs(xp.sin(math.pi * (x - xp.floor(x))))
    poles = (x <= 0) & (x == xp.floor(x))
    reflected = math.log(math.pi) - xp.log(xp.where(mirrored & ~poles, sine, 1)) - found
    return xp.where(poles | infinite, xp.inf, xp.where(mirrored, reflected, found))


def digamma(xp: Any, x: Any) -> Any:
    """Return the derivative of log gamma(x): minus infinity at 0, infinity at -0, NaN at the negative integers."""
    ends = xp.where(x > 0, xp.inf, xp.nan)
    infinite = xp.isinf(x)
    x = xp.where(infinite, 1.0, x)
    mirrored = x < 0.5
    far = xp.where(mirrored, 1 - x, x)
    lower = xp.zeros_like(far)
    for _ in range(FAR):
        near = far < FAR
        lower, far = xp.where(near, lower + 1 / far, lower), xp.where(near, far + 1, far)
    series = sum(c / (2 * k) * far ** (-2 * k) for k, c in enumerate(BERNOULLI, 1))
    found = xp.log(far) - 0.5 / far - series - lower
    poles = (x <= 0) & (x == xp.floor(x))
    part = math.pi * xp.where(mirrored & ~poles, x - xp.floor(x), 0.25)
    found = xp.where(mirrored, found - math.pi * xp.cos(part) / xp.sin(part), found)
    return xp.where(infinite, ends, xp.where(x == 0, xp.copysign(xp.inf, -x), xp.where(poles, xp.nan, found)))


def zeta(xp: Any, x: Any, q: Any) -> Any:
    """Return the sum of (q + n)^-x over n from 0 on."""
    x, q = xp.broadcast_arrays(x, q)
    poles = (q <= 0) & (q == xp.floor(q))
    valid = (x > 1) & ~poles & ((q > 0) | (x == xp.floor(x)))
    s, a = xp.where(valid, x, 2.0), xp.where(valid, q, 1.0)
    total = xp.zeros_like(a)
    for _ in range(ZETA_FAR + int(min(TERMS, max(0, -xp.floor(a.min()) if a.size else 0)))):
        near = a < ZETA_FAR
        total, a = xp.where(near, total + xp.where(near, a, 1.0) ** -s, total), xp.where(near, a + 1, a)
    found = total + a ** (1 - s) / (s - 1) + 0.5 * a**-s
    factor = s * a ** (-s - 1)
    for k, c in enumerate(BERNOULLI, 1):
        found = found + c / math.factorial(2 * k) * factor
        factor = factor * (s + 2 * k - 1) * (s + 2 * k) / (a * a)
    infinite = (x == 1) | (poles & (x > 1) & (x % 2 == 0))
    return xp.where(infinite, xp.inf, xp.where(valid, found, xp.nan))


class _OfGamma(ArrayFunction, abstract=True):
    """The logarithm of the gamma function or a derivative of it."""


Lgamma = unary(
    "Lgamma", "log |gamma(x)|.", _OfGamma, lambda x, y, d: d * x.into(Digamma()), _wide(log_gamma),
    samples=(sample((8, 16), low=0.1, high=5), sample((4,), low=-0.9, high=-0.1)),
)  # fmt: skip
Digamma = unary(
    "Digamma", "The derivative of Lgamma.", _OfGamma,
    lambda x, y, d: d * Term(x.b, x.b.emit(Zeta(), constant(x.b, 2, x.value), x.value)), _wide(digamma),
    samples=(sample((8, 16), low=0.2, high=5), sample((4,), low=-0.9, high=-0.1)),
)  # fmt: skip


class _Numbers(Op, abstract=True):
    """Floating-point operands of one type, broadcast against each other, computed only by array functions."""

    promotes: ClassVar[str] = "float"
    float_only = True
    one_type = True

    def wide(self, xp: Any, inputs: Sequence[Any]) -> list[Any]:
        return [x.astype(xp.float64) for x in inputs]


class Zeta(_Numbers):
    """Hurwitz' zeta function: the sum of (q + n)^-x over n from 0 on. By x it has no gradient, as in MindSpore."""

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
        return zeta(xp, *self.wide(xp, inputs)).astype(inputs[0].dtype)
