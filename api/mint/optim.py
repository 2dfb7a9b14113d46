"""`mindspore.mint.optim`: optimizers whose arguments and formulas are PyTorch's; weight decay spares no parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mspc.api import ops
from mspc.api.common.parameter import Parameter
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.arguments import number, scalar
from mspc.api.nn.optim.optimizer import Optimizer

__all__ = ["SGD", "Adam", "AdamW"]


class _Optimizer(Optimizer):
    """maximize: parameters go up their gradients."""

    def __init__(self, params: Any, lr: Any, weight_decay: float, maximize: bool) -> None:
        decay = number(type(self).__name__, "weight_decay", weight_decay)
        super().__init__(lr, _decayed(params, decay), decay)
        if not isinstance(maximize, bool):
            raise ApiTypeError(f"{type(self).__name__}: maximize must be True or False, not {maximize!r}")
        self.maximize = maximize
        self.assign = ops.Assign()

    def signed(self, gradients: Any) -> Any:
        """The gradients as they are gone down."""
        return [ops.neg(gradient) for gradient in gradients] if self.maximize else gradients


class Adam(_Optimizer):
    """Kingma and Ba 2015: parameter -= lr * m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps); the weight decay
    is added to the gradient.

    The states are the parameters `exp_avg.NAME`, `exp_avg_sq.NAME`, `max_exp_avg_sq.NAME` (amsgrad), `beta1_power` and
    `beta2_power`.
    """

    decouples = False

    def __init__(
        self, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        amsgrad: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, weight_decay, maximize)
        name = type(self).__name__
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise ApiTypeError(f"{name}: betas must be two numbers, not {betas!r}")
        if not isinstance(amsgrad, bool):
            raise ApiTypeError(f"{name}: amsgrad must be True or False, not {amsgrad!r}")
        self.beta1, self.beta2 = number(name, "betas[0]", betas[0]), number(name, "betas[1]", betas[1])
        if max(self.beta1, self.beta2) >= 1:
            raise ApiValueError(f"{name}: betas {tuple(betas)} must be in [0, 1)")
        self.eps = number(name, "eps", eps)
        self.amsgrad = amsgrad
        self.beta1_power, self.beta2_power = scalar(1.0, "beta1_power"), scalar(1.0, "beta2_power")
        self.exp_avg, self.exp_avg_sq = self.states("exp_avg"), self.states("exp_avg_sq")
        self.max_exp_avg_sq = self.states("max_exp_avg_sq") if amsgrad else self.exp_avg_sq

    def construct(self, gradients: Any) -> Any:
        gradients = self.signed(gradients)
        if not self.decouples:
            gradients = self.decay_weight(gradients)
        rates = self.rates()
        self.count_step()
        first = 1.0 - self.assign(self.beta1_power, self.beta1_power * self.beta1)
        second = ops.sqrt(1.0 - self.assign(self.beta2_power, self.beta2_power * self.beta2))
        return tuple([
            self.update(parameter, m, v, most, first, second, rate, decay, gradient)
            for parameter, m, v, most, rate, decay, gradient in zip(
                self.parameters, self.exp_avg, self.exp_avg_sq, self.max_exp_avg_sq, rates, self.weight_decays,
                gradients, strict=True,
            )
        ])  # fmt: skip

    def update(
        self, parameter: Any, m: Any, v: Any, most: Any, first: Any, second: Any, rate: Any, decay: Any, gradient: Any
    ) -> Any:
        mean = self.assign(m, m * self.beta1 + gradient * (1 - self.beta1))
        square = self.assign(v, v * self.beta2 + ops.square(gradient) * (1 - self.beta2))
        if self.amsgrad:
            square = self.assign(most, ops.maximum(most, square))
        step = mean * (rate / first) / (ops.sqrt(square) / second + self.eps)
        if self.decouples and decay != 0.0:
            step = step + parameter * (rate * decay)
        return self.assign(parameter, parameter - step)


class AdamW(Adam):
    """Loshchilov and Hutter 2019: Adam whose weight decay pulls on the parameter: parameter -= lr * weight_decay *
    parameter, and then Adam's step."""

    decouples = True

    def __init__(
        self, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
        amsgrad: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


class SGD(_Optimizer):
    """v = momentum * v + (1 - dampening) * gradient, gradient itself at the first step; parameter -= lr * v, or
    lr * (gradient + momentum * v) with Nesterov's form.

    The states are the parameters `accum.NAME` and `stat.NAME` (1 until the first step is done).
    """

    def __init__(
        self, params: Any, lr: Any = 1e-3, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, weight_decay, maximize)
        momentum, dampening = number("SGD", "momentum", momentum), number("SGD", "dampening", dampening)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ApiValueError("SGD: nesterov needs a momentum above 0 and no dampening")
        self.opt = ops.SGD(dampening, 0.0, nesterov)
        self.momentum = scalar(momentum, "momentum")
        self.accum, self.stat = self.states("accum"), self.states("stat", "ones")

    def construct(self, gradients: Any) -> Any:
        gradients = self.decay_weight(self.signed(gradients))
        rates = self.rates()
        self.count_step()
        return tuple([
            self.opt(parameter, gradient, rate, accum, self.momentum, stat)
            for parameter, gradient, rate, accum, stat in zip(
                self.parameters, gradients, rates, self.accum, self.stat, strict=True
            )
        ])  # fmt: skip


def _decayed(params: Any, decay: float) -> Any:
    """The parameters as groups that name their weight decay, so that it is no default that spares some."""
    if isinstance(params, Parameter) or not isinstance(params, Iterable):
        return params
    found = list(params)
    grouped = [isinstance(entry, Mapping) for entry in found]
    if found and not any(grouped):
        return [{"params": found, "weight_decay": decay}]
    if not all(grouped):
        return found
    return [entry if "order_params" in entry else {"weight_decay": decay, **entry} for entry in found]
