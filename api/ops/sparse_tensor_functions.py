"""`csr_relu`, `coo_relu` and the like apply to the values of sparse tensors: places without a value stay so."""

from __future__ import annotations

from typing import Any

from mspc.api.errors import ApiTypeError
from mspc.api.ops.sparse_tensor import COOTensor, CSRTensor
from mspc.ops.operator_arguments import describe


def of_coordinates(name: str, function: Any, x: Any) -> Any:
    """A COOTensor with the function of the values of another."""
    if not isinstance(x, COOTensor):
        raise ApiTypeError(f"{name}(): x must be a COOTensor, not {describe(x)}")
    return COOTensor(x.indices, function(x.values), x.shape)


def of_rows(name: str, function: Any, x: Any) -> Any:
    """A CSRTensor with the function of the values of another."""
    if not isinstance(x, CSRTensor):
        raise ApiTypeError(f"{name}(): x must be a CSRTensor, not {describe(x)}")
    return CSRTensor(x.indptr, x.indices, function(x.values), x.shape)
