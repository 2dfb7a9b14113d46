"""These cells are a function of `ops`, or layers over two inputs or over time."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.common.initializer import Uniform
from mspc.api.common.parameter import Parameter
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import number, parameter, positive
from mspc.ir.types import FLOAT32
from mspc.ops.operator_arguments import describe


class LGamma(Cell):
    """The logarithm of |gamma(x)|, element by element."""

    def construct(self, x: Any) -> Any:
        return ops.lgamma(x)


class DiGamma(Cell):
    """The derivative of `LGamma`, element by element."""

    def construct(self, x: Any) -> Any:
        return ops.digamma(x)


class LBeta(Cell):
    """The logarithm of the beta function of x and y: lgamma(x) + lgamma(y) - lgamma(x + y)."""

    def construct(self, x: Any, y: Any) -> Any:
        return ops.lgamma(x) + ops.lgamma(y) - ops.lgamma(x + y)


class MatDet(Cell):
    """The determinant of matrices."""

    def construct(self, a: Any) -> Any:
        return ops.det(a)


class MatInverse(Cell):
    """The inverse of matrices."""

    def construct(self, a: Any) -> Any:
        return ops.inverse(a)


class L1Regularizer(Cell):
    """scale times the sum of |weights|.

    Raises:
        ValueError: scale is not above 0.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = number("L1Regularizer", "scale", scale, above=0.0)

    def construct(self, weights: Any) -> Any:
        return ops.reduce_sum(ops.abs(weights)) * self.scale


class ImageGradients(Cell):
    """(differences to the row below, 0 in the last row; differences to the column to the right, 0 in the last column)
    of images [images, channels, height, width]."""

    def construct(self, images: Any) -> Any:
        down = images[:, :, 1:] - images[:, :, :-1]
        right = images[:, :, :, 1:] - images[:, :, :, :-1]
        down = ops.concat((down, ops.zeros_like(images[:, :, :1])), 2)
        return down, ops.concat((right, ops.zeros_like(images[:, :, :, :1])), 3)


class BiDense(Cell):
    """input1 @ weight[o] @ input2 + bias[o] for every output o; weight is [out_channels, in1_channels, in2_channels].

    Args:
        weight_init, bias_init: an initializer, its name, a number or a Tensor; None draws both evenly from within
            1 / sqrt(in1_channels).
    """

    def __init__(
        self, in1_channels: int, in2_channels: int, out_channels: int, weight_init: Any = None, bias_init: Any = None,
        has_bias: bool = True, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = {"out_channels": out_channels, "in1_channels": in1_channels, "in2_channels": in2_channels}
        shape = [positive("BiDense", name, value) for name, value in sizes.items()]
        if not isinstance(has_bias, bool):
            raise ApiTypeError(f"BiDense: has_bias must be True or False, not {has_bias!r}")
        uniform = Uniform(1 / math.sqrt(in1_channels))
        self.weight = parameter(uniform if weight_init is None else weight_init, tuple(shape), dtype, "weight")
        self.has_bias = has_bias
        self.bias: Parameter | None = None
        if has_bias:
            self.bias = parameter(uniform if bias_init is None else bias_init, (out_channels,), dtype, "bias")

    def construct(self, input1: Any, input2: Any) -> Any:
        return ops.bidense(input1, input2, self.weight, self.bias)


class TimeDistributed(Cell):
    """A layer for every step along time_axis; the layer is called once on all of them with reshape_with_axis, the axis
    of the batch, by which the steps then stand."""

    def __init__(self, layer: Any, time_axis: int, reshape_with_axis: int | None = None) -> None:
        super().__init__()
        if not callable(layer):
            raise ApiTypeError(f"TimeDistributed: layer must be a Cell or a Primitive, not {describe(layer)}")
        for name, value in (("time_axis", time_axis), ("reshape_with_axis", reshape_with_axis)):
            if isinstance(value, bool) or not (isinstance(value, int) or (value is None and name != "time_axis")):
                raise ApiTypeError(f"TimeDistributed: {name} must be an integer, not {describe(value)}")
        self.layer, self.time_axis, self.reshape_with_axis = layer, time_axis, reshape_with_axis

    def construct(self, inputs: Any) -> Any:
        axis = self.time_axis % len(inputs.shape)
        if self.reshape_with_axis is None:
            return ops.stack([self.layer(step) for step in ops.unbind(inputs, axis)], axis)
        with_axis = self.reshape_with_axis % len(inputs.shape)
        if abs(with_axis - axis) != 1:
            raise ApiValueError(f"TimeDistributed: axes {axis} and {with_axis} must stand side by side")
        first, shape = min(axis, with_axis), inputs.shape
        found = self.layer(ops.reshape(inputs, (*shape[:first], shape[first] * shape[first + 1], *shape[first + 2 :])))
        return ops.reshape(found, (*shape[: first + 2], *found.shape[first + 1 :]))
