"""This optimizer is stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.api.nn.cell_arguments import number, scalar
from mspc.api.nn.optim.optimizer import Optimizer


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
