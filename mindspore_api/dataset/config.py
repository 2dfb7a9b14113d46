"""Settings of data pipelines (`dataset.config`): seed, number of workers per node, number of rows read in advance."""

from __future__ import annotations

import inspect
import random
from typing import Any

import numpy as np

from mspc.mindspore_api import state
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.setting_kind import checked
from mspc.mindspore_api.settings import DATASET

_KEY = "dataset"
UNSEEDED = 5489
"""The seed that means "no seed", as in MindSpore."""


def set_seed(seed: int) -> None:
    """Set the seed of random operations in pipelines, and of NumPy's and Python's generators. With 5489 pipelines use
    the seed of `mindspore.set_seed`. Raise TypeError for no integer, ValueError for a negative or too large seed."""
    if not 0 <= seed < 2**32:
        raise ApiValueError(f"dataset.config.set_seed({seed!r}): the seed must be from 0 to 4294967295")
    state.current().dataset_seed = None if seed == UNSEEDED else seed
    np.random.seed(seed)
    random.seed(seed)


def get_seed() -> int:
    """Return the seed of pipelines, or 5489 before `set_seed`; pipelines then use the seed of `mindspore.set_seed`."""
    found = state.current().dataset_seed
    return UNSEEDED if found is None else found


def _set(name: str, value: Any) -> None:
    found = checked(f"dataset.config.set_{name}", DATASET, {name: value})
    state.current().general.setdefault(_KEY, {}).update(found)


def _pair(name: str, argument: str, what: str, default: Any = inspect.Parameter.empty) -> Any:
    """Return the functions that set and return a setting. argument: the name of the value."""
    kind = type(DATASET[name].default).__name__
    value = inspect.Parameter(argument, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)
    taken = inspect.Signature([value], return_annotation="None")

    def put(*args: Any, **kwargs: Any) -> None:
        bound = taken.bind(*args, **kwargs)
        bound.apply_defaults()
        _set(name, bound.arguments[argument])

    def get() -> Any:
        return state.current().general.get(_KEY, {}).get(name, DATASET[name].default)

    ignored = "; a warning says that it changes nothing" if DATASET[name].ignored else ""
    put.__doc__ = f"Set {what}{ignored}. Raise TypeError or ValueError for another value."
    get.__doc__ = f"Return the value of `set_{name}`, or MindSpore's default."
    put.__signature__ = taken  # type: ignore[attr-defined]  # as `help` and messages read it
    get.__annotations__["return"] = kind
    put.__name__, get.__name__ = put.__qualname__, get.__qualname__ = f"set_{name}", f"get_{name}"
    return put, get


set_num_parallel_workers, get_num_parallel_workers = _pair(
    "num_parallel_workers", "num", "the number of threads for nodes without their own setting, which changes no result"
)
set_prefetch_size, get_prefetch_size = _pair(
    "prefetch_size", "size", "the number of rows, or batches, to read in advance, up to 256 MiB"
)
