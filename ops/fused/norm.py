"""LayerNorm is fused here with the conversions around it, or all its gradients are computed at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import FLOAT32, FLOAT64, DType, TensorType, TupleType, Type, dtype_of
from mspc.ops.device import Array, Device, Launch, c_type
from mspc.ops.math.arithmetic import Add, Mul
from mspc.ops.math.reduce import ReduceSum
from mspc.ops.nn.norm import LayerNorm, LayerNormGammaGrad, LayerNormGrad, layer_norm_gradient
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.tensor.reshape import as_dtype
from mspc.sharding.rules import factor_names

_LATE = NotDifferentiable("operators are fused after all gradients are taken")


class FusedLayerNorm(Op):
    """LayerNorm of the last dimension, computed in the element type of gamma and beta whatever x has; the normalised x
    has `dst_type`. A tuple of it, mean and variance.

    With `adds` the operands are x, another tensor of its type, gamma and beta: what is normalised is their sum, which
    is the fourth result.
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
            raise MspcError(f"{self.name} takes {3 + self.adds} tensors, not {len(types)}")
        x, gamma, beta = types[0], types[-2], types[-1]
        if self.adds and types[1] != x:
            raise MspcError(f"{self.name}: what is added is {types[1]}, not {x}")
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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def as_lines(self, b: Builder, *inputs: Value) -> Sequence[Value]:
        x, gamma, beta = inputs[0], inputs[-2], inputs[-1]
        total = b.emit(Add(), x, inputs[1]) if self.adds else x
        wide = as_dtype(b, total, gamma.tensor_type.dtype)
        y, mean, variance = LayerNorm(-1, -1, self.epsilon).as_rows(b, wide, gamma, beta)
        found = (as_dtype(b, y, self.dst_type), mean, variance)
        return (*found, total) if self.adds else found

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.row_kernels import RowPass, Rows  # late: only a GPU needs it
        from mspc.ops.cuda.source import Operand  # late: only a GPU needs it

        x, gamma, beta = inputs[0], inputs[-2], inputs[-1]
        y, mean, variance = out[:3]
        columns = x.shape[-1]
        if not x.size:
            return None
        full = [Operand("x", x)]
        results = [(y, "x * inverse * gamma + beta")]
        change = ""
        if self.adds:
            # The sum is rounded as it is stored, so that the norm is of what others read.
            full.append(Operand("other", inputs[1]))
            results.append((out[3], "other"))
            change = f"other = (A)wide(narrow<{c_type(dtype_of(x.dtype))}>(x + other)); x = other;"
        stages = (
            RowPass((("mean", "Sum", "x"),), change, "mean /= COLUMNS;"),
            RowPass(
                (("variance", "Sum", "x * x"),),
                "x -= mean;",
                f"variance /= COLUMNS; const A inverse = 1 / sqrt_of(variance + (A){self.epsilon});",
            ),
        )
        return Rows(
            "layer_norm", x.size // columns, columns, dtype_of(gamma.dtype), stages, full,
            by_column=[Operand("gamma", gamma), Operand("beta", beta)],
            results=results, row_results=[(mean, "mean"), (variance, "variance")],
        ).launch(device)  # fmt: skip


class FusedLayerNormGrad(Op):
    """The gradients of LayerNorm of the last dimension in x, gamma and beta: a tuple of three.

    Operands are dout, x, mean, variance, gamma and, with `adds`, a tensor that is added to the gradient in x. With
    `joins` one more follows, and the gradient of what LayerNorm gave is the sum of dout and that. Computed in the
    element type of gamma; the first result, and what is added, have `dst_type`.
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
            raise MspcError(f"{self.name} takes {5 + self.adds + self.joins} tensors, not {len(types)}")
        dout, x, mean, _, gamma = types[:5]
        if dout.shape != x.shape or gamma.shape != x.shape[-1:] or mean.shape != (*x.shape[:-1], 1):
            raise MspcError(f"{self.name}: dout is {dout}, x {x}, mean {mean}, gamma {gamma}: they do not fit")
        result = TensorType(self.dst_type, x.shape)
        for added in types[5:]:
            if added.shape != result.shape:
                raise MspcError(f"{self.name}: what is added is {added}, not of shape {result.shape}")
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
            dgamma = scales.run(be, *wide, mean, variance)
            return dx, dgamma, be.xp.sum(wide[0], axis=tuple(range(x.ndim - 1)))

        return kernel

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

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

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.norm import fits, layer_norm_gradients  # late: only a GPU needs it

        dout, x, mean, variance, gamma = inputs[:5]
        if not x.size:
            return None
        addend = inputs[5] if self.adds else None
        if not fits(gamma.size) or (addend is not None and addend.dtype != out[0].dtype):
            return None
        other = inputs[-1] if self.joins else None
        return layer_norm_gradients(device, (dout, other), x, mean, variance, gamma, addend, out, self.epsilon)
