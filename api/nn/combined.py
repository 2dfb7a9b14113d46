"""These cells are a convolution or a dense layer with the normalisation and the activation behind it."""

from __future__ import annotations

from typing import Any

from mspc.api.errors import ApiTypeError
from mspc.api.nn.activation import LeakyReLU, get_activation
from mspc.api.nn.basic import Dense
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import flag
from mspc.api.nn.conv import Conv2d
from mspc.api.nn.normalization import BatchNorm1d, BatchNorm2d
from mspc.api.ops.primitive import Primitive


class _Combined(Cell):
    """What the two have in common: an optional `batchnorm` and an optional `activation`."""

    def _behind(self, has_bn: bool, norm: type[Cell], features: int, momentum: float, eps: float) -> None:
        self.has_bn = flag(type(self).__name__, "has_bn", has_bn)
        if has_bn:
            self.batchnorm = norm(features, eps, momentum)

    def _activated(self, activation: Any, alpha: float, after_fake: bool) -> None:
        name = type(self).__name__
        self.after_fake = flag(name, "after_fake", after_fake)
        self.has_act = activation is not None
        if isinstance(activation, str):
            activation = LeakyReLU(alpha) if activation == "leakyrelu" else get_activation(activation)
        elif isinstance(activation, type) and issubclass(activation, Cell):
            activation = activation()
        if activation is not None and not isinstance(activation, (Cell, Primitive)):
            raise ApiTypeError(f"{name}: activation must be a Cell, a Primitive or a name, not {activation!r}")
        if activation is not None:
            self.activation = activation

    def _follow(self, x: Any) -> Any:
        if self.has_bn:
            x = self.batchnorm(x)
        return self.activation(x) if self.has_act else x


class Conv2dBnAct(_Combined):
    """Conv2d, then BatchNorm2d with has_bn, then the activation.

    Args:
        in_channels, ..., bias_init: of Conv2d. momentum, eps: of BatchNorm2d. activation: a Cell, a Primitive, a name,
            or None. alpha: of "leakyrelu". after_fake: read by tools that quantise; nothing here does.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, pad_mode: str = "same",
        padding: Any = 0, dilation: Any = 1, group: int = 1, has_bias: bool = False, weight_init: Any = "normal",
        bias_init: Any = "zeros", has_bn: bool = False, momentum: float = 0.997, eps: float = 1e-5,
        activation: Any = None, alpha: float = 0.2, after_fake: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv = Conv2d(
            in_channels, out_channels, kernel_size, stride=stride, pad_mode=pad_mode, padding=padding,
            dilation=dilation, group=group, has_bias=has_bias, weight_init=weight_init, bias_init=bias_init,
        )  # fmt: skip
        self._behind(has_bn, BatchNorm2d, out_channels, momentum, eps)
        self._activated(activation, alpha, after_fake)

    def construct(self, x: Any) -> Any:
        return self._follow(self.conv(x))


class DenseBnAct(_Combined):
    """Dense, then BatchNorm1d with has_bn, then the activation.

    Args:
        in_channels, ..., has_bias: of Dense. momentum, eps: of BatchNorm1d. activation: a Cell, a Primitive, a name,
            or None. alpha: of "leakyrelu". after_fake: read by tools that quantise; nothing here does.
    """

    def __init__(
        self, in_channels: int, out_channels: int, weight_init: Any = "normal", bias_init: Any = "zeros",
        has_bias: bool = True, has_bn: bool = False, momentum: float = 0.9, eps: float = 1e-5, activation: Any = None,
        alpha: float = 0.2, after_fake: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dense = Dense(in_channels, out_channels, weight_init, bias_init, has_bias)
        self._behind(has_bn, BatchNorm1d, out_channels, momentum, eps)
        self._activated(activation, alpha, after_fake)

    def construct(self, x: Any) -> Any:
        return self._follow(self.dense(x))
