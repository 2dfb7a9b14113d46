"""Modified Bessel functions of order 0 and 1, and the error function, of arrays of Float64 on NumPy or CuPy.

Near 0 Bessel functions are series with terms of one sign, elsewhere sums over equidistant points of their integrals;
their integrands vanish so quickly that these sums have all digits. (Abramowitz and Stegun, 9.6.10, 9.6.16.)
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from mspc.ops.cpu.blocks import elementwise

_LARGEST = 1e300
"""Upper bound to which arguments are clipped if only their root counts."""
_SERIES_OF_I = 20.0


def bessel_i(xp: Any, x: Any, order: int, scaled: bool) -> Any:
    """Return I, times exp(-|x|) if `scaled`."""
    size = xp.abs(x)
    near = xp.minimum(size, _SERIES_OF_I)
    far = _mean_on_circle(xp, xp.maximum(size, _SERIES_OF_I), order)
    series = _series(xp, near, order)
    if scaled:
        found = xp.where(size < _SERIES_OF_I, series * xp.exp(-near), far)
    else:
        root = xp.exp(size / 2)  # its square may be too large while the product is not
        found = xp.where(size < _SERIES_OF_I, series, far * root * root)
    return xp.where(x < 0, -found, found) if order else found


def _series(xp: Any, x: Any, order: int) -> Any:
    """Return (x/2)^order times the sum of (x/2)^(2k) / (k! (k + order)!)."""
    square = x * x / 4
    total = xp.zeros_like(x)
    for k in range(_TERMS_OF_I, -1, -1):
        total = total * square / ((k + 1) * (k + 1 + order)) + 1.0
    return total * x / 2 if order else total


_TERMS_OF_I = 50
"""Enough at `_SERIES_OF_I`."""


def _mean_on_circle(xp: Any, x: Any, order: int) -> Any:
    """Return the mean of exp(x (cos t - 1)) cos(order t) over the circle, from `_SERIES_OF_I` on."""
    step, root = 0.5, xp.sqrt(xp.minimum(x, _LARGEST))
    total = xp.full_like(x, 0.5)  # half of the integrand at 0
    for n in range(1, 24):
        angle = n * step / root
        total = total + xp.exp(-2 * (root * xp.sin(angle / 2)) ** 2) * (xp.cos if order else xp.ones_like)(angle)
    return total * (step / math.pi) / xp.sqrt(x)


# The error function of arrays is computed by Taylor's polynomial about the nearest point of a table.


_PER_UNIT = 64
_END = 6
"""Beyond it the error function is 1 in double precision."""
_TERMS = 7
"""Powers of the distance: the points are so close that the next one adds less than the rounding of the sum."""


def erf(xp: Any, x: Any) -> Any:
    """Return the error function of an array, in its element type; of Float64 within three units in the last place."""
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
    """Return a table: row n holds the factor of the n-th power of the distance from each point.

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
