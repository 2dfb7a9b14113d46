"""Optimizers that adapt the step of every element: Adam, AdaGrad, RMSProp, Lamb and the like."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell_arguments import check_beta, flag, number, scalar
from mspc.mindspore_api.nn.optim.optimizer import Optimizer


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
        self, parameter: Any, m: Any, v: Any, power1: Any, power2: Any, rate: Any, is_free: bool, decay: Any,
        gradient: Any,
    ) -> Any:  # fmt: skip
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
