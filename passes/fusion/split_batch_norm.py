"""Takes BatchNorm on one rank apart into sums over the batch and work element by element, which fuses with neighbours.

Input:  `%1 = BatchNorm(%x, %gamma, %beta, %mean, %variance)`, `%2 = TupleGetItem(%1) {0}`, `%3 = ReLU(%2)`
Output: `%1 = BatchStatistics(%x, %mean, %variance)`, then x less the mean, times gamma / sqrt(variance + epsilon), plus
        beta, as Sub, Mul and Add: `fuse_elementwise` makes one kernel of these and of ReLU

If ranks share the statistics, the collectives stay between the sums, or between a rank's own statistics and those of
all. The gradient becomes two sums and one product; their operands are computed twice, because storing them would take
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.ir.graph import Builder, Graph, Node, Value, element_types
from mspc.ir.types import DType
from mspc.ops.control.structural import TupleGetItem, items
from mspc.ops.fused.norms import BatchStatistics, JoinMovingStatistics, MovingStatistics
from mspc.ops.math.arithmetic import Add, Mul, Sub
from mspc.ops.math.elementwise import Rsqrt
from mspc.ops.nn.batch_norm import (
    BatchNorm,
    BatchNormApply,
    BatchNormGrad,
    BatchNormGradInput,
    BatchNormGradSums,
    ChannelMean,
    ChannelStatistics,
    ChannelVariance,
    JoinStatistics,
)
from mspc.ops.nn.norm import statistics_dtype
from mspc.ops.tensor.reshape import Cast, ReduceSum, Reshape, as_dtype
from mspc.passes.base import Pass
from mspc.passes.fusion.rewriter import split


class SplitBatchNorm(Pass):
    def run(self, graph: Graph) -> bool:
        return split(graph, lambda b, n: make(b, n.op, n) if (make := _MAKERS.get(type(n.op))) is not None else None)


def _forward(b: Builder, op: BatchNorm, node: Node) -> tuple[Value, ...]:
    x, gamma, beta, moving_mean, moving_variance = node.inputs
    if not op.is_training:
        y = _applied(b, node, op.epsilon, x, gamma, beta, moving_mean, moving_variance)
        return y, *(moving_mean, moving_variance) * 2
    found = b.emit(BatchStatistics(op.momentum), _narrow(x), moving_mean, moving_variance)
    mean, variance = items(b, found, 2)
    return _applied(b, node, op.epsilon, x, gamma, beta, mean, variance), *(mean, variance) * 2


def _apply(b: Builder, op: BatchNormApply, node: Node) -> tuple[Value, ...]:
    x, gamma, beta, *moving, mean, variance = node.inputs
    gathered = _gathered(mean)
    if gathered is None:
        b.emit(MovingStatistics(op.momentum, op.count), mean, *moving, variance)
    else:
        mean, variance = items(b, b.emit(JoinMovingStatistics(op.momentum, op.count), gathered, *moving), 2)
    return _applied(b, node, op.epsilon, x, gamma, beta, mean, variance), *(mean, variance) * 2


def _gathered(mean: Value) -> Value | None:
    """Return all ranks' statistics that a mean comes from, or None if it was added up."""
    joined = mean.inputs[0] if isinstance(mean, Node) and isinstance(mean.op, TupleGetItem) else None
    return joined.inputs[0] if isinstance(joined, Node) and isinstance(joined.op, JoinStatistics) else None


def _applied(b: Builder, node: Node, epsilon: float, x: Value, gamma: Value, beta: Value, mean: Value,
             variance: Value) -> Value:  # fmt: skip
    kind = mean.tensor_type.dtype
    scale = b.emit(Mul(), as_dtype(b, gamma, kind), _inverse(b, variance, epsilon))
    apart = _apart(b, x, mean)
    scaled = b.emit(Mul(), apart, _row(b, scale, x))
    y = b.emit(Add(), scaled, _row(b, as_dtype(b, beta, kind), x))
    return as_dtype(b, y, element_types(node.type)[0].dtype)


def _variance(b: Builder, op: ChannelVariance, node: Node) -> tuple[Value, ...]:
    apart = _apart(b, *node.inputs)
    return (_share(b, _summed(b, b.emit(Mul(), apart, apart)), op.count),)


def _gradient(b: Builder, op: BatchNormGrad, node: Node) -> tuple[Value, ...]:
    dout, x, gamma, mean, variance = node.inputs
    scales, shifts = _sums(b, op.epsilon, dout, x, mean, variance)
    shares = (scales, shifts) if op.is_training else ()
    count = x.tensor_type.size // max(x.shape[1], 1)
    types = element_types(node.type)
    dx = _input_gradient(b, op.epsilon, count, types[0].dtype, dout, x, gamma, mean, variance, shares)
    return dx, as_dtype(b, scales, types[1].dtype), as_dtype(b, shifts, types[2].dtype)


def _gradient_input(b: Builder, op: BatchNormGradInput, node: Node) -> tuple[Value, ...]:
    dout, x, gamma, mean, variance, *shares = node.inputs
    kind = node.tensor_type.dtype
    return (_input_gradient(b, op.epsilon, op.count, kind, dout, x, gamma, mean, variance, tuple(shares)),)


def _sums(b: Builder, epsilon: float, dout: Value, x: Value, mean: Value, variance: Value) -> tuple[Value, Value]:
    """Return for every channel the sums of the gradient times the normalised x, and of the gradient."""
    rows = _wide(b, dout, mean.tensor_type.dtype)
    products = _summed(b, b.emit(Mul(), rows, _apart(b, x, mean)))
    return b.emit(Mul(), products, _inverse(b, variance, epsilon)), _summed(b, rows)


def _input_gradient(b: Builder, epsilon: float, count: int, dtype: DType, dout: Value, x: Value, gamma: Value,
                    mean: Value, variance: Value, sums: tuple[Value, ...]) -> Value:  # fmt: skip
    """Return the gradient of x. sums: those of all elements, none if the statistics were given."""
    kind = mean.tensor_type.dtype
    inverse = _inverse(b, variance, epsilon)
    factor = b.emit(Mul(), as_dtype(b, gamma, kind), inverse)
    dx = b.emit(Mul(), _wide(b, dout, kind), _row(b, factor, x))
    if sums:
        scales, shifts = (_share(b, b.emit(Mul(), value, factor), count) for value in sums)
        through_variance = b.emit(Mul(), scales, inverse)
        dx = b.emit(Sub(), dx, b.emit(Mul(), _apart(b, x, mean), _row(b, through_variance, x)))
        dx = b.emit(Sub(), dx, _row(b, shifts, x))
    return as_dtype(b, dx, dtype)


def _narrow(x: Value) -> Value:
    """Return the operand of a widening conversion: sums of it are wide by themselves."""
    if isinstance(x, Node) and isinstance(x.op, Cast):
        source = x.inputs[0].tensor_type.dtype
        if source.is_float and statistics_dtype(source) == x.tensor_type.dtype:
            return x.inputs[0]
    return x


def _wide(b: Builder, x: Value, kind: DType) -> Value:
    """Return x in the element type of the statistics, converted anew for every reader to save memory."""
    source = _narrow(x)
    return source if source.tensor_type.dtype == kind else b.emit(Cast(kind), source)


def _apart(b: Builder, x: Value, mean: Value) -> Value:
    return b.emit(Sub(), _wide(b, x, mean.tensor_type.dtype), _row(b, mean, x))


def _inverse(b: Builder, variance: Value, epsilon: float) -> Value:
    return b.emit(Rsqrt(), b.emit(Add(), variance, b.constant(epsilon, variance.tensor_type.dtype)))


def _share(b: Builder, value: Value, count: int) -> Value:
    return b.emit(Mul(), value, b.constant(1 / max(count, 1), value.tensor_type.dtype))


def _row(b: Builder, value: Value, x: Value) -> Value:
    """Return per-channel numbers in a shape that broadcasts over x along dimension 1."""
    behind = len(x.shape) - 2
    return b.emit(Reshape((x.shape[1], *[1] * behind)), value) if behind else value


def _summed(b: Builder, x: Value) -> Value:
    return b.emit(ReduceSum(False, tuple(d for d in range(len(x.shape)) if d != 1)), x)


_MAKERS: dict[type[Any], Callable[[Builder, Any, Node], tuple[Value, ...]]] = {
    BatchNorm: _forward,
    BatchNormApply: _apply,
    BatchNormGrad: _gradient,
    BatchNormGradSums: lambda b, op, node: _sums(b, op.epsilon, *node.inputs),
    BatchNormGradInput: _gradient_input,
    ChannelMean: lambda b, op, node: (
        _share(b, _summed(b, _wide(b, node.inputs[0], node.tensor_type.dtype)), op.count),
    ),
    ChannelStatistics: lambda b, op, node: (b.emit(op, _narrow(node.inputs[0])),),
    ChannelVariance: _variance,
}
