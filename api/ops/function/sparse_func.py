"""Functions of sparse tensors, whose number of values is known."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.arguments import no_tensor
from mspc.api.ops.checked import TensorLike
from mspc.ir.types import INT32


def csr_to_coo(tensor: Any) -> Any:
    """A CSRTensor with the place of every value, as a COOTensor."""
    return tensor.to_coo()


def csr_to_dense(csr_tensor: Any) -> Any:
    """A CSRTensor as a whole matrix."""
    if not hasattr(csr_tensor, "to_dense"):
        no_tensor("csr_to_dense", csr_tensor)
    return csr_tensor.to_dense()


def csr_mv(csr_tensor: Any, dense: TensorLike) -> Any:
    """The product of a CSRTensor with a matrix of one column."""
    return csr_tensor.mv(dense)


def csr_mm(a: Any, b: TensorLike) -> Any:
    """The product of a CSRTensor with a dense matrix."""
    return a.mm(b)


def csr2coo(indptr: TensorLike, nnz: int) -> Any:
    """The row of each of `nnz` values, where indptr[i] is the first one of row i."""
    ones = ops.ones_like(indptr[1:])
    begun = ops.UnsortedSegmentSum()(ops.cast(ones, INT32), indptr[1:], nnz + 1)
    return ops.cast(ops.cumsum(begun, 0)[:nnz], indptr.dtype)


def coo2csr(row_indices: TensorLike, height: int) -> Any:
    """Where each of `height` rows begins among values in the order of their rows, and where the last one ends."""
    counts = ops.UnsortedSegmentSum()(ops.cast(ops.ones_like(row_indices), INT32), row_indices, height)
    ends = ops.cumsum(counts, 0)
    return ops.cast(ops.concat((ends[:1] * 0, ends)), row_indices.dtype)
