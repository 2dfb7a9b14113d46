"""Pending results, which may still be in transit from a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


class Pending:
    """Array of known shape and element type whose values are fetched at their first use. arrive: waits for the values
    and returns them, in memory of their own."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, arrive: Callable[[], Array]) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._arrive: Callable[[], Array] | None = arrive
        self._array: Array = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def fetch(self) -> Array:
        """Return the values as a NumPy array."""
        if self._arrive is not None:
            self._array = self._arrive()
            self._arrive = None
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = self.fetch()
        return found if dtype is None or found.dtype == dtype else found.astype(dtype)
