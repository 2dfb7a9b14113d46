"""The error function of arrays on NumPy or CuPy, and the functions of SciPy or of CuPy's part of that name."""

from __future__ import annotations

import importlib
import math
from functools import cache
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError


def scipy_module(name: str, xp: Any = np) -> Any:
    """Return a module of SciPy, or CuPy's of that name for arrays of CuPy. Raise MspcError if it is not installed."""
    if hasattr(xp, "convolved"):  # a module that writes programs has these functions itself
        return getattr(xp, name)
    try:
        return importlib.import_module(f"scipy.{name}" if xp is np else f"cupyx.scipy.{name}")
    except ImportError:
        raise MspcError("this function is computed by SciPy, which is not installed",
                        notes=["pip install scipy"]) from None  # fmt: skip


# The error function of arrays is computed by Taylor's polynomial about the nearest point of a table.


_PER_UNIT = 64
_END = 6
"""Beyond it the error function is 1 in double precision."""
_TERMS = 7
"""Powers of the distance: the points are so close that the next one adds less than the rounding of the sum."""


def erf(xp: Any, x: Any) -> Any:
    """Return the error function of an array, in its element type; of Float64 within three units in the last place."""
    if hasattr(xp, "erf"):
        return xp.erf(x)
    table = xp.asarray(_table())

    wide = xp.clip(x.astype(xp.float64), -_END, _END)
    nearest = xp.rint(wide * _PER_UNIT)
    place = xp.nan_to_num(nearest).astype(xp.int32) + _END * _PER_UNIT
    wide -= nearest / _PER_UNIT
    total = xp.take(table[-1], place)
    for row in table[-2::-1]:  # Horner's scheme
        total *= wide
        total += xp.take(row, place)
    return xp.asarray(total, x.dtype)


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
