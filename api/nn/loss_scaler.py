"""The scalers of `mindspore.amp` scale the loss in a script's own training function, in and outside of a network."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api import ops
from mspc.api.common.parameter import Parameter
from mspc.api.common.tensor import Tensor
from mspc.api.nn.cell_arguments import number, positive
from mspc.api.nn.loss_scale import as_dtype
from mspc.ir.types import FLOAT32, INT32

__all__: tuple[str, ...] = ()
"""`mindspore.amp` has these, `nn` has none of them."""


def init_status() -> Tensor:
    """A status word for `all_finite`; only Ascend devices need one, here it is zeros."""
    return Tensor(np.zeros(8, np.float32))


def all_finite(inputs: Any, status: Any = None) -> Any:
    """Whether all tensors in a tuple are free of infinities and NaNs, a Bool scalar; in and outside of a network."""
    return ops.AllFinite()(inputs)


class LossScaler:
    """Scales losses and unscales gradients in a script's own training function."""

    def scale(self, inputs: Any) -> Any:
        """Tensors, or a tuple of them, times the scale."""
        raise NotImplementedError

    def unscale(self, inputs: Any) -> Any:
        """Tensors, or a tuple of them, divided by the scale."""
        raise NotImplementedError

    def adjust(self, grads_finite: Any) -> Any:
        """Change the scale after a step; `grads_finite` comes from `all_finite`."""
        raise NotImplementedError


class StaticLossScaler(LossScaler):
    """A scale that never changes."""

    def __init__(self, scale_value: float) -> None:
        value = number("StaticLossScaler", "scale_value", scale_value, above=0.0)
        self.scale_value = Parameter(Tensor(value, FLOAT32), "scale_value", requires_grad=False)

    def scale(self, inputs: Any) -> Any:
        return _times(inputs, self.scale_value)

    def unscale(self, inputs: Any) -> Any:
        return _times(inputs, 1.0 / self.scale_value)

    def adjust(self, grads_finite: Any) -> Any:
        return self.scale_value


class DynamicLossScaler(LossScaler):
    """A scale that is divided by `scale_factor` (to 1 at least) after an overflow and multiplied by it after
    `scale_window` steps without one.

    Its states are the parameters `scale_value` and `counter`.
    """

    def __init__(self, scale_value: float, scale_factor: int, scale_window: int) -> None:
        name = "DynamicLossScaler"
        value = number(name, "scale_value", scale_value, least=1.0)
        self.scale_factor = float(positive(name, "scale_factor", scale_factor))
        self.scale_window = positive(name, "scale_window", scale_window)
        self.scale_value = Parameter(Tensor(value, FLOAT32), "scale_value", requires_grad=False)
        self.counter = Parameter(Tensor(0, INT32), "counter", requires_grad=False)

    def scale(self, inputs: Any) -> Any:
        return _times(inputs, self.scale_value)

    def unscale(self, inputs: Any) -> Any:
        return _times(inputs, 1.0 / self.scale_value)

    def adjust(self, grads_finite: Any) -> Any:
        count = ops.select(grads_finite, self.counter + 1, ops.zeros_like(self.counter))
        grows = count >= self.scale_window
        smaller = ops.maximum(self.scale_value * (1.0 / self.scale_factor), 1.0)
        larger = ops.select(grows, self.scale_value * self.scale_factor, self.scale_value + 0.0)
        ops.assign(self.scale_value, ops.select(grads_finite, larger, smaller))
        ops.assign(self.counter, ops.select(grows, ops.zeros_like(count), count))
        return grads_finite


def _times(inputs: Any, scale: Any) -> Any:
    if isinstance(inputs, (tuple, list)):
        return tuple([_times(item, scale) for item in inputs])
    return inputs * as_dtype(scale, inputs.dtype)
