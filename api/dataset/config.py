"""`dataset.config`: settings of data pipelines: their seed, how many workers share a stage, how far they read ahead."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from mspc.api import state
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.setting import checked
from mspc.api.settings import DATASET

_KEY = "dataset"


def set_seed(seed: int) -> None:
    """Seed of all that is random in pipelines, and of NumPy's and Python's generators. Raises TypeError for no integer,
    ValueError for a negative or too large seed."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ApiTypeError(f"dataset.config.set_seed({seed!r}): the seed must be an integer")
    if not 0 <= seed < 2**32:
        raise ApiValueError(f"dataset.config.set_seed({seed!r}): the seed must be from 0 to 4294967295")
    state.current().dataset_seed = seed
    np.random.seed(seed)
    random.seed(seed)


def get_seed() -> int | None:
    """The seed of pipelines, None before `set_seed`."""
    return state.current().dataset_seed


def set_num_parallel_workers(num: int) -> None:
    """How many threads share a stage that says nothing itself; what they make does not depend on it. Raises
    TypeError or ValueError for no positive number."""
    _set("num_parallel_workers", num)


def get_num_parallel_workers() -> int:
    """What `set_num_parallel_workers` has set, or MindSpore's default."""
    return _get("num_parallel_workers")


def set_prefetch_size(size: int) -> None:
    """How many rows, or batches, are read ahead, up to 256 MiB of them. Raises TypeError or ValueError for no positive
    number."""
    _set("prefetch_size", size)


def get_prefetch_size() -> int:
    """What `set_prefetch_size` has set, or MindSpore's default."""
    return _get("prefetch_size")


def set_enable_shared_mem(enable: bool) -> None:
    """Whether workers share memory; says that it changes nothing. Raises TypeError for no bool."""
    _set("enable_shared_mem", enable)


def get_enable_shared_mem() -> bool:
    """What `set_enable_shared_mem` has set, or MindSpore's default."""
    return _get("enable_shared_mem")


def set_numa_enable(enable: bool) -> None:
    """Whether workers stay with one part of the memory; says that it changes nothing. Raises TypeError for no bool."""
    _set("numa_enable", enable)


def get_numa_enable() -> bool:
    """What `set_numa_enable` has set, or MindSpore's default."""
    return _get("numa_enable")


def set_enable_watchdog(enable: bool) -> None:
    """Whether workers that hang are looked for; says that it changes nothing. Raises TypeError for no bool."""
    _set("enable_watchdog", enable)


def get_enable_watchdog() -> bool:
    """What `set_enable_watchdog` has set, or MindSpore's default."""
    return _get("enable_watchdog")


def set_multiprocessing_timeout_interval(interval: int) -> None:
    """After how many seconds a slow worker is spoken of; says that it changes nothing. Raises
    TypeError or ValueError for no positive number."""
    _set("multiprocessing_timeout_interval", interval)


def get_multiprocessing_timeout_interval() -> int:
    """What `set_multiprocessing_timeout_interval` has set, or MindSpore's default."""
    return _get("multiprocessing_timeout_interval")


def set_monitor_sampling_interval(interval: int) -> None:
    """How often pipelines are watched, in milliseconds; says that it changes nothing. Raises
    TypeError or ValueError for no positive number."""
    _set("monitor_sampling_interval", interval)


def get_monitor_sampling_interval() -> int:
    """What `set_monitor_sampling_interval` has set, or MindSpore's default."""
    return _get("monitor_sampling_interval")


def _set(name: str, value: Any) -> None:
    found = checked(f"dataset.config.set_{name}", DATASET, {name: value})
    state.current().general.setdefault(_KEY, {}).update(found)


def _get(name: str) -> Any:
    return state.current().general.get(_KEY, {}).get(name, DATASET[name].default)
