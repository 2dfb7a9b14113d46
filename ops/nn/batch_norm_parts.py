"""BatchNorm takes several steps on one rank, between which ranks gather their statistics or add up their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType, TupleType, dtype_of
from mspc.ops.cuda.statistics import launch_statistics
from mspc.ops.device import Array, Device, Launch
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.nn.batch_norm_kernels import (
    channel_mean,
    channel_statistics,
    channel_variance,
    gradient_input,
    gradient_sums,
    joined,
    moving_update,
    normalised,
    unbiased,
)
from mspc.ops.nn.norm import statistics_dtype
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op

_PART = NotDifferentiable("it is a part of BatchNorm on one rank")


class _Part(Op, abstract=True):
    """A step of BatchNorm on one rank."""

    bprop = _PART

    def rule(self, *types: TensorType) -> str:
        raise MspcError(f"{self.name} works on the slices of one rank and cannot be sharded")


class BatchNormStep(_Part, abstract=True):
    """A step that ranks add up the results of, or that reads what all have. count: elements of a channel on all ranks
    together."""

    count: int = 1


class ChannelStatistics(_Part):
    """[1, 2, channels]: mean and variance of every channel of x, counted along dimension `axis`."""

    axis: int = 1

    def infer(self, *types: Any) -> Any:
        (x,) = types
        return TensorType(statistics_dtype(x.dtype), (1, 2, x.shape[self.axis]))

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        axis = orders[0].place(self.axis)
        if not axis or axis not in (1, len(orders[0].parts) - 1):
            return None
        return Reordered(replace(self, axis=axis), (orders[0],), (MemoryOrder.of((1, 2, types[0].shape[self.axis])),))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        wide = x.astype(statistics_dtype(dtype_of(x.dtype)).numpy, copy=False)
        return channel_statistics(be.xp, be.xp.moveaxis(wide, self.axis, 1))

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        (x,) = inputs
        return launch_statistics(device, x, out[0, 0], out[0, 1], self.axis)


class JoinStatistics(_Part):
    """(mean, variance) of every channel on all ranks, from those of every rank, [ranks, 2, channels]: ranks have as
    many elements (Chan, Golub and LeVeque, 1979)."""

    def infer(self, *types: Any) -> Any:
        (gathered,) = types
        one = gathered.with_shape(gathered.shape[2:])
        return TupleType((one, one))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return joined(inputs[0])


class ChannelMean(BatchNormStep):
    """The sum of every channel divided by `count`."""

    def infer(self, *types: Any) -> Any:
        (x,) = types
        return TensorType(statistics_dtype(x.dtype), x.shape[1:2])

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return channel_mean(be.xp, inputs[0], self.count)


class ChannelVariance(BatchNormStep):
    """The sum of the squared distances from the mean of every channel divided by `count`."""

    def infer(self, *types: Any) -> Any:
        return types[1]

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, mean = inputs
        return channel_variance(be.xp, x, mean, self.count)


class BatchNormApply(BatchNormStep):
    """BatchNorm's results and new moving statistics from those of the batch, inputs 5 and 6."""

    epsilon: float = 1e-5
    momentum: float = 0.1
    mutates = (3, 4)
    updates_aside = True
    has_side_effect = True

    def infer(self, *types: Any) -> Any:
        return TupleType((types[0], *types[5:], *types[5:]))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, gamma, beta, moving_mean, moving_variance, mean, variance = inputs
        y = normalised(be.xp, x, mean, variance, self.epsilon, gamma, beta)
        moving_update(moving_mean, mean, self.momentum)
        moving_update(moving_variance, unbiased(variance, self.count), self.momentum)
        return y, mean, variance, mean + 0, variance + 0


class BatchNormGradSums(BatchNormStep):
    """Sums over a rank's elements of every channel: of the gradient times the normalised x, and of the gradient."""

    epsilon: float = 1e-5
    omitted = ("count",)

    def infer(self, *types: Any) -> Any:
        return TupleType((types[2], types[2]))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        dout, x, mean, variance = inputs
        return gradient_sums(be.xp, dout, x, mean, variance, self.epsilon)


class BatchNormGradInput(BatchNormStep):
    """The gradient of x, from BatchNormGrad's operands and, in training, the sums of all ranks."""

    epsilon: float = 1e-5

    def infer(self, *types: Any) -> Any:
        return types[0]

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        dout, x, gamma, mean, variance, *sums = inputs
        return gradient_input(be.xp, dout, x, gamma, mean, variance, sums, self.epsilon, self.count)
