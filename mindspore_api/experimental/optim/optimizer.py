"""Optimizers with PyTorch's arguments, and learning rates that schedulers change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import ParameterTuple
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.mint import optim
from mspc.mindspore_api.mint.distributed import Described, grouped, two_numbers
from mspc.mindspore_api.mint.distributed import betas as two_betas
from mspc.mindspore_api.nn.cell_arguments import flag, number, scalar
from mspc.mindspore_api.nn.optim import optimizer
from mspc.ops.operator_arguments import describe

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
]  # fmt: skip


class Optimizer(Described, optimizer.Optimizer):
    """Base of optimizers in scripts: `construct(gradients)` updates `self.param_groups`.

    Args:
        params: Parameters, or groups of them: dicts with "params" and any of the defaults.
        defaults: the values of groups without their own; "lr" must be among them.

    Raises TypeError or ValueError if there are no parameters, or no learning rate.
    """

    checks: ClassVar[Mapping[str, Callable[..., Any]] | None] = None

    def __init__(self, params: Any, defaults: Mapping[str, Any]) -> None:
        name = type(self).__name__
        if not isinstance(defaults, Mapping) or "lr" not in defaults:
            raise ApiValueError(f"{name}: defaults must be a dict with 'lr', not {describe(defaults)}")
        groups, others = grouped(name, params, defaults["lr"], defaults.get("weight_decay", 0.0))
        super().__init__(defaults["lr"], groups, 0.0)
        object.__setattr__(self, "defaults", dict(defaults))
        self.describe_groups(groups, others, dict(defaults), self.checks)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Raise ValueError always: no param_group is added after the optimizer is made."""
        name = f"{type(self).__name__}.add_param_group"
        raise ApiValueError(f"{name}: an optimizer's groups stay as they are", ["make it with all groups"])


class Adam(optim.Adam):
    """`mint.optim.Adam`."""


class AdamW(optim.AdamW):
    """`mint.optim.AdamW`."""


class SGD(optim.SGD):
    """`mint.optim.SGD` with a required learning rate."""

    def __init__(
        self, params: Any, lr: Any, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)


class Scaled(Optimizer):
    """Updates every parameter separately, by gradients with the weight decay added. maximize: up the gradients. held:
    the states that `moved` gets with each parameter."""

    held: tuple[Any, ...] = ()

    def __init__(self, params: Any, lr: float, weight_decay: float, maximize: bool, **own: Any) -> None:
        decay = number(type(self).__name__, "weight_decay", weight_decay)
        super().__init__(params, {"lr": lr, "weight_decay": decay, "maximize": maximize, **own})
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        return tuple([self.updated(*row) for row in self.rows(gradients, *self.held)])

    def scalars(self, name: str, first: float) -> ParameterTuple:
        """Return a scalar for every parameter, `name.NAME`."""
        return ParameterTuple([scalar(first, f"{name}.{parameter.name}") for parameter in self.parameters])

    def rows(self, gradients: Any, *states: Any) -> Any:
        """Return (parameter, its states, learning rate, signed gradient with weight decay, arguments) of every
        parameter, and count a step."""
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
    """Hinton's: s = alpha * s + (1 - alpha) * gradient^2; step = gradient / (sqrt(s) + eps). With `centered`, s - g^2
    replaces s, and g is the running mean of gradients. parameter -= lr * step, or with momentum v = momentum * v + step
    in place of the step. The states are `square_avg.NAME`, `grad_avg.NAME` and `momentum_buffer.NAME`."""

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


SHRINKS = 0.96
"""Base of the power by which NAdam's momentum approaches its final value."""
RECTIFIED = 5.0
"""Threshold above which RAdam's averages cover enough gradients to estimate a variance."""


class _StepCounting(Scaled):
    """steps: how many there were."""

    def __init__(self, params: Any, lr: Any, weight_decay: Any, maximize: Any, **own: Any) -> None:
        super().__init__(params, lr, weight_decay, maximize, **own)
        self.steps = scalar(0.0, "steps")

    def construct(self, gradients: Any) -> Any:
        now = self.assign(self.steps, self.steps + 1)
        return tuple([self.updated(*row, now) for row in self.rows(gradients, *self.held)])


class ASGD(_StepCounting):
    """Polyak and Juditsky 1992: parameter = (1 - lambd * eta) * parameter - eta * gradient, and its average ax, from
    step t0 on; eta = lr / (1 + lambd * lr * steps)^alpha afterwards. The states are `eta.NAME`, `mu.NAME`, `ax.NAME`
    and `steps`."""

    checks: ClassVar[Any] = {"lambd": number, "alpha": number, "t0": number, "maximize": flag}

    def __init__(
        self, params: Any, lr: Any = 1e-2, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6,
        weight_decay: float = 0.0, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, weight_decay, maximize, lambd=lambd, alpha=alpha, t0=t0)
        self.eta, self.mu, self.ax = self.scalars("eta", 0.0), self.scalars("mu", 1.0), self.states("ax")
        self.held = (self.eta, self.mu, self.ax)

    def updated(self, parameter: Any, eta: Any, mu: Any, ax: Any, rate: Any, gradient: Any, own: Any, now: Any) -> Any:
        size = ops.select(now == 1.0, rate, eta)
        after = self.assign(parameter, parameter * (1 - own["lambd"] * size) - size * gradient)
        stored = self.assign(ax, ops.where(mu == 1.0, after, ax + (after - ax) * mu))
        later = self.assign(eta, rate / ops.pow(1 + own["lambd"] * rate * now, own["alpha"]))
        less = self.assign(mu, 1 / ops.maximum(now - own["t0"], 1.0))
        return ops.depend(after, (stored, later, less))


class NAdam(_StepCounting):
    """Dozat 2016: Adam with the momentum of the next step. The states are `exp_avg.NAME`, `exp_avg_sq.NAME`,
    `mu_product.NAME` and `steps`."""

    checks: ClassVar[Any] = {"betas": two_betas, "eps": number, "momentum_decay": number, "maximize": flag}

    def __init__(
        self, params: Any, lr: Any = 2e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, weight_decay, False, betas=betas, eps=eps, momentum_decay=momentum_decay)
        self.exp_avg, self.exp_avg_sq = self.states("exp_avg"), self.states("exp_avg_sq")
        self.mu_product = self.scalars("mu_product", 1.0)
        self.held = (self.exp_avg, self.exp_avg_sq, self.mu_product)

    def updated(
        self, parameter: Any, m: Any, v: Any, product: Any, rate: Any, gradient: Any, own: Any, now: Any
    ) -> Any:
        (beta1, beta2), decay = own["betas"], own["momentum_decay"]
        here = beta1 * (1 - 0.5 * ops.pow(SHRINKS, now * decay))
        following = beta1 * (1 - 0.5 * ops.pow(SHRINKS, (now + 1) * decay))
        total = self.assign(product, product * here)
        mean = self.assign(m, m * beta1 + gradient * (1 - beta1))
        square = self.assign(v, v * beta2 + ops.square(gradient) * (1 - beta2))
        size = ops.sqrt(square / _left(beta2, now)) + own["eps"]
        step = gradient * ((1 - here) / (1 - total)) + mean * (following / (1 - total * following))
        return self.assign(parameter, parameter - rate * step / size)


class RAdam(_StepCounting):
    """Liu et al. 2020: Adam that divides by the root of v only if its variance can be estimated. The states are
    `exp_avg.NAME`, `exp_avg_sq.NAME` and `steps`."""

    checks: ClassVar[Any] = {"betas": two_betas, "eps": number, "maximize": flag}

    def __init__(
        self, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr, weight_decay, False, betas=betas, eps=eps)
        self.exp_avg, self.exp_avg_sq = self.states("exp_avg"), self.states("exp_avg_sq")
        self.held = (self.exp_avg, self.exp_avg_sq)

    def updated(self, parameter: Any, m: Any, v: Any, rate: Any, gradient: Any, own: Any, now: Any) -> Any:
        beta1, beta2 = own["betas"]
        mean = self.assign(m, m * beta1 + gradient * (1 - beta1))
        square = self.assign(v, v * beta2 + ops.square(gradient) * (1 - beta2))
        step = mean * (rate / _left(beta1, now))
        most = 2 / (1 - beta2) - 1
        if most <= RECTIFIED:
            return self.assign(parameter, parameter - step)
        left = _left(beta2, now)
        length = most - 2 * now * (1 - left) / left
        told = ops.maximum(length, RECTIFIED)
        share = ops.sqrt((told - 4) * (told - 2) * most / ((most - 4) * (most - 2) * told))
        scaled = step * (share * ops.sqrt(left)) / (ops.sqrt(square) + own["eps"])
        return self.assign(parameter, parameter - ops.where(length > RECTIFIED, scaled, step))


def _etas(name: str, what: str, value: Any) -> tuple[float, float]:
    shrinks, grows = two_numbers(name, what, value)
    if not 0 < shrinks < 1 < grows:
        raise ApiValueError(f"{name}: {what} {tuple(value)} must be a number in (0, 1) and one above 1")
    return shrinks, grows


def _sizes(name: str, what: str, value: Any) -> tuple[float, float]:
    least, most = two_numbers(name, what, value)
    if least > most:
        raise ApiValueError(f"{name}: {what} {tuple(value)} must be the least and the most")
    return least, most


class Rprop(_StepCounting):
    """Riedmiller and Braun 1993: steps in the direction of the gradient's signs, which grow by etas[1] while a sign
    stays and shrink by etas[0] if it changes. The states are `prev.NAME`, `step_size.NAME` and `steps`."""

    checks: ClassVar[Any] = {"etas": _etas, "step_sizes": _sizes, "maximize": flag}

    def __init__(
        self, params: Any, lr: Any = 1e-2, etas: Any = (0.5, 1.2), step_sizes: Any = (1e-6, 50), *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, 0.0, maximize, etas=etas, step_sizes=step_sizes)
        self.prev, self.step_size = self.states("prev"), self.states("step_size")
        self.held = (self.prev, self.step_size)

    def updated(self, parameter: Any, before: Any, size: Any, rate: Any, gradient: Any, own: Any, now: Any) -> Any:
        (shrinks, grows), (least, most) = own["etas"], own["step_sizes"]
        turn = ops.sign(gradient * before)
        factor = ops.where(turn > 0, grows, ops.where(turn < 0, shrinks, 1.0))
        last = ops.where(now == 1.0, ops.ones_like(parameter) * rate, size)
        step = self.assign(size, ops.clip_by_value(last * factor, least, most))
        stored = self.assign(before, ops.where(turn < 0, 0.0, gradient))
        return self.assign(parameter, parameter - ops.sign(stored) * step)


def _left(beta: float, steps: Any) -> Any:
    """Return 1 - beta^steps, accurate for a beta near 1."""
    return ops.neg(ops.expm1(steps * math.log(beta))) if beta else ops.ones_like(steps)
