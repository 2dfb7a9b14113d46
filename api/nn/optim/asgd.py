"""This optimizer is gradient descent that averages the parameters on the side."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.nn.cell_arguments import number
from mspc.api.nn.optim.optimizer import Optimizer
from mspc.ir.types import FLOAT32


class ASGD(Optimizer):
    """Polyak and Juditsky 1992: parameter = (1 - lambd * eta) * parameter - eta * gradient;
    ax += mu * (parameter - ax), with eta = lr / (1 + lambd * lr * s)^alpha and mu = 1 / max(1, s - t0) after s steps.
    As eta is worked out at the end of a step, lr is the learning rate of the step before.

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
        """The size of the step after `done` steps."""
        return rate / ops.pow(rate * done * self.lambd + 1.0, self.alpha)

    def update(self, parameter: Any, average: Any, eta: Any, share: Any, gradient: Any) -> Any:
        updated = self.assign(parameter, parameter * (1.0 - eta * self.lambd) - gradient * eta)
        mean = self.assign(average, average + (updated - average) * share)
        return ops.depend(updated, mean)
