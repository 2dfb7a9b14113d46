"""Judges of special functions, by SciPy: PyTorch has few of them, and passes gradients through fewer."""

from typing import Any

import numpy as np
import pytest

from tests.oracle.inputs import FLOATS, SPECIAL, WHOLE, drawn, unary
from tests.oracle.judging import Judge, torch

S = pytest.importorskip("scipy.special", reason="needs SciPy: pip install -e '.[oracle]'")
RANGES = ((-3.0, 3.0), (15.0, 30.0), (0.01, 60.0))


class _Function(torch.autograd.Function):
    """A function of SciPy with a slope of SciPy's."""

    @staticmethod
    def forward(context: Any, x: Any, function: Any, slope: Any) -> Any:
        context.save_for_backward(x)
        context.slope = slope
        return torch.tensor(np.asarray(function(x.detach().numpy())))

    @staticmethod
    def backward(context: Any, *grads: Any) -> Any:
        (x,) = context.saved_tensors
        return grads[0] * torch.tensor(np.asarray(context.slope(x.detach().numpy()))), None, None


def _judge(name: str, operator: str, slope: Any, low: float = -3.0) -> Judge:
    function = getattr(S, name)

    def theirs(x: Any) -> Any:
        kind = x.dtype if x.is_floating_point() else torch.float32
        return _Function.apply(x.to(kind).double(), function, slope).to(kind)

    inputs = unary(low, 3.0, (*FLOATS, *WHOLE)) + [[drawn(50, low=a, high=b)] for a, b in RANGES]
    return Judge((f"ops.bessel_{name}", f"ops.{operator}"), theirs, [*inputs, [SPECIAL.copy()]], loose=8)


def _halved(function: Any, x: Any) -> Any:
    """function(x) / x, and 1/2 at 0."""
    return np.where(x == 0, 0.5, function(x) / np.where(x == 0, 1, x))


JUDGES = [
    _judge("i0", "BesselI0", S.i1),
    _judge("i1", "BesselI1", lambda x: S.i0(x) - _halved(S.i1, x)),
    _judge("i0e", "BesselI0e", lambda x: S.i1e(x) - np.sign(x) * S.i0e(x)),
    _judge("i1e", "BesselI1e", lambda x: S.i0e(x) - np.sign(x) * S.i1e(x) - _halved(S.i1e, x)),
]
