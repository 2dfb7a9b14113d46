"""Adadelta takes steps as large as those before."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.api.nn.cell_arguments import number
from mspc.api.nn.optim.optimizer import Optimizer


class Adadelta(Optimizer):
    """Zeiler 2012: a = rho * a + (1 - rho) * gradient^2; u = sqrt(d + epsilon) / sqrt(a + epsilon) * gradient;
    d = rho * d + (1 - rho) * u^2; parameter -= lr * u.

    The states a and d are the parameters `accum.NAME` and `accum_update.NAME`.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 1.0, rho: float = 0.9, epsilon: float = 1e-6, loss_scale: float = 1.0,
        weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.rho = number("Adadelta", "rho", rho)
        if self.rho > 1:
            raise ApiValueError(f"Adadelta: rho {rho} must be at most 1")
        self.epsilon = number("Adadelta", "epsilon", epsilon)
        self.accum = self.states("accum")
        self.accum_update = self.states("accum_update")
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        return self.update_each(gradients, self.accum, self.accum_update)

    def update(self, parameter: Any, accum: Any, delta: Any, rate: Any, gradient: Any) -> Any:
        step = ops.sqrt(delta + self.epsilon)
        square = self.assign(accum, accum * self.rho + ops.square(gradient) * (1 - self.rho))
        step = step / ops.sqrt(square + self.epsilon) * gradient
        delta = self.assign(delta, delta * self.rho + ops.square(step) * (1 - self.rho))
        return ops.depend(self.assign(parameter, parameter - rate * step), delta)
