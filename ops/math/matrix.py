"""These operators take square matrices of the last two dimensions: inverses, determinants, systems of equations,
exponentials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.types import TensorType
from mspc.ops.bases import require_float, require_same
from mspc.ops.math.arithmetic import Mul, Neg
from mspc.ops.math.matmul import BatchMatMul
from mspc.ops.math.not_finite import decomposed
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.tensor.broadcast import zeros
from mspc.ops.tensor.moving import Concat, Transpose
from mspc.ops.tensor.reshape import ExpandDims
from mspc.ops.tensor.slicing import take_part
from mspc.sharding.rules import factor_names

Gradients = Sequence[Value | None]


def regular(name: str, compute: Callable[..., Any], *matrices: Any) -> Any:
    """`compute(*matrices)`. Raises MspcError where a matrix is singular."""
    try:
        return compute(*matrices)
    except np.linalg.LinAlgError as error:
        raise MspcError(f"{name}: {str(error)[:1].lower()}{str(error)[1:]}", kind=ValueError) from None


class _Square(Op, abstract=True):
    """Of matrices [..., n, n], each by itself."""

    def sides(self, x: TensorType) -> tuple[str, str]:
        """(factors of the batch, factors of a matrix). Raises MspcError where the matrices are not square."""
        require_float(self.name, x)
        if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
            raise MspcError(f"{self.name}: the matrices of shape {x.shape} are not square")
        *batch, rows, columns = factor_names(len(x.shape))
        return " ".join(batch), f"{rows}! {columns}!"


class MatrixInverse(_Square):
    """The inverses of matrices, transposed where `adjoint`."""

    adjoint: bool = False
    samples = (sample((4, 8, 1, 1), low=0.5), sample((4, 2, 2), adjoint=True), sample((3, 3)))

    def rule(self, input: TensorType) -> str:
        batch, matrix = self.sides(input)
        return f"{batch} {matrix} -> {batch} {matrix}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        left = b.emit(BatchMatMul(not self.adjoint, self.adjoint), out, dout)
        return (b.emit(Neg(), b.emit(BatchMatMul(False, not self.adjoint), left, out)),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        found = regular(self.name, be.xp.linalg.inv, inputs[0])
        return be.xp.ascontiguousarray(found.swapaxes(-1, -2)) if self.adjoint else found


class MatrixDeterminant(_Square):
    """The determinants of matrices."""

    samples = (sample((4, 8, 2, 2)), sample((3, 3)))

    def rule(self, input: TensorType) -> str:
        batch, matrix = self.sides(input)
        return f"{batch} {matrix} -> {batch}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), _spread(b, b.emit(Mul(), out, dout)), b.emit(MatrixInverse(True), x)),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.asarray(be.xp.linalg.det(inputs[0]), inputs[0].dtype)


class LogMatrixDeterminant(_Square):
    """(signs of the determinants of matrices, logarithms of their absolute values)."""

    samples = (sample((4, 8, 2, 2)), sample((3, 3)))

    def rule(self, input: TensorType) -> str:
        batch, matrix = self.sides(input)
        return f"{batch} {matrix} -> {batch}, {batch}"

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        if dout[1] is None:
            return (None,)
        return (b.emit(Mul(), _spread(b, dout[1]), b.emit(MatrixInverse(True), x)),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        sign, size = be.xp.linalg.slogdet(inputs[0])
        return be.xp.asarray(sign, inputs[0].dtype), be.xp.asarray(size, inputs[0].dtype)


def _spread(b: Builder, value: Value) -> Value:
    """A number for every matrix, to be multiplied with the matrices."""
    rank = len(value.shape)
    return b.emit(ExpandDims(rank + 1), b.emit(ExpandDims(rank), value))


class MatrixSolve(_Square):
    """x of a @ x = b for matrices a [..., n, n] and b [..., n, k]; of the transpose of a where `adjoint`."""

    adjoint: bool = False
    linear_in = (1,)
    samples = (
        sample((4, 8, 1, 1), (4, 8, 1, 2), low=0.5),
        sample((4, 2, 2), (4, 2, 3), adjoint=True),
        sample((3, 3), (3, 4)),
    )

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        require_same(self.name, *types)
        return super().infer(*types)

    def rule(self, matrix: TensorType, rhs: TensorType) -> str:
        batch, square = self.sides(matrix)
        if len(rhs.shape) != len(matrix.shape) or rhs.shape[:-1] != matrix.shape[:-1]:
            raise MspcError(f"{self.name}: right sides of shape {rhs.shape} do not fit matrices of {matrix.shape}")
        rows = square.split()[0]
        return f"{batch} {square}, {batch} {rows} k1 -> {batch} {rows} k1"

    def bprop(self, b: Builder, a: Value, y: Value, out: Value, dout: Value) -> Gradients:
        dy = b.emit(MatrixSolve(not self.adjoint), a, dout)
        left, right = (out, dy) if self.adjoint else (dy, out)
        return b.emit(Neg(), b.emit(BatchMatMul(False, True), left, right)), dy

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        a, y = inputs
        return regular(self.name, be.xp.linalg.solve, a.swapaxes(-1, -2) if self.adjoint else a, y)


class MatrixExp(_Square):
    """The exponentials of matrices: the series of a 2^s-th part, squared s times. Moler and Van Loan 2003."""

    TERMS: ClassVar[int] = 18
    samples = (sample((4, 8, 2, 2)), sample((3, 3)), sample((2, 1, 1)))

    def rule(self, input: TensorType) -> str:
        batch, matrix = self.sides(input)
        return f"{batch} {matrix} -> {batch} {matrix}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        # The upper right block of exp([[a, e], [0, a]]) is the derivative along e; here of the transpose along dout.
        rank, size = len(x.shape), x.shape[-1]
        turned = b.emit(Transpose((*range(rank - 2), rank - 1, rank - 2)), x)
        upper = b.emit(Concat(rank - 1), turned, dout)
        lower = b.emit(Concat(rank - 1), zeros(b, x.tensor_type), turned)
        exponential = b.emit(MatrixExp(), b.emit(Concat(rank - 2), upper, lower))
        return (take_part(b, take_part(b, exponential, rank - 2, 0, size), rank - 1, size, 2 * size),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        return decomposed(xp, lambda x: self._exponential(xp, x), inputs[0])

    def _exponential(self, xp: Any, x: Any) -> Any:
        norms = xp.abs(x).sum(-2).max(-1, initial=0.0)
        squarings = xp.ceil(xp.log2(xp.maximum(norms, 0.5))) + 1
        part = x / (2.0**squarings)[..., None, None]
        one = xp.broadcast_to(xp.eye(x.shape[-1], dtype=x.dtype), x.shape)
        total = one
        for term in range(self.TERMS, 0, -1):
            total = one + xp.matmul(part, total) / term
        for step in range(int(squarings.max(initial=0))):
            total = xp.where((step < squarings)[..., None, None], xp.matmul(total, total), total)
        return xp.ascontiguousarray(total).astype(x.dtype)
