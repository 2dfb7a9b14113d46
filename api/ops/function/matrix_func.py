"""These functions of matrices are products with sums, factors, inverses made of factors, powers and norms."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import ints, least, no_such, of_rank, precision_of, real_type
from mspc.api.ops.index_arguments import crossed

# Products -------------------------------------------------------------------------------------------------


def mv(mat: TensorLike, vec: TensorLike) -> Any:
    """The product of a matrix and a vector."""
    of_rank("mv", "mat", mat.shape, 2)
    of_rank("mv", "vec", vec.shape, 1)
    return ops.matmul(mat, vec)


def cross(input: TensorLike, other: TensorLike, dim: int | None = None) -> Any:
    """The cross product of vectors of three along `dim`, the first dimension of three unless given.

    Raises:
        ValueError: there is no dimension of three, or `dim` is none.
    """
    input, other = ops.broadcast_to(input, (input * other).shape), ops.broadcast_to(other, (input * other).shape)
    axis, second, third = crossed("cross", dim, input.shape)
    left = ops.Gather()(input, second, axis) * ops.Gather()(other, third, axis)
    return left - ops.Gather()(input, third, axis) * ops.Gather()(other, second, axis)


# Factors --------------------------------------------------------------------------------------------------


def cholesky_solve(input: TensorLike, input2: TensorLike, upper: bool = False) -> Any:
    """x of A @ x = input, where input2 is the factor L of A = L @ L^T, or its transpose for upper."""
    first = ops.SolveTriangular()(input2, input, 1 if upper else 0, not upper, False)
    return ops.SolveTriangular()(input2, first, 0 if upper else 1, not upper, False)


def cholesky_inverse(input_x: TensorLike, upper: bool = False) -> Any:
    """The inverse of A = L @ L^T of its factor L, or of that transposed for upper."""
    one = ops.eye(input_x.shape[-1], None, input_x.dtype)
    return cholesky_solve(ops.broadcast_to(one, input_x.shape), input_x, upper)


def qr(input: TensorLike, mode: str = "reduced") -> Any:
    """(orthogonal matrices Q, upper triangular matrices R) with Q @ R = input; for the mode "complete" Q is square.

    Raises:
        ValueError: another mode.
    """
    if mode not in ("reduced", "complete", True, False):
        no_such("qr", "mode", mode, "'reduced' or 'complete'")
    return ops.Qr(mode in ("complete", False))(input)


def eigvals(A: TensorLike) -> Any:
    """Eigenvalues of square matrices, complex."""
    values, _ = ops.Eig()(A)
    return values


# Of factors -----------------------------------------------------------------------------------------------


def logdet(input: TensorLike) -> Any:
    """The logarithm of determinants; NaN of those below 0."""
    sign, size = ops.slogdet(input)
    return ops.Select()(ops.Less()(sign, 0), ops.full_like(size, float("nan")), size)


def pinv(x: TensorLike, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """The pseudo-inverses of matrices, without singular values up to the greater of atol and rtol times the greatest.

    atol: 0 unless given. rtol: the element type's precision times the longer side, or 0 where atol is given.
    hermitian: nothing else is done with matrices that are.
    """
    kind = real_type("pinv", x.dtype)
    x = x if x.dtype == kind else ops.cast(x, kind)
    values, left, right = ops.Svd()(x)
    if rtol is None:
        rtol = 0.0 if atol is not None else max(x.shape[-2:]) * precision_of(x.dtype)
    least_value = ops.Maximum()(ops.ReduceMax(True)(values, -1) * rtol, 0.0 if atol is None else atol)
    selected = ops.Greater()(values, least_value)
    shares = ops.Select()(selected, 1 / ops.Select()(selected, values, ops.ones_like(values)), ops.zeros_like(values))
    return ops.BatchMatMul(transpose_b=True)(right * ops.ExpandDims()(shares, -2), left)


def matrix_power(input: TensorLike, n: int) -> Any:
    """Square matrices to the power n; of one below 0 the inverses to the power -n."""
    if n < 0:
        return matrix_power(ops.inverse(input), -n)
    if n == 0:
        return ops.broadcast_to(ops.eye(input.shape[-1], None, input.dtype), input.shape)
    if n == 1:
        return input
    half = matrix_power(input, n // 2)
    square = ops.BatchMatMul()(half, half)
    return square if n % 2 == 0 else ops.BatchMatMul()(square, input)


def lstsq(input: TensorLike, A: TensorLike) -> Any:
    """Least squares of input @ x = A for matrices; x is a matrix."""
    sides = A if len(A.shape) > 1 else ops.ExpandDims()(A, 1)
    solution, _, _, _ = ops.LstsqV2()(input, sides)
    return solution


def cond(A: TensorLike, p: Any = None) -> Any:
    """The condition numbers of matrices: their norm p times that of their inverse, of singular values for None."""
    if p is None or p in (2, -2):
        values = ops.SingularValues()(A)
        high, low = ops.ReduceMax()(values, -1), ops.ReduceMin()(values, -1)
        return low / high if p == -2 else high / low
    return ops.norm(A, p, (-2, -1)) * ops.norm(ops.inverse(A), p, (-2, -1))


def batch_dot(x1: TensorLike, x2: TensorLike, axes: Any = None) -> Any:
    """Products summed over a dimension of x1 and one of x2, matrix by matrix of a batch, the first dimension of both.

    axes: these dimensions, both counted within the tensors; the last of x1 and the last but one of x2 unless given.

    Raises:
        ValueError: there is no batch, or a dimension is that of the batch.
    """
    least("batch_dot", "the number of dimensions of x1", len(x1.shape), 2)
    least("batch_dot", "the number of dimensions of x2", len(x2.shape), 2)
    both = (axes, axes) if isinstance(axes, int) else (-1, max(1, len(x2.shape) - 2)) if axes is None else (
        ints("batch_dot", "axes", axes))  # fmt: skip
    least("batch_dot", "the number of axes", len(both), 2)
    first, second = both[0] % len(x1.shape), both[1] % len(x2.shape)
    least("batch_dot", "a dimension of axes", min(first, second), 1)
    left, right = ops.moveaxis(x1, first, -1), ops.moveaxis(x2, second, 1)
    rows = ops.Reshape()(left, (left.shape[0], -1, left.shape[-1]))
    found = ops.BatchMatMul()(rows, ops.Reshape()(right, (right.shape[0], right.shape[1], -1)))
    return ops.Reshape()(found, (*left.shape[:-1], *right.shape[2:]))


def bidense(input1: TensorLike, input2: TensorLike, weight: TensorLike, bias: Any = None) -> Any:
    """input1 @ weight[o] @ input2 + bias[o] for every output o. weight: (outputs, size of input1's last dimension, that
    of input2's)."""
    outputs, first, second = weight.shape
    turned = ops.reshape(ops.transpose(weight, (1, 0, 2)), (first, outputs * second))
    half = ops.reshape(ops.matmul(input1, turned), (*input1.shape[:-1], outputs, second))
    found = ops.reduce_sum(half * ops.expand_dims(input2, -2), -1)
    return found if bias is None else found + bias
