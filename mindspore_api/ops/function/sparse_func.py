"""Functions of sparse tensors with a known number of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.types import INT32, INT64
from mspc.mindspore_api import ops
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.ops.checked import TensorLike
from mspc.mindspore_api.ops.function_arguments import axis_of, no_tensor
from mspc.mindspore_api.ops.sparse_tensor import COOTensor, CSRTensor


def csr_to_dense(csr_tensor: Any) -> Any:
    """Return a CSRTensor as a dense matrix."""
    if not hasattr(csr_tensor, "to_dense"):
        no_tensor("csr_to_dense", csr_tensor)
    return csr_tensor.to_dense()


def csr2coo(indptr: TensorLike, nnz: int) -> Any:
    """Return the row of each of `nnz` values; indptr[i] is the index of the first value of row i."""
    ones = ops.ones_like(indptr[1:])
    begun = ops.UnsortedSegmentSum()(ops.cast(ones, INT32), indptr[1:], nnz + 1)
    return ops.cast(ops.cumsum(begun, 0)[:nnz], indptr.dtype)


def coo2csr(row_indices: TensorLike, height: int) -> Any:
    """Return the index of the first value of each of `height` rows, for values in the order of their rows, and the end
    of the last row."""
    counts = ops.UnsortedSegmentSum()(ops.cast(ops.ones_like(row_indices), INT32), row_indices, height)
    ends = ops.cumsum(counts, 0)
    return ops.cast(ops.concat((ends[:1] * 0, ends)), row_indices.dtype)


def dense_to_sparse_coo(tensor: TensorLike) -> Any:
    """Return the nonzero elements of a tensor, as a COOTensor; the tensor's values must be known when a network is
    compiled."""
    places = ops.nonzero(tensor)
    return COOTensor(places, ops.gather_nd(tensor, places), tensor.shape)


def dense_to_sparse_csr(tensor: TensorLike) -> Any:
    """Return the nonzero elements of a matrix, as a CSRTensor; the matrix's values must be known when a network is
    compiled. Raise ValueError if it is no matrix."""
    if len(tensor.shape) != 2:
        raise ApiValueError(f"dense_to_sparse_csr(): tensor must be a matrix, not of shape {tensor.shape}")
    found = dense_to_sparse_coo(tensor)
    rows, columns = (ops.cast(found.indices[:, i], INT32) for i in (0, 1))
    return CSRTensor(ops.coo2csr(rows, tensor.shape[0]), columns, found.values, found.shape)


def coo_concat(sp_input: Sequence[Any], concat_dim: int = 0) -> Any:
    """Concatenate COOTensors along a dimension, with the values in the order of their positions. Raise ValueError if
    their other sizes differ."""
    shapes = [tensor.shape for tensor in sp_input]
    axis = axis_of("coo_concat", concat_dim, len(shapes[0]))
    if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) > 1:
        raise ApiValueError(f"coo_concat(): tensors of shapes {shapes} differ in another dimension than {concat_dim}")
    first, shifted = 0, []
    for tensor in sp_input:
        shift = [first if d == axis else 0 for d in range(len(shapes[0]))]
        shifted.append(tensor.indices + ops.cast(ops.tuple_to_array(tuple(shift)), tensor.indices.dtype))
        first = first + tensor.shape[axis]
    shape = tuple([first if d == axis else size for d, size in enumerate(shapes[0])])
    return _in_order(ops.concat(shifted), ops.concat([tensor.values for tensor in sp_input]), shape)


def _in_order(indices: Any, values: Any, shape: tuple[int, ...]) -> Any:
    """Return a COOTensor of these, row by row."""
    place = ops.cast(indices[:, 0], INT64)
    for d, size in enumerate(shape[1:]):
        place = place * size + indices[:, d + 1]
    order = ops.Sort()(place)[1]
    return COOTensor(ops.gather(indices, order, 0), ops.gather(values, order, 0), shape)


def csr_softmax(logits: Any, dtype: Any) -> Any:
    """Return the softmax of each row's values, in Float32 or Float64."""
    rows, count = ops.csr2coo(logits.indptr, logits.values.shape[0]), logits.shape[0]
    values = ops.cast(logits.values, dtype)
    greatest = ops.UnsortedSegmentMax()(values, rows, count)
    shares = ops.exp(values - ops.gather(greatest, rows, 0))
    sums = ops.UnsortedSegmentSum()(shares, rows, count)
    return CSRTensor(logits.indptr, logits.indices, shares / ops.gather(sums, rows, 0), logits.shape)
