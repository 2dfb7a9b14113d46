"""Lamb is Adam whose step is as long as the parameter is large."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.nn.cell_arguments import check_beta, number, scalar
from mspc.api.nn.optim.optimizer import Optimizer


class Lamb(Optimizer):
    """You et al. 2019: u = m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay * parameter;
    parameter -= lr * |parameter| / |u| * u, where the norms are those of global tensors and a quotient with a 0 in it
    is 1.

    The states are the parameters `lamb_m.NAME`, `lamb_v.NAME`, `beta1_power` and `beta2_power`.
    """

    shares_updates = True

    def __init__(
        self, params: Any, learning_rate: Any, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-6,
        weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay)
        self.beta1 = check_beta("Lamb", "beta1", beta1)
        self.beta2 = check_beta("Lamb", "beta2", beta2)
        self.eps = number("Lamb", "eps", eps, above=0.0)
        self.beta1_power = scalar(1.0, "beta1_power")
        self.beta2_power = scalar(1.0, "beta2_power")
        self.moments1 = self.states("lamb_m")
        self.moments2 = self.states("lamb_v")
        self.assign = ops.Assign()

    def construct(self, gradients: Any) -> Any:
        gradients = self.gradients_centralization(gradients)
        rates, decays = self.rates(), self.decays()
        self.count_step()
        power1 = self.assign(self.beta1_power, self.beta1_power * self.beta1)
        power2 = self.assign(self.beta2_power, self.beta2_power * self.beta2)
        return tuple([
            self.update(parameter, m, v, power1, power2, rate, given == 0.0, decay, gradient)
            for parameter, m, v, rate, given, decay, gradient in zip(
                self.parameters, self.moments1, self.moments2, rates, self.weight_decays, decays,
                gradients, strict=True
            )
        ])  # fmt: skip

    def update(
        self, parameter: Any, m: Any, v: Any, power1: Any, power2: Any, rate: Any, is_free: bool, decay: Any,
        gradient: Any,
    ) -> Any:
        mean = self.assign(m, m * self.beta1 + gradient * (1 - self.beta1))
        square = self.assign(v, v * self.beta2 + ops.square(gradient) * (1 - self.beta2))
        step = mean / (1.0 - power1) / (ops.sqrt(square / (1.0 - power2)) + self.eps)
        if not is_free:
            step = step + parameter * decay
        size, length = self.norm(parameter), self.norm(step)
        usable = ops.logical_and(ops.greater(size, 0.0), ops.greater(length, 0.0))
        ratio = ops.select(usable, size / ops.maximum(length, 1e-30), ops.ones_like(size))
        return self.assign(parameter, parameter - rate * ratio * step)

    def norm(self, x: Any) -> Any:
        return ops.sqrt(ops.reduce_sum(ops.square(x)))
