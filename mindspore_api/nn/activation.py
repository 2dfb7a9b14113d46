"""Activations as cells."""

from __future__ import annotations

from typing import Any

from mspc.ir.types import FLOAT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.function_cells import FunctionCell, OperatorCell


class ReLU(OperatorCell):
    """max(0, x)."""


class ReLU6(OperatorCell):
    """min(max(0, x), 6)."""


class GELU(Cell):
    """x times the normal distribution function at x, by the tanh formula when `approximate`."""

    def __init__(self, approximate: bool = True) -> None:
        super().__init__()
        self.approximate = approximate
        self.gelu = ops.GeLU()

    def construct(self, x: Any) -> Tensor:
        if self.approximate:
            return self.gelu(x)
        return ops.gelu(x)


class FastGelu(Cell):
    """x * sigmoid(1.702 x)."""

    def construct(self, x: Any) -> Tensor:
        return ops.fast_gelu(x)


class Sigmoid(OperatorCell):
    """1 / (1 + exp(-x))."""


class Tanh(OperatorCell):
    """Hyperbolic tangent."""


class SiLU(OperatorCell):
    """x * sigmoid(x)."""


class LeakyReLU(FunctionCell):
    """x if it is positive, alpha * x elsewhere."""

    def __init__(self, alpha: float = 0.2) -> None:
        super().__init__(ops.leaky_relu, alpha)


class ELU(FunctionCell):
    """x if it is positive, alpha (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__(ops.elu, alpha)


class SeLU(Cell):
    """scale * x above 0, scale * alpha (exp(x) - 1) elsewhere, with the constants of Klambauer et al. 2017."""

    def construct(self, input_x: Any) -> Tensor:
        return ops.selu(input_x)


class HSigmoid(OperatorCell):
    """min(max(x + 3, 0), 6) / 6."""


class HSwish(OperatorCell):
    """x * min(max(x + 3, 0), 6) / 6."""


class Hardtanh(FunctionCell):
    """x, not below min_val and not above max_val."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        super().__init__(ops.hardtanh, min_val, max_val)


class Threshold(FunctionCell):
    """x if it is above the threshold, else value."""

    def __init__(self, threshold: float, value: float) -> None:
        super().__init__(ops.threshold, threshold, value)


class LogSigmoid(Cell):
    """log(1 / (1 + exp(-x)))."""

    def construct(self, input_x: Any) -> Tensor:
        return ops.logsigmoid(input_x)


class Mish(OperatorCell):
    """x * tanh(log(1 + exp(x)))."""


class GLU(FunctionCell):
    """The first half along `axis` times the sigmoid of the second."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__(ops.glu, axis)


class Softmax(Cell):
    """exp(x) divided by its sum along `axis`."""

    def __init__(self, axis: Any = -1) -> None:
        super().__init__()
        self.softmax = ops.Softmax(axis)

    def construct(self, x: Any) -> Tensor:
        return self.softmax(x)


class LogSoftmax(Cell):
    """Logarithm of the softmax along `axis`."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.log_softmax = ops.LogSoftmax(axis)

    def construct(self, x: Any) -> Tensor:
        return self.log_softmax(x)


class Identity(Cell):
    """The input."""

    def construct(self, x: Any) -> Any:
        return x


class PReLU(Cell):
    """x if it is positive, weight * x elsewhere.

    Args:
        channel: number of weights: 1, or the size of dimension 1 of x. w: their initial value, a number, a list
            with one for each weight, or a Tensor.
    """

    def __init__(self, channel: int = 1, w: Any = 0.25) -> None:
        super().__init__()
        if isinstance(channel, bool) or not isinstance(channel, int) or channel < 1:
            raise ApiValueError(f"PReLU: channel {channel!r} must be an integer of at least 1")
        given = w if isinstance(w, (list, Tensor)) else [float(w)] * channel
        value = given if isinstance(given, Tensor) else Tensor(given, FLOAT32)
        if value.shape != (channel,):
            raise ApiValueError(f"PReLU: w has shape {value.shape}, not ({channel},)")
        self.w = Parameter(value, "a")
        self.prelu = ops.PReLU()

    def construct(self, x: Any) -> Tensor:
        return self.prelu(x, ops.cast(self.w, x.dtype))


_BY_NAME = {
    "relu": ReLU, "relu6": ReLU6, "gelu": GELU, "fast_gelu": FastGelu, "sigmoid": Sigmoid, "tanh": Tanh,
    "silu": SiLU, "swish": SiLU, "leakyrelu": LeakyReLU, "softmax": Softmax, "logsoftmax": LogSoftmax,
    "elu": ELU, "hswish": HSwish, "hsigmoid": HSigmoid, "logsigmoid": LogSigmoid, "hardtanh": Hardtanh, "mish": Mish,
    "prelu": PReLU,
}  # fmt: skip


def get_activation(name: str | None) -> Cell | None:
    """Return the cell of an activation's name, or None without a name. Raise ValueError for an unknown name."""
    if not name:
        return None
    if name not in _BY_NAME:
        raise ApiValueError(f"unknown activation {name!r}; known are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]()
