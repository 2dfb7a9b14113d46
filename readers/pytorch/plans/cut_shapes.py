"""Where a dimension of a tensor goes that is cut, when the tensor is viewed or its dimensions move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mspc.readers.pytorch.program import Argument


def merged(shape: Sequence[int], result: Sequence[int], dim: int) -> int | None:
    """The dimension of a view in which the slices of dimension `dim` are slices; None where there is none.

    Of a dimension that is taken apart it is the outermost one; one that is merged has to be the outermost of those that
    become one.
    """
    before = _product(shape[:dim])
    total = 1
    for number, size in enumerate(result):
        if total == before and size != 1:
            return number
        total *= size
    return None


def _product(sizes: Sequence[int]) -> int:
    found = 1
    for size in sizes:
        found *= size
    return found


def moved(kind: str, given: Mapping[str, Argument], dim: int, rank: int) -> int | None:
    """The dimension that `dim` becomes; None where that is not known, or slices of it are none of the result."""
    if kind in ("transpose", "swapaxes"):
        first = _dim(given.get("dim0", given.get("axis0")), rank)
        second = _dim(given.get("dim1", given.get("axis1")), rank)
        if first is None or second is None:
            return None
        return {first: second, second: first}.get(dim, dim)
    if kind == "t":
        return rank - 1 - dim
    if kind == "permute":
        dims = given.get("dims")
        places = [_dim(each, rank) for each in dims] if isinstance(dims, tuple) else []
        return places.index(dim) if dim in places else None
    if kind == "unsqueeze":
        place = _dim(given.get("dim"), rank + 1)
        return None if place is None else dim + (place <= dim)
    if kind in ("slice", "split", "chunk", "cat", "narrow", "split_with_sizes"):
        return dim if _dim(given.get("dim", 0), rank) != dim else None
    if kind == "select":
        place = _dim(given.get("dim"), rank)
        return None if place is None or place == dim else dim - (place < dim)
    if kind == "expand":
        size = given.get("size")
        return dim + len(size) - rank if isinstance(size, tuple) else None
    return None


def _dim(value: Argument, rank: int) -> int | None:
    return value % rank if isinstance(value, int) else None
