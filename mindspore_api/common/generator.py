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
"""Above the numbers with which draws of one seed are told apart."""


class Generator:
    """A sequence of random numbers that `generator=` of functions takes. In a network every draw has its place from
    when it is compiled, and draws other numbers in every step."""

    def __init__(self) -> None:
        self._seed, self._offset = DEFAULT_SEED, 0

    def manual_seed(self, seed: int) -> Generator:
        """Begin the sequence of this seed, and return the generator. Raises TypeError or ValueError for no seed."""
        self._seed, self._offset = checked_seed("manual_seed", seed), 0
        return self

    def seed(self) -> int:
        """Begin a sequence that nobody has chosen; returns its seed."""
        self.manual_seed(secrets.randbits(32))
        return self._seed

    def initial_seed(self) -> int:
        """The seed of the sequence."""
        return self._seed

    def get_state(self) -> Any:
        """The seed and the place, as a tensor."""
        return Tensor.from_array(np.array([self._seed, self._offset], np.int64))

    def set_state(self, state: Any) -> None:
        """Go on from the result of `get_state`. Raises ValueError for anything else."""
        self._seed, self._offset = state_of("set_state", state)

    def _step(self, step: Any) -> tuple[Tensor, Tensor]:
        """The seed and the place, Int64 of shape (); the place moves on by `step`, a number or a tensor of one."""
        seed, offset = (int(part) for part in self.get_state().asnumpy())
        self.set_state(Tensor.from_array(np.array([seed, offset + int(step)], np.int64)))
        return Tensor.from_array(np.array(seed)), Tensor.from_array(np.array(offset))

    def next_seeds(self) -> tuple[int, int]:
        """Two seeds of the next random operator."""
        self._offset += 1
        return self._seed, _STATES + self._offset


class _OfTheScript(Generator):
    """The generator behind functions that are given none: its seed is that of `set_seed`."""

    def __init__(self) -> None:  # its seed and its place are the session's
        pass

    def manual_seed(self, seed: int) -> Generator:
        set_seed(checked_seed("manual_seed", seed))
        return self

    def seed(self) -> int:
        set_seed(secrets.randbits(32))
        return self.initial_seed()

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
"""What draws where no generator is given."""


def manual_seed(seed: int) -> Generator:
    """The same as `set_seed`; returns the generator behind all functions that are given none."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """A seed that nobody has chosen, set as by `set_seed`."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of `set_seed`, 0 without one."""
    return default_generator.initial_seed()


def get_rng_state() -> Any:
    """The state from which draws outside of networks continue, a tensor."""
    return default_generator.get_state()


def set_rng_state(state: Any) -> None:
    """Go on from the result of `get_rng_state`. Raises ValueError for anything else."""
    default_generator.set_state(state)


def checked_seed(name: str, seed: Any) -> int:
    """An integer from 0 to 2**32 - 1. Raises TypeError or ValueError for anything else."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise ApiTypeError(f"{name}(): the seed must be an integer, not {describe(seed)}")
    if not 0 <= seed < 2**32:
        raise ApiValueError(f"{name}(): the seed must be from 0 to 4294967295, not {seed}")
    return int(seed)


def state_of(name: str, state: Any) -> tuple[int, int]:
    """(seed, place) of a generator's state."""
    array = state.array if isinstance(state, Tensor) else None
    if array is None or array.shape != (2,) or array.dtype.kind not in "iu":
        raise ApiValueError(f"{name}(): the state must be what get_state gives, not {describe(state)}")
    return checked_seed(name, int(array[0])), int(array[1])


def seeds_of(given: Any, which: int = 0) -> tuple[int, int]:
    """The two seeds of an operator; zeros, with which it draws numbers of its own, if nothing is given. A Generator
    gives others at each call. which: tells the draws of one number apart. Raises TypeError if it is none of these."""
    if given is None:
        return 0, 0
    if isinstance(given, Generator):
        return given.next_seeds()
    if isinstance(given, bool) or not isinstance(given, int):
        raise ApiTypeError(f"a seed must be an integer, a Generator or None, not {describe(given)}")
    return given, which
