"""BatchNorm normalises every channel by the mean and variance of a batch. Ioffe and Szegedy, arXiv 1502.03167.

The statistics are those of the global batch. Two ranks that share it gather the mean and variance of each; more add
theirs up, first the means and then the squares of the distances from the mean: what is gathered grows with the ranks.
Both are exact where sums of squares are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value, element_types
from mspc.ir.layout import Layout
from mspc.ir.named_layout import NamedLayout
from mspc.ir.types import FLOAT32, TensorType, TupleType
from mspc.ops.bases import require_float
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather, AllReduce
from mspc.ops.control.structural import MakeTuple, TupleGetItem, items
from mspc.ops.math.arithmetic import Add, Mul, Sub
from mspc.ops.nn.batch_norm_kernels import (
    gradient_input,
    gradient_sums,
    moving_update,
    normalised,
    normalised_by_own,
    own_gradients,
    unbiased,
)
from mspc.ops.nn.batch_norm_parts import (
    BatchNormApply,
    BatchNormGradInput,
    BatchNormGradSums,
    ChannelMean,
    ChannelStatistics,
    ChannelVariance,
    JoinStatistics,
)
from mspc.ops.nn.norm import Gradients, add_to, statistics_dtype
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RankPlacement, RequestedSharding, sample
from mspc.ops.tensor.cast import as_dtype
from mspc.ops.tensor.reshape import Reshape
from mspc.sharding.rules import factor_names

SHARED = "statistics are those of the batch of all ranks"
Ranks = tuple[int, ...]
FEW = 2
"""Ranks that gather: they wait for each other once, and each reads its images once. Among more of them to gather sends
more bytes than to add up."""


def _check(name: str, x: TensorType, channel: Sequence[TensorType]) -> None:
    """Raises MspcError where `x` is no batch of channels, or what belongs to the channels does not fit it."""
    require_float(name, x, *channel)
    if len(x.shape) < 2:
        raise MspcError(f"{name}: x must have at least 2 dimensions, but its shape is {x.shape}")
    for index, operand in enumerate(channel):
        if operand.dtype not in (x.dtype, FLOAT32) or (operand.dtype != channel[0].dtype):
            raise MspcError(
                f"{name}: input {index + 1} is {operand.dtype}, x is {x.dtype} and input 1 is {channel[0].dtype}",
                notes=["what belongs to the channels must be Float32 or of the type of x, all alike"],
                kind=TypeError,
            )


def _names(x: TensorType) -> tuple[str, str]:
    """Factors of the images and of the channels."""
    names = factor_names(len(x.shape))
    return " ".join(names), names[1] if len(names) > 1 else "b"


class _Shared(Op, abstract=True):
    """is_training: normalise by the batch's own statistics. epsilon: added to the variance.

    Subclasses have `groups`: ranks that share a batch where the graph is each rank's own; otherwise layouts tell.
    """

    is_training: bool = False
    epsilon: float = 1e-5

    @property
    def sharers(self) -> tuple[Ranks, ...]:
        """The subclass's `groups`."""
        return self.attributes().get("groups", ())

    def with_groups(self, groups: tuple[Ranks, ...]) -> Op:
        """The operator with other groups."""
        given: dict[str, Any] = {**self.attributes(), "groups": groups}
        return type(self)(**given)

    def over_all_ranks(self, ranks: Ranks) -> Op:
        if self.sharers or not self.is_training:
            return self
        return self.with_groups((ranks,))

    def localize(self, placement: RankPlacement) -> Op:
        return self.with_groups(())

    def sharing(self, placement: RankPlacement) -> tuple[Ranks, int]:
        """(ranks whose statistics are added up, elements of a channel that they have together)."""
        type, layout = placement.in_types[0], placement.in_layouts[0]
        own = next((group for group in self.sharers if placement.rank in group), ())
        axes = [a for d, dim in enumerate(layout.dims) if d != 1 for a in dim]
        if own and axes:
            raise MspcError(f"{self.name}: groups of ranks have no meaning where the compiler shards the batch")
        if own:
            return tuple(sorted(own)), _elements(type.shape) * len(own)
        ranks = layout.group(axes, placement.rank) if axes else (placement.rank,)
        return tuple(sorted(ranks)), _elements(type.shape)

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        """Two numbers per channel."""
        group = layouts[0].size_of(a for d, dim in enumerate(layouts[0].dims) if d != 1 for a in dim)
        channel = types[-1].nbytes / layouts[0].strategy[1]
        return self.collective(group).sent_bytes(2 * channel, group)

    @staticmethod
    def collective(group: int) -> type[Collective]:
        """What so many ranks share their numbers with."""
        return AllReduce


def _elements(shape: Sequence[int]) -> int:
    """Elements of a channel."""
    return math.prod(shape) // max(shape[1], 1)


def _summed(b: Builder, ranks: Ranks, *values: Value) -> list[Value]:
    """The values added up over ranks, in one collective."""
    if len(ranks) == 1:
        return list(values)
    reduced = b.emit(AllReduce().with_ranks(ranks), *values)
    reduced.attrs["reason"] = SHARED
    return [reduced] if len(values) == 1 else [b.emit(TupleGetItem(i), reduced) for i in range(len(values))]


def _joined(b: Builder, ranks: Ranks, x: Value) -> list[Value]:
    """[mean, variance] of every channel over ranks, which gather their own in one collective."""
    gathered = b.emit(AllGather().with_ranks(ranks), b.emit(ChannelStatistics(), x))
    gathered.attrs["reason"] = SHARED
    return items(b, b.emit(JoinStatistics(), gathered), 2)


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
        """MindSpore's `group_size` has so many neighbours share their statistics, along a batch that alone is sharded.
        Here they are always those of the global batch, of which a group is a part that no strategy could ask for."""
        size = asked.attrs.get("group_size")
        if size is None:
            return ""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1 or size & (size - 1):
            return f"group_size is {size!r}, not a power of two"
        entry: Any = (asked.in_strategy or ((),))[0]
        slice_counts: tuple[int, ...] = entry.strategy if isinstance(entry, NamedLayout) else entry
        if any(shards != 1 for shards in slice_counts[1:]):
            return f"with a group_size the strategy may shard the batch alone, and is {slice_counts} for input 0"
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
            mean, variance = _joined(b, ranks, x)
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

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        return self.kernel(be)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)


def _filled(out: Any, y: Any, mean: Any, variance: Any) -> Any:
    """BatchNorm's five results, in `out` where it is given, which holds the first one already."""
    if out is None:
        return y, *(mean + 0, variance + 0) * 2
    for index, found in enumerate((mean, variance, mean, variance)):
        out[index + 1][...] = found
    return out


class BatchNormGrad(_Shared):
    """Gradients of x, gamma and beta, from that of the result, x, gamma, and the mean and variance that were used."""

    groups: tuple[Ranks, ...] = ()
    sums_of_rows = (1, 2)
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

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        return self.kernel(be)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)


def _through_statistics(
    b: Builder, dx: Value | None, x: Value, mean: Value, dmean: Value | None, dvariance: Value | None
) -> Value | None:
    """The gradient of x with what comes from that of its mean and variance."""
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
