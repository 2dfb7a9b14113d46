"""This module makes values of rows, and checks arguments."""

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
    """A value of a row as an array; a dict of values, which may be dicts themselves, as an array of no dimensions that
    holds it. Raises TypeError for other objects than numbers, strings and arrays."""
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
    """A value of a row as functions and iterators of the user have it: an array, or the dict that it holds."""
    return value.item() if value.dtype.hasobject and not value.ndim else value


def next_shuffle() -> int:
    """A number for a stage that draws random numbers; ranks that build the same data sets get the same numbers."""
    session = state.current()
    session.shuffles += 1
    return session.shuffles


def integer(function: str, what: str, value: Any, least: int = 1, most: int = 2**63 - 1) -> int:
    """`value` as a count. Raises TypeError for no integer, ValueError below `least` or above `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ApiTypeError(f"{function}: {what} must be an integer, not {value!r}")
    if value < least:
        raise ApiValueError(f"{function}: {what} {value} must be at least {least}")
    if value > most:
        raise ApiValueError(f"{function}: {what} {value} must be at most {most}")
    return int(value)


def flag(function: str, what: str, value: Any) -> bool:
    """`value` as a bool. Raises TypeError for anything else."""
    if not isinstance(value, (bool, np.bool_)):
        raise ApiTypeError(f"{function}: {what} must be True or False, not {value!r}")
    return bool(value)


def common_shape(name: str, shapes: set[tuple[int, ...]]) -> list[int | None]:
    """The shape of all rows of a column, None if sizes differ. Raises ValueError if not all have as many
    dimensions."""
    if len({len(shape) for shape in shapes}) != 1:
        raise ApiValueError(f"output_shapes: rows of column '{name}' have shapes {sorted(shapes)}: no common one")
    return [sizes[0] if len({*sizes}) == 1 else None for sizes in zip(*shapes, strict=True)]


def names_of(function: str, what: str, columns: Any) -> list[str]:
    """Names of columns, given as one or several. Raises TypeError for others, ValueError for one that comes twice."""
    names = [columns] if isinstance(columns, str) else columns
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) and name for name in names):
        raise ApiTypeError(f"{function}: {what} must be a name or a list of names, not {columns!r}")
    return distinct(function, what, names)


def distinct(function: str, what: str, names: Sequence[str]) -> list[str]:
    """The names. Raises ValueError for one that comes twice."""
    for name in names:
        if list(names).count(name) > 1:
            raise ApiValueError(f"{function}: {what} names {name!r} twice")
    return list(names)


def workers_of(function: str, workers: Any, default: int) -> int:
    """How many workers are requested. What they make does not depend on their number."""
    return default if workers is None else integer(function, "num_parallel_workers", workers)


def threads_of(workers: int) -> int:
    """As many threads as there are workers, but no more than the machine has cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(workers, cores)
