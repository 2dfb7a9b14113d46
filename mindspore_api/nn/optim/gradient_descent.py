"""Optimizers that follow the gradient: SGD, Momentum, LARS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.mindspore_api import ops
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
        return self.update_each(gradients, self.moments)

    def update(self, parameter: Any, moment: Any, rate: Any, gradient: Any) -> Any:
        return self.opt(parameter, moment, rate, gradient, self.momentum)


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
        return self.update_each(gradients, self.accum, self.stat)

    def update(self, parameter: Any, accum: Any, stat: Any, rate: Any, gradient: Any) -> Any:
        return self.opt(parameter, gradient, rate, accum, self.momentum, stat)


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
