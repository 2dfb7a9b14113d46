"""This operator is the inverse of the error function."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ops.bases import ArrayFunction
from mspc.ops.math.arithmetic import Mul
from mspc.ops.math.elementwise import Exp, Gradients, Square, scaled
from mspc.ops.math.special import erf
from mspc.ops.op import ArrayBackend, sample


class Erfinv(ArrayFunction):
    """The y with erf(y) = x: infinite at -1 and 1, NaN beyond."""

    samples = (sample((8, 16), low=-0.9, high=0.9), sample((), low=-0.9, high=0.9))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        slope = scaled(b, math.sqrt(math.pi) / 2, b.emit(Exp(), b.emit(Square(), out)))
        return (b.emit(Mul(), dout, slope),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
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
    """1 - erf(y) for y from `_FAR` on, by its continued fraction."""
    fraction = y
    for n in range(_TERMS, 0, -1):
        fraction = y + n / 2 / fraction
    return xp.exp(-y * y) / (math.sqrt(math.pi) * fraction)


_TERMS = 120
"""Enough for all digits at `_FAR`."""


def _near(xp: Any, x: Any) -> Any:
    """A guess for x from 0 on with a relative error below 0.003: Winitzki's formula."""
    a = 0.147
    logarithm = xp.log((1 - x) * (1 + x))
    t = 2 / (math.pi * a) + logarithm / 2
    return xp.sqrt(xp.maximum(xp.sqrt(t * t - logarithm / a) - t, 0))
