"""Inverses, determinants, triangular systems and factorizations of matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Node, Value
from mspc.ir.types import TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import Mul, Neg
from mspc.ops.math.matmul import BatchMatMul
from mspc.ops.op import Gradients, NotDifferentiable, Op, require_float, sample
from mspc.ops.operator_arguments import describe, plain, split_call
from mspc.ops.tensor.creation import Tril, Triu
from mspc.ops.tensor.reshape import ExpandDims, Reshape, zeros
from mspc.sharding.rules import factor_names


def decomposed(xp: Any, compute: Callable[[Any], Any], x: Any) -> Any:
    """Return `compute(x)`, an array or a tuple of them; results of a matrix [..., m, n] with NaN or infinity are NaN.

    Libraries differ for such a matrix: one raises an error, which would end a training that should skip the step, one
    prints to stderr, and one loops for ever.
    """
    if xp is not np:
        return compute(x)
    fine: Any = np.isfinite(x).all((-2, -1))
    if fine.all():
        return compute(x)
    found = compute(np.where(fine[..., None, None], x, np.zeros((), x.dtype)))
    parts: tuple[Any, ...] = cast(Any, found) if isinstance(found, tuple) else (found,)
    for part in parts:
        part[~fine] = np.nan
    return cast(Any, found)


def _batched(name: str, a: TensorType, b: TensorType) -> str:
    """Return the batch dimensions' factors of a system of matrices `a` and of vectors or matrices `b`. Raise MspcError
    if they are not of one batch, or not of as many rows."""
    if len(a.shape) < 2 or len(b.shape) not in (len(a.shape) - 1, len(a.shape)) or (
        b.shape[: len(a.shape) - 1] != a.shape[:-1]
    ):
        raise MspcError(f"{name}: inputs of shapes {a.shape} and {b.shape} are no matrices and their right sides")
    return " ".join(factor_names(len(a.shape) - 2))


class SolveTriangular(Op):
    """x of a @ x = b for triangular matrices a [..., n, n] and b [..., n] or [..., n, k]. Called as
    `SolveTriangular()(a, b, trans, lower, unit_diagonal)`.

    trans: 1 and 2 solve with the transpose of a. lower: elements above the diagonal are not read, else those below.
    unit_diagonal: the diagonal is not read either, and is 1.
    """

    trans: int = 0
    lower: bool = False
    unit_diagonal: bool = False
    promotes: ClassVar[str] = "float"
    linear_in = (1,)
    float_only = True
    one_type = True
    samples = (
        sample((4, 3, 3), (4, 3), low=1.0, lower=True),
        sample((2, 3, 3), (2, 3, 2), low=1.0, trans=1),
        sample((3, 3), (3, 4), lower=True, unit_diagonal=True, trans=2),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 2, ("trans", "lower", "unit_diagonal"), optional=3)
        values = {key: plain(value) for key, value in found.items()}
        values["trans"] = {"N": 0, "T": 1, "C": 2}.get(values.get("trans", 0), values.get("trans", 0))
        if values["trans"] not in (0, 1, 2):
            raise MspcError(f"{self.name}: trans is {describe(values['trans'])}, not 0, 1 or 2")
        return replace(self, **values), tensors

    def rule(self, a: TensorType, b: TensorType) -> str:
        batch = _batched(self.name, a, b)
        if a.shape[-1] != a.shape[-2]:
            raise MspcError(f"{self.name}: the matrices of shape {a.shape} are not square")
        columns = " k1" * (len(b.shape) == len(a.shape))
        return f"{batch} r1! c1!, {batch} r1!{columns} -> {batch} r1!{columns}"

    def bprop(self, b: Builder, a: Value, y: Value, out: Value, dout: Value) -> Gradients:
        dy = b.emit(replace(self, trans=0 if self.trans else 1), a, dout)
        left, right = (out, dy) if self.trans else (dy, out)
        if len(y.shape) < len(a.shape):
            left, right = (b.emit(Reshape((*y.shape, 1)), value) for value in (left, right))
        product = b.emit(Neg(), b.emit(BatchMatMul(False, True), left, right))
        shift = int(self.unit_diagonal)
        triangle = b.emit(Tril(-shift), product) if self.lower else b.emit(Triu(shift), product)
        return triangle, dy

    def compute(self, xp: Any, a: Any, b: Any) -> Any:
        triangle = xp.tril(a) if self.lower else xp.triu(a)
        if self.unit_diagonal:
            one = xp.eye(a.shape[-1], dtype=a.dtype)
            triangle = triangle * (1 - one) + one
        matrices = triangle.swapaxes(-1, -2) if self.trans else triangle
        return xp.linalg.solve(matrices, b[..., None])[..., 0] if b.ndim < a.ndim else xp.linalg.solve(matrices, b)


class _Square(Op, abstract=True):
    """Base of operators on each matrix [..., n, n]; by default the result is a matrix like it."""

    float_only = True

    def sides(self, x: TensorType) -> tuple[str, str]:
        """Return (factors of the batch, factors of a matrix). Raise MspcError if the matrices are not square."""
        if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
            raise MspcError(f"{self.name}: the matrices of shape {x.shape} are not square")
        *batch, rows, columns = factor_names(len(x.shape))
        return " ".join(batch), f"{rows}! {columns}!"

    def rule(self, input: TensorType) -> str:
        batch, matrix = self.sides(input)
        return f"{batch} {matrix} -> {batch} {matrix}"


class Cholesky(_Square):
    """The lower triangular L with L @ L^T = x, of symmetric positive definite matrices; its transpose if `upper`."""

    upper: bool = False
    samples = (sample((4, 8, 1, 1), low=0.5), sample((4, 1, 1), low=0.5, upper=True))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(CholeskyGrad(self.upper), out, dout),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        lower = xp.linalg.cholesky(inputs[0])
        return xp.ascontiguousarray(lower.swapaxes(-1, -2)) if self.upper else lower


class CholeskyGrad(Op):
    """The gradient of Cholesky, a symmetric matrix: the symmetric part of L^-T @ P @ L^-1 for P = tril(L^T @ dL) with
    half its diagonal. Murray 2016."""

    upper: bool = False
    linear_in = (1,)
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (sample((4, 1, 1), (4, 1, 1), low=0.5), sample((2, 1, 1), (2, 1, 1), low=0.5, upper=True))

    def rule(self, out: TensorType, dout: TensorType) -> str:
        matrix, _, _ = Cholesky().rule(out).partition(" ->")
        return f"{matrix}, {matrix} -> {matrix}"

    def compute(self, xp: Any, *inputs: Any) -> Any:
        lower, dlower = (x.swapaxes(-1, -2) for x in inputs) if self.upper else inputs
        half = xp.tril(xp.ones(lower.shape[-2:], lower.dtype)) - xp.eye(lower.shape[-1], dtype=lower.dtype) / 2
        inner = xp.matmul(lower.swapaxes(-1, -2), dlower) * half
        across = xp.linalg.inv(lower)
        found = xp.matmul(xp.matmul(across.swapaxes(-1, -2), inner), across)
        return (found + found.swapaxes(-1, -2)) / 2


def regular(name: str, compute: Callable[..., Any], *matrices: Any) -> Any:
    """Return `compute(*matrices)`. Raise MspcError if a matrix is singular."""
    try:
        return compute(*matrices)
    except np.linalg.LinAlgError as error:
        raise MspcError(f"{name}: {str(error)[:1].lower()}{str(error)[1:]}", kind=ValueError) from None


class MatrixInverse(_Square):
    """The inverses of matrices, transposed if `adjoint`."""

    adjoint: bool = False
    samples = (sample((4, 8, 1, 1), low=0.5), sample((4, 2, 2), adjoint=True), sample((3, 3)))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        left = b.emit(BatchMatMul(not self.adjoint, self.adjoint), out, dout)
        return (b.emit(Neg(), b.emit(BatchMatMul(False, not self.adjoint), left, out)),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        found = regular(self.name, xp.linalg.inv, inputs[0])
        return xp.ascontiguousarray(found.swapaxes(-1, -2)) if self.adjoint else found


class MatrixDeterminant(_Square):
    """The determinants of matrices."""

    samples = (sample((4, 8, 2, 2)), sample((3, 3)))

    def rule(self, input: TensorType) -> str:
        batch, matrix = self.sides(input)
        return f"{batch} {matrix} -> {batch}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), _spread(b, b.emit(Mul(), out, dout)), b.emit(MatrixInverse(True), x)),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.asarray(xp.linalg.det(inputs[0]), inputs[0].dtype)


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

    def compute(self, xp: Any, *inputs: Any) -> Any:
        sign, size = xp.linalg.slogdet(inputs[0])
        return xp.asarray(sign, inputs[0].dtype), xp.asarray(size, inputs[0].dtype)


def _spread(b: Builder, value: Value) -> Value:
    """Return a number for every matrix, to be multiplied with the matrices."""
    rank = len(value.shape)
    return b.emit(ExpandDims(rank + 1), b.emit(ExpandDims(rank), value))


def _matrices(name: str, x: TensorType) -> list[str]:
    """Return the factors of the dimensions. Raise MspcError if there are fewer than two."""
    require_float(name, x)
    if len(x.shape) < 2:
        raise MspcError(f"{name} needs at least 2 dimensions in input 0, whose shape is {x.shape}", code="E0303")
    return factor_names(len(x.shape))


class Qr(Op):
    """(orthogonal matrices Q, upper triangular matrices R) with Q @ R = x [..., m, n]: Q has min(m, n) columns, or m
    with `full_matrices`. Differentiable if m >= n and Q is not full."""

    full_matrices: bool = False
    samples = (
        sample((4, 8, 3, 2)),
        sample((2, 2)),
        sample((2, 3), gradient=False),
        sample((3, 2), gradient=False, full_matrices=True),
    )

    def rule(self, x: TensorType) -> str:
        *batch, _, _ = _matrices(self.name, x)
        (m, n), lead = x.shape[-2:], " ".join(batch)
        few = m if self.full_matrices else min(m, n)
        return f"{lead} r1={m}! c1={n}! -> {lead} r1={m}! k1={few}!, {lead} k1={few}! c1={n}!"

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        m, n = x.shape[-2:]
        if m < n or (self.full_matrices and m > n):
            what = f"{self.name} has no gradient for matrices of shape {x.shape}"
            raise MspcError(f"{what}: they need at least as many rows as columns, and no more columns of Q than these")
        q, r = (b.emit(TupleGetItem(i), out) for i in (0, 1))
        dq, dr = (zeros(b, value.tensor_type) if d is None else d for value, d in ((q, dout[0]), (r, dout[1])))
        return (b.emit(QrGrad(), q, r, dq, dr),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return tuple(xp.linalg.qr(inputs[0], mode="complete" if self.full_matrices else "reduced"))


class QrGrad(Op):
    """Gradient of Qr: (dQ + Q @ S) @ R^-T; S has the lower triangle of R @ dR^T - dQ^T @ Q on both sides. Walter and
    Lehmann 2010."""

    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (sample((4, 3, 2), (4, 2, 2), (4, 3, 2), (4, 2, 2), low=0.5, gradient=False),)

    def rule(self, q: TensorType, r: TensorType, dq: TensorType, dr: TensorType) -> str:
        *batch, rows, columns = _matrices(self.name, q)
        lead = " ".join(batch)
        tall, square = f"{lead} {rows}! {columns}!", f"{lead} z1={r.shape[-2]}! {columns}!"
        return f"{tall}, {square}, {tall}, {square} -> {tall}"

    def compute(self, xp: Any, q: Any, r: Any, dq: Any, dr: Any) -> Any:
        inner = xp.matmul(r, dr.swapaxes(-1, -2)) - xp.matmul(dq.swapaxes(-1, -2), q)
        lower = xp.tril(inner, -1)
        both = lower + lower.swapaxes(-1, -2) + inner * xp.eye(inner.shape[-1], dtype=inner.dtype)
        found = regular(self.name, xp.linalg.solve, r, (dq + xp.matmul(q, both)).swapaxes(-1, -2))
        return xp.ascontiguousarray(found.swapaxes(-1, -2))


class Svd(Op):
    """(singular values, left singular vectors U, right ones V) with U @ diag(s) @ V^T = x, as many vectors as singular
    values, or all with `full_matrices`. Without compute_uv, U and V are zeros of one element. Differentiable if the
    values are distinct and the vectors not full."""

    full_matrices: bool = False
    compute_uv: bool = True
    samples = (
        sample((4, 8, 3, 2)),
        sample((2, 3)),
        sample((3, 2), gradient=False, full_matrices=True),
        sample((8, 4, 6), gradient=False, compute_uv=False),
    )

    def rule(self, x: TensorType) -> str:
        *batch, _, _ = _matrices(self.name, x)
        (m, n), lead = x.shape[-2:], " ".join(batch)
        few = min(m, n)
        if not self.compute_uv:
            return f"{lead} r1={m}! c1={n}! -> {lead} k1={few}!, z1=1!, z1=1!"
        left, right = (m, n) if self.full_matrices else (few, few)
        return f"{lead} r1={m}! c1={n}! -> {lead} k1={few}!, {lead} r1={m}! p1={left}!, {lead} c1={n}! q1={right}!"

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        if self.full_matrices and x.shape[-1] != x.shape[-2]:
            raise MspcError(
                f"{self.name} with full_matrices has no gradient for matrices of shape {x.shape}", code="E0310"
            )
        if not self.compute_uv:
            return (None if dout[0] is None else self._of_values(b, x, dout[0]),)
        parts = [b.emit(TupleGetItem(i), out) for i in range(3)]
        given = [zeros(b, value.tensor_type) if d is None else d for value, d in zip(parts, dout, strict=True)]
        return (b.emit(SvdGrad(), *parts, *given),)

    def _of_values(self, b: Builder, x: Value, dout: Value) -> Value:
        """Return the gradient by the values alone: the outer products of the singular vectors, weighted by dout."""
        vectors = b.emit(Svd(), x)
        left, right = (b.emit(TupleGetItem(i), vectors) for i in (1, 2))
        weighted = b.emit(Mul(), left, b.emit(ExpandDims(len(dout.shape) - 1), dout))
        return b.emit(BatchMatMul(False, True), weighted, right)

    def compute(self, xp: Any, x: Any) -> Any:
        if not self.compute_uv:
            none = xp.zeros((1,), x.dtype)
            return decomposed(xp, lambda x: xp.linalg.svd(x, compute_uv=False), x), none, none.copy()
        left, values, right = decomposed(xp, lambda x: tuple(xp.linalg.svd(x, full_matrices=self.full_matrices)), x)
        return values, left, xp.ascontiguousarray(right.swapaxes(-1, -2))


class SvdGrad(Op):
    """Gradient of Svd by its values and its vectors. Townsend 2016."""

    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (
        sample((4, 2), (4, 3, 2), (4, 2, 2), (4, 2), (4, 3, 2), (4, 2, 2), gradient=False),
    )

    def rule(self, s: TensorType, u: TensorType, v: TensorType, ds: TensorType, du: TensorType, dv: TensorType) -> str:
        *batch, rows, few = _matrices(self.name, u)
        lead = " ".join(batch)
        values, left = f"{lead} {few}!", f"{lead} {rows}! {few}!"
        right = f"{lead} c1={v.shape[-2]}! {few}!"
        return f"{values}, {left}, {right}, {values}, {left}, {right} -> {lead} {rows}! c1={v.shape[-2]}!"

    def compute(self, xp: Any, s: Any, u: Any, v: Any, ds: Any, du: Any, dv: Any) -> Any:
        squares = s[..., None, :] ** 2 - s[..., :, None] ** 2
        apart = xp.where(squares == 0, 0, 1 / xp.where(squares == 0, 1, squares))
        vt = v.swapaxes(-1, -2)

        def turned(vectors: Any, gradient: Any) -> Any:
            """Return the contribution of a rotation of the vectors among themselves, and the part outside of their
            span."""
            inside = xp.matmul(vectors.swapaxes(-1, -2), gradient)
            return apart * (inside - inside.swapaxes(-1, -2)), gradient - xp.matmul(vectors, inside)

        (left, outside_u), (right, outside_v) = turned(u, du), turned(v, dv)
        inner = left * s[..., None, :] + s[..., :, None] * right + ds[..., None, :] * xp.eye(s.shape[-1], dtype=s.dtype)
        found = xp.matmul(xp.matmul(u, inner), vt) + xp.matmul(outside_u / s[..., None, :], vt)
        return found + xp.matmul(u, (outside_v / s[..., None, :]).swapaxes(-1, -2))
