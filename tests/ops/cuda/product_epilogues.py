"""The work that cuBLASLt does with a product in the same pass, with the errors that an H100 shows in Float64 and
Float32."""

from typing import Any

import numpy as np

SCALE = 0.79788456
"""For sqrt(2 / pi), off by 1e-9."""
CUBE = 0.044715
STEP = 2.0**-16


def _tanh(x: Any) -> Any:
    """The largest error, relative to the formula's result. In Float32 about as coarse as on an H100, where GeLU is off
    by 5e-6."""
    found = np.tanh(SCALE * (x + CUBE * x**3))
    return found if x.dtype == np.float64 else np.round(found / STEP) * found.dtype.type(STEP)


def gelu(x: Any) -> Any:
    """x * P(X <= x) for a normal X, by the tanh formula."""
    return 0.5 * x * (1 + _tanh(x))


def gelu_slope(x: Any) -> Any:
    """The derivative of `gelu`."""
    tanh = _tanh(x)
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * SCALE * (1 + 3 * CUBE * x * x)
