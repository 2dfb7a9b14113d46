"""Values that lie in a checkpoint: a parameter holds their place, and reads what it needs when that is known."""

from __future__ import annotations

import numpy as np

from mspc.api.common.initial_values import InitialValue
from mspc.checkpoint.stored_tensors import Checkpoint
from mspc.ir.initial_value import Description, Slices, clear_row
from mspc.ir.types import DType


class StoredValue(InitialValue):
    """A tensor of an open checkpoint, in place of an initializer.

    source: the checkpoint. key: the tensor's name there.
    """

    in_parts = True

    def __init__(self, source: Checkpoint, key: str) -> None:
        self.source = source
        self.key = key
        self.shape = source.tensors[key].type.shape
        self.dtype = source.tensors[key].type.dtype
        self.zero_row = None

    def description(self) -> Description | None:
        return None

    def fill(self, slices: Slices | None = None) -> np.ndarray:
        """The values in `slices` (None: all); no other bytes are read. Raises MspcError."""
        array = self.source.read(self.key, slices).astype(self.dtype.numpy, copy=False)
        clear_row(array, self.zero_row, self.shape, slices)
        return array

    def cast(self, dtype: DType) -> InitialValue | None:
        return self if dtype == self.dtype else self._with(dtype=dtype)

    def restyled(self, dtype: DType) -> InitialValue:
        return self._with(dtype=dtype)
