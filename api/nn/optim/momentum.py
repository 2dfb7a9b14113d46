"""This optimizer is gradient descent with momentum."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError
from mspc.api.nn.cell_arguments import number, scalar
from mspc.api.nn.optim.optimizer import Optimizer


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
        if not isinstance(use_nesterov, bool):
            raise ApiTypeError(f"Momentum: use_nesterov must be True or False, not {use_nesterov!r}")
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
