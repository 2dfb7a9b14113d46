"""Optimizers that follow the gradient: SGD, Momentum, ASGD, Rprop, LARS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.ir.types import FLOAT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import ParameterTuple
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import number, scalar
from mspc.mindspore_api.nn.optim.optimizer import Optimizer


class Momentum(Optimizer):
    """v = momentum * v + gradient; parameter -= lr * v, or lr * (gradient + momentum * v) with
    Nesterov's form.

    The states v are the parameters `moments.NAME`.
    """

    def __init__(
        self, params: Any, learning_rate: Any, momentum: float, weight_decay: Any = 0.0,
        loss_scale: float = 1.0,
        use_nesterov: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.momentum = scalar(number("Momentum", "momentum", momentum), "momentum")
        self.moments = self.states("moments")
        self.use_nesterov = use_nesterov
        self.opt = ops.ApplyMomentum(use_nesterov=use_nesterov)

    def construct(self, gradients: Any) -> Any:
        gradients = self.prepared(gradients)
        rates = self.rates()
        self.count_step()
        return tuple([
            self.opt(parameter, moment, rate, gradient, self.momentum)
            for parameter, moment, rate, gradient in zip(
                self.parameters, self.moments, rates, gradients, strict=True
            )
        ])  # fmt: skip


class SGD(Optimizer):
    """v = momentum * v + (1 - dampening) * gradient (v = gradient at the first step); parameter -= lr * v.

    With Nesterov's form parameter -= lr * (gradient + momentum * v). The states are the parameters
    `accum.NAME` and `stat.NAME` (1 until the first step is done).
    """

    def __init__(
        self, params: Any, learning_rate: Any = 0.1, momentum: float = 0.0, dampening: float = 0.0,
        weight_decay: Any = 0.0, nesterov: bool = False, loss_scale: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        dampening = number("SGD", "dampening", dampening)
        momentum = number("SGD", "momentum", momentum)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ApiValueError("SGD: nesterov needs a momentum above 0 and no dampening")
        self.opt = ops.SGD(dampening, 0.0, nesterov)
        self.momentum = scalar(momentum, "momentum")
        self.accum = self.states("accum")
        self.stat = self.states("stat", "ones")

    def construct(self, gradients: Any) -> Any:
        gradients = self.prepared(gradients)
        rates = self.rates()
        self.count_step()
        return tuple([
            self.opt(parameter, gradient, rate, accum, self.momentum, stat)
            for parameter, gradient, rate, accum, stat in zip(
                self.parameters, gradients, rates, self.accum, self.stat, strict=True
            )
        ])  # fmt: skip


class ASGD(Optimizer):
    """Polyak and Juditsky 1992: parameter = (1 - lambd * eta) * parameter - eta * gradient; ax += mu * (parameter -
    ax), with eta = lr / (1 + lambd * lr * s)^alpha and mu = 1 / max(1, s - t0) after s steps. As eta is computed at the
    end of a step, lr is the learning rate of the previous step.

    The states ax, the averages, are the parameters `ax.NAME`.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 0.1, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6,
        weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay)
        self.lambd = number("ASGD", "lambd", lambd, least=-float("inf"))
        self.alpha = number("ASGD", "alpha", alpha, least=-float("inf"))
        self.t0 = number("ASGD", "t0", t0, least=-float("inf"))
        self.ax = self.states("ax")
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        gradients = self.prepared(gradients)
        rates = self.rates(ops.maximum(self.global_step - 1, 0))
        done = ops.reshape(ops.cast(self.global_step, FLOAT32), ())
        self.count_step()
        share = 1.0 / ops.maximum(done - self.t0, 1.0)
        return tuple([
            self.update(parameter, average, self.eta(rate, done), share, gradient)
            for parameter, average, rate, gradient in zip(self.parameters, self.ax, rates, gradients, strict=True)
        ])  # fmt: skip

    def eta(self, rate: Any, done: Any) -> Any:
        """Return the size of the step after `done` steps."""
        return rate / ops.pow(rate * done * self.lambd + 1.0, self.alpha)

    def update(self, parameter: Any, average: Any, eta: Any, share: Any, gradient: Any) -> Any:
        updated = self.assign(parameter, parameter * (1.0 - eta * self.lambd) - gradient * eta)
        mean = self.assign(average, average + (updated - average) * share)
        return ops.depend(updated, mean)


class Rprop(Optimizer):
    """Riedmiller and Braun 1992: every element's step grows by etas[1] if its gradient keeps its sign, shrinks by
    etas[0] if it changes (the element then waits for one step), and stays within step_sizes; parameter -=
    sign(gradient) * step.

    The states are the parameters `prev.NAME`, the previous gradient, and `step_size.NAME`, which begins at the learning
    rate.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 0.1, etas: Any = (0.5, 1.2), step_sizes: Any = (1e-6, 50.0),
        weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay)
        self.shrinks, self.grows = _pair("etas", etas)
        self.least, self.most = _pair("step_sizes", step_sizes)
        if not 0.0 < self.shrinks < 1.0 < self.grows:
            raise ApiValueError(f"Rprop: etas {etas!r} must be one number in (0, 1) and one above 1")
        if self.least > self.most:
            raise ApiValueError(f"Rprop: step_sizes {step_sizes!r} must be the smallest step and then the largest")
        self.prev = self.states("prev")
        self.step_size = self._first_steps()
        self.assign = ops.Assign()

    def _first_steps(self) -> ParameterTuple:
        rates = self.learning_rate if isinstance(self.learning_rate, tuple) else (self.learning_rate,)
        found: list[Any] = []
        for parameter, place in zip(self.parameters, self.rate_of, strict=True):
            first = float(self.rate(rates[place], self.global_step).asnumpy())
            found += ParameterTuple([parameter]).clone("step_size", first)
        for state in found:
            state.requires_grad = False
        return ParameterTuple(found)

    def construct(self, gradients: Any) -> Any:
        gradients = self.prepared(gradients)
        self.count_step()
        return tuple([
            self.update(parameter, before, size, gradient)
            for parameter, before, size, gradient in zip(
                self.parameters, self.prev, self.step_size, gradients, strict=True
            )
        ])  # fmt: skip

    def update(self, parameter: Any, before: Any, size: Any, gradient: Any) -> Any:
        agreement = gradient * before
        grown = ops.select(agreement > 0.0, size * self.grows, ops.select(agreement < 0.0, size * self.shrinks, size))
        step = self.assign(size, ops.minimum(ops.maximum(grown, self.least), self.most))
        gradient = ops.select(agreement < 0.0, ops.zeros_like(gradient), gradient)
        before = self.assign(before, gradient)
        return ops.depend(self.assign(parameter, parameter - ops.sign(gradient) * step), before)


def _pair(what: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ApiTypeError(f"Rprop: {what} must be two numbers, not {value!r}")
    return number("Rprop", what, value[0]), number("Rprop", what, value[1])


def _is_scaled(parameter: Any) -> bool:
    return "LayerNorm" not in parameter.name and "bias" not in parameter.name


class LARS(Cell, takes_data=False):
    """You et al. 2017: replaces the gradient g of a parameter w for `optimizer` by coefficient * |w| / (|g| +
    weight_decay * |w| + epsilon) * (g + weight_decay * w), with norms of global tensors; the quotient is 1 if either
    norm is 0.

    The weight decay is that of `optimizer`, which no longer applies it itself.

    Args:
        use_clip: the quotient over the learning rate is at most 1.
        lars_filter: returns whether the gradient of a parameter is changed; the others are unchanged, without weight
            decay.
    """

    def __init__(
        self, optimizer: Any, epsilon: float = 1e-5, coefficient: float = 0.001, use_clip: bool = False,
        lars_filter: Callable[[Any], bool] = _is_scaled,
    ) -> None:  # fmt: skip
        super().__init__(auto_prefix=False)
        if not isinstance(optimizer, Optimizer):
            raise ApiTypeError(f"LARS: optimizer must be an Optimizer, not {type(optimizer).__name__}")
        self.opt = optimizer
        self.parameters = optimizer.parameters
        self.global_step = optimizer.global_step
        self.epsilon = number("LARS", "epsilon", epsilon)
        self.coefficient = number("LARS", "coefficient", coefficient)
        self.use_clip = use_clip
        self.weight_decays = optimizer.weight_decays
        optimizer.weight_decays = (0.0,) * len(self.parameters)
        optimizer.exec_weight_decay, optimizer.decay_flags = False, (False,) * len(self.parameters)
        self.loss_scale = optimizer.loss_scale
        optimizer.loss_scale, optimizer.need_scale = 1.0, False
        self.lars_flag = tuple([bool(lars_filter(parameter)) for parameter in self.parameters])
        self.add_flags(updates=True)

    def construct(self, gradients: Any) -> Any:
        rates = self.opt.rates()
        changed = [
            self.adapted(parameter, self.opt.decay_now(decay), rate, gradient * (1.0 / self.loss_scale), flag)
            for parameter, decay, rate, gradient, flag in zip(
                self.parameters, self.weight_decays, rates, gradients, self.lars_flag, strict=True
            )
        ]  # fmt: skip
        return self.opt(changed)

    def offload(self, backward_prefetch: Any = "Auto") -> None:
        """Keep the states of `optimizer` in the host's memory; see `Optimizer.offload`."""
        self.opt.offload(backward_prefetch)

    def adapted(self, parameter: Any, decay: Any, rate: Any, gradient: Any, is_scaled: bool) -> Any:
        """Return the gradient for the optimizer."""
        if not is_scaled:
            return gradient
        size, length = self.norm(parameter), self.norm(gradient)
        usable = ops.logical_and(ops.greater(size, 0.0), ops.greater(length, 0.0))
        ratio = size * self.coefficient / (length + size * decay + self.epsilon)
        ratio = ops.select(usable, ratio, ops.ones_like(size))
        if self.use_clip:
            ratio = ops.minimum(ratio / rate, 1.0)
        return (gradient + parameter * decay) * ratio

    def norm(self, x: Any) -> Any:
        return ops.sqrt(ops.reduce_sum(ops.square(x)))
