"""This module makes tensors of what lies in memory already."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiValueError
from mspc.ir.types import FLOAT32, dtype_of


def frombuffer(buffer: Any, *, dtype: Any = FLOAT32, count: int = -1, offset: int = 0) -> Any:
    """A vector of the bytes of a buffer from `offset` on, `count` elements or all; it shares them.

    Raises:
        ValueError: there are not so many.
    """
    try:
        return Tensor.from_array(np.frombuffer(buffer, dtype_of(dtype).numpy, count, offset))
    except ValueError as error:
        raise ApiValueError(f"frombuffer(): {error}") from None
