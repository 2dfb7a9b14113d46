"""`dataset.config`: settings of data pipelines. Only the seed has an effect: pipelines run in one thread."""

from __future__ import annotations

from mspc.api import state
from mspc.api.errors import ApiValueError


def set_seed(seed: int) -> None:
    """Seed of shuffling. Raises ValueError for a negative or too large seed."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ApiValueError(f"dataset.config.set_seed({seed!r}): the seed must be from 0 to 4294967295")
    state.current().dataset_seed = seed


def get_seed() -> int | None:
    """The seed of shuffling, None before `set_seed`."""
    return state.current().dataset_seed


def set_num_parallel_workers(num: int) -> None:
    """Accepted."""


def set_prefetch_size(size: int) -> None:
    """Accepted."""


def set_enable_shared_mem(enable: bool) -> None:
    """Accepted."""
