"""`set_seed`: the one seed behind initial values, shuffling and dropout."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from mspc.api import state
from mspc.api.errors import ApiTypeError, ApiValueError

DEFAULT_SEED = 0
"""Used until a script calls `set_seed`, so that all ranks draw the same numbers."""


def set_seed(seed: int) -> None:
    """Seed NumPy, `random`, initial values, shuffling and dropout.

    Raises:
        TypeError: `seed` is no integer. ValueError: it is negative or above 2**32 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise ApiTypeError(f"set_seed takes an integer, not {type(seed).__name__}")
    if not 0 <= seed < 2**32:
        raise ApiValueError(f"set_seed({seed}): the seed must be from 0 to 4294967295")
    session = state.current()
    session.seed = int(seed)
    session.initializers = 0
    session.shuffles = 0
    session.dropouts = 0
    np.random.seed(int(seed))
    random.seed(int(seed))


def get_seed() -> int | None:
    """The seed set by `set_seed`, None without one."""
    return state.current().seed


def generator(*key: int) -> Any:
    """A generator for data pipelines, which depends on the seed and on `key` alone."""
    session = state.current()
    seed = session.seed if session.dataset_seed is None else session.dataset_seed
    sequence = np.random.SeedSequence([DEFAULT_SEED if seed is None else seed, *key])
    return np.random.Generator(np.random.Philox(sequence))


def new_dropout_seeds() -> tuple[int, int]:
    """(the script's seed, a number of its own) for a new Dropout; the same on every rank that
    builds the same network.
    """
    session = state.current()
    session.dropouts += 1
    return (DEFAULT_SEED if session.seed is None else session.seed), session.dropouts
