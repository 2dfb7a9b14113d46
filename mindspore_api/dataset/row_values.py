"""Conversion of row values, and checks of arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.mindspore_api import state
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError

Row = tuple[np.ndarray, ...]


def as_column(value: Any) -> np.ndarray:
    """Return a value of a row as an array. A dict, possibly nested, becomes an array of no dimensions that holds it.
    Raise TypeError for objects other than numbers, strings and arrays."""
    if isinstance(value, Tensor):
        return value.array
    if isinstance(value, dict):
        held = np.empty((), object)
        held[()] = {key: given(as_column(each)) for key, each in value.items()}
        return held
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind == "O":
        raise ApiTypeError(f"a column must hold numbers or arrays, not {type(value).__name__}")
    return array


def given(value: np.ndarray) -> Any:
    """Return a value of a row in the form for user functions and iterators: an array, or the dict that it holds."""
    return value.item() if value.dtype.hasobject and not value.ndim else value


def next_shuffle() -> int:
    """Return a number for a node that draws random numbers. Ranks that build the same data sets get the same
    numbers."""
    session = state.current()
    session.shuffles += 1
    return session.shuffles


def integer(function: str, what: str, value: Any, least: int = 1, most: int = 2**63 - 1) -> int:
    """Return `value` as a count. Raise TypeError if it is no integer, ValueError if it is below `least` or above
    `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ApiTypeError(f"{function}: {what} must be an integer, not {value!r}")
    if value < least:
        raise ApiValueError(f"{function}: {what} {value} must be at least {least}")
    if value > most:
        raise ApiValueError(f"{function}: {what} {value} must be at most {most}")
    return int(value)


def flag(function: str, what: str, value: Any) -> bool:
    """Return `value` as a bool. Raise TypeError for anything else."""
    if not isinstance(value, (bool, np.bool_)):
        raise ApiTypeError(f"{function}: {what} must be True or False, not {value!r}")
    return bool(value)


def common_shape(name: str, shapes: set[tuple[int, ...]]) -> list[int | None]:
    """Return the shape of all rows of a column, with None for sizes that differ. Raise ValueError if numbers of
    dimensions differ."""
    if len({len(shape) for shape in shapes}) != 1:
        raise ApiValueError(f"output_shapes: rows of column '{name}' have shapes {sorted(shapes)}: no common one")
    return [sizes[0] if len({*sizes}) == 1 else None for sizes in zip(*shapes, strict=True)]


def names_of(function: str, what: str, columns: Any) -> list[str]:
    """Return column names, given as one string or a list. Raise TypeError for other values, ValueError for a
    duplicate."""
    names = [columns] if isinstance(columns, str) else columns
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) and name for name in names):
        raise ApiTypeError(f"{function}: {what} must be a name or a list of names, not {columns!r}", code="E1101")
    return distinct(function, what, names)


def distinct(function: str, what: str, names: Sequence[str]) -> list[str]:
    """Return the names. Raise ValueError for a duplicate."""
    for name in names:
        if list(names).count(name) > 1:
            raise ApiValueError(f"{function}: {what} names {name!r} twice")
    return list(names)


def workers_of(function: str, workers: Any, default: int) -> int:
    """Return the requested number of workers, or the default for None. Results do not depend on it."""
    return default if workers is None else integer(function, "num_parallel_workers", workers)


def threads_of(workers: int) -> int:
    """Return the number of threads: that of the workers, but no more than the machine's cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(workers, cores)
