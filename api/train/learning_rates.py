"""Callbacks read and set the learning rate of an optimizer here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.api.common.parameter import Parameter
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.train.callback_base import Callback, RunContext

__all__ = ["LearningRateScheduler"]


def rate_of(name: str, optimizer: Any) -> Parameter:
    """The learning rate of an optimizer that has one number for all steps and parameters. Raises ValueError."""
    rate = getattr(optimizer, "learning_rate", None)
    if not isinstance(rate, Parameter) or rate.size != 1:
        what = "there is no optimizer" if optimizer is None else f"the learning rate of {type(optimizer).__name__}"
        reason = what if optimizer is None else f"{what} changes by a schedule or differs between parameters"
        raise ApiValueError(f"{name}: {reason}", ["give the optimizer one number as learning_rate"])
    return rate


def set_rate(rate: Parameter, value: Any) -> None:
    """Give the learning rate a new value, from the next step on."""
    rate.set_data(Tensor(float(value), rate.dtype))


class LearningRateScheduler(Callback):
    """Sets the learning rate after every step: `learning_rate_function(learning_rate, cur_step_num)`.

    Raises:
        TypeError: it is no function.
    """

    def __init__(self, learning_rate_function: Callable[[float, int], float]) -> None:
        if not callable(learning_rate_function):
            raise ApiTypeError(
                f"LearningRateScheduler takes a function of (learning_rate, step), not {learning_rate_function!r}"
            )
        self.learning_rate_function = learning_rate_function

    def on_train_step_end(self, run_context: RunContext) -> None:
        param = run_context.original_args()
        rate = rate_of("LearningRateScheduler", param.get("optimizer"))
        set_rate(rate, self.learning_rate_function(float(rate), param.cur_step_num))
