"""Activations as cells."""

from __future__ import annotations

from typing import Any

from mspc.ir.types import FLOAT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.nn.cell import Cell


class ReLU(Cell):
    """max(0, x)."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = ops.ReLU()

    def construct(self, x: Any) -> Tensor:
        return self.relu(x)


class ReLU6(Cell):
    """min(max(0, x), 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.relu6 = ops.ReLU6()

    def construct(self, x: Any) -> Tensor:
        return self.relu6(x)


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


class Sigmoid(Cell):
    """1 / (1 + exp(-x))."""

    def __init__(self) -> None:
        super().__init__()
        self.sigmoid = ops.Sigmoid()

    def construct(self, x: Any) -> Tensor:
        return self.sigmoid(x)


class Tanh(Cell):
    """Hyperbolic tangent."""

    def __init__(self) -> None:
        super().__init__()
        self.tanh = ops.Tanh()

    def construct(self, x: Any) -> Tensor:
        return self.tanh(x)


class SiLU(Cell):
    """x * sigmoid(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.silu = ops.SiLU()

    def construct(self, x: Any) -> Tensor:
        return self.silu(x)


class LeakyReLU(Cell):
    """x if it is positive, alpha * x elsewhere."""

    def __init__(self, alpha: float = 0.2) -> None:
        super().__init__()
        self.alpha = alpha

    def construct(self, x: Any) -> Tensor:
        return ops.leaky_relu(x, self.alpha)


class ELU(Cell):
    """x if it is positive, alpha (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def construct(self, x: Any) -> Tensor:
        return ops.elu(x, self.alpha)


class CELU(Cell):
    """x if it is positive, alpha (exp(x / alpha) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        if alpha == 0:
            raise ApiValueError("CELU: alpha must not be 0")
        self.alpha = alpha

    def construct(self, x: Any) -> Tensor:
        return ops.celu(x, self.alpha)


class SeLU(Cell):
    """scale * x above 0, scale * alpha (exp(x) - 1) elsewhere, with the constants of Klambauer et al. 2017."""

    def construct(self, input_x: Any) -> Tensor:
        return ops.selu(input_x)


class HSigmoid(Cell):
    """min(max(x + 3, 0), 6) / 6."""

    def __init__(self) -> None:
        super().__init__()
        self.hsigmoid = ops.HSigmoid()

    def construct(self, input_x: Any) -> Tensor:
        return self.hsigmoid(input_x)


class HSwish(Cell):
    """x * min(max(x + 3, 0), 6) / 6."""

    def __init__(self) -> None:
        super().__init__()
        self.hswish = ops.HSwish()

    def construct(self, x: Any) -> Tensor:
        return self.hswish(x)


class Hardtanh(Cell):
    """x, not below min_val and not above max_val."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        super().__init__()
        self.min_val, self.max_val = min_val, max_val

    def construct(self, x: Any) -> Tensor:
        return ops.hardtanh(x, self.min_val, self.max_val)


class HShrink(Cell):
    """x if its absolute value is above lambd, else 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.hshrink = ops.HShrink(lambd)

    def construct(self, input_x: Any) -> Tensor:
        return self.hshrink(input_x)


class SoftShrink(Cell):
    """x moved towards 0 by lambd, and 0 if it would pass it."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.softshrink = ops.SoftShrink(lambd)

    def construct(self, input_x: Any) -> Tensor:
        return self.softshrink(input_x)


class Tanhshrink(Cell):
    """x - tanh(x)."""

    def construct(self, x: Any) -> Tensor:
        return ops.tanhshrink(x)


class Threshold(Cell):
    """x if it is above the threshold, else value."""

    def __init__(self, threshold: float, value: float) -> None:
        super().__init__()
        self.threshold, self.value = threshold, value

    def construct(self, input_x: Any) -> Tensor:
        return ops.threshold(input_x, self.threshold, self.value)


class LogSigmoid(Cell):
    """log(1 / (1 + exp(-x)))."""

    def construct(self, input_x: Any) -> Tensor:
        return ops.logsigmoid(input_x)


class Mish(Cell):
    """x * tanh(log(1 + exp(x)))."""

    def __init__(self) -> None:
        super().__init__()
        self.mish = ops.Mish()

    def construct(self, input_x: Any) -> Tensor:
        return self.mish(input_x)


class Softsign(Cell):
    """x / (1 + |x|)."""

    def __init__(self) -> None:
        super().__init__()
        self.softsign = ops.Softsign()

    def construct(self, x: Any) -> Tensor:
        return self.softsign(x)


class GLU(Cell):
    """The first half along `axis` times the sigmoid of the second."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def construct(self, x: Any) -> Tensor:
        return ops.glu(x, self.axis)


class Softmin(Cell):
    """exp(-x) divided by its sum along `axis`."""

    def __init__(self, axis: Any = -1) -> None:
        super().__init__()
        self.softmax = ops.Softmax(axis)

    def construct(self, x: Any) -> Tensor:
        return self.softmax(ops.neg(x))


class Softmax2d(Cell):
    """Softmax over the channels, dimension 1 of 4 or dimension 0 of 3."""

    def construct(self, x: Any) -> Tensor:
        return ops.softmax(x, -3)


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
    "softmin": Softmin, "softmax2d": Softmax2d, "elu": ELU, "hswish": HSwish, "hsigmoid": HSigmoid,
    "logsigmoid": LogSigmoid, "softsign": Softsign, "tanhshrink": Tanhshrink, "hardtanh": Hardtanh, "mish": Mish,
    "prelu": PReLU,
}  # fmt: skip


def get_activation(name: str | None) -> Cell | None:
    """Return the cell of an activation's name, or None without a name. Raise ValueError for an unknown name."""
    if not name:
        return None
    if name not in _BY_NAME:
        raise ApiValueError(f"unknown activation {name!r}; known are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]()
