"""Loss scaling: cells and scalers that keep gradients in half precision finite."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir.types import FLOAT32, INT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import number, positive
from mspc.mindspore_api.nn.wrap import TrainOneStepCell
from mspc.mindspore_api.ops.function.array_func import as_dtype

__all__ = ["DynamicLossScaleUpdateCell", "FixedLossScaleUpdateCell", "TrainOneStepWithLossScaleCell"]

_grad_scale = grad_scale = ops.MultitypeFuncGraph("grad_scale")
"""Scripts map it over gradients: gradients divided by a scale."""
_grad_overflow = grad_overflow = ops.MultitypeFuncGraph("grad_overflow")
"""Scripts map it over gradients: 1 for a gradient with an infinity or a NaN, else 0."""


@grad_scale.register("Tensor", "Tensor")
def _scaled(scale: Any, grad: Any) -> Any:
    return ops.cast(grad, FLOAT32) * ops.Reciprocal()(scale)


@grad_overflow.register("Tensor")
def _overflown(grad: Any) -> Any:
    return ops.FloatStatus()(grad)


class FixedLossScaleUpdateCell(Cell):
    """Does not change the loss scale; a step with overflow is still skipped."""

    def __init__(self, loss_scale_value: float) -> None:
        super().__init__()
        self.loss_scale_value = number("FixedLossScaleUpdateCell", "loss_scale_value", loss_scale_value, above=0.0)

    def get_loss_scale(self) -> float:
        """Return the scale of the first step."""
        return self.loss_scale_value

    def construct(self, loss_scale: Any, overflow: Any) -> Any:
        return overflow


class DynamicLossScaleUpdateCell(Cell):
    """Divides the loss scale by `scale_factor` (to 1 at least) when gradients overflow, and multiplies it after
    `scale_window` steps without overflow or change.

    The states are the parameters `current_iterator_step` and `last_overflow_iterator_step`, as in MindSpore: the number
    of the next step, from 1, and that of the last step that changed the scale.
    """

    def __init__(self, loss_scale_value: float, scale_factor: float, scale_window: int) -> None:
        super().__init__()
        name = "DynamicLossScaleUpdateCell"
        self.loss_scale_value = number(name, "loss_scale_value", loss_scale_value, above=0.0)
        self.scale_factor = float(positive(name, "scale_factor", scale_factor))
        self.scale_window = positive(name, "scale_window", scale_window)
        self.minimum_loss_scale = 1.0
        self.cur_iter = Parameter(Tensor(1, INT32), "current_iterator_step", requires_grad=False)
        self.last_overflow_iter = Parameter(Tensor(0, INT32), "last_overflow_iterator_step", requires_grad=False)
        self.assign = ops.Assign()
        self.add_flags(updates=True)

    def get_loss_scale(self) -> float:
        """Return the scale of the first step."""
        return self.loss_scale_value

    def construct(self, loss_scale: Any, overflow: Any) -> Any:
        grows = ops.logical_and(
            ops.less_equal(self.scale_window, self.cur_iter - self.last_overflow_iter), ops.logical_not(overflow)
        )
        smaller = ops.maximum(loss_scale * (1.0 / self.scale_factor), self.minimum_loss_scale)
        scale = ops.select(overflow, smaller, ops.select(grows, loss_scale * self.scale_factor, loss_scale))
        changed = ops.select(ops.logical_or(overflow, grows), self.cur_iter, self.last_overflow_iter)
        self.assign(loss_scale, scale)
        self.assign(self.last_overflow_iter, changed)
        self.assign(self.cur_iter, self.cur_iter + 1)
        return overflow


class TrainOneStepWithLossScaleCell(TrainOneStepCell):
    """One training step on loss * scale, with the gradients divided by the scale before the optimizer uses them.

    If a gradient has an infinity or a NaN anywhere, on any rank, neither weights nor states of the optimizer change.
    The returned loss is not scaled.

    Args:
        network: returns the loss. optimizer: its parameters are the weights that are trained.
        scale_sense: a Tensor with the scale, or a cell that is called as `cell(scale, overflow)` with the parameter
            `scale_sense` and updates it; `get_loss_scale()` returns the first scale.

    Returns (loss, whether gradients have overflowed, loss scale of the next step).
    """

    def __init__(self, network: Cell, optimizer: Any, scale_sense: Any) -> None:
        super().__init__(network, optimizer, sens=None)
        name = type(self).__name__
        self.loss_scaling_manager = None
        if isinstance(scale_sense, Cell):
            self.loss_scaling_manager = scale_sense
            scale = Tensor(scale_sense.get_loss_scale(), FLOAT32)
        elif isinstance(scale_sense, Tensor):
            if scale_sense.shape not in ((), (1,)):
                raise ApiValueError(f"{name}: scale_sense must be a scalar, not of shape {scale_sense.shape}")
            scale = Tensor(np.asarray(scale_sense.array, np.float32).reshape(()))
        else:
            raise ApiTypeError(f"{name}: scale_sense must be a Cell or a Tensor, not {type(scale_sense).__name__}")
        self.scale_sense = Parameter(scale, "scale_sense", requires_grad=False)
        self.hyper_map = ops.HyperMap()
        self.all_finite = ops.AllFinite()
        own = self.parallel_mode == "hybrid_parallel" or any(each.layerwise_parallel for each in self.weights)
        self.agrees = self.reducer_flag and own  # gradients of one rank may overflow on that rank only
        if self.agrees:
            self.all_reduce = ops.AllReduce()

    def set_sense_scale(self, sens: Any) -> None:
        """Replace the loss scale. Raise TypeError for no Tensor, ValueError for another shape."""
        if not isinstance(sens, Tensor):
            raise ApiTypeError(f"set_sense_scale takes a Tensor, not {type(sens).__name__}")
        if sens.shape not in ((), (1,)):
            raise ApiValueError(f"set_sense_scale takes a scalar, not a tensor of shape {sens.shape}")
        self.scale_sense.set_data(Tensor(np.asarray(sens.array, np.float32).reshape(())))

    def construct(self, *inputs: Any) -> Any:
        loss = self.network(*inputs)
        status, scale = self.start_overflow_check(loss, self.scale_sense)
        inverse = 1.0 / scale
        sens = ops.ones_like(loss) * as_dtype(scale, loss.dtype)
        grads = self.reduced(self.grad(self.network, self.weights)(*inputs, sens))
        overflow = self.process_loss_scale(self.get_overflow_status(status, grads))
        grads = [gradient * as_dtype(inverse, gradient.dtype) for gradient in grads]
        if not overflow:
            loss = ops.depend(loss, self.optimizer(grads))
        if self.return_grad:
            return loss, overflow, self.scale_sense, self.named(grads)
        return loss, overflow, self.scale_sense

    def start_overflow_check(self, pre_cond: Any, compute_input: Any) -> Any:
        """Return (False, compute_input): overflow is detected in the gradients, not from this point on."""
        return False, compute_input

    def get_overflow_status(self, status: Any, compute_output: Any) -> Any:
        """Return whether any of the gradients has an infinity or a NaN, on any rank, as a Bool scalar."""
        overflow = ops.logical_not(self.all_finite(compute_output))
        if self.agrees:
            return self.all_reduce(ops.cast(overflow, FLOAT32)) > 0
        return overflow

    def process_loss_scale(self, overflow: Any) -> Any:
        """Update the loss scale, and return the overflow flag."""
        if self.loss_scaling_manager is not None:
            return self.loss_scaling_manager(self.scale_sense, overflow)
        return overflow


"""`mindspore.amp` has these, `nn` has none of them."""


def init_status() -> Tensor:
    """Return a status word for `all_finite`; only Ascend devices need one, here it is zeros."""
    return Tensor(np.zeros(8, np.float32))


def all_finite(inputs: Any, status: Any = None) -> Any:
    """Return whether all tensors in a tuple are free of infinities and NaNs, a Bool scalar; in and outside of a
    network."""
    return ops.AllFinite()(inputs)


class LossScaler:
    """Scales losses and unscales gradients in a script's own training function."""

    def scale(self, inputs: Any) -> Any:
        """Return tensors, or a tuple of them, times the scale."""
        raise NotImplementedError

    def unscale(self, inputs: Any) -> Any:
        """Return tensors, or a tuple of them, divided by the scale."""
        raise NotImplementedError

    def adjust(self, grads_finite: Any) -> Any:
        """Change the scale after a step; `grads_finite` comes from `all_finite`."""
        raise NotImplementedError


class _Scaler(LossScaler):
    scale_value: Parameter

    def scale(self, inputs: Any) -> Any:
        return _times(inputs, self.scale_value)

    def unscale(self, inputs: Any) -> Any:
        return _times(inputs, 1.0 / self.scale_value)


class StaticLossScaler(_Scaler):
    """A scale that never changes."""

    def __init__(self, scale_value: float) -> None:
        value = number("StaticLossScaler", "scale_value", scale_value, above=0.0)
        self.scale_value = Parameter(Tensor(value, FLOAT32), "scale_value", requires_grad=False)

    def adjust(self, grads_finite: Any) -> Any:
        return self.scale_value


class DynamicLossScaler(_Scaler):
    """A scale that is divided by `scale_factor` (to 1 at least) after an overflow and multiplied by it after
    `scale_window` steps without one.

    Its states are the parameters `scale_value` and `counter`.
    """

    def __init__(self, scale_value: float, scale_factor: int, scale_window: int) -> None:
        name = "DynamicLossScaler"
        value = number(name, "scale_value", scale_value, least=1.0)
        self.scale_factor = float(positive(name, "scale_factor", scale_factor))
        self.scale_window = positive(name, "scale_window", scale_window)
        self.scale_value = Parameter(Tensor(value, FLOAT32), "scale_value", requires_grad=False)
        self.counter = Parameter(Tensor(0, INT32), "counter", requires_grad=False)

    def adjust(self, grads_finite: Any) -> Any:
        count = ops.select(grads_finite, self.counter + 1, ops.zeros_like(self.counter))
        grows = count >= self.scale_window
        smaller = ops.maximum(self.scale_value * (1.0 / self.scale_factor), 1.0)
        larger = ops.select(grows, self.scale_value * self.scale_factor, self.scale_value + 0.0)
        ops.assign(self.scale_value, ops.select(grads_finite, larger, smaller))
        ops.assign(self.counter, ops.select(grows, ops.zeros_like(count), count))
        return grads_finite


def _times(inputs: Any, scale: Any) -> Any:
    if isinstance(inputs, (tuple, list)):
        return tuple([_times(item, scale) for item in inputs])
    return inputs * as_dtype(scale, inputs.dtype)
