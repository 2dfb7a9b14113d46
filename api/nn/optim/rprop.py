"""Rprop takes steps that look at the signs of gradients alone."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.common.parameter import ParameterTuple
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.cell_arguments import number
from mspc.api.nn.optim.optimizer import Optimizer


class Rprop(Optimizer):
    """Riedmiller and Braun 1992: every element's step grows by etas[1] where its gradient keeps its sign, shrinks by
    etas[0] where it changes it (the element then waits for one step), and stays within step_sizes;
    parameter -= sign(gradient) * step.

    The states are the parameters `prev.NAME`, the gradient before, and `step_size.NAME`, which begins at the learning
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
