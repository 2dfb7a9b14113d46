"""A kernel has scratch memory that it writes and reads again before it ends; its thread stores it, as fresh memory
costs more than what is written to it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_CACHED = 1 << 24
"""Most bytes of an array that is stored: larger ones come from the system."""


class _ScratchArrays(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}


_cached = _ScratchArrays()


def scratch(name: str, shape: Sequence[int], dtype: Any) -> Any:
    """An array of NumPy's with any content. The next call for the same name on the same thread may hand out its memory
    again."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size > MOST_CACHED:
        return np.empty(shape, dtype)
    found = _cached.arrays.get(name)
    if found is None or found.size < size:
        found = _cached.arrays[name] = np.empty(size, np.uint8)
    return found[:size].view(dtype).reshape(shape)
