"""Optimizers with PyTorch's arguments and formulas that scale steps by earlier gradients."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError
from mspc.api.experimental.optim.optimizer import Optimizer
from mspc.api.nn.arguments import number, scalar

__all__ = ["Adadelta", "Adagrad", "Adamax", "RMSprop"]


class _Scaled(Optimizer):
    """Updates every parameter by itself, by gradients with the weight decay added. maximize: up the gradients."""

    def __init__(self, params: Any, lr: float, weight_decay: float, maximize: bool, **own: Any) -> None:
        name = type(self).__name__
        if not isinstance(maximize, bool):
            raise ApiTypeError(f"{name}: maximize must be True or False, not {maximize!r}")
        decay = number(name, "weight_decay", weight_decay)
        super().__init__(params, {"lr": lr, "weight_decay": decay, "maximize": maximize, **own})
        self.maximize = maximize
        self.assign = ops.Assign()

    def prepared(self, gradients: Any) -> Any:
        """The gradients as they are gone down, with the pull of the weight decay."""
        return self.decay_weight([ops.neg(gradient) for gradient in gradients] if self.maximize else gradients)

    def rows(self, gradients: Any, *states: Any) -> Any:
        """(parameter, its states, learning rate and gradient) of every parameter; a step is counted."""
        gradients = self.prepared(gradients)
        rates = self.rates()
        self.count_step()
        return list(zip(self.parameters, *states, rates, gradients, strict=True))


class Adadelta(_Scaled):
    """Zeiler 2012: s = rho * s + (1 - rho) * gradient^2; u = sqrt(d + eps) / sqrt(s + eps) * gradient; d = rho * d +
    (1 - rho) * u^2; parameter -= lr * u. The states are `square_avg.NAME` and `acc_delta.NAME`."""

    def __init__(
        self, params: Any, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, weight_decay, maximize, rho=rho, eps=eps)
        self.rho, self.eps = number("Adadelta", "rho", rho), number("Adadelta", "eps", eps)
        self.square_avg, self.acc_delta = self.states("square_avg"), self.states("acc_delta")

    def construct(self, gradients: Any) -> Any:
        return self.update_each(gradients, self.square_avg, self.acc_delta)

    def update(self, parameter: Any, square: Any, delta: Any, rate: Any, gradient: Any) -> Any:
        total = self.assign(square, square * self.rho + ops.square(gradient) * (1 - self.rho))
        step = gradient * ops.sqrt(delta + self.eps) * ops.rsqrt(total + self.eps)
        kept = self.assign(delta, delta * self.rho + ops.square(step) * (1 - self.rho))
        return ops.depend(self.assign(parameter, parameter - rate * step), kept)


class Adagrad(_Scaled):
    """Duchi et al. 2011: s += gradient^2; parameter -= lr / (1 + steps before * lr_decay) * gradient / (sqrt(s) + eps).
    The states are `state_sum.NAME` and `steps`."""

    def __init__(
        self, params: Any, lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0, eps: float = 1e-10, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        own = {"lr_decay": lr_decay, "initial_accumulator_value": initial_accumulator_value, "eps": eps}
        super().__init__(params, lr, weight_decay, maximize, **own)
        self.lr_decay, self.eps = number("Adagrad", "lr_decay", lr_decay), number("Adagrad", "eps", eps)
        first = number("Adagrad", "initial_accumulator_value", initial_accumulator_value)
        self.state_sum, self.steps = self.states("state_sum", first), scalar(0.0, "steps")

    def construct(self, gradients: Any) -> Any:
        slower = 1 + self.steps * self.lr_decay
        updated = tuple([self.slowed(*row, slower) for row in self.rows(gradients, self.state_sum)])
        self.assign(self.steps, self.steps + 1)
        return updated

    def slowed(self, parameter: Any, total: Any, rate: Any, gradient: Any, slower: Any) -> Any:
        total = self.assign(total, total + ops.square(gradient))
        return self.assign(parameter, parameter - rate / slower * gradient / (ops.sqrt(total) + self.eps))


class Adamax(_Scaled):
    """Kingma and Ba 2015: m = beta1 * m + (1 - beta1) * gradient; u = max(beta2 * u, |gradient| + eps); parameter -=
    lr / (1 - beta1^step) * m / u. The states are `exp_avg.NAME`, `exp_inf.NAME` and `beta1_power`."""

    def __init__(
        self, params: Any, lr: float = 2e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, weight_decay, maximize, betas=betas, eps=eps)
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ApiTypeError(f"Adamax: betas must be two numbers, not {betas!r}")
        self.beta1, self.beta2 = number("Adamax", "betas[0]", betas[0]), number("Adamax", "betas[1]", betas[1])
        self.eps, self.beta1_power = number("Adamax", "eps", eps), scalar(1.0, "beta1_power")
        self.exp_avg, self.exp_inf = self.states("exp_avg"), self.states("exp_inf")

    def construct(self, gradients: Any) -> Any:
        first = 1.0 - self.assign(self.beta1_power, self.beta1_power * self.beta1)
        return tuple([self.corrected(*row, first) for row in self.rows(gradients, self.exp_avg, self.exp_inf)])

    def corrected(self, parameter: Any, m: Any, u: Any, rate: Any, gradient: Any, first: Any) -> Any:
        mean = self.assign(m, m * self.beta1 + gradient * (1 - self.beta1))
        size = self.assign(u, ops.maximum(u * self.beta2, ops.abs(gradient) + self.eps))
        return self.assign(parameter, parameter - rate / first * mean / size)


class RMSprop(_Scaled):
    """Hinton's: s = alpha * s + (1 - alpha) * gradient^2; step = gradient / (sqrt(s) + eps), with `centered` s - g^2 in
    place of s, where g is the mean of gradients as s is of squares; parameter -= lr * step, or with momentum v =
    momentum * v + step in place of the step. The states are `square_avg.NAME`, `grad_avg.NAME` and
    `momentum_buffer.NAME`."""

    def __init__(
        self, params: Any, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0,
        momentum: float = 0.0, centered: bool = False, maximize: bool = False,
    ) -> None:  # fmt: skip
        own = {"alpha": alpha, "eps": eps, "momentum": momentum, "centered": centered}
        super().__init__(params, lr, weight_decay, maximize, **own)
        if not isinstance(centered, bool):
            raise ApiTypeError(f"RMSprop: centered must be True or False, not {centered!r}")
        self.alpha, self.eps = number("RMSprop", "alpha", alpha), number("RMSprop", "eps", eps)
        self.momentum, self.centered = number("RMSprop", "momentum", momentum), centered
        self.square_avg = self.states("square_avg")
        self.grad_avg = self.states("grad_avg") if centered else self.square_avg
        self.momentum_buffer = self.states("momentum_buffer") if momentum else self.square_avg

    def construct(self, gradients: Any) -> Any:
        return self.update_each(gradients, self.square_avg, self.grad_avg, self.momentum_buffer)

    def update(self, parameter: Any, square: Any, mean: Any, moved: Any, rate: Any, gradient: Any) -> Any:
        spread = self.assign(square, square * self.alpha + ops.square(gradient) * (1 - self.alpha))
        if self.centered:
            spread = spread - ops.square(self.assign(mean, mean * self.alpha + gradient * (1 - self.alpha)))
        step = gradient / (ops.sqrt(spread) + self.eps)
        if self.momentum:
            step = self.assign(moved, moved * self.momentum + step)
        return self.assign(parameter, parameter - rate * step)
