"""Batch normalization, its gradient, its parts on several ranks, and its kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Node, Value, element_types
from mspc.ir.layout import Layout, slice_counts
from mspc.ir.types import FLOAT32, TensorType, TupleType, dtype_of
from mspc.ops import gpu
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather, AllReduce
from mspc.ops.control.structural import MakeTuple, TupleGetItem, items
from mspc.ops.cpu.blocks import in_blocks
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Add, Mul, Sub
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.nn.norm import add_to, statistics_dtype
from mspc.ops.op import (
    ArrayBackend,
    Gradients,
    NotDifferentiable,
    Op,
    RankPlacement,
    RequestedSharding,
    require_float,
    sample,
)
from mspc.ops.tensor.reshape import Reshape, as_dtype
from mspc.sharding.rules import factor_names

LONG = 4096
"""Elements of a channel in one image from which a row is worth a loop of its own."""


def by_channel(x: Any) -> Any:
    """Return x as [batch, channels, elements]."""
    return x.reshape(x.shape[0], x.shape[1], math.prod(x.shape[2:]))


def _along(xp: Any, values: Any, images: Any) -> Any:
    """Return the numbers of channels in a shape that broadcasts to the images; short rows get no loops of their own."""
    elements = images.shape[2]
    return values[:, None] if elements >= LONG else xp.repeat(values, elements).reshape(values.size, elements)


def _sum(images: Any) -> Any:
    """Return the sum of every channel."""
    return images.sum(axis=0).sum(axis=1)


def _product_sum(xp: Any, x: Any, y: Any) -> Any:
    """Return the sum of x * y of every channel."""
    if xp is not np:
        return _sum(x * y)
    return np.einsum("bce,bce->ce", x, y).sum(axis=1)  # no intermediate array of products


def _over(xp: Any, total: Any, count: int) -> Any:
    return total / xp.asarray(max(count, 1), total.dtype)


def _inverse(xp: Any, variance: Any, epsilon: float) -> Any:
    return 1 / xp.sqrt(variance + xp.asarray(epsilon, variance.dtype))


def channel_statistics(xp: Any, x: Any) -> Any:
    """Return [1, 2, channels]: mean and variance of every channel."""
    images = by_channel(x)
    count = images.shape[0] * images.shape[2]
    out = xp.empty((1, 2, images.shape[1]), x.dtype)
    mean, variance = out[0]

    def work(chosen: slice) -> None:
        some = images[:, chosen]
        mean[chosen] = _over(xp, _sum(some), count)
        apart = some - _along(xp, mean[chosen], images)
        variance[chosen] = _over(xp, _product_sum(xp, apart, apart), count)

    in_blocks(xp, images.shape[1], images.size, work)
    return out


def joined(statistics: Any) -> tuple[Any, Any]:
    """Return (mean, variance) of all elements from those of parts of equal size, [parts, 2, channels]."""
    means, variances = statistics[:, 0], statistics[:, 1]
    mean = means.mean(axis=0)
    apart = means - mean
    return mean, (variances + apart * apart).mean(axis=0)


def normalised(
    xp: Any, x: Any, mean: Any, variance: Any, epsilon: float, gamma: Any, beta: Any, out: Any = None
) -> Any:
    """Return x normalised, times gamma, plus beta."""
    images = by_channel(x)
    out = xp.empty(x.shape, x.dtype) if out is None else out
    results = by_channel(out)
    factor = gamma * _inverse(xp, variance, epsilon)

    def work(chosen: slice) -> None:
        apart = images[:, chosen] - _along(xp, mean[chosen], images)
        apart *= _along(xp, factor[chosen], images)
        xp.add(apart, _along(xp, beta[chosen], images), out=results[:, chosen])

    in_blocks(xp, images.shape[1], images.size, work)
    return out


def normalised_by_own(xp: Any, x: Any, epsilon: float, gamma: Any, beta: Any, out: Any = None) -> tuple[Any, Any, Any]:
    """Return (x normalised by its own statistics, times gamma, plus beta; mean; variance)."""
    images = by_channel(x)
    out = xp.empty(x.shape, x.dtype) if out is None else out
    results, count = by_channel(out), math.prod(x.shape) // max(x.shape[1], 1)
    mean, variance = xp.empty(x.shape[1:2], x.dtype), xp.empty(x.shape[1:2], x.dtype)

    def work(chosen: slice) -> None:
        some = images[:, chosen]
        mean[chosen] = _over(xp, _sum(some), count)
        apart = some - _along(xp, mean[chosen], images)
        variance[chosen] = _over(xp, _product_sum(xp, apart, apart), count)
        apart *= _along(xp, gamma[chosen] * _inverse(xp, variance[chosen], epsilon), images)
        xp.add(apart, _along(xp, beta[chosen], images), out=results[:, chosen])

    in_blocks(xp, images.shape[1], images.size, work)
    return out, mean, variance


def moving_update(moving: Any, found: Any, momentum: float) -> None:
    """Overwrite moving statistics with their new values."""
    moving[...] = moving * (1 - momentum) + found * momentum


def unbiased(variance: Any, count: int) -> Any:
    """Return the unbiased estimate of the variance, for the population of which `count` elements are a sample."""
    return variance * (count / (count - 1)) if count > 1 else variance


def gradient_sums(xp: Any, dout: Any, x: Any, mean: Any, variance: Any, epsilon: float) -> tuple[Any, Any]:
    """Return the sums of every channel: of the gradient times the normalised x, and of the gradient."""
    rows, images = by_channel(dout), by_channel(x)
    inverse = _inverse(xp, variance, epsilon)
    dgamma, dbeta = (xp.empty(x.shape[1:2], inverse.dtype) for _ in range(2))

    def work(chosen: slice) -> None:
        apart = images[:, chosen] - _along(xp, mean[chosen], images)
        dgamma[chosen] = _product_sum(xp, apart, rows[:, chosen]) * inverse[chosen]
        dbeta[chosen] = _sum(rows[:, chosen])

    in_blocks(xp, images.shape[1], images.size, work)
    return dgamma, dbeta


def gradient_input(
    xp: Any, dout: Any, x: Any, gamma: Any, mean: Any, variance: Any, sums: Sequence[Any], epsilon: float, count: int,
    out: Any = None,
) -> Any:  # fmt: skip
    """Return the gradient of x. sums: over all elements, none if the statistics were given."""
    rows, images = by_channel(dout), by_channel(x)
    out = xp.empty(x.shape, x.dtype) if out is None else out
    results, inverse = by_channel(out), _inverse(xp, variance, epsilon)
    factor, shares = gamma * inverse, [_over(xp, value, count) for value in sums]

    def work(chosen: slice) -> None:
        scale = _along(xp, factor[chosen], images)
        if not shares:
            xp.multiply(rows[:, chosen], scale, out=results[:, chosen])
            return
        dgamma, dbeta = (share[chosen] for share in shares)
        apart = images[:, chosen] - _along(xp, mean[chosen], images)
        apart *= _along(xp, -inverse[chosen] * dgamma, images)
        apart += rows[:, chosen]
        apart -= _along(xp, dbeta, images)
        xp.multiply(apart, scale, out=results[:, chosen])

    in_blocks(xp, images.shape[1], images.size, work)
    return out


def own_gradients(
    xp: Any, dout: Any, x: Any, gamma: Any, mean: Any, variance: Any, epsilon: float, out: Any = None
) -> tuple[Any, Any, Any]:
    """Return (gradient of x, of gamma, of beta) for the statistics of x itself: `gradient_sums` and `gradient_input` in
    one pass over memory."""
    rows, images = by_channel(dout), by_channel(x)
    out = xp.empty(x.shape, x.dtype) if out is None else out
    results, inverse = by_channel(out), _inverse(xp, variance, epsilon)
    count = math.prod(x.shape) // max(x.shape[1], 1)
    dgamma, dbeta = (xp.empty(x.shape[1:2], inverse.dtype) for _ in range(2))

    def work(chosen: slice) -> None:
        some = rows[:, chosen]
        apart = images[:, chosen] - _along(xp, mean[chosen], images)
        dgamma[chosen] = _product_sum(xp, apart, some) * inverse[chosen]
        dbeta[chosen] = _sum(some)
        apart *= _along(xp, -inverse[chosen] * _over(xp, dgamma[chosen], count), images)
        apart += some
        apart -= _along(xp, _over(xp, dbeta[chosen], count), images)
        xp.multiply(apart, _along(xp, gamma[chosen] * inverse[chosen], images), out=results[:, chosen])

    in_blocks(xp, images.shape[1], images.size, work)
    return out, dgamma, dbeta


class _Part(Op, abstract=True):
    """A step of BatchNorm on one rank."""

    bprop = NotDifferentiable("it is a part of BatchNorm on one rank")

    def rule(self, *types: TensorType) -> str:
        raise MspcError(f"{self.name} works on the slices of one rank and cannot be sharded")


class BatchNormStep(_Part, abstract=True):
    """Step whose results are summed over ranks, or that reads values of all ranks. count: elements of a channel on all
    ranks."""

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

    def compute(self, xp: Any, x: Any) -> Any:
        wide = x.astype(statistics_dtype(dtype_of(x.dtype)).numpy, copy=False)
        return channel_statistics(xp, xp.moveaxis(wide, self.axis, 1))

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        return gpu.norms.launch_statistics(device, x, out[0, 0], out[0, 1], self.axis)


class JoinStatistics(_Part):
    """(mean, variance) of every channel over all ranks, from those of every rank, [ranks, 2, channels]; ranks have
    equally many elements (Chan, Golub and LeVeque, 1979)."""

    def infer(self, *types: Any) -> Any:
        (gathered,) = types
        one = gathered.with_shape(gathered.shape[2:])
        return TupleType((one, one))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return joined(inputs[0])


class ChannelMean(BatchNormStep):
    """The sum of every channel divided by `count`."""

    def infer(self, *types: Any) -> Any:
        (x,) = types
        return TensorType(statistics_dtype(x.dtype), x.shape[1:2])

    def compute(self, xp: Any, x: Any) -> Any:
        images = by_channel(x)
        out = xp.empty(x.shape[1:2], x.dtype)

        def work(chosen: slice) -> None:
            out[chosen] = _over(xp, _sum(images[:, chosen]), self.count)

        in_blocks(xp, images.shape[1], images.size, work)
        return out


class ChannelVariance(BatchNormStep):
    """The sum of the squared distances from the mean of every channel divided by `count`."""

    def infer(self, *types: Any) -> Any:
        return types[1]

    def compute(self, xp: Any, x: Any, mean: Any) -> Any:
        images = by_channel(x)
        out = xp.empty(x.shape[1:2], x.dtype)

        def work(chosen: slice) -> None:
            apart = images[:, chosen] - _along(xp, mean[chosen].astype(x.dtype, copy=False), images)
            out[chosen] = _over(xp, _product_sum(xp, apart, apart), self.count)

        in_blocks(xp, images.shape[1], images.size, work)
        return out


class BatchNormApply(BatchNormStep):
    """BatchNorm's results and new moving statistics from the batch's statistics, inputs 5 and 6."""

    epsilon: float = 1e-5
    momentum: float = 0.1
    mutates = (3, 4)
    updates_aside = True
    has_side_effect = True

    def infer(self, *types: Any) -> Any:
        return TupleType((types[0], *types[5:], *types[5:]))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        x, gamma, beta, moving_mean, moving_variance, mean, variance = inputs
        y = normalised(xp, x, mean, variance, self.epsilon, gamma, beta)
        moving_update(moving_mean, mean, self.momentum)
        moving_update(moving_variance, unbiased(variance, self.count), self.momentum)
        return y, mean, variance, mean + 0, variance + 0


class BatchNormGradSums(BatchNormStep):
    """Sums over a rank's elements of every channel: of the gradient times the normalised x, and of the gradient."""

    epsilon: float = 1e-5
    omitted = ("count",)

    def infer(self, *types: Any) -> Any:
        return TupleType((types[2], types[2]))

    def compute(self, xp: Any, dout: Any, x: Any, mean: Any, variance: Any) -> Any:
        return gradient_sums(xp, dout, x, mean, variance, self.epsilon)


class BatchNormGradInput(BatchNormStep):
    """The gradient of x, from BatchNormGrad's operands and, in training, the sums of all ranks."""

    epsilon: float = 1e-5

    def infer(self, *types: Any) -> Any:
        return types[0]

    def compute(self, xp: Any, dout: Any, x: Any, gamma: Any, mean: Any, variance: Any, *sums: Any) -> Any:
        return gradient_input(xp, dout, x, gamma, mean, variance, sums, self.epsilon, self.count)

OVER_ALL_RANKS = "statistics are those of the batch of all ranks"
Ranks = tuple[int, ...]
FEW = 2
"""Number of ranks up to which they gather: they wait for each other once, and each reads its images once. With more
ranks a gather sends more bytes than an all-reduce."""


def _check(name: str, x: TensorType, channel: Sequence[TensorType]) -> None:
    """Raise MspcError if `x` is not a batch of channels, or the operands of the channels do not fit it."""
    require_float(name, x, *channel)
    if len(x.shape) < 2:
        raise MspcError(f"{name}: x must have at least 2 dimensions, but its shape is {x.shape}", code="E0303")
    for index, operand in enumerate(channel):
        if operand.dtype not in (x.dtype, FLOAT32) or (operand.dtype != channel[0].dtype):
            raise MspcError(
                f"{name}: input {index + 1} is {operand.dtype}, x is {x.dtype} and input 1 is {channel[0].dtype}",
                notes=["operands of the channels must be Float32 or of the type of x, all alike"],
                kind=TypeError, code="E0304",
            )


def _names(x: TensorType) -> tuple[str, str]:
    """Return the factors of the images and of the channels."""
    names = factor_names(len(x.shape))
    return " ".join(names), names[1] if len(names) > 1 else "b"


class _Shared(Op, abstract=True):
    """is_training: normalise by the batch's own statistics. epsilon: added to the variance.

    Subclasses have `groups`: ranks that share a batch if the graph is each rank's own; otherwise layouts tell.
    """

    is_training: bool = False
    epsilon: float = 1e-5

    @property
    def sharers(self) -> tuple[Ranks, ...]:
        """The subclass's `groups`."""
        return self.attributes().get("groups", ())

    def with_groups(self, groups: tuple[Ranks, ...]) -> Op:
        """Return the operator with other groups."""
        given: dict[str, Any] = {**self.attributes(), "groups": groups}
        return type(self)(**given)

    def over_all_ranks(self, ranks: Ranks) -> Op:
        if self.sharers or not self.is_training:
            return self
        return self.with_groups((ranks,))

    def localize(self, placement: RankPlacement) -> Op:
        return self.with_groups(())

    def sharing(self, placement: RankPlacement) -> tuple[Ranks, int]:
        """Return (ranks whose statistics are combined, elements of a channel over them)."""
        type, layout = placement.in_types[0], placement.in_layouts[0]
        own = next((group for group in self.sharers if placement.rank in group), ())
        axes = [a for d, dim in enumerate(layout.dims) if d != 1 for a in dim]
        if own and axes:
            raise MspcError(f"{self.name}: groups of ranks have no meaning if the compiler shards the batch")
        if own:
            return tuple(sorted(own)), _elements(type.shape) * len(own)
        ranks = layout.group(axes, placement.rank) if axes else (placement.rank,)
        return tuple(sorted(ranks)), _elements(type.shape)

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        """Return the bytes of two numbers per channel."""
        group = layouts[0].size_of(a for d, dim in enumerate(layouts[0].dims) if d != 1 for a in dim)
        channel = types[-1].nbytes / layouts[0].strategy[1]
        return self.collective(group).sent_bytes(2 * channel, group)

    @staticmethod
    def collective(group: int) -> type[Collective]:
        """Return the collective with which a group of this many ranks shares its numbers."""
        return AllReduce


def _elements(shape: Sequence[int]) -> int:
    """Return the number of elements of a channel."""
    return math.prod(shape) // max(shape[1], 1)


def _summed(b: Builder, ranks: Ranks, *values: Value) -> list[Value]:
    """Return the values added up over ranks, in one collective."""
    if len(ranks) == 1:
        return list(values)
    reduced = b.emit(AllReduce().with_ranks(ranks), *values)
    reduced.attrs["reason"] = OVER_ALL_RANKS
    return [reduced] if len(values) == 1 else [b.emit(TupleGetItem(i), reduced) for i in range(len(values))]


class BatchNorm(_Shared):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta for every channel, dimension 1 of x: a tuple of five, the
    result, mean and variance of the batch twice.

    In training the statistics are the batch's, and the moving ones, inputs 3 and 4, are overwritten with
    (1 - momentum) * moving + momentum * batch, of the variance with the unbiased estimate; else the moving ones serve.
    """

    momentum: float = 0.1
    data_format: str = "NCHW"
    groups: tuple[Ranks, ...] = ()
    updates_aside = True
    keeps_narrow = (0,)
    omitted = ("data_format", "groups")
    fills = True
    samples = (
        sample((4, 8, 4, 2), (8,), (8,), (8,), (8,), is_training=True, low=0.5, epsilon=1e-3),
        sample((8, 4), (4,), (4,), (4,), (4,), is_training=True, momentum=0.5, low=0.5),
        sample((4, 8, 4), (8,), (8,), (8,), (8,), low=0.5, gradient=False),
    )

    @property
    def mutates(self) -> tuple[int, ...]:  # type: ignore[override]  # depends on the attribute
        return (3, 4) if self.is_training else ()

    @property
    def has_side_effect(self) -> bool:  # type: ignore[override]  # depends on the attribute
        return self.is_training

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        x, *channel = types
        _check(self.name, x, channel)
        if self.data_format not in ("NCHW", "NCDHW"):
            raise MspcError(f"{self.name}: data_format must be 'NCHW' or 'NCDHW', not {self.data_format!r}")
        if not 0 <= self.momentum <= 1:
            raise MspcError(f"{self.name}: momentum must be in [0, 1], not {self.momentum!r}")
        kind = statistics_dtype(x.dtype)
        found = element_types(inferred)
        return TupleType((found[0], *(TensorType(kind, t.shape) for t in found[1:])))

    def strategy_mistake(self, asked: RequestedSharding) -> str:
        """Return why a strategy is a mistake. With MindSpore's `group_size` that many neighbours share their
        statistics, along a batch that alone is sharded. Here they are always those of the global batch, of which a
        group is a part that no strategy could ask for."""
        size = asked.attrs.get("group_size")
        if size is None:
            return ""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1 or size & (size - 1):
            return f"group_size is {size!r}, not a power of two"
        counts = slice_counts((asked.in_strategy or ((),))[0])
        if any(shards != 1 for shards in counts[1:]):
            return f"with a group_size the strategy may shard the batch alone, and is {counts} for input 0"
        return ""

    def rule(self, x: TensorType, gamma: TensorType, beta: TensorType, mean: TensorType, variance: TensorType) -> str:
        full, c = _names(x)
        return f"{full}, {c}, {c}, {c}, {c} -> {full}, {c}, {c}, {c}, {c}"

    def bprop(self, b: Builder, x: Value, gamma: Value, beta: Value, moving_mean: Value, moving_variance: Value,
              out: Node, dout: Any) -> Gradients:  # fmt: skip
        if self.groups and any(d is not None for d in dout[1:]):
            raise MspcError(f"{self.name}: statistics that ranks share are not differentiated, only result 0 is")
        _, mean, variance, *_ = items(b, out, 5) if self.is_training else (out, moving_mean, moving_variance)
        dx = dgamma = dbeta = None
        if dout[0] is not None:
            grad = b.emit(BatchNormGrad(self.is_training, self.epsilon, self.groups), dout[0], x, gamma, mean, variance)
            dx, dgamma, dbeta = items(b, grad, 3)
        if self.is_training:
            for first, second in ((1, 2), (3, 4)):
                dx = _through_statistics(b, dx, x, mean, dout[first], dout[second])
        return dx, dgamma, dbeta, None, None

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        return super().moved_bytes(types, layouts) if self.is_training else 0.0

    @staticmethod
    def collective(group: int) -> type[Collective]:
        return AllGather if group <= FEW else AllReduce

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        ranks, count = self.sharing(placement)
        if not self.is_training or len(ranks) == 1:
            return None
        x = inputs[0]
        if self.collective(len(ranks)) is AllGather:
            gathered = b.emit(AllGather().with_ranks(ranks), b.emit(ChannelStatistics(), x))
            gathered.attrs["reason"] = OVER_ALL_RANKS
            mean, variance = items(b, b.emit(JoinStatistics(), gathered), 2)
        else:
            (mean,) = _summed(b, ranks, b.emit(ChannelMean(count=count), x))
            (variance,) = _summed(b, ranks, b.emit(ChannelVariance(count=count), x, mean))
        applied = BatchNormApply(count=count, epsilon=self.epsilon, momentum=self.momentum)
        return b.emit(applied, *inputs, mean, variance)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        xp, epsilon = be.xp, self.epsilon

        def kernel(x: Any, gamma: Any, beta: Any, moving_mean: Any, moving_variance: Any, out: Any = None) -> Any:
            target = None if out is None else out[0]
            if not self.is_training:
                y = normalised(xp, x, moving_mean, moving_variance, epsilon, gamma, beta, target)
                return _filled(out, y, moving_mean, moving_variance)
            y, mean, variance = normalised_by_own(xp, x, epsilon, gamma, beta, target)
            moving_update(moving_mean, mean, self.momentum)
            moving_update(moving_variance, unbiased(variance, _elements(x.shape)), self.momentum)
            return _filled(out, y, mean, variance)

        return kernel


def _filled(out: Any, y: Any, mean: Any, variance: Any) -> Any:
    """Return BatchNorm's five results, in `out` if given, which already contains the first one."""
    if out is None:
        return y, *(mean + 0, variance + 0) * 2
    for index, found in enumerate((mean, variance, mean, variance)):
        out[index + 1][...] = found
    return out


class BatchNormGrad(_Shared):
    """Gradients of x, gamma and beta, from that of the result, x, gamma, and the mean and variance that were used."""

    groups: tuple[Ranks, ...] = ()
    sums_of_rows = (1, 2)
    fills = True
    samples = (
        sample((4, 8, 4, 2), (4, 8, 4, 2), (8,), (8,), (8,), is_training=True, low=0.5),
        sample((8, 4), (8, 4), (4,), (4,), (4,), low=0.5),
    )
    omitted = ("groups",)
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        _check(self.name, types[1], types[2:3])
        return TupleType((types[0], types[2].with_shape(element_types(inferred)[1].shape), types[2]))

    def rule(self, dout: TensorType, x: TensorType, gamma: TensorType, mean: TensorType, variance: TensorType) -> str:
        full, c = _names(x)
        return f"{full}, {full}, {c}, {c}, {c} -> {full}, {c}, {c}"

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        ranks, count = self.sharing(placement)
        if len(ranks) == 1:
            return None
        dout, x, gamma, mean, variance = inputs
        own = items(b, b.emit(BatchNormGradSums(epsilon=self.epsilon), dout, x, mean, variance), 2)
        total = _summed(b, ranks, *own)
        shares = total if self.is_training else []
        dx = b.emit(BatchNormGradInput(count=count, epsilon=self.epsilon), dout, x, gamma, mean, variance, *shares)
        returned = own if self.groups else total
        kind = gamma.tensor_type.dtype
        return b.emit(MakeTuple(), dx, *(as_dtype(b, value, kind) for value in returned))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        xp, epsilon = be.xp, self.epsilon

        def kernel(dout: Any, x: Any, gamma: Any, mean: Any, variance: Any, out: Any = None) -> Any:
            target = None if out is None else out[0]
            if self.is_training:
                found = own_gradients(xp, dout, x, gamma, mean, variance, epsilon, target)
            else:
                sums = gradient_sums(xp, dout, x, mean, variance, epsilon)
                found = gradient_input(xp, dout, x, gamma, mean, variance, (), epsilon, 1, target), *sums
            if out is None:
                return found
            out[1][...], out[2][...] = found[1:]
            return out

        return kernel


def _through_statistics(
    b: Builder, dx: Value | None, x: Value, mean: Value, dmean: Value | None, dvariance: Value | None
) -> Value | None:
    """Return the gradient of x with the contributions of its mean and variance."""
    kind, row = mean.tensor_type.dtype, (x.shape[1], *[1] * (len(x.shape) - 2))
    count = _elements(x.shape) or 1
    shares = [None if d is None else b.emit(Reshape(row), d) for d in (dmean, dvariance)]
    found: Value | None = None
    if shares[0] is not None:
        found = b.emit(Mul(), shares[0], b.constant(1 / count, kind))
    if shares[1] is not None:
        apart = b.emit(Sub(), as_dtype(b, x, kind), b.emit(Reshape(row), mean))
        term = b.emit(Mul(), b.emit(Mul(), shares[1], b.constant(2 / count, kind)), apart)
        found = term if found is None else b.emit(Add(), term, found)
    return dx if found is None else add_to(b, dx, as_dtype(b, found, x.tensor_type.dtype), x)
