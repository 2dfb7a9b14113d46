"""Adaptive summation adds gradients of ranks where they are orthogonal, and averages them where they are parallel."""

from __future__ import annotations

from typing import Any

from mspc.api import context, ops
from mspc.api.communication.group import GlobalComm, get_group_size
from mspc.api.errors import ApiRuntimeError, ApiTypeError
from mspc.api.nn.cell import Cell
from mspc.api.nn.optim.optimizer import Optimizer
from mspc.api.setting_kind import place_of_caller, say_once, set_where
from mspc.ops.operator_arguments import describe

_SHARDED = ("semi_auto_parallel", "auto_parallel")


class _AdaSum(Cell):
    """What both have: the optimizer, and the sum. adds_up_gradients: of the ranks, so that a training step leaves them.

    Raises:
        RuntimeError: in stand_alone mode, with optimizer parallel, or on a number of ranks that is no power of 2.
    """

    adds_up_gradients = True

    def __init__(self, optimizer: Any) -> None:
        super().__init__(auto_prefix=False)
        name = type(self).__name__
        if not isinstance(optimizer, Optimizer):
            raise ApiTypeError(f"{name}: optimizer must be an Optimizer, not {describe(optimizer)}")
        mode = context.get_auto_parallel_context("parallel_mode")
        if mode == "stand_alone":
            raise ApiRuntimeError(f"{name} adds up what ranks have computed; there is one rank in stand_alone mode")
        if context.get_auto_parallel_context("enable_parallel_optimizer"):
            raise ApiRuntimeError(
                f"{name} needs global gradients; with enable_parallel_optimizer ranks have slices",
                set_where("enable_parallel_optimizer"),
            )
        self.are_global = mode in _SHARDED
        size = context.get_auto_parallel_context("device_num") if self.are_global else get_group_size()
        if size & (size - 1):
            raise ApiRuntimeError(f"{name} adds up by pairs; {size} ranks are no power of 2")
        self.optimizer = optimizer
        self.parameters = optimizer.parameters
        self.summed = tuple(not parameter.layerwise_parallel for parameter in optimizer.parameters)
        self.all_gather = ops.AllGather(GlobalComm.WORLD_COMM_GROUP)
        if self.are_global:
            say_once(
                name,
                f"{place_of_caller()}{name} changes nothing here: in {mode} mode all ranks have the gradient of the "
                "global batch, and the adaptive sum of equal gradients is that gradient",
            )

    def sums(self, values: Any) -> Any:
        """The adaptive sum of each value over the ranks."""
        return tuple([self.sum(value) if summed else value for value, summed in zip(values, self.summed, strict=True)])

    def sum(self, value: Any) -> Any:
        """The adaptive sum of one value: ranks that stand side by side first, then their sums, and so on."""
        rows = self.all_gather(ops.reshape(ops.cast(value, "float32"), (1, -1)))
        while rows.shape[0] > 1:
            left, right = rows[0::2], rows[1::2]
            both = ops.reduce_sum(left * right, 1, True)
            rows = self.scaled(left, both) + self.scaled(right, both)
        return ops.cast(ops.reshape(rows, value.shape), value.dtype)

    def scaled(self, rows: Any, both: Any) -> Any:
        """Rows without half of what they have in common with their partners."""
        squares = ops.reduce_sum(rows * rows, 1, True)
        return rows - rows * both / (2 * ops.select(squares > 0, squares, ops.ones_like(squares)))


class AdaSumByGradWrapCell(_AdaSum):
    """An optimizer that is fed the adaptive sum of the ranks' gradients, parameter by parameter (Maleki and others,
    "Scaling distributed training with adaptive summation", 2020): of two, g and h,
    (1 - g.h / (2 g.g)) g + (1 - g.h / (2 h.h)) h; of more, the sums of pairs are added up so again.

    In semi-automatic and automatic mode every rank has the gradient of the global batch already, whose adaptive sum it
    is, as a warning says. In data parallel mode the compiler adds up no gradient that goes through here.

    Raises:
        RuntimeError: in stand_alone mode, with optimizer parallel, or on a number of ranks that is no power of 2.
        TypeError: `optimizer` is none.
    """

    def construct(self, grads: Any) -> Any:
        return self.optimizer(grads if self.are_global else self.sums(grads))


class AdaSumByDeltaWeightWrapCell(_AdaSum):
    """An optimizer that each rank runs on its own gradients; parameters then move by the adaptive sum of the ranks'
    steps. Otherwise as AdaSumByGradWrapCell.

    Raises:
        RuntimeError: as there, and in data_parallel mode, where gradients are added up ahead of the optimizer.
        TypeError: `optimizer` is none.
    """

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        if context.get_auto_parallel_context("parallel_mode") == "data_parallel":
            raise ApiRuntimeError(
                "AdaSumByDeltaWeightWrapCell needs each rank's own gradients, which data_parallel mode adds up",
                ["use AdaSumByGradWrapCell, or hybrid_parallel mode"],
            )

    def construct(self, grads: Any) -> Any:
        if self.are_global:
            return self.optimizer(grads)
        before = [parameter + 0 for parameter in self.parameters]
        grads = ops.depend(grads, before)
        done = self.optimizer(grads)
        steps = [ops.depend(now, done) - then for now, then in zip(self.parameters, before, strict=True)]
        for parameter, then, step in zip(self.parameters, before, self.sums(steps), strict=True):
            ops.assign(parameter, then + step)
        return done
