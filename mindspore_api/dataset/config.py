"""Settings of data pipelines (`dataset.config`): seed, number of workers per node, number of rows read in advance."""

from __future__ import annotations

import inspect
import random
from typing import Any

import numpy as np

from mspc.mindspore_api import state
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.setting_kind import checked, place_of_caller, say_once
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


def _get(name: str) -> Any:
    return state.current().general.get(_KEY, {}).get(name, DATASET[name].default)


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
        return _get(name)

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
set_enable_shared_mem, get_enable_shared_mem = _pair("enable_shared_mem", "enable", "whether workers share memory")
set_numa_enable, get_numa_enable = _pair("numa_enable", "enable", "whether workers are bound to a NUMA node")
set_autotune_interval, get_autotune_interval = _pair(
    "autotune_interval", "interval", "the number of steps between two tunings of the workers"
)


def set_enable_autotune(enable: bool, filepath_prefix: str | None = None) -> None:
    """Set whether a pipeline tunes its number of workers; a warning says that it changes nothing. No file with the
    prefix filepath_prefix is written. Raise TypeError for no bool."""
    _set("enable_autotune", enable)


def get_enable_autotune() -> bool:
    """Return the value of `set_enable_autotune`, or MindSpore's default."""
    return _get("enable_autotune")


def set_iterator_mode(do_copy: bool = False, parallel_convert: bool = False) -> None:
    """Set how iterators return arrays; a warning says that do_copy and parallel_convert change nothing."""
    state.current().general["iterator_mode"] = {"do_copy": do_copy, "parallel_convert": parallel_convert}
    if do_copy or parallel_convert:
        why = "an array that was handed out is not written again"
        say_once("iterator_mode", f"{place_of_caller()}dataset.config.set_iterator_mode() changes nothing here: {why}")


def get_iterator_mode() -> dict[str, bool]:
    """Return the value of `set_iterator_mode`, or MindSpore's default."""
    return state.current().general.get("iterator_mode", {"do_copy": False, "parallel_convert": False})


def set_debug_mode(debug_mode_flag: bool, debug_hook_list: list[Any] | None = None) -> None:
    """Set whether a pipeline is debugged; a warning says that it changes nothing. Raise TypeError for no bool,
    ValueError for hooks."""
    if debug_hook_list:
        raise ApiValueError("dataset.config.set_debug_mode: debug_hook_list is not supported",
                            ["a function in map() sees every row"])  # fmt: skip
    _set("debug_mode", debug_mode_flag)


def get_debug_mode() -> bool:
    """Return the value of `set_debug_mode`, or MindSpore's default."""
    return _get("debug_mode")
