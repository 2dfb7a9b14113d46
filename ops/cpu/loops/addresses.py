"""Where arrays lie, as compiled functions take it: a table of addresses that is filled again only where arrays change.

A program's buffers are mostly the same at every step, and to ask NumPy for an address takes longer than a small loop.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np


class Addresses:
    """A table of addresses. `table` is what functions take."""

    def __init__(self, count: int) -> None:
        self.table = (ctypes.c_void_p * max(1, count))()
        self._known: list[Any] = [_nothing] * count
        self.copies: list[Any] = []
        self._held: list[Any] = []

    def put(self, place: int, array: Any) -> None:
        """An array that is contiguous, which may be written to; nothing here makes it stay alive."""
        if self._known[place]() is not array:
            self.table[place] = address(array)
            self._known[place] = weakref.ref(array)

    def hold(self, place: int, array: Any) -> None:
        """An array that stays alive as long as the table."""
        self.put(place, array)
        self._held.append(array)

    def read(self, place: int, array: Any, dtype: Any) -> None:
        """An array that is read: contiguous in the table, a copy of it until `release` where it is not, or has another
        element type, or is a number."""
        if self._known[place]() is array:
            return
        if isinstance(array, np.ndarray) and array.dtype == dtype and array.flags.c_contiguous:
            self.put(place, array)
        else:
            self.copied(place, np.ascontiguousarray(array, dtype))

    def copied(self, place: int, array: Any) -> None:
        """An array that stays alive until `release`."""
        self.table[place] = address(array)
        self._known[place] = _nothing
        self.copies.append(array)

    def release(self) -> None:
        """Let go of copies."""
        if self.copies:
            self.copies.clear()


class Settled:
    """The arrays of a call after which a table holds all that the next one needs, if that has the same ones."""

    def __init__(self) -> None:
        self._operands: list[Any] = []
        self._out: Any = None

    def note(self, operands: Sequence[Any], out: Any) -> None:
        """Arrays of NumPy's, and a place for results that stays; None where the next call must look for itself."""
        self._out = out
        self._operands = [weakref.ref(array) for array in operands] if out is not None else []

    def has(self, operands: Sequence[Any], out: Any) -> bool:
        """Whether these are the arrays of the call that was noted."""
        if out is None or out is not self._out:
            return False
        return all(known() is array for known, array in zip(self._operands, operands, strict=True))


def address(array: Any) -> int:
    """Where an array of NumPy's begins."""
    return array.__array_interface__["data"][0]


def _nothing() -> None:
    """Of a place that no array is known for."""
