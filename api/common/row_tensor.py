"""A `RowTensor` has some rows of a tensor, as a script may hold them. Gradients of tables are dense tensors here."""

from __future__ import annotations

from typing import Any

from mspc.ir.late_dataclass import dataclass


@dataclass(frozen=True)
class RowTensor:
    """values[i] is row indices[i] of a tensor of this shape; all other rows are zeros."""

    indices: Any
    values: Any
    shape: tuple[int, ...]

    @property
    def dense_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def dtype(self) -> Any:
        return self.values.dtype


RowTensorInner = RowTensor
