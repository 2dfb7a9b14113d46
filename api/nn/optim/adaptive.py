"""These optimizers scale every element's step by what its gradients were: Adagrad, RMSProp, FTRL.

They are built of small operators, so that their states and updates are sharded as the parameters are.
"""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.cell_arguments import number
from mspc.api.nn.optim.optimizer import Optimizer


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
        if not isinstance(update_slots, bool):
            raise ApiTypeError(f"Adagrad: update_slots must be True or False, not {update_slots!r}")
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


class ProximalAdagrad(Optimizer):
    """Duchi and Singer 2009, with Adagrad's steps: a = a + gradient^2; s = lr / sqrt(a);
    v = parameter - s * gradient; parameter = sign(v) * max(0, |v| - s * l1) / (1 + s * l2).

    Args:
        accum: every element of a at the start. l1, l2: how strongly numbers are drawn to 0.

    The states a are the parameters `accum.NAME`.
    """

    def __init__(
        self, params: Any, accum: float = 0.1, learning_rate: Any = 0.001, l1: float = 0.0, l2: float = 0.0,
        use_locking: bool = False, loss_scale: float = 1.0, weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.l1, self.l2 = number("ProximalAdagrad", "l1", l1), number("ProximalAdagrad", "l2", l2)
        self.accum = self.states("accum", number("ProximalAdagrad", "accum", accum))
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        return self.update_each(gradients, self.accum)

    def update(self, parameter: Any, accum: Any, rate: Any, gradient: Any) -> Any:
        step = rate * ops.rsqrt(self.assign(accum, accum + ops.square(gradient)))
        updated = parameter - step * gradient
        size = ops.relu(ops.abs(updated) - step * self.l1)
        return self.assign(parameter, ops.sign(updated) * size / (1.0 + step * self.l2))


class RMSProp(Optimizer):
    """Hinton's: s = decay * s + (1 - decay) * gradient^2; v = momentum * v + lr * gradient / sqrt(s + epsilon);
    parameter -= v. With `centered`, g = decay * g + (1 - decay) * gradient and s - g^2 stands for s.

    s begins at 1. The states s, v and g are the parameters `mean_square.NAME`, `moment.NAME` and `mean_grad.NAME`.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 0.1, decay: float = 0.9, momentum: float = 0.0,
        epsilon: float = 1e-10, use_locking: bool = False, centered: bool = False, loss_scale: float = 1.0,
        weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        if not isinstance(centered, bool):
            raise ApiTypeError(f"RMSProp: centered must be True or False, not {centered!r}")
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

    b = a + gradient^2; z += gradient - (b^p - a^p) / lr * parameter; a = b;
    parameter = (sign(z) * l1 - z) / (b^p / lr + 2 * l2) where |z| > l1, else 0.

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
