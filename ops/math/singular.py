"""This operator computes singular values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.bases import require_float
from mspc.ops.math.not_finite import decomposed
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.sharding.rules import factor_names


class SingularValues(Op):
    """The singular values of the matrices of the last two dimensions, in descending order."""

    samples = (sample((8, 4, 6)), sample((5, 3)))

    def rule(self, x: TensorType) -> str:
        require_float(self.name, x)
        if len(x.shape) < 2:
            raise MspcError(f"{self.name} needs at least 2 dimensions in input 0, whose shape is {x.shape}")
        *batch, rows, columns, count = factor_names(len(x.shape) + 1)
        return f"{' '.join(batch)} {rows}! {columns}! -> {' '.join(batch)} {count}={min(x.shape[-2:])}!"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        return (b.emit(SingularValuesGrad(), x, dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        return decomposed(xp, lambda x: xp.linalg.svd(x, compute_uv=False), inputs[0])


class SingularValuesGrad(Op):
    """Gradient of SingularValues: the outer products of the singular vectors, weighted by dout."""

    linear_in = (1,)
    bprop = NotDifferentiable(
        "it is a gradient, and second derivatives of singular values are not built"
    )
    samples = (sample((8, 4, 6), (8, 4)), sample((5, 3), (3,)))

    def rule(self, x: TensorType, dout: TensorType) -> str:
        *batch, rows, columns, count = factor_names(len(x.shape) + 1)
        matrix = f"{' '.join(batch)} {rows}! {columns}!"
        return f"{matrix}, {' '.join(batch)} {count}={min(x.shape[-2:])}! -> {matrix}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, dout = inputs
        left, _, right = decomposed(be.xp, lambda x: tuple(be.xp.linalg.svd(x, full_matrices=False)), x)
        return be.xp.matmul(left * dout[..., None, :], right)
