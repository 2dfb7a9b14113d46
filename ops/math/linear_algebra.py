"""These operators take matrices of the last two dimensions: traces, triangular systems, Cholesky factors, least
squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import INT64, DType, TensorType, TupleType, dtype_of
from mspc.ops.bases import require_float, require_same
from mspc.ops.math.arithmetic import Neg
from mspc.ops.math.matmul import BatchMatMul
from mspc.ops.math.not_finite import decomposed
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.operator_arguments import axis_in, describe, dtype_arg, int_of, plain, split_call
from mspc.ops.tensor.masking import Tril, Triu
from mspc.ops.tensor.reshape import Reshape
from mspc.sharding.rules import factor_names

Gradients = Sequence[Value | None]


class TraceV2(Op):
    """The sum along the diagonal `offset` of the dimensions axis1 and axis2: called as `TraceV2()(x, offset, axis1,
    axis2, dtype)`. Integers and Bool are summed as Int64 unless `dtype` says otherwise."""

    offset: int = 0
    axis1: int = 1
    axis2: int = 0
    dtype: DType | None = None
    omitted = ("dtype",)
    linear_in = (0,)
    samples = (
        sample((4, 6)),
        sample((4, 3, 5), offset=1, axis1=-2, axis2=-1),
        sample((3, 8, 4), offset=-1, axis1=2, axis2=0),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("offset", "axis1", "axis2", "dtype"), optional=4)
        numbers = {key: int_of(self.name, key, plain(value)) for key, value in found.items() if key != "dtype"}
        kind = found.get("dtype")
        return replace(self, **numbers, dtype=None if kind is None else dtype_arg(self.name, "dtype", kind)), tensors

    def axes(self, rank: int) -> tuple[int, int]:
        """Both dimensions counted from 0. Raises MspcError where they are one, or not there."""
        first, second = axis_in(self.name, self.axis1, rank), axis_in(self.name, self.axis2, rank)
        if first == second:
            raise MspcError(f"{self.name}: axis1 {self.axis1} and axis2 {self.axis2} are one dimension")
        return first, second

    def rule(self, x: TensorType) -> str:
        axes = self.axes(len(x.shape))
        names = factor_names(len(x.shape))
        left = [name + "!" * (d in axes) for d, name in enumerate(names)]
        return f"{' '.join(left)} -> {' '.join(name for d, name in enumerate(names) if d not in axes)}"

    def result_dtype(self, *types: TensorType) -> DType:
        kind = types[0].dtype
        return self.dtype or (kind if kind.is_float else INT64)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        if not x.tensor_type.dtype.is_float:
            return (None,)
        return (b.emit(TraceV2Grad(self.offset, *self.axes(len(x.shape)), shape=x.shape), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        kind = self.result_dtype(TensorType(dtype_of(x.dtype), tuple(x.shape))).numpy
        return be.xp.asarray(be.xp.trace(x, self.offset, self.axis1, self.axis2, dtype=kind))


class TraceV2Grad(Op):
    """Zeros of `shape` with dout everywhere on the diagonal."""

    offset: int = 0
    axis1: int = 1
    axis2: int = 0
    shape: tuple[int, ...] = ()
    linear_in = (0,)
    samples = (
        sample((), shape=(4, 6)),
        sample((4,), shape=(4, 3, 5), offset=1, axis1=1, axis2=2),
        sample((8,), shape=(3, 8, 4), offset=-1, axis1=2, axis2=0),
    )

    def rule(self, dout: TensorType) -> str:
        names = factor_names(len(self.shape))
        axes = (self.axis1, self.axis2)
        sized = [f"{name}={n}!" for name, n in zip(names, self.shape, strict=True)]
        right = [sized[d] if d in axes else name for d, name in enumerate(names)]
        return f"{' '.join(name for d, name in enumerate(names) if d not in axes)} -> {' '.join(right)}"

    def bprop(self, b: Builder, dout: Value, out: Value, dgrad: Value) -> Gradients:
        return (b.emit(TraceV2(self.offset, self.axis1, self.axis2), dgrad),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (dout,) = be.xp, inputs
        rows, columns = self.shape[self.axis1], self.shape[self.axis2]
        diagonal = xp.eye(rows, columns, self.offset, dtype=dout.dtype)
        made = dout[..., None, None] * diagonal
        return xp.ascontiguousarray(xp.moveaxis(made, (-2, -1), (self.axis1, self.axis2)))


def _batched(name: str, a: TensorType, b: TensorType) -> str:
    """The batch dimensions' factors of a system of matrices `a` and of vectors or matrices `b`.

    Raises:
        MspcError: they are not of one batch, or not of as many rows.
    """
    if len(a.shape) < 2 or len(b.shape) not in (len(a.shape) - 1, len(a.shape)) or (
        b.shape[: len(a.shape) - 1] != a.shape[:-1]
    ):
        raise MspcError(f"{name}: inputs of shapes {a.shape} and {b.shape} are no matrices and their right sides")
    return " ".join(factor_names(len(a.shape) - 2))


class SolveTriangular(Op):
    """x of a @ x = b for triangular matrices a [..., n, n] and b [..., n] or [..., n, k]. Called as
    `SolveTriangular()(a, b, trans, lower, unit_diagonal)`.

    trans: 1 and 2 solve with the transpose of a. lower: what is above the diagonal is not read, else what is below.
    unit_diagonal: the diagonal is not read either, and is 1.
    """

    trans: int = 0
    lower: bool = False
    unit_diagonal: bool = False
    promotes: ClassVar[str] = "float"
    linear_in = (1,)
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

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, *types)
        require_same(self.name, *types)
        return inferred

    def bprop(self, b: Builder, a: Value, y: Value, out: Value, dout: Value) -> Gradients:
        dy = b.emit(replace(self, trans=0 if self.trans else 1), a, dout)
        left, right = (out, dy) if self.trans else (dy, out)
        if len(y.shape) < len(a.shape):
            left, right = (b.emit(Reshape((*y.shape, 1)), value) for value in (left, right))
        product = b.emit(Neg(), b.emit(BatchMatMul(False, True), left, right))
        shift = int(self.unit_diagonal)
        triangle = b.emit(Tril(-shift), product) if self.lower else b.emit(Triu(shift), product)
        return triangle, dy

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (a, b) = be.xp, inputs
        triangle = xp.tril(a) if self.lower else xp.triu(a)
        if self.unit_diagonal:
            one = xp.eye(a.shape[-1], dtype=a.dtype)
            triangle = triangle * (1 - one) + one
        matrices = triangle.swapaxes(-1, -2) if self.trans else triangle
        return xp.linalg.solve(matrices, b[..., None])[..., 0] if b.ndim < a.ndim else xp.linalg.solve(matrices, b)


class Cholesky(Op):
    """The lower triangular L with L @ L^T = x, of symmetric positive definite matrices; its transpose where `upper`."""

    upper: bool = False
    samples = (sample((4, 8, 1, 1), low=0.5), sample((4, 1, 1), low=0.5, upper=True))

    def rule(self, x: TensorType) -> str:
        require_float(self.name, x)
        if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
            raise MspcError(f"{self.name}: the matrices of shape {x.shape} are not square")
        names = factor_names(len(x.shape))
        matrix = " ".join([*names[:-2], f"{names[-2]}!", f"{names[-1]}!"])
        return f"{matrix} -> {matrix}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(CholeskyGrad(self.upper), out, dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        lower = be.xp.linalg.cholesky(inputs[0])
        return be.xp.ascontiguousarray(lower.swapaxes(-1, -2)) if self.upper else lower


class CholeskyGrad(Op):
    """The gradient of Cholesky, a symmetric matrix: of P = tril(L^T @ dL) with half its diagonal the symmetric part of
    L^-T @ P @ L^-1. Murray 2016."""

    upper: bool = False
    linear_in = (1,)
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (sample((4, 1, 1), (4, 1, 1), low=0.5), sample((2, 1, 1), (2, 1, 1), low=0.5, upper=True))

    def rule(self, out: TensorType, dout: TensorType) -> str:
        matrix, _, _ = Cholesky().rule(out).partition(" ->")
        return f"{matrix}, {matrix} -> {matrix}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        lower, dlower = (x.swapaxes(-1, -2) for x in inputs) if self.upper else inputs
        half = xp.tril(xp.ones(lower.shape[-2:], lower.dtype)) - xp.eye(lower.shape[-1], dtype=lower.dtype) / 2
        inner = xp.matmul(lower.swapaxes(-1, -2), dlower) * half
        across = xp.linalg.inv(lower)
        found = xp.matmul(xp.matmul(across.swapaxes(-1, -2), inner), across)
        return (found + found.swapaxes(-1, -2)) / 2


class LstsqV2(Op):
    """Least squares of a @ x = b for matrices a [..., m, n] and b [..., m] or [..., m, k]: a tuple of x, the sums of
    squares that remain (no elements where m is not above n), the ranks, Int64, and the singular values.

    Called as `LstsqV2()(a, b, driver)`; all drivers give one result.
    """

    bprop = NotDifferentiable("the gradient of least squares is not built")
    DRIVERS: ClassVar[tuple[Any, ...]] = (None, "gels", "gelsy", "gelsd", "gelss")
    samples = (
        sample((4, 5, 3), (4, 5), gradient=False),
        sample((4, 3, 2), (4, 3, 2), gradient=False),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 2, ("driver",), optional=1)
        if found.get("driver") not in self.DRIVERS:
            known = ", ".join(self.DRIVERS[1:])
            raise MspcError(f"{self.name}: driver is {describe(found['driver'])}, not one of {known} or None")
        return self, tensors

    def rule(self, a: TensorType, b: TensorType) -> str:
        batch = _batched(self.name, a, b)
        columns = " k1" * (len(b.shape) == len(a.shape))
        rest = f"{batch}{columns}" if a.shape[-2] > a.shape[-1] else "z=0!"
        few = min(a.shape[-2:])
        return f"{batch} m1! n1!, {batch} m1!{columns} -> {batch} n1!{columns}, {rest}, {batch}, {batch} s={few}!"

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, *types)
        require_same(self.name, *types)
        assert isinstance(inferred, TupleType)
        solution, rest, rank, singular = inferred.elements
        return TupleType((solution, rest, TensorType(INT64, rank.shape), singular))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (a, given) = be.xp, inputs
        b = given[..., None] if given.ndim < a.ndim else given
        singular = decomposed(xp, lambda x: xp.linalg.svd(x, compute_uv=False), a)
        least = singular[..., :1] * max(a.shape[-2:]) * xp.finfo(a.dtype).eps
        rank = (singular > least).sum(-1)
        x = xp.matmul(decomposed(xp, xp.linalg.pinv, a), b)
        remains = a.shape[-2] > a.shape[-1]
        rest = ((b - xp.matmul(a, x)) ** 2).sum(-2) if remains else xp.zeros((0,), a.dtype)
        if given.ndim < a.ndim:
            x = x[..., 0]
            rest = rest[..., 0] if remains else rest
        return x.astype(a.dtype), rest.astype(a.dtype), xp.asarray(rank).astype(xp.int64), singular
