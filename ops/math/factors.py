"""These operators factor matrices of the last two dimensions: orthogonal and triangular factors, singular vectors,
eigenvectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.types import COMPLEX64, COMPLEX128, FLOAT64, TensorType, TupleType
from mspc.ops.bases import require_float
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.matrix import regular
from mspc.ops.math.not_finite import decomposed
from mspc.ops.math.singular import SingularValuesGrad
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.tensor.broadcast import zeros
from mspc.sharding.rules import factor_names

Gradients = Sequence[Value | None]


def _matrices(name: str, x: TensorType) -> list[str]:
    """Factors of the dimensions. Raises MspcError where they are less than two."""
    require_float(name, x)
    if len(x.shape) < 2:
        raise MspcError(f"{name} needs at least 2 dimensions in input 0, whose shape is {x.shape}")
    return factor_names(len(x.shape))


class Qr(Op):
    """(orthogonal matrices Q, upper triangular matrices R) with Q @ R = x [..., m, n]: Q has min(m, n) columns, or m
    where `full_matrices`. There is a gradient where m is at least n and Q is not made full."""

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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return tuple(be.xp.linalg.qr(inputs[0], mode="complete" if self.full_matrices else "reduced"))


class QrGrad(Op):
    """Gradient of Qr: (dQ + Q @ S) @ R^-T, where S has the lower triangle of R @ dR^T - dQ^T @ Q on both sides. Walter
    and Lehmann 2010."""

    linear_in = ()
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (sample((4, 3, 2), (4, 2, 2), (4, 3, 2), (4, 2, 2), low=0.5, gradient=False),)

    def rule(self, q: TensorType, r: TensorType, dq: TensorType, dr: TensorType) -> str:
        *batch, rows, columns = _matrices(self.name, q)
        lead = " ".join(batch)
        tall, square = f"{lead} {rows}! {columns}!", f"{lead} z1={r.shape[-2]}! {columns}!"
        return f"{tall}, {square}, {tall}, {square} -> {tall}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (q, r, dq, dr) = be.xp, inputs
        inner = xp.matmul(r, dr.swapaxes(-1, -2)) - xp.matmul(dq.swapaxes(-1, -2), q)
        lower = xp.tril(inner, -1)
        both = lower + lower.swapaxes(-1, -2) + inner * xp.eye(inner.shape[-1], dtype=inner.dtype)
        found = regular(self.name, xp.linalg.solve, r, (dq + xp.matmul(q, both)).swapaxes(-1, -2))
        return xp.ascontiguousarray(found.swapaxes(-1, -2))


class Svd(Op):
    """(singular values, left singular vectors U, right ones V) with U @ diag(s) @ V^T = x, as many as there are
    singular values, or all where `full_matrices`. Without compute_uv U and V are zeros of one element.

    There is a gradient where the values are different and the vectors not made full.
    """

    full_matrices: bool = False
    compute_uv: bool = True
    samples = (
        sample((4, 8, 3, 2)),
        sample((2, 3)),
        sample((3, 2), gradient=False, full_matrices=True),
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
            raise MspcError(f"{self.name} with full_matrices has no gradient for matrices of shape {x.shape}")
        if not self.compute_uv:
            return (None if dout[0] is None else b.emit(SingularValuesGrad(), x, dout[0]),)
        parts = [b.emit(TupleGetItem(i), out) for i in range(3)]
        given = [zeros(b, value.tensor_type) if d is None else d for value, d in zip(parts, dout, strict=True)]
        return (b.emit(SvdGrad(), *parts, *given),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        if not self.compute_uv:
            none = xp.zeros((1,), x.dtype)
            return decomposed(xp, lambda x: xp.linalg.svd(x, compute_uv=False), x), none, none.copy()
        left, values, right = decomposed(xp, lambda x: tuple(xp.linalg.svd(x, full_matrices=self.full_matrices)), x)
        return values, left, xp.ascontiguousarray(right.swapaxes(-1, -2))


class SvdGrad(Op):
    """Gradient of Svd by its values and its vectors. Townsend 2016."""

    linear_in = ()
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (
        sample((4, 2), (4, 3, 2), (4, 2, 2), (4, 2), (4, 3, 2), (4, 2, 2), gradient=False),
    )

    def rule(
        self, s: TensorType, u: TensorType, v: TensorType, ds: TensorType, du: TensorType, dv: TensorType
    ) -> str:
        *batch, rows, few = _matrices(self.name, u)
        lead = " ".join(batch)
        values, left = f"{lead} {few}!", f"{lead} {rows}! {few}!"
        right = f"{lead} c1={v.shape[-2]}! {few}!"
        return f"{values}, {left}, {right}, {values}, {left}, {right} -> {lead} {rows}! c1={v.shape[-2]}!"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (s, u, v, ds, du, dv) = be.xp, inputs
        squares = s[..., None, :] ** 2 - s[..., :, None] ** 2
        apart = xp.where(squares == 0, 0, 1 / xp.where(squares == 0, 1, squares))
        vt = v.swapaxes(-1, -2)

        def turned(vectors: Any, gradient: Any) -> Any:
            """What a rotation of the vectors among themselves contributes, and what lies outside of them."""
            inside = xp.matmul(vectors.swapaxes(-1, -2), gradient)
            return apart * (inside - inside.swapaxes(-1, -2)), gradient - xp.matmul(vectors, inside)

        (left, outside_u), (right, outside_v) = turned(u, du), turned(v, dv)
        inner = left * s[..., None, :] + s[..., :, None] * right + ds[..., None, :] * xp.eye(s.shape[-1], dtype=s.dtype)
        found = xp.matmul(xp.matmul(u, inner), vt) + xp.matmul(outside_u / s[..., None, :], vt)
        return found + xp.matmul(u, (outside_v / s[..., None, :]).swapaxes(-1, -2))


class Eig(Op):
    """(eigenvalues of square matrices, complex, in no order; with compute_v their eigenvectors, columns of length 1,
    else zeros of one element)."""

    compute_v: bool = False
    bprop = NotDifferentiable("the gradient of eigenvalues is not built")
    samples = (
        sample((4, 8, 2, 2), gradient=False),
        sample((4, 3, 3), gradient=False, compute_v=True),
    )

    def rule(self, x: TensorType) -> str:
        *batch, rows, columns = _matrices(self.name, x)
        if x.shape[-1] != x.shape[-2]:
            raise MspcError(f"{self.name}: the matrices of shape {x.shape} are not square")
        lead = " ".join(batch)
        vectors = f"{lead} {rows}! {columns}!" if self.compute_v else "z1=1!"
        return f"{lead} {rows}! {columns}! -> {lead} {rows}!, {vectors}"

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        assert isinstance(inferred, TupleType)
        kind = COMPLEX128 if types[0].dtype == FLOAT64 else COMPLEX64
        return TupleType(tuple(TensorType(kind, part.shape) for part in inferred.elements))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        kind = xp.complex128 if x.dtype == xp.float64 else xp.complex64
        if not self.compute_v:
            return decomposed(xp, lambda x: xp.linalg.eigvals(x).astype(kind), x), xp.zeros((1,), kind)
        values, vectors = decomposed(xp, lambda x: tuple(xp.linalg.eig(x)), x)
        return values.astype(kind), vectors.astype(kind)
