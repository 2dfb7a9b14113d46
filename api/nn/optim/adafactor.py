"""AdaFactor is Adam that stores the squares of a matrix as one number per row and one per column."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api import ops
from mspc.api.common.parameter import Parameter, ParameterTuple
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.cell_arguments import number
from mspc.api.nn.optim.optimizer import Optimizer
from mspc.ir.types import FLOAT16, FLOAT32, DType


class AdaFactor(Optimizer):
    """Shazeer and Stern 2018, with b = 1 - step^-decay_rate and s = gradient^2 + eps[0]:

    r = b * r + (1 - b) * (mean of s over columns), c the same over rows, u = gradient / sqrt(r * c / mean(r)); of
    tensors with less than two dimensions v = b * v + (1 - b) * s, u = gradient / sqrt(v). Then u is divided by
    max(1, rms(u) / clip_threshold) and multiplied with the rate, its running mean by beta1 is taken, and
    parameter -= u + weight_decay * rate * parameter.

    Args:
        learning_rate: None with relative_step.
        scale_parameter: the rate is multiplied with max(eps[1], rms(parameter)).
        relative_step: the rate is min(0.01, 1 / sqrt(step)), or min(1e-6 * step, ...) with warmup_init.
        compression: the mean squares of tensors with less than two dimensions are stored in Float16.

    The states are the parameters `exp_avg.NAME` (beta1), `exp_avg_sq_row.NAME` and `exp_avg_sq_col.NAME`, or
    `exp_avg_sq.NAME`.
    """

    centralizes = False
    shares_updates = True

    def __init__(
        self, params: Any, learning_rate: Any = None, eps: Any = (1e-30, 1e-3), clip_threshold: float = 1.0,
        decay_rate: float = 0.8, beta1: float = 0.9, weight_decay: Any = 0.0, scale_parameter: bool = True,
        relative_step: bool = True, warmup_init: bool = False, compression: bool = False, loss_scale: float = 1.0,
    ) -> None:  # fmt: skip
        flags = {"scale_parameter": scale_parameter, "relative_step": relative_step, "warmup_init": warmup_init,
                 "compression": compression}  # fmt: skip
        for key, value in flags.items():
            if not isinstance(value, bool):
                raise ApiTypeError(f"AdaFactor: {key} must be True or False, not {value!r}")
        if (learning_rate is None) != relative_step:
            raise ApiValueError("AdaFactor: learning_rate must be None with relative_step, and a rate without")
        if warmup_init and not relative_step:
            raise ApiValueError("AdaFactor: warmup_init needs relative_step")
        if not isinstance(eps, (tuple, list)) or len(eps) != 2:
            raise ApiTypeError(f"AdaFactor: eps must be two numbers, not {eps!r}")
        super().__init__(0.0 if learning_rate is None else learning_rate, params, weight_decay, loss_scale)
        self.eps = number("AdaFactor", "eps", eps[0]), number("AdaFactor", "eps", eps[1])
        self.clip_threshold = number("AdaFactor", "clip_threshold", clip_threshold, above=0.0)
        self.decay_rate = number("AdaFactor", "decay_rate", decay_rate)
        self.beta1 = 0.0 if beta1 is None else number("AdaFactor", "beta1", beta1)
        self.scale_parameter, self.relative_step, self.warmup_init = scale_parameter, relative_step, warmup_init
        self.exp_avg = self.states("exp_avg") if self.beta1 > 0.0 else self.parameters
        self.rows, self.columns = self._squares(FLOAT16 if compression else FLOAT32)
        self.assign = ops.Assign()

    def _squares(self, kind: DType) -> tuple[ParameterTuple, ParameterTuple]:
        """States of rows and of columns; of a tensor that has none its squares, twice, in the element type `kind`."""
        rows: list[Any] = []
        columns: list[Any] = []
        for parameter in self.parameters:
            shape = parameter.shape
            if len(shape) < 2:
                rows.append(_zeros(shape, f"exp_avg_sq.{parameter.name}", kind))
                columns.append(rows[-1])
                continue
            rows.append(_zeros(shape[:-1], f"exp_avg_sq_row.{parameter.name}"))
            columns.append(_zeros((*shape[:-2], shape[-1]), f"exp_avg_sq_col.{parameter.name}"))
        return ParameterTuple(rows), ParameterTuple(columns)

    def construct(self, gradients: Any) -> Any:
        gradients = self.scale_grad(gradients)
        rates, decays = self.rates(), self.decays()
        step = ops.reshape(ops.cast(self.global_step, FLOAT32), ()) + 1.0
        self.count_step()
        keep = 1.0 - ops.pow(step, -self.decay_rate)
        return tuple([
            self.update(parameter, mean, row, column, self.rate_now(rate, step), keep, given == 0.0, decay, gradient)
            for parameter, mean, row, column, rate, given, decay, gradient in zip(
                self.parameters, self.exp_avg, self.rows, self.columns, rates, self.weight_decays,
                decays, gradients, strict=True,
            )
        ])  # fmt: skip

    def rate_now(self, rate: Any, step: Any) -> Any:
        """The rate before it is scaled by the parameter."""
        if not self.relative_step:
            return rate
        most = step * 1e-6 if self.warmup_init else 1e-2
        return ops.minimum(ops.rsqrt(step), most)

    def update(
        self, parameter: Any, mean: Any, row: Any, column: Any, rate: Any, keep: Any, is_free: bool, decay: Any,
        gradient: Any,
    ) -> Any:  # fmt: skip
        if self.scale_parameter:
            rate = rate * ops.maximum(self.rms(parameter), self.eps[1])
        square = ops.square(gradient) + self.eps[0]
        if len(parameter.shape) < 2:
            squares = ops.cast(row, FLOAT32) * keep + square * (1.0 - keep)
            self.assign(row, ops.cast(squares, row.dtype))
            step = gradient * ops.rsqrt(squares)
        else:
            rows = self.assign(row, row * keep + ops.reduce_mean(square, -1) * (1.0 - keep))
            columns = self.assign(column, column * keep + ops.reduce_mean(square, -2) * (1.0 - keep))
            share = ops.rsqrt(rows / ops.reduce_mean(rows, -1, True))
            step = gradient * ops.expand_dims(share, -1) * ops.expand_dims(ops.rsqrt(columns), -2)
        step = step * (rate / ops.maximum(self.rms(step) / self.clip_threshold, 1.0))
        if self.beta1 > 0.0:
            step = self.assign(mean, mean * self.beta1 + step * (1.0 - self.beta1))
        if not is_free:
            step = step + parameter * (decay * rate)
        return self.assign(parameter, parameter - step)

    def rms(self, x: Any) -> Any:
        return ops.sqrt(ops.reduce_mean(ops.square(x)))


def _zeros(shape: tuple[int, ...], name: str, kind: DType = FLOAT32) -> Parameter:
    return Parameter(Tensor(np.zeros(shape, np.float32), kind), name, requires_grad=False)
