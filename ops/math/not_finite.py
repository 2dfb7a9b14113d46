"""This module decides what decompositions of matrices give that hold NaN or infinity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np


def decomposed(xp: Any, compute: Callable[[Any], Any], x: Any) -> Any:
    """`compute(x)`, an array or a tuple of them; what belongs to a matrix [..., m, n] with NaN or infinity is NaN.

    Libraries differ there: one raises an error, which would end a training whose step is to be left out, one prints to
    stderr, and one turns for ever.
    """
    if xp is not np:
        return compute(x)
    fine: Any = np.isfinite(x).all((-2, -1))
    if fine.all():
        return compute(x)
    found = compute(np.where(fine[..., None, None], x, np.zeros((), x.dtype)))
    parts: tuple[Any, ...] = cast(Any, found) if isinstance(found, tuple) else (found,)
    for part in parts:
        part[~fine] = np.nan
    return cast(Any, found)
