"""LARS makes gradients as long as their parameters, for another optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import number
from mspc.api.nn.optim.optimizer import Optimizer


def _is_scaled(parameter: Any) -> bool:
    return "LayerNorm" not in parameter.name and "bias" not in parameter.name


class LARS(Cell, takes_data=False):
    """You et al. 2017: hands `optimizer` instead of a gradient g of a parameter w
    coefficient * |w| / (|g| + weight_decay * |w| + epsilon) * (g + weight_decay * w), norms of global tensors; a
    quotient with a 0 in it is 1.

    The weight decay is that of `optimizer`, which takes no more part in it itself.

    Args:
        use_clip: the quotient over the learning rate is at most 1.
        lars_filter: says of a parameter whether its gradient is changed; the others are left as they are, without
            weight decay.
    """

    def __init__(
        self, optimizer: Any, epsilon: float = 1e-5, coefficient: float = 0.001, use_clip: bool = False,
        lars_filter: Callable[[Any], bool] = _is_scaled,
    ) -> None:  # fmt: skip
        super().__init__(auto_prefix=False)
        if not isinstance(optimizer, Optimizer):
            raise ApiTypeError(f"LARS: optimizer must be an Optimizer, not {type(optimizer).__name__}")
        if not isinstance(use_clip, bool):
            raise ApiTypeError(f"LARS: use_clip must be True or False, not {use_clip!r}")
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
        """The gradient that the optimizer is handed."""
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
