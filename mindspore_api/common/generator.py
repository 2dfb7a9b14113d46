"""Generators of random numbers, and the seeds of random operators."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from mspc.mindspore_api import state
from mspc.mindspore_api.common.seed import DEFAULT_SEED, get_seed, set_seed
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.ops.operator_arguments import describe

_STATES = 1 << 20
"""Above the numbers that distinguish draws of one seed."""


class Generator:
    """Sequence of random numbers for the argument `generator=` of functions. In a network every draw gets its offset
    when the network is compiled, and draws different numbers in every step."""

    def __init__(self) -> None:
        self._seed, self._offset = DEFAULT_SEED, 0

    def manual_seed(self, seed: int) -> Generator:
        """Begin the sequence of this seed, and return the generator. Raise TypeError or ValueError for an invalid
        seed."""
        self._seed, self._offset = checked_seed("manual_seed", seed), 0
        return self

    def seed(self) -> int:
        """Begin a sequence with a random seed, and return the seed."""
        self.manual_seed(secrets.randbits(32))
        return self.initial_seed()

    def initial_seed(self) -> int:
        """Return the seed of the sequence."""
        return self._seed

    def get_state(self) -> Any:
        """Return the seed and the offset, as a tensor."""
        return Tensor.from_array(np.array([self._seed, self._offset], np.int64))

    def set_state(self, state: Any) -> None:
        """Continue from the result of `get_state`. Raise ValueError for anything else."""
        self._seed, self._offset = state_of("set_state", state)

    def _step(self, step: Any) -> tuple[Tensor, Tensor]:
        """Return the seed and the offset, Int64 of shape (), and advance the offset by `step`, a number or a tensor of
        one."""
        seed, offset = (int(part) for part in self.get_state().asnumpy())
        self.set_state(Tensor.from_array(np.array([seed, offset + int(step)], np.int64)))
        return Tensor.from_array(np.array(seed)), Tensor.from_array(np.array(offset))

    def next_seeds(self) -> tuple[int, int]:
        """Return two seeds for the next random operator."""
        self._offset += 1
        return self._seed, _STATES + self._offset


class _OfTheScript(Generator):
    """Default generator, for functions without a generator argument: its seed is that of `set_seed`."""

    def __init__(self) -> None:  # its seed and its place are the session's
        pass

    def manual_seed(self, seed: int) -> Generator:
        set_seed(checked_seed("manual_seed", seed))
        return self

    def initial_seed(self) -> int:
        seed = get_seed()
        return DEFAULT_SEED if seed is None else seed

    def get_state(self) -> Any:
        return Tensor.from_array(np.array([self.initial_seed(), state.current().draws], np.int64))

    def set_state(self, state: Any) -> None:
        seed, offset = state_of("set_state", state)
        set_seed(seed)
        _set_offset(offset)

    def next_seeds(self) -> tuple[int, int]:
        return 0, 0


def _set_offset(count: int) -> None:
    state.current().draws = count


default_generator = _OfTheScript()
"""Generator of functions without a generator argument."""


def manual_seed(seed: int) -> Generator:
    """Set the seed as `set_seed` does, and return the default generator."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Set a random seed, as by `set_seed`, and return it."""
    return default_generator.seed()


def initial_seed() -> int:
    """Return the seed of `set_seed`, or 0."""
    return default_generator.initial_seed()


def get_rng_state() -> Any:
    """Return the state from which draws outside of networks continue, a tensor."""
    return default_generator.get_state()


def set_rng_state(state: Any) -> None:
    """Continue from the result of `get_rng_state`. Raise ValueError for anything else."""
    default_generator.set_state(state)


def checked_seed(name: str, seed: Any) -> int:
    """Return an integer from 0 to 2**32 - 1. Raise TypeError or ValueError for anything else."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise ApiTypeError(f"{name}(): the seed must be an integer, not {describe(seed)}")
    if not 0 <= seed < 2**32:
        raise ApiValueError(f"{name}(): the seed must be from 0 to 4294967295, not {seed}")
    return int(seed)


def state_of(name: str, state: Any) -> tuple[int, int]:
    """Return (seed, offset) from a generator's state."""
    array = state.array if isinstance(state, Tensor) else None
    if array is None or array.shape != (2,) or array.dtype.kind not in "iu":
        raise ApiValueError(f"{name}(): the state must be a result of get_state, not {describe(state)}")
    return checked_seed(name, int(array[0])), int(array[1])


def seeds_of(given: Any, which: int = 0) -> tuple[int, int]:
    """Return the two seeds of an operator; zeros if no seed is given, so that it draws numbers of its own. A Generator
    returns different seeds at each call. which: distinguishes the draws of one integer seed. Raise TypeError for
    anything but an integer, a Generator or None."""
    if given is None:
        return 0, 0
    if isinstance(given, Generator):
        return given.next_seeds()
    if isinstance(given, bool) or not isinstance(given, int):
        raise ApiTypeError(f"a seed must be an integer, a Generator or None, not {describe(given)}")
    return given, which
