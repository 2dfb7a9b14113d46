"""Tensors that are elements of another one, as rows, slices and other shapes: writing to one writes to the other.

Tensors share the memory of NumPy's views, but nothing is written into an array that a tensor has: a graph that was fed
with it may hold it. A write to a view makes a new array of the whole tensor with the new elements in it. Other views
find their elements in the new array when they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class View:
    """Elements of a tensor's memory, known by their offset and strides.

    root: the tensor, no view itself. seen: its array of which the view has elements.
    """

    def __init__(self, root: Any, seen: np.ndarray) -> None:
        self.root = root
        self.seen = seen

    def follow(self, tensor: Any) -> None:
        """Let `tensor` have the elements that are there now. A view of a parameter keeps its values: to read those of
        now, the ranks that train it would have to meet."""
        if not self.root.is_followed or tensor._array is None:
            return
        now = self.root.array
        if now is self.seen:
            return
        if not _is_laid_out_alike(now, self.seen):
            tensor._view = None  # the whole tensor was replaced by another one
            return
        tensor._array, self.seen = _placed(tensor._array, self.seen, now), now

    def write(self, tensor: Any, before: np.ndarray) -> None:
        """Put the new values of `tensor`, whose array was `before`, into the tensor that it is a view of."""
        held, new = self.root.array, tensor._array
        if new.shape != before.shape or new.dtype != before.dtype or not _is_laid_out_alike(held, self.seen):
            tensor._view = None
            return
        written = np.array(held, order="K")
        tensor._array = _placed(before, self.seen, written)
        tensor._array[...] = new
        self.root.array = written
        self.seen = written


class IndexedView:
    """Elements that an index with arrays chooses, which are copies. They are written to their places, but do not follow
    what is written there otherwise, as in MindSpore."""

    def __init__(self, root: Any, index: Any) -> None:
        self.root = root
        self.index = index

    def follow(self, tensor: Any) -> None:
        """The elements are copies."""

    def write(self, tensor: Any, before: np.ndarray) -> None:
        """Put the new values of `tensor` to their places."""
        if tensor._array.shape == before.shape:
            self.root[self.index] = tensor._array


def may_share(array: np.ndarray, other: np.ndarray | None) -> bool:
    """Return whether two arrays are views of one memory."""
    return other is not None and _owner(array) is _owner(other)


def note_view(made: Any, source: Any, array: np.ndarray | None) -> None:
    """Make a tensor, whose array is in the memory of `array`, the one of another tensor, a view of that."""
    known = source._view
    is_view = isinstance(known, View)
    seen = known.seen if is_view else array
    if seen is not None and seen.flags.forc and (is_view or seen.shape == source.shape):
        made._view = View(known.root if is_view else source, seen)


def note_views(results: Any, operands: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
    """Make results views of the tensors among the operands in whose arrays they are, as after a reshape."""
    for made in results if isinstance(results, tuple) else (results,):
        for operand, array in zip(operands, arrays, strict=False):
            if may_share(made.array, array) and hasattr(operand, "is_followed"):
                note_view(made, operand, array)
                break


def _owner(array: np.ndarray) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _is_laid_out_alike(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.strides == other.strides


def _placed(view: np.ndarray, whole: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The elements of `other` that are where `view` is in `whole`."""
    offset = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    memory = other.reshape(-1, order="A").view(np.uint8)
    return np.ndarray(view.shape, view.dtype, memory, offset, view.strides)
