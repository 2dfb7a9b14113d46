"""This module finds the sizes of the parts that a data set is split into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api.errors import ApiRuntimeError, ApiTypeError, ApiValueError


def sizes_of_splits(sizes: Sequence[Any], rows: int) -> list[int]:
    """Numbers of rows from numbers or shares; what rounding leaves goes to the first part that can take it.

    Raises:
        TypeError: `sizes` is no list of integers or of floats. ValueError: a share is not from 0 to 1, or they are not
            1 in all. RuntimeError: the parts are not all rows, or one is empty.
    """
    given = list(sizes) if isinstance(sizes, (list, tuple)) else []
    if given and all(isinstance(size, int) and not isinstance(size, bool) for size in given):
        if any(size < 1 for size in given) or sum(given) != rows:
            raise ApiRuntimeError(f"split: sizes {given} must be positive and {rows} in all, the rows of the data set")
        return given
    if not given or not all(isinstance(size, float) for size in given):
        raise ApiTypeError(f"split: sizes must be a list of integers or of floats, not {sizes!r}")
    if any(not 0 < share <= 1 for share in given) or abs(sum(given) - 1) > 1e-9:
        raise ApiValueError(f"split: the shares {given} must be above 0 and 1 in all")
    counts = [round(share * rows) for share in given]
    left = rows - sum(counts)
    for place, count in enumerate(counts):
        if count + left > 0:
            counts[place] += left
            break
    if min(counts) < 1:
        raise ApiRuntimeError(f"split: the shares {given} of {rows} rows leave a part without rows")
    return counts
