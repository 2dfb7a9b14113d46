"""These cells are products with sparse tensors."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import flag
from mspc.api.ops.sparse_tensor import COOTensor

__all__ = ["SparseTensorDenseMatmul", "SparseToDense"]


class SparseToDense(Cell):
    """A COOTensor as a dense tensor."""

    def construct(self, coo_tensor: Any) -> Any:
        return coo_tensor.to_dense()


class SparseTensorDenseMatmul(Cell):
    """The product of a sparse matrix, given by its places, values and shape, with a dense one.

    Args: adjoint_st, adjoint_dt: whether the sparse and the dense one are transposed.

    Raises:
        TypeError: an argument is no bool.
    """

    def __init__(self, adjoint_st: bool = False, adjoint_dt: bool = False) -> None:
        super().__init__()
        self.adjoint_st = flag("SparseTensorDenseMatmul", "adjoint_st", adjoint_st)
        self.adjoint_dt = flag("SparseTensorDenseMatmul", "adjoint_dt", adjoint_dt)

    def construct(self, indices: Any, values: Any, sparse_shape: Any, dense: Any) -> Any:
        sparse = COOTensor(indices, values, sparse_shape)
        to, of = (1, 0) if self.adjoint_st else (0, 1)
        if self.adjoint_dt:
            dense = ops.transpose(dense, (1, 0))
        taken = ops.gather(dense, sparse.indices[:, of], 0) * ops.expand_dims(sparse.values, 1)
        return ops.UnsortedSegmentSum()(taken, sparse.indices[:, to], sparse.shape[to])
