"""Kinds of linear algebra."""

from __future__ import annotations

from typing import Any

from mspc.api import mint, ops
from mspc.readers.pytorch.kinds.kind import row
from mspc.readers.pytorch.kinds.products import scaled_product
from mspc.readers.pytorch.kinds.reductions import typed, vector_norm


def matrix_norm(self: Any, order: Any, dim: Any, keepdim: Any, dtype: Any) -> Any:
    """The norm of matrices; that of Frobenius as the length of all elements."""
    if order == "fro":
        return vector_norm(self, 2, dim, keepdim, dtype)
    return ops.matrix_norm(typed(self, dtype), order, tuple(dim), keepdim)


def norm(self: Any, order: Any, dim: Any, keepdim: Any, dtype: Any) -> Any:
    """The norm of matrices where an order and two dimensions are meant, else that of all that lies along dimensions."""
    if order is None:
        return vector_norm(self, 2, dim, keepdim, dtype)
    dims = tuple(range(len(self.shape))) if dim is None else tuple(dim)
    return (matrix_norm if len(dims) == 2 else vector_norm)(self, order, dims, keepdim, dtype)


def solved(matrix: Any, right: Any, left: Any) -> Any:
    """x of matrix @ x = right, or of x @ matrix = right."""
    if left:
        return ops.matmul(ops.MatrixInverse()(matrix), right)
    return ops.matmul(right, ops.MatrixInverse()(matrix))


def contracted(self: Any, other: Any, dims_self: Any, dims_other: Any) -> Any:
    """Products summed over pairs of dimensions."""
    ours = [d % len(self.shape) for d in dims_self]
    theirs = [d % len(other.shape) for d in dims_other]
    kept = [d for d in range(len(self.shape)) if d not in ours]
    left = [d for d in range(len(other.shape)) if d not in theirs]
    count = 1
    for d in ours:
        count = count * self.shape[d]
    x = ops.Reshape()(ops.Transpose()(self, tuple([*kept, *ours])), (-1, count))
    y = ops.Reshape()(ops.Transpose()(other, tuple([*theirs, *left])), (count, -1))
    shape = [*[self.shape[d] for d in kept], *[other.shape[d] for d in left]]
    return ops.Reshape()(ops.MatMul()(x, y), tuple(shape))


def bilinear(input1: Any, input2: Any, weight: Any, bias: Any) -> Any:
    """input1 @ weight[k] @ input2 for every k, plus bias."""
    shape = (*input1.shape[:-1], weight.shape[0])
    x = ops.Reshape()(input1, (-1, input1.shape[-1]))
    y = ops.Reshape()(input2, (-1, input2.shape[-1]))
    rows = ops.MatMul()(x, ops.Reshape()(ops.Transpose()(weight, (1, 0, 2)), (weight.shape[1], -1)))
    rows = ops.Reshape()(rows, (-1, weight.shape[0], weight.shape[2]))
    found = ops.ReduceSum()(rows * ops.ExpandDims()(y, 1), -1)
    return ops.Reshape()(found if bias is None else found + bias, shape)


def apart(x1: Any, x2: Any, p: Any, eps: Any, keepdim: Any) -> Any:
    """The norm of differences along the last dimension."""
    return ops.vector_norm(x1 - x2 + eps, p, -1, keepdim)


def of_triangle(matrix: Any, right: Any, upper: Any, left: Any, unitriangular: Any) -> Any:
    """x of matrix @ x = right, or of x @ matrix = right, where one half of the matrix is read."""
    half = ops.triu(matrix) if upper else ops.tril(matrix)
    if unitriangular:
        half = (ops.triu(matrix, 1) if upper else ops.tril(matrix, -1)) + ops.eye(
            matrix.shape[-1], matrix.shape[-1], matrix.dtype)
    return solved(half, right, left)


def across(self: Any, other: Any, dim: Any) -> Any:
    """The cross product along a dimension, the first of size 3 where none is given."""
    places = [d for d, size in enumerate(self.shape) if size == 3]
    return ops.cross(self, other, places[0] if dim is None else dim)


MATRICES = (
    row("linalg_solve_triangular.default", "self, B, upper, left=True, unitriangular=False", of_triangle),
    row("linalg_qr.default", "A, mode='reduced'", ops.qr),
    row("linalg_slogdet.default", "A", ops.slogdet),
    row("linalg_matrix_power.default matrix_power.default", "self, n", ops.matrix_power),
    row("cross.default", "self, other, dim=None", across),
    row("inner.default", "self, other", ops.inner),
    row("addr.default", "self, vec1, vec2, beta=1, alpha=1",
        lambda self, vec1, vec2, beta, alpha: scaled_product(self, mint.outer(vec1, vec2), beta, alpha)),
    row("addbmm.default", "self, batch1, batch2, beta=1, alpha=1",
        lambda self, batch1, batch2, beta, alpha: scaled_product(
            self, ops.ReduceSum()(ops.BatchMatMul()(batch1, batch2), 0), beta, alpha)),
    row("dist.default", "self, other, p=2", lambda self, other, p: vector_norm(self - other, p, None, False, None)),
    row("pdist.default", "self, p=2", lambda self, p: ops.pdist(self, float(p))),
    row("renorm.default", "self, p, dim, maxnorm", ops.renorm),
    row("linalg_inv.default", "A", lambda matrix: ops.MatrixInverse()(matrix)),
    row("inverse.default", "self", lambda self: ops.MatrixInverse()(self)),
    row("linalg_det.default", "A", lambda matrix: ops.MatrixDeterminant()(matrix)),
    row("linalg_cholesky.default", "self, upper=False", ops.cholesky),
    row("linalg_solve.default", "A, B, left=True", solved),
    row("linalg_norm.default", "self, ord=None, dim=None, keepdim=False, dtype=None", norm),
    row("linalg_norm.ord_str", "self, ord, dim=None, keepdim=False, dtype=None", norm),
    row("linalg_matrix_norm.default", "self, ord, dim=(-2, -1), keepdim=False, dtype=None", matrix_norm),
    row("linalg_matrix_norm.str_ord", "self, ord='fro', dim=(-2, -1), keepdim=False, dtype=None", matrix_norm),
    row("linalg_cross.default", "self, other, dim=-1", lambda self, other, dim: ops.cross(self, other, dim)),
    row("tensordot.default", "self, other, dims_self, dims_other", contracted),
    row("kron.default", "self, other", ops.kron),
    row("trace.default", "self", mint.trace),
    row("vdot.default", "self, other", mint.vdot),
    row("bilinear.default", "input1, input2, weight, bias=None", bilinear),
    row("pairwise_distance.default", "x1, x2, p=2.0, eps=1e-06, keepdim=False", apart),
)  # fmt: skip
"""Kinds of matrices."""
