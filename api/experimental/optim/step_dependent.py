"""These optimizers of `mindspore.experimental.optim` have updates that depend on how many steps there were."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.api.experimental.optim.adaptive import Scaled
from mspc.api.mint.groups import betas as two_betas
from mspc.api.mint.groups import two_numbers
from mspc.api.nn.cell_arguments import flag, number, scalar

__all__ = ["ASGD", "NAdam", "RAdam", "Rprop"]

SHRINKS = 0.96
"""By which NAdam's momentum comes nearer to what it is at last, in every step of its decay."""
RECTIFIED = 5.0
"""Above which RAdam's averages are of gradients enough to have a variance."""


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

    def updated(
        self, parameter: Any, eta: Any, mu: Any, ax: Any, rate: Any, gradient: Any, own: Any, now: Any
    ) -> Any:
        size = ops.select(now == 1.0, rate, eta)
        after = self.assign(parameter, parameter * (1 - own["lambd"] * size) - size * gradient)
        stored = self.assign(ax, ops.where(mu == 1.0, after, ax + (after - ax) * mu))
        later = self.assign(eta, rate / ops.pow(1 + own["lambd"] * rate * now, own["alpha"]))
        less = self.assign(mu, 1 / ops.maximum(now - own["t0"], 1.0))
        return ops.depend(after, (stored, later, less))


class NAdam(_StepCounting):
    """Dozat 2016: Adam with the momentum of the step to come. The states are `exp_avg.NAME`, `exp_avg_sq.NAME`,
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
    """Liu et al. 2020: Adam that divides by the root of v only where that has a variance that can be told. The states
    are `exp_avg.NAME`, `exp_avg_sq.NAME` and `steps`."""

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
    stays and shrink by etas[0] where it turns. The states are `prev.NAME`, `step_size.NAME` and `steps`."""

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
    """1 - beta^steps, as exact for a beta near 1."""
    return ops.neg(ops.expm1(steps * math.log(beta))) if beta else ops.ones_like(steps)
