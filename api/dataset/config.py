"""`dataset.config`: settings of data pipelines. Only the seed has an effect: pipelines run in one thread."""

from __future__ import annotations

from typing import Any

from mspc.api import state
from mspc.api.errors import ApiValueError
from mspc.api.setting import checked
from mspc.api.settings import DATASET

_KEY = "dataset"


def set_seed(seed: int) -> None:
    """Seed of shuffling. Raises ValueError for a negative or too large seed."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ApiValueError(f"dataset.config.set_seed({seed!r}): the seed must be from 0 to 4294967295")
    state.current().dataset_seed = seed


def get_seed() -> int | None:
    """The seed of shuffling, None before `set_seed`."""
    return state.current().dataset_seed


def set_num_parallel_workers(num: int) -> None:
    """How many workers read ahead; says that it changes nothing. Raises TypeError or ValueError for no positive
    number."""
    _set("num_parallel_workers", num)


def get_num_parallel_workers() -> int:
    """What `set_num_parallel_workers` has set, or MindSpore's default."""
    return _get("num_parallel_workers")


def set_prefetch_size(size: int) -> None:
    """How many batches are read ahead; says that it changes nothing. Raises TypeError or ValueError for no positive
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


def _set(name: str, value: Any) -> None:
    found = checked(f"dataset.config.set_{name}", DATASET, {name: value})
    state.current().general.setdefault(_KEY, {}).update(found)


def _get(name: str) -> Any:
    return state.current().general.get(_KEY, {}).get(name, DATASET[name].default)
