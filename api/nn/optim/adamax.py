"""AdaMax is Adam that divides by the largest gradients."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.nn.cell_arguments import check_beta, number, scalar
from mspc.api.nn.optim.optimizer import Optimizer


class AdaMax(Optimizer):
    """Kingma and Ba 2015, section 7: m = beta1 * m + (1 - beta1) * gradient; v = max(beta2 * v, |gradient|);
    parameter -= lr / (1 - beta1^step) * m / (v + eps).

    The states are the parameters `moment1.NAME`, `moment2.NAME` and `beta1_power`.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8,
        weight_decay: Any = 0.0, loss_scale: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.beta1 = check_beta("AdaMax", "beta1", beta1)
        self.beta2 = check_beta("AdaMax", "beta2", beta2)
        self.eps = number("AdaMax", "eps", eps, above=0.0)
        self.beta1_power = scalar(1.0, "beta1_power")
        self.moment1 = self.states("moment1")
        self.moment2 = self.states("moment2")
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        gradients = self.prepared(gradients)
        rates = self.rates()
        self.count_step()
        power = self.assign(self.beta1_power, self.beta1_power * self.beta1)
        return tuple([
            self.update(parameter, m, v, rate / (1.0 - power), gradient)
            for parameter, m, v, rate, gradient in zip(
                self.parameters, self.moment1, self.moment2, rates, gradients, strict=True
            )
        ])  # fmt: skip

    def update(self, parameter: Any, m: Any, v: Any, rate: Any, gradient: Any) -> Any:
        mean = self.assign(m, m * self.beta1 + gradient * (1 - self.beta1))
        size = self.assign(v, ops.maximum(v * self.beta2, ops.abs(gradient)))
        return self.assign(parameter, parameter - rate * mean / (size + self.eps))
