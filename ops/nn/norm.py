"""These operators normalise over dimensions that must not be sharded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value, element_types
from mspc.ir.types import FLOAT32, DType, TensorType, TupleType, dtype_of
from mspc.ops.bases import require_float, require_same
from mspc.ops.control.structural import items
from mspc.ops.cpu.blocks import in_rows
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Add, Mul, Sub
from mspc.ops.math.elementwise import Rsqrt, Square
from mspc.ops.math.reduce import ReduceMean
from mspc.ops.nn.norm_expressions import layer_norm_gradient, normalised, scaled
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.operator_arguments import axis_in, require_elements
from mspc.ops.tensor.broadcast import ReduceSum, broadcast_to, is_filled, sum_to_shape
from mspc.ops.tensor.cast import as_dtype
from mspc.sharding.rules import factor_names

Gradients = Sequence[Value | None]
NO_SECOND = NotDifferentiable("it is a gradient, and its second derivative is not built")


def norm_sides(rank: int, begin: int) -> tuple[str, str]:
    """(x, statistics) when the dimensions from `begin` on are normalised."""
    names = factor_names(rank)
    full = " ".join(n + "!" * (d >= begin) for d, n in enumerate(names))
    statistics = " ".join(n if d < begin else "1" for d, n in enumerate(names))
    return full, statistics


class Norm(Op, abstract=True):
    """All operands are floating point, of one element type; statistics of narrow ones are Float32.

    Class attributes:
        statistics: indices of the operands that are statistics. scales: of those that may be of their element type,
        too, the parameters. made: indices of the results that are statistics.
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
    """The element type of means and variances: the squares of halves would not fit into a half."""
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

    def as_rows(self, b: Builder, *inputs: Value) -> Sequence[Value]:
        x, gamma, beta = inputs
        kind = statistics_dtype(x.tensor_type.dtype)
        mean_of = ReduceMean(True, self.row_axes(x.tensor_type))
        wide = as_dtype(b, x, kind)
        mean = b.emit(mean_of, wide)
        apart = b.emit(Sub(), wide, mean)
        variance = b.emit(mean_of, b.emit(Square(), apart))
        inverse = b.emit(Rsqrt(), b.emit(Add(), variance, b.constant(self.epsilon, kind)))
        y = scaled(b, b.emit(Mul(), apart, inverse), gamma)
        if not is_filled(beta, 0):
            y = b.emit(Add(), y, as_dtype(b, beta, kind))
        return as_dtype(b, y, x.tensor_type.dtype), mean, variance

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        xp, epsilon = be.xp, self.epsilon

        def into(x: Any, gamma: Any, beta: Any, out: Any = None) -> Any:
            begin = axis_in(self.name, self.begin_norm_axis, x.ndim)
            rows, columns = matrix(x.shape, begin)
            by_row = gamma.size <= columns  # else gamma differs from row to row
            gammas, betas = (_repeated(xp, p, columns) for p in (gamma, beta))
            if out is None:
                small = (*x.shape[:begin], *[1] * (x.ndim - begin))
                out = tuple(xp.empty(shape, x.dtype) for shape in (x.shape, small, small))  # halves are widened

            def work(block: Any, scratch: Any, x: Any) -> None:
                # NumPy copies an array that it broadcasts against and overwrites: y and z take turns.
                y, mean, variance = block
                (z,) = scratch
                mean[...] = xp.mean(x, axis=1, keepdims=True)
                xp.subtract(x, mean, out=z)
                xp.multiply(z, z, out=y)
                variance[...] = xp.mean(y, axis=1, keepdims=True)
                xp.divide(z, xp.sqrt(variance + epsilon), out=y)
                if by_row:
                    xp.multiply(y, gammas, out=z)
                    xp.add(z, betas, out=y)

            y, mean, variance = out
            matrices = (y.reshape(rows, columns), mean.reshape(rows, 1), variance.reshape(rows, 1))
            in_rows(xp, work, matrices, (x.reshape(rows, columns),), 1)
            if not by_row:
                y *= gamma
                y += beta
            return out

        return into

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        return self.kernel(be)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.row_kernels import RowPass, Rows  # late: only a GPU needs it
        from mspc.ops.cuda.source import Operand  # late: only a GPU needs it

        x, gamma, beta = inputs
        y, mean, variance = out
        rows, columns = matrix(x.shape, axis_in(self.name, self.begin_norm_axis, x.ndim))
        stages = (
            RowPass((("mean", "Sum", "x"),), then="mean /= COLUMNS;"),
            RowPass(
                (("variance", "Sum", "x * x"),),
                "x -= mean;",
                f"variance /= COLUMNS; const A inverse = 1 / sqrt_of(variance + (A){self.epsilon});",
            ),
        )
        return Rows(
            "layer_norm", rows, columns, dtype_of(x.dtype), stages, [Operand("x", x)],
            by_column=[Operand("gamma", gamma), Operand("beta", beta)],
            results=[(y, "x * inverse * gamma + beta")], row_results=[(mean, "mean"), (variance, "variance")],
        ).launch(device)  # fmt: skip


def matrix(shape: tuple[int, ...], begin: int) -> tuple[int, int]:
    """(rows, columns) of x when everything from dimension `begin` on is a row."""
    return math.prod(shape[:begin]), math.prod(shape[begin:])


def _repeated(xp: Any, parameter: Any, columns: int) -> Any:
    """A parameter that covers the last dimensions of a row, as long as the row."""
    flat = parameter.reshape(-1)
    return flat if flat.size >= columns else xp.tile(flat, columns // max(1, flat.size))


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

    def as_reductions(self, b: Builder, *inputs: Value) -> Sequence[Value]:
        dout, x, mean, variance = inputs
        kind = statistics_dtype(x.tensor_type.dtype)
        y, _ = normalised(b, x, mean, variance, self.epsilon, kind)
        axes = tuple(range(axis_in(self.name, self.begin_params_axis, x.tensor_type.rank)))
        total = b.emit(ReduceSum(axis=axes), b.emit(Mul(), as_dtype(b, dout, kind), y))
        return (as_dtype(b, total, dout.tensor_type.dtype),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        dout, x, mean, variance = inputs
        product = x - mean
        product /= be.xp.sqrt(variance + self.epsilon)
        product *= dout
        axes = tuple(range(axis_in(self.name, self.begin_params_axis, x.ndim)))
        return be.xp.sum(product, axis=axes)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.reduce import Reduction, reduce  # late: only a GPU needs it
        from mspc.ops.cuda.source import Operand  # late: only a GPU needs it

        dout, x, mean, variance = inputs
        rows, columns = matrix(x.shape, axis_in(self.name, self.begin_norm_axis, x.ndim))
        parameters = axis_in(self.name, self.begin_params_axis, x.ndim)
        # Where nothing is added up every element is a row of its own.
        by_row = rows > 1 and math.prod(x.shape[parameters:]) == columns
        place = "row" if by_row else f"at / {columns}"
        statistics = (
            f"const A mean = (A)wide(p_mean[{place}]), "
            f"inverse = 1 / sqrt_of((A)wide(p_variance[{place}]) + (A){self.epsilon});"
        )
        reduction = Reduction(
            "layer_norm_gamma_gradient", "Sum", "g * (x - mean) * inverse",
            before_row=statistics if by_row else "", before_each="" if by_row else statistics,
        )  # fmt: skip
        full, others = (Operand("g", dout), Operand("x", x)), (Operand("mean", mean), Operand("variance", variance))
        return reduce(device, reduction, x.shape, range(parameters), full, out, others)


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
    samples = (
        sample((8, 16), (8, 16), (8, 1), (8, 1), (16,), low=0.1),
        sample((8, 4, 4), (8, 4, 4), (8, 4, 1), (8, 4, 1), (4, 4), low=0.1, begin_norm_axis=2),
    )

    def rule(
        self, dout: TensorType, x: TensorType, mean: TensorType, variance: TensorType, gamma: TensorType
    ) -> str:
        rank = len(x.shape)
        full, statistics = norm_sides(rank, axis_in(self.name, self.begin_norm_axis, rank))
        parameter = " ".join(full.split()[rank - len(gamma.shape) :])
        return f"{full}, {full}, {statistics}, {statistics}, {parameter} -> {full}"

    in_place = True

    def as_reductions(self, b: Builder, *inputs: Value) -> Sequence[Value]:
        dout, x, mean, variance, gamma = inputs
        kind = statistics_dtype(x.tensor_type.dtype)
        rank = x.tensor_type.rank
        mean_of = ReduceMean(True, tuple(range(axis_in(self.name, self.begin_norm_axis, rank), rank)))
        y, inverse = normalised(b, x, mean, variance, self.epsilon, kind)
        g = scaled(b, as_dtype(b, dout, kind), gamma)
        along = b.emit(Mul(), y, b.emit(mean_of, b.emit(Mul(), g, y)))
        apart = b.emit(Sub(), b.emit(Sub(), g, b.emit(mean_of, g)), along)
        return (as_dtype(b, b.emit(Mul(), apart, inverse), x.tensor_type.dtype),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        xp, epsilon = be.xp, self.epsilon

        def into(dout: Any, x: Any, mean: Any, variance: Any, gamma: Any, out: Any = None) -> Any:
            rows, columns = matrix(x.shape, axis_in(self.name, self.begin_norm_axis, x.ndim))
            by_row = gamma.size <= columns
            gammas = _repeated(xp, gamma, columns) if by_row else 1
            if not by_row:
                dout = dout * gamma
            if out is None:
                out = xp.empty(x.shape, x.dtype)

            def work(block: Any, scratch: Any, dout: Any, x: Any, mean: Any, variance: Any) -> None:
                hat, g, spare = scratch
                inverse = 1 / xp.sqrt(variance + epsilon)
                xp.subtract(x, mean, out=spare)
                xp.multiply(spare, inverse, out=hat)
                xp.multiply(dout, gammas, out=g)
                xp.multiply(g, hat, out=spare)
                along = xp.mean(spare, axis=1, keepdims=True)
                xp.multiply(hat, along, out=spare)
                xp.subtract(g, xp.mean(g, axis=1, keepdims=True), out=hat)
                hat -= spare
                xp.multiply(hat, inverse, out=block)

            operands = (dout.reshape(rows, columns), x.reshape(rows, columns))
            statistics = (mean.reshape(rows, 1), variance.reshape(rows, 1))
            in_rows(xp, work, (out.reshape(rows, columns),), (*operands, *statistics), 3)
            return out

        return into

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        return self.kernel(be)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def as_lines(self, b: Builder, *inputs: Value) -> Sequence[Value]:
        rank = len(inputs[1].tensor_type.shape)
        axes = tuple(range(axis_in(self.name, self.begin_norm_axis, rank), rank))
        return layer_norm_gradient(b, inputs, axes, self.epsilon)[:1]

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.row_kernels import RowPass, Rows  # late: only a GPU needs it
        from mspc.ops.cuda.source import Operand  # late: only a GPU needs it

        dout, x, mean, variance, gamma = inputs
        rows, columns = matrix(x.shape, axis_in(self.name, self.begin_norm_axis, x.ndim))
        totals = (("mean_g", "Sum", "g"), ("mean_gx", "Sum", "g * x"))
        change = "x = (x - mean) * inverse; g *= gamma;"
        return Rows(
            "layer_norm_gradient", rows, columns, dtype_of(x.dtype),
            (RowPass(totals, change, "mean_g /= COLUMNS; mean_gx /= COLUMNS;"),),
            [Operand("g", dout), Operand("x", x)], [Operand("mean", mean), Operand("variance", variance)],
            [Operand("gamma", gamma)], [(out, "(g - mean_g - x * mean_gx) * inverse")],
            before=f"const A inverse = 1 / sqrt_of((A)variance + (A){self.epsilon});",
        ).launch(device)  # fmt: skip


def add_to(b: Builder, total: Value | None, term: Value, like: Value) -> Value:
    """total + term in the shape of `like`."""
    return broadcast_to(b, term, like.shape) if total is None else b.emit(Add(), total, term)
