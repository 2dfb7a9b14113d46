"""`mindspore.mint.linalg`: functions of matrices whose arguments stand as in PyTorch."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.checked import TensorLike

__all__ = ["inv", "matrix_norm", "norm", "qr", "vector_norm"]


def inv(input: TensorLike) -> Any:
    """The inverses of matrices."""
    return ops.inverse(input)


def matrix_norm(
    A: TensorLike, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """The norm of matrices along two dimensions; see `ops.norm`."""
    return ops.norm(A, ord, dim, keepdim, dtype=dtype)


def norm(A: TensorLike, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The norm of vectors along `dim`, or of matrices along two; see `ops.norm`."""
    return ops.norm(A, ord, dim, keepdim, dtype=dtype)


def qr(A: TensorLike, mode: str = "reduced") -> Any:
    """(orthogonal matrices Q, upper triangular matrices R) with Q @ R = A; see `ops.qr`."""
    return ops.qr(A, mode)


def vector_norm(
    x: TensorLike, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """The `ord`-th root of the sum of `ord`-th powers along `dim`, None for all; see `ops.vector_norm`."""
    return ops.vector_norm(x, ord, dim, keepdim, dtype=dtype)
