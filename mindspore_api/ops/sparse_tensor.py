"""Sparse tensors: tuples of dense ones, with which networks compute. Their number of values is fixed when they are
made; `csr_relu`, `coo_relu` and the like apply to them."""

from __future__ import annotations

from typing import Any, NamedTuple

from mspc.ir.types import INT32, INT64
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.ops.operator_arguments import describe

__all__ = ["COOTensor", "CSRTensor"]


class _Coordinates(NamedTuple):
    indices: Any
    values: Any
    shape: Any


class _CompressedRows(NamedTuple):
    indptr: Any
    indices: Any
    values: Any
    shape: Any


class _Sparse:
    """The shared part of both kinds."""

    __slots__ = ()
    is_sparse = True
    shape: Any
    values: Any

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and tuple.__eq__(self, other)

    def __hash__(self) -> int:
        return hash((type(self), *self))

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many values are held."""
        return int(self.values.shape[0])

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return self.values.itemsize

    def __add__(self, other: Any) -> Any:
        raise _dense(self, "+")

    def __mul__(self, other: Any) -> Any:
        raise _dense(self, "*")

    def __repr__(self) -> str:
        parts = ", ".join(f"{n}={getattr(self, n)!r}" for n in self._fields if n != "shape")
        return f"{type(self).__name__}(shape={list(self.shape)}, dtype={self.dtype}, {parts})"


class COOTensor(_Sparse, _Coordinates):
    """A tensor of `shape` with values[i] at indices[i], and zeros elsewhere; values of one position add up.

    Args:
        indices: Int32 or Int64 (count, dimensions). values: (count,). coo_tensor: a COOTensor in place of all others.

    Raises TypeError if a part is no tensor of its kind; ValueError if the shapes do not fit together.
    """

    __slots__ = ()

    def __new__(cls, indices: Any = None, values: Any = None, shape: Any = None, coo_tensor: Any = None) -> COOTensor:
        if coo_tensor is not None:
            return coo_tensor
        found = super().__new__(cls, indices, values, shape)
        _check(found, ("indices", 2), ("values", 1))
        if isinstance(indices, Tensor) and indices.shape != (values.shape[0], len(shape)):
            raise ApiValueError(
                f"COOTensor: indices of shape {indices.shape} do not fit values of shape {values.shape} in a tensor of "
                f"{len(shape)} dimensions"
            )
        return found

    def to_tuple(self) -> tuple[Any, ...]:
        return self.indices, self.values, self.shape

    def to_dense(self) -> Any:
        """Return the dense tensor."""
        return ops.ScatterNd()(self.indices, self.values, self.shape)

    def to_csr(self) -> CSRTensor:
        """Return the matrix as a CSRTensor, with the values in the order of their rows and columns."""
        rows, columns = self.indices[:, 0], self.indices[:, 1]
        order = ops.Sort()(ops.cast(rows, INT64) * self.shape[1] + columns)[1]
        columns, values = ops.gather(columns, order, 0), ops.gather(self.values, order, 0)
        return CSRTensor(ops.coo2csr(rows, self.shape[0]), columns, values, self.shape)

    def astype(self, dtype: Any) -> COOTensor:
        return COOTensor(self.indices, ops.cast(self.values, dtype), self.shape)

    def abs(self) -> COOTensor:
        return COOTensor(self.indices, ops.abs(self.values), self.shape)


class CSRTensor(_Sparse, _CompressedRows):
    """A matrix of `shape`: row i has values[indptr[i]:indptr[i + 1]] in the columns indices[indptr[i]:indptr[i + 1]].

    Args:
        indptr: Int32 or Int64 (rows + 1,). indices: of the same type, (count,). values: (count,).
        csr_tensor: a CSRTensor in place of all others.

    Raises TypeError if a part is no tensor of its kind; ValueError if the shapes do not fit together.
    """

    __slots__ = ()

    def __new__(
        cls, indptr: Any = None, indices: Any = None, values: Any = None, shape: Any = None, csr_tensor: Any = None
    ) -> CSRTensor:
        if csr_tensor is not None:
            return csr_tensor
        found = super().__new__(cls, indptr, indices, values, shape)
        _check(found, ("indptr", 1), ("indices", 1), ("values", 1))
        if isinstance(indptr, Tensor) and (len(shape), indptr.shape, indices.shape) != (
            2, (shape[0] + 1,), values.shape
        ):  # fmt: skip
            raise ApiValueError(
                f"CSRTensor: indptr of shape {indptr.shape}, indices of shape {indices.shape} and values of shape "
                f"{values.shape} do not fit a matrix of shape {shape}"
            )
        return found

    def to_tuple(self) -> tuple[Any, ...]:
        return self.indptr, self.indices, self.values, self.shape

    def to_coo(self) -> COOTensor:
        rows = ops.csr2coo(self.indptr, self.values.shape[0])
        return COOTensor(ops.stack((rows, self.indices), 1), self.values, self.shape)

    def to_dense(self) -> Any:
        """Return the dense matrix."""
        return self.to_coo().to_dense()

    def mv(self, dense_vector: Any) -> Any:
        """Return the product with a matrix of one column."""
        return self.mm(dense_vector)

    def mm(self, matrix: Any) -> Any:
        """Return the product with a dense matrix."""
        rows = ops.csr2coo(self.indptr, self.values.shape[0])
        taken = ops.gather(matrix, self.indices, 0) * ops.expand_dims(self.values, 1)
        return ops.UnsortedSegmentSum()(taken, rows, self.shape[0])

    def astype(self, dtype: Any) -> CSRTensor:
        return CSRTensor(self.indptr, self.indices, ops.cast(self.values, dtype), self.shape)

    def abs(self) -> CSRTensor:
        return CSRTensor(self.indptr, self.indices, ops.abs(self.values), self.shape)


def _dense(tensor: _Sparse, operator: str) -> ApiTypeError:
    name = type(tensor).__name__
    return ApiTypeError(
        f"{name} has no {operator}: how many values the result holds depends on these",
        ["compute with to_dense(), or with the values alone"],
    )


def _check(tensor: Any, *parts: tuple[str, int]) -> None:
    """Raise TypeError or ValueError if a part is no tensor or has other dimensions, or the shape is invalid."""
    name, shape = type(tensor).__name__, tensor.shape
    if not isinstance(shape, tuple) or not all(getattr(n, "value", n) is not None for n in shape):
        raise ApiTypeError(f"{name}: shape must be a tuple of integers, not {shape!r}")
    for part, dimensions in parts:
        value = getattr(tensor, part)
        if not hasattr(value, "dtype") and isinstance(value, bool | int | float | str | list | None):
            raise ApiTypeError(f"{name}: {part} must be a Tensor, not {value!r}")
        if not isinstance(value, Tensor):
            continue
        if part != "values" and value.dtype not in (INT32, INT64):
            raise ApiTypeError(f"{name}: {part} must be of Int32 or Int64, not {value.dtype}")
        if len(value.shape) != dimensions:
            raise ApiValueError(
                f"{name}: {part} must have {dimensions} dimensions, not {len(value.shape)}", code="E0303"
            )


def of_coordinates(name: str, function: Any, x: Any) -> Any:
    """Return a COOTensor with a function applied to the values of another."""
    if not isinstance(x, COOTensor):
        raise ApiTypeError(f"{name}(): x must be a COOTensor, not {describe(x)}")
    return COOTensor(x.indices, function(x.values), x.shape)


def of_rows(name: str, function: Any, x: Any) -> Any:
    """Return a CSRTensor with a function applied to the values of another."""
    if not isinstance(x, CSRTensor):
        raise ApiTypeError(f"{name}(): x must be a CSRTensor, not {describe(x)}")
    return CSRTensor(x.indptr, x.indices, function(x.values), x.shape)
