"""`mindspore.boost`: training with gradients accumulated over several steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import positive
from mspc.mindspore_api.nn.optim.optimizer import Optimizer
from mspc.mindspore_api.ops.multitype import MultitypeFuncGraph

__all__ = ["GradientAccumulation"]

gradient_accumulation_op = MultitypeFuncGraph("gradient_accumulation_op")
gradient_clear_op = MultitypeFuncGraph("gradient_clear_op")


@gradient_accumulation_op.register("Number", "Tensor", "Tensor")
def _add_share(steps: int, total: Any, gradient: Any) -> Any:
    """Add a step's share of the mean."""
    return ops.assign_add(total, ops.cast(gradient / steps, total.dtype))


@gradient_clear_op.register("Tensor")
def _clear(total: Any) -> Any:
    return ops.assign(total, ops.zeros_like(total))


class GradientAccumulation(Cell):
    """Cell called with a loss and the gradients of a step; every `max_accumulation_step` steps the optimizer gets their
    mean. Raise TypeError or ValueError if the number of steps is no integer above 0, or there is no optimizer."""

    def __init__(self, max_accumulation_step: int, optimizer: Any) -> None:
        super().__init__()
        self._max_accumulation_step = positive("GradientAccumulation", "max_accumulation_step", max_accumulation_step)
        if not isinstance(optimizer, Optimizer):
            raise ApiTypeError(f"GradientAccumulation: optimizer must be one, not {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.weights = optimizer.parameters
        self.hyper_map = ops.HyperMap()
        self._grad_accumulation = optimizer.parameters.clone(prefix="grad_accumulation", init="zeros")
        self._accumulation_step = Parameter(Tensor(np.zeros((), np.int32)), name="accumulation_step")

    def construct(self, loss: Any, grads: Any) -> Any:
        share = ops.partial(gradient_accumulation_op, self._max_accumulation_step)
        loss = ops.depend(loss, self.hyper_map(share, self._grad_accumulation, grads))
        self._accumulation_step += 1
        if self._accumulation_step >= self._max_accumulation_step:
            loss = ops.depend(loss, self.optimizer(self._grad_accumulation))
            self._accumulation_step = 0
            loss = ops.depend(loss, self.hyper_map(gradient_clear_op, self._grad_accumulation))
        return loss
