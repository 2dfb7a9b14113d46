"""Optimizers that adapt the step of every element: Adam, AdaGrad, RMSProp, Lamb and the like."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir.types import FLOAT16, FLOAT32, DType
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import Parameter, ParameterTuple
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell_arguments import check_beta, flag, number, scalar
from mspc.mindspore_api.nn.optim.optimizer import Optimizer


class Adadelta(Optimizer):
    """Zeiler 2012: a = rho * a + (1 - rho) * gradient^2; u = sqrt(d + epsilon) / sqrt(a + epsilon) * gradient;
    d = rho * d + (1 - rho) * u^2; parameter -= lr * u.

    The states a and d are the parameters `accum.NAME` and `accum_update.NAME`.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 1.0, rho: float = 0.9, epsilon: float = 1e-6, loss_scale: float = 1.0,
        weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.rho = number("Adadelta", "rho", rho)
        if self.rho > 1:
            raise ApiValueError(f"Adadelta: rho {rho} must be at most 1")
        self.epsilon = number("Adadelta", "epsilon", epsilon)
        self.accum = self.states("accum")
        self.accum_update = self.states("accum_update")
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        return self.update_each(gradients, self.accum, self.accum_update)

    def update(self, parameter: Any, accum: Any, delta: Any, rate: Any, gradient: Any) -> Any:
        step = ops.sqrt(delta + self.epsilon)
        square = self.assign(accum, accum * self.rho + ops.square(gradient) * (1 - self.rho))
        step = step / ops.sqrt(square + self.epsilon) * gradient
        delta = self.assign(delta, delta * self.rho + ops.square(step) * (1 - self.rho))
        return ops.depend(self.assign(parameter, parameter - rate * step), delta)


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
        """Return states of rows and of columns; for a tensor without them its squares, twice, in the element type
        `kind`."""
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
        """Return the rate before it is scaled by the parameter."""
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


class Adam(Optimizer):
    """Kingma and Ba 2015: moments m and v, corrected by 1 - beta^step; parameter -= lr * m / (sqrt(v) + eps).

    With use_amsgrad the largest v so far replaces v (Reddi et al. 2018). use_offload stores the moments in host memory
    (`offload`); use_lazy changes nothing: gradients are dense.

    The states are the parameters `moment1.NAME`, `moment2.NAME`, `vhat.NAME` (use_amsgrad), `beta1_power` and
    `beta2_power`.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
        eps: float = 1e-8,
        use_locking: bool = False, use_nesterov: bool = False, weight_decay: Any = 0.0,
        loss_scale: float = 1.0,
        use_amsgrad: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        for key in kwargs:
            if key not in ("use_lazy", "use_offload"):
                raise ApiTypeError(f"Adam has no argument {key!r}", ["its others are use_lazy and use_offload"])
        for key, value in kwargs.items():
            flag("Adam", key, value)
        if use_amsgrad and (use_nesterov or any(kwargs.values())):
            raise ApiValueError("Adam: use_amsgrad goes with neither use_nesterov nor use_lazy nor use_offload")
        self.beta1 = check_beta("Adam", "beta1", beta1)
        self.beta2 = check_beta("Adam", "beta2", beta2)
        self.eps = number("Adam", "eps", eps, above=0.0)
        self.beta1_power = scalar(1.0, "beta1_power")
        self.beta2_power = scalar(1.0, "beta2_power")
        self.moment1 = self.states("moment1")
        self.moment2 = self.states("moment2")
        self.use_amsgrad = use_amsgrad
        if use_amsgrad:
            self.vhat = self.states("vhat")
        if kwargs.get("use_offload"):
            self.offload()
        self.assign = ops.Assign()
        self.opt = ops.Adam(use_locking, use_nesterov)

    def construct(self, gradients: Any) -> Any:
        gradients = self.prepared(gradients)
        rates = self.rates()
        self.count_step()
        power1 = self.assign(self.beta1_power, self.beta1_power * self.beta1)
        power2 = self.assign(self.beta2_power, self.beta2_power * self.beta2)
        if self.use_amsgrad:
            return tuple([
                self.update(parameter, m, v, most, rate * ops.sqrt(1.0 - power2) / (1.0 - power1), gradient)
                for parameter, m, v, most, rate, gradient in zip(
                    self.parameters, self.moment1, self.moment2, self.vhat, rates, gradients, strict=True
                )
            ])  # fmt: skip
        return tuple([
            self.opt(parameter, m, v, power1, power2, rate, self.beta1, self.beta2, self.eps, gradient)
            for parameter, m, v, rate, gradient in zip(
                self.parameters, self.moment1, self.moment2, rates, gradients, strict=True
            )
        ])  # fmt: skip

    def update(self, parameter: Any, m: Any, v: Any, most: Any, rate: Any, gradient: Any) -> Any:
        mean = self.assign(m, m * self.beta1 + gradient * (1 - self.beta1))
        square = self.assign(v, v * self.beta2 + ops.square(gradient) * (1 - self.beta2))
        largest = self.assign(most, ops.maximum(most, square))
        return self.assign(parameter, parameter - rate * mean / (ops.sqrt(largest) + self.eps))


class LazyAdam(Adam):
    """Adam, with the name that networks with embeddings use. MindSpore's version skips rows without a gradient; here
    gradients are dense, and moments decay as in Adam. `sparse_opt` can be configured and is never used."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sparse_opt = ops.Adam()


class AdamWeightDecay(Optimizer):
    """Adam without bias correction; the weight decay applies to the parameter, not to the gradient: parameter -= lr *
    (m / (sqrt(v) + eps) + weight_decay * parameter).

    The states are the parameters `adam_m.NAME` and `adam_v.NAME`.
    """

    centralizes = False
    shares_updates = True

    def __init__(
        self, params: Any, learning_rate: Any = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay)
        self.beta1 = check_beta("AdamWeightDecay", "beta1", beta1)
        self.beta2 = check_beta("AdamWeightDecay", "beta2", beta2)
        self.eps = number("AdamWeightDecay", "eps", eps, above=0.0)
        self.moments1 = self.states("adam_m")
        self.moments2 = self.states("adam_v")
        self.fused_opt = ops.AdamWeightDecay()

    def construct(self, gradients: Any) -> Any:
        rates, decays = self.rates(), self.decays()
        self.count_step()
        return tuple([
            self.fused_opt(
                parameter, m, v, rate, self.beta1, self.beta2, self.eps, decay, gradient.astype(parameter.dtype)
            )
            for parameter, m, v, rate, decay, gradient in zip(
                self.parameters, self.moments1, self.moments2, rates, decays, gradients,
                strict=True
            )
        ])  # fmt: skip


class AdaMax(Optimizer):
    """Kingma and Ba 2015, section 7: m = beta1 * m + (1 - beta1) * gradient; v = max(beta2 * v, |gradient|);
    parameter -= lr / (1 - beta1^step) * m / (v + eps).

    The states are the parameters `moment1.NAME`, `moment2.NAME` and `beta1_power`.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8,
        weight_decay: Any = 0.0, loss_scale: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.beta1 = check_beta("AdaMax", "beta1", beta1)
        self.beta2 = check_beta("AdaMax", "beta2", beta2)
        self.eps = number("AdaMax", "eps", eps, above=0.0)
        self.beta1_power = scalar(1.0, "beta1_power")
        self.moment1 = self.states("moment1")
        self.moment2 = self.states("moment2")
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        gradients = self.prepared(gradients)
        rates = self.rates()
        self.count_step()
        power = self.assign(self.beta1_power, self.beta1_power * self.beta1)
        return tuple([
            self.update(parameter, m, v, rate / (1.0 - power), gradient)
            for parameter, m, v, rate, gradient in zip(
                self.parameters, self.moment1, self.moment2, rates, gradients, strict=True
            )
        ])  # fmt: skip

    def update(self, parameter: Any, m: Any, v: Any, rate: Any, gradient: Any) -> Any:
        mean = self.assign(m, m * self.beta1 + gradient * (1 - self.beta1))
        size = self.assign(v, ops.maximum(v * self.beta2, ops.abs(gradient)))
        return self.assign(parameter, parameter - rate * mean / (size + self.eps))


class Adagrad(Optimizer):
    """Duchi et al. 2011: a = a + gradient^2; parameter -= lr * gradient / sqrt(a).

    Args:
        accum: every element of a at the start. update_slots: whether a changes.

    The states a are the parameters `accum.NAME`.
    """

    def __init__(
        self, params: Any, accum: float = 0.1, learning_rate: Any = 0.001, update_slots: bool = True,
        loss_scale: float = 1.0, weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.update_slots = update_slots
        self.accum = self.states("accum", number("Adagrad", "accum", accum))
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        return self.update_each(gradients, self.accum)

    def update(self, parameter: Any, accum: Any, rate: Any, gradient: Any) -> Any:
        total = accum
        if self.update_slots:
            total = self.assign(accum, accum + ops.square(gradient))
        return self.assign(parameter, parameter - rate * gradient * ops.rsqrt(total))


class RMSProp(Optimizer):
    """Hinton's: s = decay * s + (1 - decay) * gradient^2; v = momentum * v + lr * gradient / sqrt(s + epsilon);
    parameter -= v. With `centered`, g = decay * g + (1 - decay) * gradient, and s - g^2 replaces s.

    s begins at 1. The states s, v and g are the parameters `mean_square.NAME`, `moment.NAME` and `mean_grad.NAME`.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 0.1, decay: float = 0.9, momentum: float = 0.0,
        epsilon: float = 1e-10, use_locking: bool = False, centered: bool = False, loss_scale: float = 1.0,
        weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.decay = number("RMSProp", "decay", decay)
        self.momentum = number("RMSProp", "momentum", momentum)
        self.epsilon = number("RMSProp", "epsilon", epsilon, above=0.0)
        self.centered = centered
        self.ms = self.states("mean_square", "ones")
        self.moment = self.states("moment")
        self.mg = self.states("mean_grad") if centered else self.ms
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        return self.update_each(gradients, self.ms, self.mg, self.moment)

    def update(self, parameter: Any, square: Any, mean: Any, moment: Any, rate: Any, gradient: Any) -> Any:
        spread = self.assign(square, square * self.decay + ops.square(gradient) * (1 - self.decay))
        if self.centered:
            spread = spread - ops.square(self.assign(mean, mean * self.decay + gradient * (1 - self.decay)))
        step = self.assign(moment, moment * self.momentum + rate * gradient * ops.rsqrt(spread + self.epsilon))
        return self.assign(parameter, parameter - step)


class FTRL(Optimizer):
    """McMahan et al. 2013, "follow the regularized leader", with p = -lr_power:

    b = a + gradient^2; z += gradient - (b^p - a^p) / lr * parameter; a = b; parameter = (sign(z) * l1 - z) / (b^p / lr
    + 2 * l2) if |z| > l1, else 0.

    Args:
        initial_accum: every element of a at the start.

    The states a and z are the parameters `moments.NAME` and `linear.NAME`.
    """

    def __init__(
        self, params: Any, initial_accum: float = 0.1, learning_rate: Any = 0.001, lr_power: float = -0.5,
        l1: float = 0.0, l2: float = 0.0, use_locking: bool = False, loss_scale: float = 1.0,
        weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        if isinstance(lr_power, bool) or not isinstance(lr_power, (int, float)) or lr_power > 0:
            raise ApiValueError(f"FTRL: lr_power {lr_power!r} must be a number of at most 0")
        self.power = -float(lr_power)
        self.l1, self.l2 = number("FTRL", "l1", l1), number("FTRL", "l2", l2)
        self.moments = self.states("moments", number("FTRL", "initial_accum", initial_accum))
        self.linear = self.states("linear")
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        return self.update_each(gradients, self.moments, self.linear)

    def update(self, parameter: Any, accum: Any, linear: Any, rate: Any, gradient: Any) -> Any:
        total = accum + ops.square(gradient)
        after, before = self.root(total), self.root(accum)
        pull = self.assign(linear, linear + gradient - (after - before) / rate * parameter)
        accum = self.assign(accum, total)
        size = ops.relu(ops.abs(pull) - self.l1)
        found = ops.neg(ops.sign(pull)) * size / (after / rate + 2.0 * self.l2)
        return ops.depend(self.assign(parameter, found), accum)

    def root(self, x: Any) -> Any:
        return ops.sqrt(x) if self.power == 0.5 else ops.pow(x, self.power)


class Lamb(Optimizer):
    """You et al. 2019: u = m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay * parameter;
    parameter -= lr * |parameter| / |u| * u. Norms are those of global tensors, and the quotient is 1 if either norm is
    0.

    The states are the parameters `lamb_m.NAME`, `lamb_v.NAME`, `beta1_power` and `beta2_power`.
    """

    shares_updates = True

    def __init__(
        self, params: Any, learning_rate: Any, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-6,
        weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay)
        self.beta1 = check_beta("Lamb", "beta1", beta1)
        self.beta2 = check_beta("Lamb", "beta2", beta2)
        self.eps = number("Lamb", "eps", eps, above=0.0)
        self.beta1_power = scalar(1.0, "beta1_power")
        self.beta2_power = scalar(1.0, "beta2_power")
        self.moments1 = self.states("lamb_m")
        self.moments2 = self.states("lamb_v")
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        gradients = self.gradients_centralization(gradients)
        rates, decays = self.rates(), self.decays()
        self.count_step()
        power1 = self.assign(self.beta1_power, self.beta1_power * self.beta1)
        power2 = self.assign(self.beta2_power, self.beta2_power * self.beta2)
        return tuple([
            self.update(parameter, m, v, power1, power2, rate, given == 0.0, decay, gradient)
            for parameter, m, v, rate, given, decay, gradient in zip(
                self.parameters, self.moments1, self.moments2, rates, self.weight_decays, decays,
                gradients, strict=True
            )
        ])  # fmt: skip

    def update(
        self,
        parameter: Any,
        m: Any,
        v: Any,
        power1: Any,
        power2: Any,
        rate: Any,
        is_free: bool,
        decay: Any,
        gradient: Any,
    ) -> Any:
        mean = self.assign(m, m * self.beta1 + gradient * (1 - self.beta1))
        square = self.assign(v, v * self.beta2 + ops.square(gradient) * (1 - self.beta2))
        step = mean / (1.0 - power1) / (ops.sqrt(square / (1.0 - power2)) + self.eps)
        if not is_free:
            step = step + parameter * decay
        size, length = self.norm(parameter), self.norm(step)
        usable = ops.logical_and(ops.greater(size, 0.0), ops.greater(length, 0.0))
        ratio = ops.select(usable, size / ops.maximum(length, 1e-30), ops.ones_like(size))
        return self.assign(parameter, parameter - rate * ratio * step)

    def norm(self, x: Any) -> Any:
        return ops.sqrt(ops.reduce_sum(ops.square(x)))
