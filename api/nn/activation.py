"""Activations as cells."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.common.parameter import Parameter
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiValueError
from mspc.api.nn.cell import Cell
from mspc.ir.types import FLOAT32


class ReLU(Cell):
    """max(0, x)."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = ops.ReLU()

    def construct(self, x: Any) -> Any:
        return self.relu(x)


class ReLU6(Cell):
    """min(max(0, x), 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.relu6 = ops.ReLU6()

    def construct(self, x: Any) -> Any:
        return self.relu6(x)


class GELU(Cell):
    """x times the normal distribution function at x, by the tanh formula when `approximate`."""

    def __init__(self, approximate: bool = True) -> None:
        super().__init__()
        self.approximate = approximate
        self.gelu = ops.GeLU()
        self.erf = ops.Erf()

    def construct(self, x: Any) -> Any:
        if self.approximate:
            return self.gelu(x)
        return x * (self.erf(x * 0.7071067811865476) + 1.0) * 0.5


class Sigmoid(Cell):
    """1 / (1 + exp(-x))."""

    def __init__(self) -> None:
        super().__init__()
        self.sigmoid = ops.Sigmoid()

    def construct(self, x: Any) -> Any:
        return self.sigmoid(x)


class Tanh(Cell):
    """Hyperbolic tangent."""

    def __init__(self) -> None:
        super().__init__()
        self.tanh = ops.Tanh()

    def construct(self, x: Any) -> Any:
        return self.tanh(x)


class SiLU(Cell):
    """x * sigmoid(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.silu = ops.SiLU()

    def construct(self, x: Any) -> Any:
        return self.silu(x)


class LeakyReLU(Cell):
    """x where it is positive, alpha * x elsewhere."""

    def __init__(self, alpha: float = 0.2) -> None:
        super().__init__()
        self.alpha = alpha
        self.maximum = ops.Maximum()
        self.minimum = ops.Minimum()

    def construct(self, x: Any) -> Any:
        if self.alpha <= 1:
            return self.maximum(x * self.alpha, x)
        return self.minimum(x * self.alpha, x)


class Softmax(Cell):
    """exp(x) divided by its sum along `axis`."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.softmax = ops.Softmax(axis)

    def construct(self, x: Any) -> Any:
        return self.softmax(x)


class LogSoftmax(Cell):
    """Logarithm of the softmax along `axis`."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.log_softmax = ops.LogSoftmax(axis)

    def construct(self, x: Any) -> Any:
        return self.log_softmax(x)


class Identity(Cell):
    """The input."""

    def construct(self, x: Any) -> Any:
        return x


_BY_NAME = {
    "relu": ReLU, "relu6": ReLU6, "gelu": GELU, "fast_gelu": GELU, "sigmoid": Sigmoid, "tanh": Tanh,
    "silu": SiLU,
    "swish": SiLU, "leakyrelu": LeakyReLU, "softmax": Softmax, "logsoftmax": LogSoftmax,
}  # fmt: skip


def get_activation(name: str | None) -> Cell | None:
    """The cell of an activation's name, None without one. Raises ValueError for an unknown name."""
    if not name:
        return None
    if name not in _BY_NAME:
        raise ApiValueError(f"unknown activation {name!r}; known are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]()


class PReLU(Cell):
    """x where it is positive, weight * x elsewhere.

    Args:
        channel: number of weights: 1, or the size of dimension 1 of x. w: their initial value, a number or a Tensor.
    """

    def __init__(self, channel: int = 1, w: Any = 0.25) -> None:
        super().__init__()
        if isinstance(channel, bool) or not isinstance(channel, int) or channel < 1:
            raise ApiValueError(f"PReLU: channel {channel!r} must be an integer of at least 1")
        value = w if isinstance(w, Tensor) else Tensor([float(w)] * channel, FLOAT32)
        if value.shape != (channel,):
            raise ApiValueError(f"PReLU: w has shape {value.shape}, not ({channel},)")
        self.w = Parameter(value, "a")
        self.prelu = ops.PReLU()

    def construct(self, x: Any) -> Any:
        return self.prelu(x, self.w)
