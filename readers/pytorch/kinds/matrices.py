"""Kinds of linear algebra."""

from __future__ import annotations

from typing import Any

from mspc.api import mint, ops
from mspc.readers.pytorch.kinds.kind import row
from mspc.readers.pytorch.kinds.reductions import typed, vector_norm


def matrix_norm(self: Any, order: Any, dim: Any, keepdim: Any, dtype: Any) -> Any:
    """The norm of matrices; that of Frobenius as the length of all elements."""
    if order == "fro":
        return vector_norm(self, 2, dim, keepdim, dtype)
    return ops.matrix_norm(typed(self, dtype), order, tuple(dim), keepdim)


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


MATRICES = (
    row("linalg_inv.default", "A", lambda matrix: ops.MatrixInverse()(matrix)),
    row("inverse.default", "self", lambda self: ops.MatrixInverse()(self)),
    row("linalg_det.default", "A", lambda matrix: ops.MatrixDeterminant()(matrix)),
    row("linalg_cholesky.default", "self, upper=False", ops.cholesky),
    row("linalg_solve.default", "A, B, left=True", solved),
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
