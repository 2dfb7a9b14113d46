"""Norms along rows and over neighbouring channels, and their gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Node, Value, element_types
from mspc.ir.layout import NamedLayout, slice_counts, with_axes
from mspc.ir.types import FLOAT32, DType, TensorType, TupleType, dtype_of
from mspc.ops import gpu
from mspc.ops.control.structural import constrained, items
from mspc.ops.cpu.blocks import written
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Add, Mul, Sub
from mspc.ops.math.elementwise import Rsqrt, Square
from mspc.ops.math.reduce import ReduceMean
from mspc.ops.op import (
    ArrayBackend,
    Gradients,
    NotDifferentiable,
    Op,
    RequestedSharding,
    require_float,
    require_same,
    sample,
)
from mspc.ops.operator_arguments import axes_in, axis_in, ints_of, require_elements
from mspc.ops.tensor.reshape import Axis, ReduceSum, as_dtype, broadcast_to, is_filled, sum_to_shape
from mspc.sharding.rules import factor_names


def normalised(b: Builder, x: Value, mean: Value, variance: Value, epsilon: float, kind: DType) -> tuple[Value, Value]:
    """Return x with mean 0 and variance 1, and the factor by which x less its mean was multiplied."""
    raised = b.emit(Add(), as_dtype(b, variance, kind), b.constant(epsilon, kind))
    inverse = b.emit(Rsqrt(), raised)
    apart = b.emit(Sub(), as_dtype(b, x, kind), as_dtype(b, mean, kind))
    return b.emit(Mul(), apart, inverse), inverse


def layer_norm_gradient(
    b: Builder, inputs: Sequence[Value], axes: tuple[int, ...], epsilon: float, kind: DType | None = None
) -> tuple[Value, Value]:
    """Emit (the gradient in x, the normalised x) of LayerNorm over `axes` from (dout, x, mean, variance, gamma),
    computed in the element type `kind`, by default that of x."""
    dout, x, mean, variance, gamma = inputs
    kind, mean_of = kind or x.tensor_type.dtype, ReduceMean(True, axes)
    hat, inverse = normalised(b, x, mean, variance, epsilon, kind)
    g = weighted(b, as_dtype(b, dout, kind), gamma)
    along = b.emit(Mul(), hat, b.emit(mean_of, b.emit(Mul(), g, hat)))
    apart = b.emit(Sub(), b.emit(Sub(), g, b.emit(mean_of, g)), along)
    return b.emit(Mul(), apart, inverse), hat


def weighted(b: Builder, value: Value, gamma: Value) -> Value:
    """Return a value times gamma, without a multiplication if gamma is known to be 1, as in a group norm."""
    return value if is_filled(gamma, 1) else b.emit(Mul(), value, as_dtype(b, gamma, value.tensor_type.dtype))
NO_SECOND = NotDifferentiable("it is a gradient, and its second derivative is not built")


def norm_sides(rank: int, begin: int) -> tuple[str, str]:
    """Return (x, statistics) if the dimensions from `begin` on are normalised."""
    names = factor_names(rank)
    full = " ".join(n + "!" * (d >= begin) for d, n in enumerate(names))
    statistics = " ".join(n if d < begin else "1" for d, n in enumerate(names))
    return full, statistics


class Norm(Op, abstract=True):
    """All operands are floating point, of one element type; statistics of narrow ones are Float32.

    Class attributes: statistics: indices of the operands that are statistics. scales: of those that may be of their
        element type, too, the parameters. made: indices of the results that are statistics.
    """

    statistics: ClassVar[tuple[int, ...]] = ()
    scales: ClassVar[tuple[int, ...]] = ()
    made: ClassVar[tuple[int, ...]] = ()

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, *types)
        kind = statistics_dtype(types[0].dtype)
        wide = [i for i in self.scales if i < len(types) and types[i].dtype == kind]
        require_same(self.name, *[t for i, t in enumerate(types) if i not in (*self.statistics, *wide)])
        for index in self.statistics:
            if types[index].dtype not in (kind, types[0].dtype):
                raise MspcError(
                    f"{self.name}: input {index} is {types[index].dtype}; statistics of {types[0].dtype} are {kind}",
                    kind=TypeError,
                )
        if not self.made:
            return inferred
        found = element_types(inferred)
        return TupleType(tuple(TensorType(kind, t.shape) if i in self.made else t for i, t in enumerate(found)))


def statistics_dtype(dtype: DType) -> DType:
    """Return the element type of means and variances: the squares of halves would not fit into a half."""
    return FLOAT32 if dtype.itemsize < 4 else dtype


class LayerNorm(Norm):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance: a tuple of three.

    Statistics are over the dimensions from `begin_norm_axis` on and have size 1 there; gamma and beta have
    the shape of x from `begin_params_axis` on. (The default axes are MindSpore's: 1.)
    """

    begin_norm_axis: int = 1
    begin_params_axis: int = 1
    epsilon: float = 1e-7
    scales = (1, 2)
    made = (1, 2)
    fills = True
    samples = (
        sample((8, 16), (16,), (16,), begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-5),
        sample((8, 4, 8), (4, 8), (4, 8)),
        sample((2, 8, 4), (4,), (4,), begin_params_axis=-1),
        sample((8, 4, 4), (4, 4), (4, 4), begin_norm_axis=2),
    )

    def rule(self, x: TensorType, gamma: TensorType, beta: TensorType) -> str:
        rank = len(x.shape)
        begin = axis_in(self.name, self.begin_norm_axis, rank)
        require_elements(self.name, x.shape, range(begin, rank), "mean")
        full, statistics = norm_sides(rank, begin)
        names = full.split()[axis_in(self.name, self.begin_params_axis, rank) :]
        parameter = " ".join(names)
        return f"{full}, {parameter}, {parameter} -> {full}, {statistics}, {statistics}"

    def bprop(self, b: Builder, x: Value, gamma: Value, beta: Value, out: Node, dout: Any) -> Gradients:
        rank = len(x.shape)
        begin = axis_in(self.name, self.begin_norm_axis, rank)
        _, mean, variance = items(b, out, 3)
        dy, dmean, dvariance = dout
        count = math.prod(x.shape[begin:]) or 1  # no elements have no shares
        dx = dgamma = dbeta = None
        if dy is not None:
            dx = b.emit(LayerNormGrad(begin, self.epsilon), dy, x, mean, variance, gamma)
            parameters = axis_in(self.name, self.begin_params_axis, rank)
            wide = [as_dtype(b, value, gamma.tensor_type.dtype) for value in (dy, x)]
            dgamma = b.emit(LayerNormGammaGrad(begin, parameters, self.epsilon), *wide, mean, variance)
            dbeta = sum_to_shape(b, as_dtype(b, dy, beta.tensor_type.dtype), beta.shape)
        kind = mean.tensor_type.dtype
        if dmean is not None:
            share = b.emit(Mul(), dmean, b.constant(1 / count, kind))
            dx = add_to(b, dx, as_dtype(b, share, x.tensor_type.dtype), x)
        if dvariance is not None:
            share = b.emit(Mul(), dvariance, b.constant(2 / count, kind))
            moved = b.emit(Mul(), b.emit(Sub(), as_dtype(b, x, kind), mean), share)
            dx = add_to(b, dx, as_dtype(b, moved, x.tensor_type.dtype), x)
        return dx, dgamma, dbeta

    def row_axes(self, *types: TensorType) -> tuple[int, ...]:
        rank = types[0].rank
        return tuple(range(axis_in(self.name, self.begin_norm_axis, rank), rank))

    def as_rows(self, b: Builder, x: Value, gamma: Value, beta: Value) -> Sequence[Value]:
        kind = statistics_dtype(x.tensor_type.dtype)
        mean_of = ReduceMean(True, self.row_axes(x.tensor_type))
        wide = as_dtype(b, x, kind)
        mean = b.emit(mean_of, wide)
        apart = b.emit(Sub(), wide, mean)
        variance = b.emit(mean_of, b.emit(Square(), apart))
        inverse = b.emit(Rsqrt(), b.emit(Add(), variance, b.constant(self.epsilon, kind)))
        y = weighted(b, b.emit(Mul(), apart, inverse), gamma)
        if not is_filled(beta, 0):
            y = b.emit(Add(), y, as_dtype(b, beta, kind))
        return as_dtype(b, y, x.tensor_type.dtype), mean, variance

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        xp = be.xp

        def into(x: Any, gamma: Any, beta: Any, out: Any = None) -> Any:
            axes = tuple(range(axis_in(self.name, self.begin_norm_axis, x.ndim), x.ndim))
            mean = xp.mean(x, axis=axes, keepdims=True)
            y = x - mean
            variance = xp.mean(y * y, axis=axes, keepdims=True)
            y /= xp.sqrt(variance + self.epsilon)
            y *= gamma
            y += beta
            return (y, mean, variance) if out is None else written((y, mean, variance), out)

        return into

    def launch(self, device: Device, out: Any, x: Array, gamma: Array, beta: Array) -> Launch | None:
        y, mean, variance = out
        rows, columns = matrix(x.shape, axis_in(self.name, self.begin_norm_axis, x.ndim))
        stages = (
            gpu.reductions.RowPass((("mean", "Sum", "x"),), then="mean /= COLUMNS;"),
            gpu.reductions.RowPass(
                (("variance", "Sum", "x * x"),),
                "x -= mean;",
                f"variance /= COLUMNS; const A inverse = 1 / sqrt_of(variance + (A){self.epsilon});",
            ),
        )
        return gpu.reductions.Rows(
            "layer_norm", rows, columns, dtype_of(x.dtype), stages, [gpu.text.Operand("x", x)],
            by_column=[gpu.text.Operand("gamma", gamma), gpu.text.Operand("beta", beta)],
            results=[(y, "x * inverse * gamma + beta")], row_results=[(mean, "mean"), (variance, "variance")],
        ).launch(device)  # fmt: skip


def matrix(shape: tuple[int, ...], begin: int) -> tuple[int, int]:
    """Return (rows, columns) of x if all dimensions from `begin` on are a row."""
    return math.prod(shape[:begin]), math.prod(shape[begin:])


class LayerNormGammaGrad(Norm):
    """Gradient of LayerNorm in gamma, of (dout, x, mean, variance): the sum of dout (x - mean) /
    sqrt(variance + epsilon) over the dimensions before `begin_params_axis`."""

    begin_norm_axis: int = 1
    begin_params_axis: int = 1
    epsilon: float = 1e-7
    linear_in = (0,)
    statistics = (2, 3)
    bprop = NO_SECOND
    samples = (
        sample((8, 16), (8, 16), (8, 1), (8, 1), low=0.1),
        sample((8, 4, 8), (8, 4, 8), (8, 1, 1), (8, 1, 1), low=0.1, begin_params_axis=2),
    )

    def rule(self, dout: TensorType, x: TensorType, mean: TensorType, variance: TensorType) -> str:
        # Once the statistics are given, every element is on its own: every dimension may be sharded.
        names = factor_names(len(x.shape))
        begin = axis_in(self.name, self.begin_norm_axis, len(names))
        full = " ".join(names)
        statistics = " ".join(n if d < begin else "1" for d, n in enumerate(names))
        out = " ".join(names[axis_in(self.name, self.begin_params_axis, len(names)) :])
        return f"{full}, {full}, {statistics}, {statistics} -> {out}"

    def as_reductions(self, b: Builder, dout: Value, x: Value, mean: Value, variance: Value) -> Sequence[Value]:
        kind = statistics_dtype(x.tensor_type.dtype)
        y, _ = normalised(b, x, mean, variance, self.epsilon, kind)
        axes = tuple(range(axis_in(self.name, self.begin_params_axis, x.tensor_type.rank)))
        total = b.emit(ReduceSum(axis=axes), b.emit(Mul(), as_dtype(b, dout, kind), y))
        return (as_dtype(b, total, dout.tensor_type.dtype),)

    def compute(self, xp: Any, dout: Any, x: Any, mean: Any, variance: Any) -> Any:
        product = x - mean
        product /= xp.sqrt(variance + self.epsilon)
        product *= dout
        axes = tuple(range(axis_in(self.name, self.begin_params_axis, x.ndim)))
        return xp.sum(product, axis=axes)

    def launch(self, device: Device, out: Any, dout: Array, x: Array, mean: Array, variance: Array) -> Launch | None:
        rows, columns = matrix(x.shape, axis_in(self.name, self.begin_norm_axis, x.ndim))
        parameters = axis_in(self.name, self.begin_params_axis, x.ndim)
        # Without a reduction every element is a row.
        by_row = rows > 1 and math.prod(x.shape[parameters:]) == columns
        place = "row" if by_row else f"at / {columns}"
        statistics = (
            f"const A mean = (A)wide(p_mean[{place}]), "
            f"inverse = 1 / sqrt_of((A)wide(p_variance[{place}]) + (A){self.epsilon});"
        )
        reduction = gpu.reductions.Reduction(
            "layer_norm_gamma_gradient", "Sum", "g * (x - mean) * inverse",
            before_row=statistics if by_row else "", before_each="" if by_row else statistics,
        )  # fmt: skip
        full = (gpu.text.Operand("g", dout), gpu.text.Operand("x", x))
        others = (gpu.text.Operand("mean", mean), gpu.text.Operand("variance", variance))
        return gpu.reductions.reduce(device, reduction, x.shape, range(parameters), full, out, others)


class LayerNormGrad(Norm):
    """Gradient of LayerNorm in x, of (dout, x, mean, variance, gamma).

    With g = dout * gamma, y the normalised x and means over the normalised dimensions it is
    (g - mean(g) - y mean(g y)) / sqrt(variance + epsilon).
    """

    begin_norm_axis: int = 1
    epsilon: float = 1e-7
    linear_in = (0,)
    statistics = (2, 3)
    scales = (4,)
    bprop = NO_SECOND
    fills = True
    samples = (
        sample((8, 16), (8, 16), (8, 1), (8, 1), (16,), low=0.1),
        sample((8, 4, 4), (8, 4, 4), (8, 4, 1), (8, 4, 1), (4, 4), low=0.1, begin_norm_axis=2),
    )

    def rule(self, dout: TensorType, x: TensorType, mean: TensorType, variance: TensorType, gamma: TensorType) -> str:
        rank = len(x.shape)
        full, statistics = norm_sides(rank, axis_in(self.name, self.begin_norm_axis, rank))
        parameter = " ".join(full.split()[rank - len(gamma.shape) :])
        return f"{full}, {full}, {statistics}, {statistics}, {parameter} -> {full}"

    in_place = True

    def axes(self, rank: int) -> tuple[int, ...]:
        return tuple(range(axis_in(self.name, self.begin_norm_axis, rank), rank))

    def as_reductions(self, b: Builder, *inputs: Value) -> Sequence[Value]:
        x = inputs[1].tensor_type
        found, _ = layer_norm_gradient(b, inputs, self.axes(x.rank), self.epsilon, statistics_dtype(x.dtype))
        return (as_dtype(b, found, x.dtype),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        xp = be.xp

        def into(dout: Any, x: Any, mean: Any, variance: Any, gamma: Any, out: Any = None) -> Any:
            axes = self.axes(x.ndim)
            inverse = 1 / xp.sqrt(variance + self.epsilon)
            hat, g = (x - mean) * inverse, dout * gamma
            along = xp.mean(g * hat, axis=axes, keepdims=True)
            found = (g - xp.mean(g, axis=axes, keepdims=True) - hat * along) * inverse
            return found if out is None else written(found, out)

        return into

    def as_lines(self, b: Builder, *inputs: Value) -> Sequence[Value]:
        return layer_norm_gradient(b, inputs, self.axes(inputs[1].tensor_type.rank), self.epsilon)[:1]

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        dout, x, mean, variance, gamma = inputs
        rows, columns = matrix(x.shape, axis_in(self.name, self.begin_norm_axis, x.ndim))
        totals = (("mean_g", "Sum", "g"), ("mean_gx", "Sum", "g * x"))
        change = "x = (x - mean) * inverse; g *= gamma;"
        return gpu.reductions.Rows(
            "layer_norm_gradient", rows, columns, dtype_of(x.dtype),
            (gpu.reductions.RowPass(totals, change, "mean_g /= COLUMNS; mean_gx /= COLUMNS;"),),
            [gpu.text.Operand("g", dout), gpu.text.Operand("x", x)],
            [gpu.text.Operand("mean", mean), gpu.text.Operand("variance", variance)],
            [gpu.text.Operand("gamma", gamma)], [(out, "(g - mean_g - x * mean_gx) * inverse")],
            before=f"const A inverse = 1 / sqrt_of((A)variance + (A){self.epsilon});",
        ).launch(device)  # fmt: skip


def add_to(b: Builder, total: Value | None, term: Value, like: Value) -> Value:
    """Return total + term in the shape of `like`."""
    return broadcast_to(b, term, like.shape) if total is None else b.emit(Add(), total, term)


class RmsNorm(Norm):
    """x / sqrt(mean(x^2) + epsilon) * gamma and the reciprocal root: a tuple of two.

    The mean is over the dimensions of gamma, the last ones of x. Zhang and Sennrich, arXiv 1910.07467.
    A strategy that shards these makes it several operators, whose mean is a sum over the ranks.
    """

    epsilon: float = 1e-6
    scales = (1,)
    made = (1,)
    samples = (sample((8, 16), (16,)), sample((8, 4, 4), (4, 4)), sample((2, 8, 4), (4,)))

    def rule(self, x: TensorType, gamma: TensorType) -> str:
        begin = len(x.shape) - len(gamma.shape)
        if begin < 0:
            raise MspcError(f"RmsNorm: gamma of shape {gamma.shape} has more dimensions than x of shape {x.shape}")
        full, statistics = norm_sides(len(x.shape), begin)
        return f"{full}, {' '.join(full.split()[begin:])} -> {full}, {statistics}"

    def bprop(self, b: Builder, x: Value, gamma: Value, out: Node, dout: Any) -> Gradients:
        dy, drstd = dout
        _, rstd = items(b, out, 2)
        dtype, kind = x.tensor_type.dtype, rstd.tensor_type.dtype
        dx = dgamma = None
        if dy is not None:
            dx = b.emit(RmsNormGrad(), dy, x, rstd, gamma)
            hat = b.emit(Mul(), as_dtype(b, x, kind), rstd)
            total = sum_to_shape(b, b.emit(Mul(), as_dtype(b, dy, kind), hat), gamma.shape)
            dgamma = as_dtype(b, total, gamma.tensor_type.dtype)
        if drstd is not None:
            count = math.prod(gamma.shape) or 1  # no elements have no shares
            cube = b.emit(Mul(), rstd, b.emit(Mul(), rstd, rstd))
            share = b.emit(Mul(), b.emit(Mul(), drstd, cube), b.constant(-1 / count, kind))
            dx = add_to(b, dx, as_dtype(b, b.emit(Mul(), as_dtype(b, x, kind), share), dtype), x)
        return dx, dgamma

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        x, gamma = inputs
        dims = len(gamma.shape)
        entries = asked.in_strategy or ()
        if len(entries) != 2 or asked.out_strategy is not None:
            return None
        if any(len(slice_counts(entry)) != len(value.shape) for entry, value in zip(entries, inputs, strict=True)):
            return None  # the pass that checks strategies reports it
        last = slice_counts(entries[0])[len(x.shape) - dims :]
        if all(shards == 1 for shards in last):
            return None
        _check_same(self.name, entries[0], entries[1], last)
        _check_divides(self.name, entries[0], x.shape)
        axes = tuple(range(len(x.shape) - dims, len(x.shape)))
        row = functools.reduce(with_axes, axes, entries[0])

        def emit(op: Op, *operands: Value, entry: Any = entries[0], second: tuple[Any, ...] = ()) -> Node:
            node = b.emit(op, *operands)
            node.in_strategy = (entry, *second)
            return node

        dtype = x.tensor_type.dtype
        wide = statistics_dtype(dtype)
        x = as_dtype(b, constrained(b, x, entries[0]), wide)
        gamma = as_dtype(b, constrained(b, gamma, entries[1]), wide)
        mean = emit(ReduceMean(axis=axes, keep_dims=True), emit(Square(), x))
        root = emit(Rsqrt(), emit(Add(), mean, b.constant(self.epsilon, wide), entry=row, second=((),)), entry=row)
        scaled = emit(Mul(), emit(Mul(), x, root, second=(row,)), gamma, second=(entries[1],))
        return as_dtype(b, scaled, dtype), root

    def row_axes(self, x: TensorType, gamma: TensorType) -> tuple[int, ...]:
        return tuple(range(x.rank - gamma.rank, x.rank))

    def as_rows(self, b: Builder, x: Value, gamma: Value) -> Sequence[Value]:
        kind = statistics_dtype(x.tensor_type.dtype)
        wide = as_dtype(b, x, kind)
        axes = self.row_axes(x.tensor_type, gamma.tensor_type)
        mean = b.emit(ReduceMean(True, axes), b.emit(Square(), wide))
        root = b.emit(Rsqrt(), b.emit(Add(), mean, b.constant(self.epsilon, kind)))
        scaled = b.emit(Mul(), b.emit(Mul(), wide, root), as_dtype(b, gamma, kind))
        return as_dtype(b, scaled, x.tensor_type.dtype), root

    def compute(self, xp: Any, x: Any, gamma: Any) -> Any:
        axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
        rstd = 1 / xp.sqrt(xp.mean(x * x, axis=axes, keepdims=True) + self.epsilon)
        return x * rstd * gamma, rstd

    def launch(self, device: Device, out: Any, x: Array, gamma: Array) -> Launch | None:
        rows, columns = matrix(x.shape, x.ndim - gamma.ndim)
        stage = gpu.reductions.RowPass(
            (("squares", "Sum", "x * x"),),
            then=f"const A inverse = 1 / sqrt_of(squares / COLUMNS + (A){self.epsilon});",
        )
        return gpu.reductions.Rows(
            "rms_norm", rows, columns, dtype_of(x.dtype), (stage,), [gpu.text.Operand("x", x)],
            by_column=[gpu.text.Operand("gamma", gamma)], results=[(out[0], "x * inverse * gamma")],
            row_results=[(out[1], "inverse")],
        ).launch(device)  # fmt: skip


def _check_same(name: str, first: Any, second: Any, last: tuple[int, ...]) -> None:
    """Raise MspcError if gamma is not sharded as the last dimensions of x are."""
    if isinstance(first, NamedLayout) and isinstance(second, NamedLayout):
        same = first.axes[len(first.axes) - len(last) :] == second.axes
    else:
        same = last == slice_counts(second)
    if not same:
        raise MspcError(
            f"{name}: the last dimensions of input 0 are sharded {last}, but input 1 {slice_counts(second)}",
            notes=["shard both alike"],
        )


def _check_divides(name: str, entry: Any, shape: Sequence[int]) -> None:
    """Raise MspcError if a strategy does not divide a dimension, once for all operators that would say so."""
    for d, (shards, size) in enumerate(zip(slice_counts(entry), shape, strict=True)):
        if shards < 1 or size % shards:
            raise MspcError(
                f"{name}: dimension {d} of input 0 is {size}, which {shards} does not divide",
                notes=[f"shard it {', '.join(str(n) for n in range(1, size + 1) if size % n == 0)} ways"], code="E0401",
            )


class RmsNormGrad(Norm):
    """Gradient of RmsNorm in x, of (dout, x, rstd, gamma): rstd (g - y mean(g y)), g = dout gamma and y = x
    rstd.
    """

    linear_in = (0,)
    statistics = (2,)
    scales = (3,)
    bprop = NO_SECOND
    samples = (sample((8, 16), (8, 16), (8, 1), (16,), low=0.1),)

    def rule(self, dout: TensorType, x: TensorType, rstd: TensorType, gamma: TensorType) -> str:
        begin = len(x.shape) - len(gamma.shape)
        full, statistics = norm_sides(len(x.shape), begin)
        return f"{full}, {full}, {statistics}, {' '.join(full.split()[begin:])} -> {full}"

    def compute(self, xp: Any, dout: Any, x: Any, rstd: Any, gamma: Any) -> Any:
        axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
        g = dout * gamma
        y = x * rstd
        y *= xp.mean(g * y, axis=axes, keepdims=True)
        g -= y
        g *= rstd
        return g

    def launch(self, device: Device, out: Any, dout: Array, x: Array, rstd: Array, gamma: Array) -> Launch | None:
        rows, columns = matrix(x.shape, x.ndim - gamma.ndim)
        stage = gpu.reductions.RowPass((("mean_gx", "Sum", "g * x"),), "g *= gamma; x *= rstd;", "mean_gx /= COLUMNS;")
        return gpu.reductions.Rows(
            "rms_norm_gradient", rows, columns, dtype_of(x.dtype), (stage,),
            [gpu.text.Operand("g", dout), gpu.text.Operand("x", x)],
            [gpu.text.Operand("rstd", rstd)], [gpu.text.Operand("gamma", gamma)], [(out, "(g - x * mean_gx) * rstd")],
        ).launch(device)  # fmt: skip


def normalised_rule(name: str, shape: Sequence[int], axis: Axis, inputs: int) -> str:
    """Return the rule of `inputs` tensors of one shape; the dimensions `axis` must not be sharded."""
    if not shape:
        raise MspcError(f"{name}: a number has no axis {axis}", kind=ValueError)
    axes = axes_in(name, ints_of(name, "axis", axis), len(shape))
    side = " ".join(n + "!" * (d in axes) for d, n in enumerate(factor_names(len(shape))))
    return f"{', '.join([side] * inputs)} -> {side}"


class L2Normalize(Norm):
    """x over the root of the larger of `epsilon` and the sum of its squares along `axis`."""

    axis: Axis = 0
    epsilon: float = 1e-4
    samples = (
        sample((8, 16)),
        sample((8, 16), axis=-1),
        sample((8, 16), axis=1, epsilon=1e3),
        sample((8, 4, 4), axis=(1, 2)),
    )

    def rule(self, x: TensorType) -> str:
        return normalised_rule(self.name, x.shape, self.axis, 1)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(L2NormalizeGrad(self.axis, self.epsilon), x, out, dout),)

    def compute(self, xp: Any, x: Any) -> Any:
        total = xp.sum(x * x, axis=self.axis, keepdims=True)
        return x / xp.sqrt(xp.maximum(total, self.epsilon))

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        least = f"(A){self.epsilon}"
        root = f"total = 1 / sqrt_of(total < {least} ? {least} : total);"
        stages = (gpu.reductions.RowPass((("total", "Sum", "x * x"),), then=root),)
        full = [gpu.text.Operand("x", inputs[0])]
        return gpu.reductions.normalise(device, "l2_normalize", self.axis, full, out, stages, "x * total")


class L2NormalizeGrad(Norm):
    """Gradient of L2Normalize, of (x, its result, dout)."""

    axis: Axis = 0
    epsilon: float = 1e-4
    linear_in = (2,)
    bprop = NO_SECOND
    samples = (sample((8, 16), (8, 16), (8, 16)), sample((8, 4), (8, 4), (8, 4), axis=-1))

    def rule(self, x: TensorType, out: TensorType, dout: TensorType) -> str:
        return normalised_rule(self.name, x.shape, self.axis, 3)

    def compute(self, xp: Any, x: Any, out: Any, dout: Any) -> Any:
        total = xp.sum(x * x, axis=self.axis, keepdims=True)
        along = xp.sum(out * dout, axis=self.axis, keepdims=True) * (total > self.epsilon)
        return (dout - out * along) / xp.sqrt(xp.maximum(total, self.epsilon))

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        least = f"(A){self.epsilon}"
        then = f"along = total > {least} ? along : 0; total = 1 / sqrt_of(total < {least} ? {least} : total);"
        stages = (gpu.reductions.RowPass((("total", "Sum", "x * x"), ("along", "Sum", "y * g")), then=then),)
        operands = [gpu.text.Operand(name, array) for name, array in zip("xyg", inputs, strict=True)]
        result = "(g - y * along) * total"
        return gpu.reductions.normalise(device, "l2_normalize_gradient", self.axis, operands, out, stages, result)
