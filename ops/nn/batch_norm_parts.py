"""The steps of BatchNorm on one rank, between which ranks add up what they have, and their kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType, TupleType
from mspc.ops.nn.norm import statistics_dtype
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op

_PART = NotDifferentiable("it is a part of BatchNorm on one rank")


class _Part(Op, abstract=True):
    """A step of BatchNorm on one rank, whose results others' are added to. count: elements of a channel on all ranks
    together."""

    count: int = 1
    bprop: ClassVar[Any] = _PART

    def rule(self, *types: TensorType) -> str:
        raise MspcError(f"{self.name} works on the slices of one rank and cannot be sharded")


class ChannelMean(_Part):
    """The sum of every channel divided by `count`."""

    def infer(self, *types: Any) -> Any:
        (x,) = types
        return TensorType(statistics_dtype(x.dtype), x.shape[1:2])

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return channel_mean(be.xp, inputs[0], self.count)


class ChannelVariance(_Part):
    """The sum of the squared distances from the mean of every channel divided by `count`."""

    def infer(self, *types: Any) -> Any:
        return types[1]

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, mean = inputs
        return channel_variance(be.xp, x, mean, self.count)


class BatchNormApply(_Part):
    """BatchNorm's results and new moving statistics from those of the batch, inputs 5 and 6."""

    epsilon: float = 1e-5
    momentum: float = 0.1
    mutates: ClassVar[tuple[int, ...]] = (3, 4)
    updates_aside: ClassVar[bool] = True
    has_side_effect: ClassVar[bool] = True

    def infer(self, *types: Any) -> Any:
        return TupleType((types[0], *types[5:], *types[5:]))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        *given, mean, variance = inputs
        return applied(be.xp, given, mean, variance, self.epsilon, self.momentum, self.count)


class BatchNormGradSums(_Part):
    """Sums over a rank's elements of every channel: of the gradient times the normalised x, and of the gradient."""

    epsilon: float = 1e-5
    omitted: ClassVar[tuple[str, ...]] = ("count",)

    def infer(self, *types: Any) -> Any:
        return TupleType((types[2], types[2]))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        dout, x, mean, variance = inputs
        return gradient_sums(be.xp, dout, x, mean, variance, self.epsilon)


class BatchNormGradInput(_Part):
    """The gradient of x, from BatchNormGrad's operands and, in training, the sums of all ranks."""

    epsilon: float = 1e-5

    def infer(self, *types: Any) -> Any:
        return types[0]

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        dout, x, gamma, mean, variance, *sums = inputs
        return gradient_input(be.xp, dout, x, gamma, mean, variance, sums, self.epsilon, self.count)


def _by_channel(x: Any) -> Any:
    """x as [batch, channels, elements]."""
    return x.reshape(x.shape[0], x.shape[1], math.prod(x.shape[2:]))


def _along(values: Any) -> Any:
    """Numbers of channels against [batch, channels, elements]."""
    return values[:, None]


def channel_mean(xp: Any, x: Any, count: int) -> Any:
    """The sum of every channel over `count`."""
    return _by_channel(x).sum(axis=2).sum(axis=0) / xp.asarray(max(count, 1), x.dtype)


def channel_variance(xp: Any, x: Any, mean: Any, count: int) -> Any:
    """The sum of the squared distances from the mean over `count`."""
    apart = _by_channel(x) - _along(mean.astype(x.dtype, copy=False))
    return xp.einsum("ncm,ncm->nc", apart, apart).sum(axis=0) / xp.asarray(max(count, 1), x.dtype)


def normalised(xp: Any, x: Any, mean: Any, variance: Any, epsilon: float, gamma: Any, beta: Any) -> Any:
    """x normalised, times gamma, plus beta."""
    factor = gamma / xp.sqrt(variance + xp.asarray(epsilon, variance.dtype))
    out = (_by_channel(x) - _along(mean)) * _along(factor)
    out += _along(beta)
    return out.reshape(x.shape)


def applied(
    xp: Any, operands: Sequence[Any], mean: Any, variance: Any, epsilon: float, momentum: float, count: int
) -> Any:
    """BatchNorm's results; the moving statistics, operands 3 and 4, are overwritten."""
    x, gamma, beta, moving_mean, moving_variance = operands
    y = normalised(xp, x, mean, variance, epsilon, gamma, beta)
    unbiased = variance * (count / (count - 1)) if count > 1 else variance
    for moving, found in ((moving_mean, mean), (moving_variance, unbiased)):
        moving[...] = moving * (1 - momentum) + found * momentum
    return y, mean, variance, mean + 0, variance + 0


def gradient_sums(xp: Any, dout: Any, x: Any, mean: Any, variance: Any, epsilon: float) -> tuple[Any, Any]:
    """Sums of every channel: of the gradient times the normalised x, and of the gradient."""
    rows = _by_channel(dout)
    apart = _by_channel(x) - _along(mean)
    inverse = 1 / xp.sqrt(variance + xp.asarray(epsilon, variance.dtype))
    return xp.einsum("ncm,ncm->nc", rows, apart).sum(axis=0) * inverse, rows.sum(axis=2).sum(axis=0)


def gradient_input(
    xp: Any, dout: Any, x: Any, gamma: Any, mean: Any, variance: Any, sums: Sequence[Any], epsilon: float, count: int
) -> Any:
    """The gradient of x; `sums` are those of all elements, none where the statistics were given."""
    inverse = 1 / xp.sqrt(variance + xp.asarray(epsilon, variance.dtype))
    factor = _along(gamma * inverse)
    if not sums:
        return (_by_channel(dout) * factor).reshape(x.shape)
    dgamma, dbeta = (value / xp.asarray(max(count, 1), value.dtype) for value in sums)
    out = (_by_channel(x) - _along(mean)) * _along(-inverse * dgamma)
    out += _by_channel(dout)
    out -= _along(dbeta)
    out *= factor
    return out.reshape(x.shape)
