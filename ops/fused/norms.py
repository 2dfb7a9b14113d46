"""LayerNorm is fused here with the conversions around it, or all its gradients are computed at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.types import FLOAT32, FLOAT64, DType, TensorType, TupleType, Type, dtype_of
from mspc.ops import gpu
from mspc.ops.device import Array, Device, Launch, c_type
from mspc.ops.fused.body import RankOp
from mspc.ops.math.arithmetic import Add, Mul
from mspc.ops.math.reduce import ReduceSum
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.nn.batch_norm import joined, moving_update, unbiased
from mspc.ops.nn.norm import LayerNorm, LayerNormGammaGrad, LayerNormGrad, layer_norm_gradient, statistics_dtype
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.tensor.reshape import as_dtype
from mspc.sharding.rules import factor_names

_LATE = NotDifferentiable("operators are fused after all gradients are taken")


class FusedLayerNorm(Op):
    """LayerNorm of the last dimension, computed in the element type of gamma and beta; the normalised x has `dst_type`.

    Returns a tuple of it, mean and variance. With `adds` the operands are x, another tensor of its type, gamma and
    beta: their sum is normalised, and is the fourth result.
    """

    epsilon: float = 1e-7
    dst_type: DType = FLOAT32
    adds: bool = False
    omitted = ("adds",)
    bprop = _LATE
    samples = (
        sample((8, 32), (32,), (32,), epsilon=1e-5, dst_type=FLOAT64, gradient=False),
        sample((2, 4, 64), (2, 4, 64), (64,), (64,), epsilon=1e-5, dst_type=FLOAT64, adds=True, gradient=False),
    )

    def rule(self, *types: TensorType) -> Any:
        rank = len(types[0].shape)
        names = factor_names(rank)
        full, row = " ".join([*names[:-1], f"{names[-1]}!"]), " ".join([*names[:-1], "1"])
        ins = [full] * (2 if self.adds else 1) + [f"{names[-1]}!"] * 2
        return f"{', '.join(ins)} -> {full}, {row}, {row}" + f", {full}" * self.adds

    def infer(self, *types: Any) -> Type:
        if len(types) != 3 + self.adds:
            raise MspcError(f"{self.name} takes {3 + self.adds} tensors, not {len(types)}", code="E0301")
        x, gamma, beta = types[0], types[-2], types[-1]
        if self.adds and types[1] != x:
            raise MspcError(f"{self.name}: the addend is {types[1]}, not {x}")
        found = LayerNorm(-1, -1, self.epsilon).infer(TensorType(gamma.dtype, x.shape), gamma, beta)
        assert isinstance(found, TupleType)
        return TupleType((TensorType(self.dst_type, x.shape), *found.elements[1:], *([x] if self.adds else [])))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        norm, target = LayerNorm(-1, -1, self.epsilon).kernel(be), self.dst_type.numpy

        def kernel(x: Any, *rest: Any) -> Any:
            *other, gamma, beta = rest
            total = x + other[0] if other else x
            y, mean, variance = norm(total.astype(gamma.dtype, copy=False), gamma, beta)
            found = (y.astype(target, copy=False), mean, variance)
            return (*found, total) if other else found

        return kernel

    def as_lines(self, b: Builder, *inputs: Value) -> Sequence[Value]:
        x, gamma, beta = inputs[0], inputs[-2], inputs[-1]
        total = b.emit(Add(), x, inputs[1]) if self.adds else x
        wide = as_dtype(b, total, gamma.tensor_type.dtype)
        y, mean, variance = LayerNorm(-1, -1, self.epsilon).as_rows(b, wide, gamma, beta)
        found = (as_dtype(b, y, self.dst_type), mean, variance)
        return (*found, total) if self.adds else found

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        x, gamma, beta = inputs[0], inputs[-2], inputs[-1]
        y, mean, variance = out[:3]
        columns = x.shape[-1]
        if not x.size:
            return None
        full = [gpu.text.Operand("x", x)]
        results = [(y, "x * inverse * gamma + beta")]
        change = ""
        if self.adds:
            # The sum is rounded as it is stored, so that the norm is of the values that others read.
            full.append(gpu.text.Operand("other", inputs[1]))
            results.append((out[3], "other"))
            change = f"other = (A)wide(narrow<{c_type(dtype_of(x.dtype))}>(x + other)); x = other;"
        stages = (
            gpu.reductions.RowPass((("mean", "Sum", "x"),), change, "mean /= COLUMNS;"),
            gpu.reductions.RowPass(
                (("variance", "Sum", "x * x"),),
                "x -= mean;",
                f"variance /= COLUMNS; const A inverse = 1 / sqrt_of(variance + (A){self.epsilon});",
            ),
        )
        return gpu.reductions.Rows(
            "layer_norm", x.size // columns, columns, dtype_of(gamma.dtype), stages, full,
            by_column=[gpu.text.Operand("gamma", gamma), gpu.text.Operand("beta", beta)],
            results=results, row_results=[(mean, "mean"), (variance, "variance")],
        ).launch(device)  # fmt: skip


class FusedLayerNormGrad(Op):
    """The gradients of LayerNorm of the last dimension in x, gamma and beta: a tuple of three.

    Operands are dout, x, mean, variance, gamma and, with `adds`, a tensor that is added to the gradient in x. With
    `joins` one more follows, and the gradient of LayerNorm's result is the sum of dout and that. Computed in the
    element type of gamma; the first result, and the added tensor, have `dst_type`.
    """

    epsilon: float = 1e-7
    dst_type: DType = FLOAT32
    adds: bool = False
    joins: bool = False
    traffic = "column_sums"
    omitted = ("joins",)
    bprop = _LATE
    samples = (
        sample((8, 32), (8, 32), (8, 1), (8, 1), (32,), low=0.1, dst_type=FLOAT64, gradient=False),
        sample((2, 4, 64), (2, 4, 64), (2, 4, 1), (2, 4, 1), (64,), (2, 4, 64), low=0.1, dst_type=FLOAT64, adds=True,
               gradient=False),
        sample((2, 4, 64), (2, 4, 64), (2, 4, 1), (2, 4, 1), (64,), (2, 4, 64), low=0.1, dst_type=FLOAT64, joins=True,
               gradient=False),
        sample((8, 32), (8, 32), (8, 1), (8, 1), (32,), (8, 32), (8, 32), low=0.1, dst_type=FLOAT64, adds=True,
               joins=True, gradient=False),
    )  # fmt: skip

    def rule(self, *types: TensorType) -> Any:
        names = [f"{name}!" for name in factor_names(len(types[1].shape))]
        full, row, column = " ".join(names), " ".join([*names[:-1], "1"]), names[-1]
        ins = [full, full, row, row, column, full, full][: len(types)]
        return f"{', '.join(ins)} -> {full}, {column}, {column}"

    def infer(self, *types: Any) -> Type:
        if len(types) != 5 + self.adds + self.joins:
            raise MspcError(f"{self.name} takes {5 + self.adds + self.joins} tensors, not {len(types)}", code="E0301")
        dout, x, mean, _, gamma = types[:5]
        if dout.shape != x.shape or gamma.shape != x.shape[-1:] or mean.shape != (*x.shape[:-1], 1):
            raise MspcError(f"{self.name}: dout is {dout}, x {x}, mean {mean}, gamma {gamma}: they do not fit")
        result = TensorType(self.dst_type, x.shape)
        for added in types[5:]:
            if added.shape != result.shape:
                raise MspcError(f"{self.name}: the addend is {added}, not of shape {result.shape}")
        return TupleType((result, gamma, gamma))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        gradient = LayerNormGrad(-1, self.epsilon).kernel(be)
        scales = LayerNormGammaGrad(-1, -1, self.epsilon)
        target = self.dst_type.numpy

        def kernel(dout: Any, x: Any, mean: Any, variance: Any, gamma: Any, *added: Any) -> Any:
            wide = [array.astype(gamma.dtype, copy=False) for array in (dout, x)]
            if self.joins:
                wide[0] = wide[0] + added[-1].astype(gamma.dtype, copy=False)
            dx = gradient(*wide, mean, variance, gamma).astype(target, copy=False)
            if self.adds:
                dx = (dx + added[0]).astype(target, copy=False)
            dgamma = scales.run(be, wide[0], wide[1], mean, variance)
            return dx, dgamma, be.xp.sum(wide[0], axis=tuple(range(x.ndim - 1)))

        return kernel

    def as_lines(self, b: Builder, *inputs: Value) -> Sequence[Value]:
        dout, x, mean, variance, gamma = inputs[:5]
        wide, x = (as_dtype(b, value, gamma.tensor_type.dtype) for value in (dout, x))
        if self.joins:
            wide = b.emit(Add(), wide, as_dtype(b, inputs[-1], gamma.tensor_type.dtype))
        rank = len(x.tensor_type.shape)
        dx, hat = layer_norm_gradient(b, (wide, x, mean, variance, gamma), (rank - 1,), self.epsilon)
        dx = as_dtype(b, dx, self.dst_type)
        if self.adds:
            dx = b.emit(Add(), dx, as_dtype(b, inputs[5], self.dst_type))
        over = ReduceSum(False, tuple(range(rank - 1)))
        return dx, b.emit(over, b.emit(Mul(), wide, hat)), b.emit(over, wide)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        dout, x, mean, variance, gamma = inputs[:5]
        if not x.size:
            return None
        addend = inputs[5] if self.adds else None
        if not gpu.norms.fits(gamma.size) or (addend is not None and addend.dtype != out[0].dtype):
            return None
        other = inputs[-1] if self.joins else None
        pair = (dout, other)
        return gpu.norms.layer_norm_gradients(device, pair, x, mean, variance, gamma, addend, out, self.epsilon)


# These operators remain of BatchNorm on a rank if the rest of it is fused into its elementwise neighbours.


class _Moving(RankOp, abstract=True):
    """An operator that sets its operands 1 and 2 to (1 - momentum) * operand + momentum * statistic."""

    momentum: float = 0.1
    mutates = (1, 2)
    updates_aside = True
    has_side_effect = True
    any_types = True


class BatchStatistics(_Moving):
    """(mean, variance) of every channel of x, counted along dimension `axis`; moving statistics, operands 1 and 2, are
    updated, that of the variance with the unbiased estimate."""

    axis: int = 1

    def infer(self, *types: Any) -> Any:
        x, *moving = types
        if not 0 < self.axis < x.rank:
            raise MspcError(f"{self.name}: axis {self.axis} is none of the dimensions of {x} after the first")
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

    def compute(self, xp: Any, x: Any, *moving: Any) -> Any:
        axes = tuple(d for d in range(x.ndim) if d != self.axis)
        kind = statistics_dtype(dtype_of(x.dtype)).numpy
        count = math.prod(x.shape[d] for d in axes)
        wide = x.astype(kind, copy=False)
        divisor = xp.asarray(max(count, 1), kind)
        mean = wide.sum(axes) / divisor
        apart = wide - mean.reshape([-1 if d == self.axis else 1 for d in range(x.ndim)])
        squares = (apart * apart).sum(axes)
        moving_update(moving[0], mean, self.momentum)
        moving_update(moving[1], squares / xp.asarray(max(count - 1, 1), kind), self.momentum)
        return mean, squares / divisor

    def launch(self, device: Device, out: Any, x: Array, *moving: Array) -> Launch | None:
        if self.axis not in (1, x.ndim - 1):
            return None
        mean, variance = out
        return gpu.norms.launch_statistics(device, x, mean, variance, self.axis, (moving[0], moving[1]), self.momentum)


class MovingStatistics(_Moving):
    """`mean`, with moving statistics, operands 1 and 2, updated from it and `variance`, which are those of `count`
    elements of every channel on all ranks."""

    count: int = 1

    def infer(self, *types: Any) -> Any:
        return types[0]

    def compute(self, xp: Any, mean: Any, moving_mean: Any, moving_variance: Any, variance: Any) -> Any:
        moving_update(moving_mean, mean, self.momentum)
        moving_update(moving_variance, unbiased(variance, self.count), self.momentum)
        return mean + 0

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        mean, moving_mean, moving_variance, variance = inputs
        moving = (moving_mean, moving_variance)
        return gpu.norms.launch_moving(device, mean, moving, variance, out, self.count, self.momentum)


class JoinMovingStatistics(_Moving):
    """(mean, variance) of the `count` elements of every channel on all ranks, from those of each, [ranks, 2, channels];
    moving statistics, operands 1 and 2, are updated."""

    count: int = 1

    def infer(self, *types: Any) -> Any:
        one = types[0].with_shape(types[0].shape[2:])
        return TupleType((one, one))

    def compute(self, xp: Any, gathered: Any, moving_mean: Any, moving_variance: Any) -> Any:
        mean, variance = joined(gathered)
        moving_update(moving_mean, mean, self.momentum)
        moving_update(moving_variance, unbiased(variance, self.count), self.momentum)
        return mean, variance

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        gathered, moving_mean, moving_variance = inputs
        mean, variance = out
        moving = moving_mean, moving_variance
        return gpu.norms.launch_joined(device, gathered, moving, mean, variance, self.count, self.momentum)
