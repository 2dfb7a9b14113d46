"""These optimizers have PyTorch's arguments and formulas, and scale steps by earlier gradients."""

from __future__ import annotations

from typing import Any, ClassVar

from mspc.api import ops
from mspc.api.common.parameter import ParameterTuple
from mspc.api.experimental.optim.optimizer import Optimizer
from mspc.api.mint.groups import betas as two_betas
from mspc.api.nn.cell_arguments import flag, number, scalar

__all__ = ["Adadelta", "Adagrad", "Adamax", "RMSprop"]


class Scaled(Optimizer):
    """Updates every parameter by itself, by gradients with the weight decay added. maximize: up the gradients. held:
    the states that `moved` gets beside each parameter."""

    held: tuple[Any, ...] = ()

    def __init__(self, params: Any, lr: float, weight_decay: float, maximize: bool, **own: Any) -> None:
        decay = number(type(self).__name__, "weight_decay", weight_decay)
        super().__init__(params, {"lr": lr, "weight_decay": decay, "maximize": maximize, **own})
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        return tuple([self.updated(*row) for row in self.rows(gradients, *self.held)])

    def scalars(self, name: str, first: float) -> ParameterTuple:
        """A scalar for every parameter, `name.NAME`."""
        return ParameterTuple([scalar(first, f"{name}.{parameter.name}") for parameter in self.parameters])

    def rows(self, gradients: Any, *states: Any) -> Any:
        """(parameter, its states, learning rate, gradient as it is gone down, with the pull of the weight decay, and
        arguments) of every parameter; a step is counted."""
        signed = [ops.neg(gradient) if own["maximize"] else gradient
                  for gradient, own in zip(gradients, self.options, strict=True)]  # fmt: skip
        gradients = self.decay_weight(signed)
        rates = self.rates()
        self.count_step()
        return list(zip(self.parameters, *states, rates, gradients, self.options, strict=True))


class Adadelta(Scaled):
    """Zeiler 2012: s = rho * s + (1 - rho) * gradient^2; u = sqrt(d + eps) / sqrt(s + eps) * gradient; d = rho * d +
    (1 - rho) * u^2; parameter -= lr * u. The states are `square_avg.NAME` and `acc_delta.NAME`."""

    checks: ClassVar[Any] = {"rho": number, "eps": number, "maximize": flag}

    def __init__(
        self, params: Any, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, weight_decay, maximize, rho=rho, eps=eps)
        self.square_avg, self.acc_delta = self.states("square_avg"), self.states("acc_delta")
        self.held = (self.square_avg, self.acc_delta)

    def updated(self, parameter: Any, square: Any, delta: Any, rate: Any, gradient: Any, own: Any) -> Any:
        rho, eps = own["rho"], own["eps"]
        total = self.assign(square, square * rho + ops.square(gradient) * (1 - rho))
        step = gradient * ops.sqrt(delta + eps) * ops.rsqrt(total + eps)
        stored = self.assign(delta, delta * rho + ops.square(step) * (1 - rho))
        return ops.depend(self.assign(parameter, parameter - rate * step), stored)


class Adagrad(Scaled):
    """Duchi et al. 2011: s += gradient^2; parameter -= lr / (1 + steps before * lr_decay) * gradient / (sqrt(s) + eps).
    The states are `state_sum.NAME` and `steps`."""

    checks: ClassVar[Any] = {"lr_decay": number, "eps": number, "maximize": flag}

    def __init__(
        self, params: Any, lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0, eps: float = 1e-10, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        own = {"lr_decay": lr_decay, "initial_accumulator_value": initial_accumulator_value, "eps": eps}
        super().__init__(params, lr, weight_decay, maximize, **own)
        first = number("Adagrad", "initial_accumulator_value", initial_accumulator_value)
        self.state_sum, self.steps = self.states("state_sum", first), scalar(0.0, "steps")

    def construct(self, gradients: Any) -> Any:
        before = self.steps + 0.0
        updated = tuple([self.slowed(*row, before) for row in self.rows(gradients, self.state_sum)])
        self.assign(self.steps, self.steps + 1)
        return updated

    def slowed(self, parameter: Any, total: Any, rate: Any, gradient: Any, own: Any, before: Any) -> Any:
        total = self.assign(total, total + ops.square(gradient))
        slower = 1 + before * own["lr_decay"]
        return self.assign(parameter, parameter - rate / slower * gradient / (ops.sqrt(total) + own["eps"]))


class Adamax(Scaled):
    """Kingma and Ba 2015: m = beta1 * m + (1 - beta1) * gradient; u = max(beta2 * u, |gradient| + eps); parameter -=
    lr / (1 - beta1^step) * m / u. The states are `exp_avg.NAME`, `exp_inf.NAME` and `beta1_power.NAME`."""

    checks: ClassVar[Any] = {"betas": two_betas, "eps": number, "maximize": flag}

    def __init__(
        self, params: Any, lr: float = 2e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, weight_decay, maximize, betas=betas, eps=eps)
        self.beta1_power = self.scalars("beta1_power", 1.0)
        self.exp_avg, self.exp_inf = self.states("exp_avg"), self.states("exp_inf")
        self.held = (self.exp_avg, self.exp_inf, self.beta1_power)

    def updated(self, parameter: Any, m: Any, u: Any, power: Any, rate: Any, gradient: Any, own: Any) -> Any:
        beta1, beta2 = own["betas"]
        first = 1.0 - self.assign(power, power * beta1)
        mean = self.assign(m, m * beta1 + gradient * (1 - beta1))
        size = self.assign(u, ops.maximum(u * beta2, ops.abs(gradient) + own["eps"]))
        return self.assign(parameter, parameter - rate / first * mean / size)


class RMSprop(Scaled):
    """Hinton's: s = alpha * s + (1 - alpha) * gradient^2; step = gradient / (sqrt(s) + eps), with `centered` s - g^2 in
    place of s, where g is the mean of gradients as s is of squares; parameter -= lr * step, or with momentum v =
    momentum * v + step in place of the step. The states are `square_avg.NAME`, `grad_avg.NAME` and
    `momentum_buffer.NAME`."""

    checks: ClassVar[Any] = {"alpha": number, "eps": number, "momentum": number, "centered": flag, "maximize": flag}

    def __init__(
        self, params: Any, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0,
        momentum: float = 0.0, centered: bool = False, maximize: bool = False,
    ) -> None:  # fmt: skip
        own = {"alpha": alpha, "eps": eps, "momentum": momentum, "centered": centered}
        super().__init__(params, lr, weight_decay, maximize, **own)
        self.square_avg = self.states("square_avg")
        is_centered = any(each["centered"] for each in self.options)
        self.grad_avg = self.states("grad_avg") if is_centered else self.square_avg
        has_momentum = any(each["momentum"] for each in self.options)
        self.momentum_buffer = self.states("momentum_buffer") if has_momentum else self.square_avg
        self.held = (self.square_avg, self.grad_avg, self.momentum_buffer)

    def updated(self, parameter: Any, square: Any, mean: Any, speed: Any, rate: Any, gradient: Any, own: Any) -> Any:
        alpha = own["alpha"]
        spread = self.assign(square, square * alpha + ops.square(gradient) * (1 - alpha))
        if own["centered"]:
            spread = spread - ops.square(self.assign(mean, mean * alpha + gradient * (1 - alpha)))
        step = gradient / (ops.sqrt(spread) + own["eps"])
        if own["momentum"]:
            step = self.assign(speed, speed * own["momentum"] + step)
        return self.assign(parameter, parameter - rate * step)
