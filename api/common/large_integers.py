"""This module makes arrays of integers as large as 64 bits hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError


def in_64_bits(numbers: Any) -> np.ndarray:
    """The array of a number or of nested lists of them. Integers from 2**63 on are UInt64 beside small ones too, of
    which NumPy makes floats.

    Raises:
        TypeError: a negative integer stands beside one of these. ValueError: rows differ in length.
    """
    array = np.array(numbers)
    if array.dtype.kind != "f" or not (np.abs(array) >= 2.0**63).any():
        return array
    exact = np.array(numbers, object)
    if not all(isinstance(number, int | np.integer) for number in exact.flat):
        return array
    if exact.min() < 0:
        raise ApiTypeError(f"a tensor is made of numbers of one element type, not of {numbers!r}")
    return exact.astype(np.uint64)
