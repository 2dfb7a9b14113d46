"""The script's seed, `set_seed`, for initial values, shuffling and dropout."""

from __future__ import annotations

import random

import numpy as np

from mspc.mindspore_api import state
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError

DEFAULT_SEED = 0
"""Used until a script calls `set_seed`, so that all ranks draw the same numbers."""


def set_seed(seed: int) -> None:
    """Seed NumPy, `random`, initial values, shuffling and dropout. Raise TypeError if `seed` is no integer, ValueError
    if it is negative or above 2**32 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise ApiTypeError(f"set_seed takes an integer, not {type(seed).__name__}")
    if not 0 <= seed < 2**32:
        raise ApiValueError(f"set_seed({seed}): the seed must be from 0 to 4294967295")
    session = state.current()
    session.seed = int(seed)
    session.initializers = 0
    session.shuffles = 0
    session.dropouts = 0
    session.draws = 0
    np.random.seed(int(seed))
    random.seed(int(seed))


def get_seed() -> int | None:
    """Return the seed set by `set_seed`, or None."""
    return state.current().seed


def next_initial_value() -> tuple[int, int]:
    """Return seed and counter for the next tensor that gets initial values."""
    session = state.current()
    session.initializers += 1
    return (DEFAULT_SEED if session.seed is None else session.seed), session.initializers - 1


def of_pipelines() -> int:
    """Return the seed of data pipelines."""
    session = state.current()
    seed = session.seed if session.dataset_seed is None else session.dataset_seed
    return DEFAULT_SEED if seed is None else seed


def seeds_of_call(chosen: tuple[int, int], call: int) -> tuple[int, int]:
    """Return the seeds of the `call`-th call, from 0, of one random operator, or of all operators without seeds. Every
    call draws different numbers, even if a layer is called twice."""
    if any(chosen):
        return chosen[0], chosen[1] + call * _BETWEEN_CALLS
    seed = state.current().seed
    return (DEFAULT_SEED if seed is None else seed), _WITHOUT_SEEDS + call


_WITHOUT_SEEDS = 1 << 32
"""Above the numbers of layers."""
_BETWEEN_CALLS = 1 << 40


def eager_seeds() -> tuple[int, int]:
    """Return the seeds of a call without seeds outside of a network."""
    session = state.current()
    session.draws += 1
    seed, number = seeds_of_call((0, 0), session.draws)
    return seed, number + _BETWEEN_CALLS // 2


def new_dropout_seeds() -> tuple[int, int]:
    """Return (the script's seed, a unique number) for a new Dropout; equal on all ranks that build the same network."""
    session = state.current()
    session.dropouts += 1
    return (DEFAULT_SEED if session.seed is None else session.seed), session.dropouts
