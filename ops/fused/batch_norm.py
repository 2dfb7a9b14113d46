"""These operators are what remains of BatchNorm on a rank where the rest of it is fused into its elementwise
neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType, TupleType, dtype_of
from mspc.ops.cuda.statistics import launch_joined, launch_moving, launch_statistics
from mspc.ops.device import Array, Device, Launch
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.nn.batch_norm import joined, moving_update, unbiased
from mspc.ops.nn.norm import statistics_dtype
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op

_LATE = NotDifferentiable("operators are fused after all gradients are taken")


class _Moving(Op, abstract=True):
    """An operator whose operands 1 and 2 become (1 - momentum) * operand + momentum * statistic."""

    momentum: float = 0.1
    mutates = (1, 2)
    updates_aside = True
    has_side_effect = True
    any_types = True
    bprop = _LATE

    def rule(self, *types: TensorType) -> str:
        raise MspcError(f"{self.name} is of a rank's own graph: it has no sharding rule")


class BatchStatistics(_Moving):
    """(mean, variance) of every channel of x, counted along dimension `axis`; moving statistics, operands 1 and 2, are
    updated, that of the variance with the unbiased estimate."""

    axis: int = 1

    def infer(self, *types: Any) -> Any:
        x, *moving = types
        if not 0 < self.axis < x.rank:
            raise MspcError(f"{self.name}: axis {self.axis} is none of the dimensions of {x} behind the first")
        kind = TensorType(statistics_dtype(x.dtype), (x.shape[self.axis],))
        for each in moving:
            if each.shape != kind.shape:
                raise MspcError(f"{self.name}: moving statistics have shape {each.shape}, not {kind.shape}")
        return TupleType((kind, kind))

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        axis = orders[0].place(self.axis)
        if not axis or axis not in (1, len(orders[0].parts) - 1):
            return None
        moving = tuple(MemoryOrder.of(type.shape) for type in types[1:])
        return Reordered(replace(self, axis=axis), (orders[0], *moving), (moving[0],) * 2)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, *moving = inputs
        axes = tuple(d for d in range(x.ndim) if d != self.axis)
        kind = statistics_dtype_of(x)
        count = math.prod(x.shape[d] for d in axes)
        wide = x.astype(kind, copy=False)
        divisor = be.xp.asarray(max(count, 1), kind)
        mean = wide.sum(axes) / divisor
        apart = wide - mean.reshape([-1 if d == self.axis else 1 for d in range(x.ndim)])
        squares = (apart * apart).sum(axes)
        moving_update(moving[0], mean, self.momentum)
        moving_update(moving[1], squares / be.xp.asarray(max(count - 1, 1), kind), self.momentum)
        return mean, squares / divisor

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        x, *moving = inputs
        if self.axis not in (1, x.ndim - 1):
            return None
        mean, variance = out
        return launch_statistics(device, x, mean, variance, self.axis, (moving[0], moving[1]), self.momentum)


class MovingStatistics(_Moving):
    """`mean`, with moving statistics, operands 1 and 2, updated from it and `variance`, which are those of `count`
    elements of every channel on all ranks."""

    count: int = 1

    def infer(self, *types: Any) -> Any:
        return types[0]

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        mean, moving_mean, moving_variance, variance = inputs
        moving_update(moving_mean, mean, self.momentum)
        moving_update(moving_variance, unbiased(variance, self.count), self.momentum)
        return mean + 0

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        mean, moving_mean, moving_variance, variance = inputs
        return launch_moving(device, mean, (moving_mean, moving_variance), variance, out, self.count, self.momentum)


class JoinMovingStatistics(_Moving):
    """(mean, variance) of the `count` elements of every channel on all ranks, from those of each, [ranks, 2, channels];
    moving statistics, operands 1 and 2, are updated."""

    count: int = 1

    def infer(self, *types: Any) -> Any:
        one = types[0].with_shape(types[0].shape[2:])
        return TupleType((one, one))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        gathered, moving_mean, moving_variance = inputs
        mean, variance = joined(gathered)
        moving_update(moving_mean, mean, self.momentum)
        moving_update(moving_variance, unbiased(variance, self.count), self.momentum)
        return mean, variance

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        gathered, moving_mean, moving_variance = inputs
        mean, variance = out
        moving = moving_mean, moving_variance
        return launch_joined(device, gathered, moving, mean, variance, self.count, self.momentum)


def statistics_dtype_of(x: Any) -> Any:
    """The NumPy element type in which statistics of x are computed."""
    return statistics_dtype(dtype_of(x.dtype)).numpy
