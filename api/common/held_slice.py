"""A rank's own slice of a tensor takes the place of an initializer: it was read from the checkpoint that the rank
wrote."""

from __future__ import annotations

import numpy as np

from mspc.api.common.initial_values import InitialValue
from mspc.ir.diagnostics import MspcError
from mspc.ir.initial_value import Description, Slices
from mspc.ir.layout import Layout
from mspc.ir.types import DType, dtype_of


class HeldSlice(InitialValue):
    """A tensor of `shape` of which this rank knows what `layout` gives it."""

    def __init__(self, name: str, shape: tuple[int, ...], layout: Layout, rank: int, array: np.ndarray) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype_of(array.dtype)
        self.zero_row = None
        self._places = layout.slices_for(rank, shape)
        self._array = array

    def description(self) -> Description | None:
        return None

    def fill(self, slices: Slices | None = None) -> np.ndarray:
        """The slice. Raises MspcError for any other."""
        if slices is None or [(s.start, s.stop) for s in slices] != [(s.start, s.stop) for s in self._places]:
            raise MspcError(
                f"parameter '{self.name}': only this rank's own slice was loaded",
                notes=[
                    "the global tensor is there when the network trains, sharded as when the checkpoint was written",
                    "load_distributed_checkpoint reads the files of all ranks for any strategy",
                ],
            )
        return self._array.astype(self.dtype.numpy)

    def cast(self, dtype: DType) -> InitialValue | None:
        return self if dtype == self.dtype else self._with(dtype=dtype)

    def restyled(self, dtype: DType) -> InitialValue:
        return self._with(dtype=dtype)
