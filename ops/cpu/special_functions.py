"""Bessel functions of order 0 and 1, and the error function, of arrays of Float64 on NumPy or CuPy.

Near 0 the modified ones are series with terms of one sign, elsewhere sums over equidistant points of their
integrals; their integrands vanish so quickly that these sums have all digits. J and Y are sums over the points of a
circle, and far away Hankel's expansions. (Abramowitz and Stegun, 9.1.18, 9.1.88, 9.2.5, 9.6.10 to 9.6.16 and 9.6.24.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from mspc.ops.cpu.blocks import elementwise

_GAMMA = 0.57721566490153286
_LARGEST = 1e300
"""Arguments beyond are taken as this one where nothing but their root counts."""
_SERIES_OF_I = 20.0
_HANKEL = 25.0
"""From here on Hankel's expansions have all digits."""
_POINTS = 128
"""Of a circle: more than the argument and the order of every J that counts below `_HANKEL`."""
_ORDERS = 64


def bessel_i(xp: Any, x: Any, order: int, scaled: bool) -> Any:
    """Return I, times exp(-|x|) if `scaled`."""
    size = xp.abs(x)
    near = xp.minimum(size, _SERIES_OF_I)
    far = _mean_on_circle(xp, xp.maximum(size, _SERIES_OF_I), order)
    series = _series(xp, near, order, lambda k: 1.0)
    if scaled:
        found = xp.where(size < _SERIES_OF_I, series * xp.exp(-near), far)
    else:
        root = xp.exp(size / 2)  # squared it may be too large where the product is not
        found = xp.where(size < _SERIES_OF_I, series, far * root * root)
    return xp.where(x < 0, -found, found) if order else found


def _series(xp: Any, x: Any, order: int, factor: Callable[[int], float]) -> Any:
    """(x/2)^order times the sum of factor(k) (x/2)^(2k) / (k! (k + order)!)."""
    square = x * x / 4
    total = xp.zeros_like(x)
    for k in range(_TERMS_OF_I, -1, -1):
        total = total * square / ((k + 1) * (k + 1 + order)) + factor(k)
    return total * x / 2 if order else total


_TERMS_OF_I = 50
"""Enough at `_SERIES_OF_I`."""


def _mean_on_circle(xp: Any, x: Any, order: int) -> Any:
    """The mean of exp(x (cos t - 1)) cos(order t) over the circle, from `_SERIES_OF_I` on."""
    step = 0.5
    return _sum_of_steps(xp, x, 24, step, xp.sin, xp.cos if order else xp.ones_like) * (step / math.pi) / xp.sqrt(x)


def _sum_of_steps(xp: Any, x: Any, end: int, step: float, wave: Any, share: Any) -> Any:
    """Return half of the integrand at 0, plus all its values at the steps before `end`."""
    root = xp.sqrt(xp.minimum(x, _LARGEST))
    total = xp.full_like(x, 0.5)
    for n in range(1, end):
        angle = n * step / root
        total = total + xp.exp(-2 * (root * wave(angle / 2)) ** 2) * share(angle)
    return total


def bessel_k(xp: Any, x: Any, order: int, scaled: bool) -> Any:
    """Return K, times exp(x) if `scaled`; infinite at 0, NaN for negative x."""
    near = xp.minimum(xp.where(x > 0, x, 1.0), 1.0)
    growth = bessel_i(xp, near, order, False) * (xp.log(near / 2) + _GAMMA)
    if order:
        series = 1 / near + growth - _series(xp, near, 1, lambda k: _harmonic(k) + 0.5 / (k + 1))
    else:
        series = _series(xp, near, 0, _harmonic) - growth
    far = _half_line(xp, xp.maximum(x, 1.0), order)
    found = xp.where(x < 1, series * xp.exp(near), far) if scaled else xp.where(x < 1, series, far * xp.exp(-x))
    return _right_of_zero(xp, x, found, math.inf)


def _half_line(xp: Any, x: Any, order: int) -> Any:
    """The integral of exp(x (1 - cosh t)) cosh(order t) from 0 to infinity, from 1 on."""
    step = 0.2
    return _sum_of_steps(xp, x, 48, step, xp.sinh, xp.cosh if order else xp.ones_like) * step / xp.sqrt(x)


def _right_of_zero(xp: Any, x: Any, found: Any, at_zero: float) -> Any:
    return xp.where(x == 0, at_zero, xp.where(x < 0, math.nan, found))


def _harmonic(k: int) -> float:
    return sum(1 / i for i in range(1, k + 1))


def bessel_j(xp: Any, x: Any, order: int) -> Any:
    """J."""
    size = xp.abs(x)
    near = _on_circle(xp, xp.minimum(size, _HANKEL), order)
    found = xp.where(size < _HANKEL, near, _hankel(xp, size, order)[0])
    return xp.where(x < 0, -found, found) if order else found


def bessel_y(xp: Any, x: Any, order: int) -> Any:
    """Y; minus infinity at 0, not a number below."""
    near = xp.minimum(xp.where(x > 0, x, 1.0), _HANKEL)
    growth = xp.log(near / 2) + _GAMMA - order
    found = growth * _on_circle(xp, near, order) - _on_circle(xp, near, order, True)
    if order:
        found = found - _on_circle(xp, near, 0) / near
    return _right_of_zero(xp, x, xp.where(x < _HANKEL, 2 / math.pi * found, _hankel(xp, x, order)[1]), -math.inf)


def _on_circle(xp: Any, x: Any, order: int, neumann: bool = False) -> Any:
    """J below `_HANKEL`, or Neumann's series of J of higher order in Y."""
    function = xp.sin if order else xp.cos
    total = xp.zeros_like(x)
    for sine, weight in zip(*_circle(order, neumann), strict=True):
        total = total + weight * function(x * sine)
    return total


@cache
def _circle(order: int, neumann: bool) -> tuple[list[float], list[float]]:
    """(sines, weights) of the points of a quarter of the circle, which stand for all four."""
    angles = (np.arange(_POINTS // 4) + 0.5) * (2 * math.pi / _POINTS)
    wave = np.sin if order else np.cos
    weights = np.zeros_like(angles) if neumann else wave(order * angles)
    if neumann:
        for k in range(1, _ORDERS // 2):
            weights += (-1) ** k * (order + 2 * k) / (k * (order + k)) * wave((order + 2 * k) * angles)
    return np.sin(angles).tolist(), (weights * 4 / _POINTS).tolist()


def _hankel(xp: Any, x: Any, order: int) -> tuple[Any, Any]:
    """(J, Y) from `_HANKEL` on."""
    safe = xp.maximum(x, _HANKEL)
    sides = [xp.zeros_like(safe), xp.zeros_like(safe)]
    terms = [1.0]
    for k in range(1, 20):
        terms.append(terms[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    for k in range(len(terms) - 1, -1, -1):
        sides[k % 2] = sides[k % 2] / (safe * safe) + (-1) ** (k // 2) * terms[k]
    even, odd = sides[0], sides[1] / safe
    sine, cosine = xp.sin(safe), xp.cos(safe)
    one, other = (sine - cosine, -sine - cosine) if order else (cosine + sine, sine - cosine)
    root = xp.sqrt(safe * math.pi)
    return (even * one - odd * other) / root, (even * other + odd * one) / root


# The error function of arrays is computed by Taylor's polynomial about the nearest point of a table.


_PER_UNIT = 64
_END = 6
"""Beyond it the error function is 1 in double precision."""
_TERMS = 7
"""Powers of the distance: the points lie so close that what the next one adds is below the rounding of the sum."""


def erf(xp: Any, x: Any) -> Any:
    """The error function of an array, in its element type; of Float64 within three units in the last place."""
    table = xp.asarray(_table())

    def work(out: Any, scratch: Any, part: Any) -> None:
        wide = xp.clip(part.astype(xp.float64), -_END, _END)
        nearest = xp.rint(wide * _PER_UNIT)
        place = xp.nan_to_num(nearest).astype(xp.int32) + _END * _PER_UNIT
        wide -= nearest / _PER_UNIT
        total = xp.take(table[-1], place)
        for row in table[-2::-1]:  # Horner's scheme
            total *= wide
            total += xp.take(row, place)
        out[...] = total

    out = xp.empty(x.shape, x.dtype)
    elementwise(xp, work, out, [x])
    return out


@cache
def _table() -> np.ndarray:
    """Row n holds the factor of the n-th power of the distance from each point of the table.

    The derivatives of exp(-u^2) are Hermite's polynomials times it, with alternating sign. (Abramowitz and Stegun,
    7.1.19.)
    """
    points = np.arange(-_END * _PER_UNIT, _END * _PER_UNIT + 1) / _PER_UNIT
    bell = np.exp(-points * points) * (2 / math.sqrt(math.pi))
    rows = [np.array([math.erf(point) for point in points])]
    before, polynomial = np.zeros_like(points), np.ones_like(points)
    for n in range(_TERMS):
        rows.append(bell * polynomial * ((-1) ** n / math.factorial(n + 1)))
        before, polynomial = polynomial, 2 * points * polynomial - 2 * n * before
    return np.array(rows)
