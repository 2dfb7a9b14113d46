"""Random numbers of pipelines. They depend only on the seed, the epoch, the row and the operation's index, so that
neither the number of workers nor the size of blocks changes them."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.common import seed

_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = (1 << 64) - 1
_PURPOSE = 0x53687566


@dataclass(frozen=True)
class DataPass:
    """One reading of a data set. seed: read when the pass begins, so that workers need no session. epoch: from 0; a
    repeated data set is read in several passes of different numbers. needed: number of rows that the reader needs at
    once, if that many are left; a node may request as many from its source. types_only: only element types and shapes
    of the rows matter, so that shuffling and reading in advance are skipped."""

    seed: int
    epoch: int
    needed: int = 1
    types_only: bool = False

    @classmethod
    def begin(cls, epoch: int, types_only: bool = False) -> DataPass:
        return cls(seed.of_pipelines(), epoch, types_only=types_only)

    def number(self, epoch: int) -> DataPass:
        return replace(self, epoch=epoch, needed=1)

    def one_by_one(self) -> DataPass:
        """Return the same pass for a reader that may stop after any row."""
        return replace(self, needed=1)

    def generator(self, key: int) -> np.random.Generator:
        """Return a generator for one node."""
        sequence = np.random.SeedSequence([self.seed, _PURPOSE, key, self.epoch])
        return np.random.Generator(np.random.Philox(sequence))

    def key(self, node: int) -> int:
        """Return 64 bits for the rows of one node."""
        sequence = np.random.SeedSequence([self.seed, _PURPOSE, node, self.epoch, 1])
        return int(sequence.generate_state(1, np.uint64)[0])


class PipelineDraws:
    """Random numbers for some rows at one operation.

    Args: key: of the node and its pass. rows: positions of the rows. places: indices of the operation and of the
    operations that contain it.
    """

    def __init__(self, key: int, rows: np.ndarray, places: tuple[int, ...] = ()) -> None:
        self._key = key
        self._rows = rows
        self._places = places

    def uniform(self, place: int = 0) -> np.ndarray:
        """Return one number from 0 to 1, excluding 1, for every row; different numbers for every `place`."""
        key = self._key
        for inner in (*self._places, place):
            key = _mixed_number(key + (inner + 1) * _STEP)
        bits = self._rows.astype(np.uint64)
        bits *= np.uint64(_STEP)
        bits += np.uint64(key)
        return (_mixed(bits) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integer(self, place: int, most: Any) -> np.ndarray:
        """Return one integer from 0 to `most` for every row."""
        return np.floor(self.uniform(place) * (np.asarray(most) + 1)).astype(np.int64)

    def at(self, index: int) -> PipelineDraws:
        """Return the numbers of one row."""
        return PipelineDraws(self._key, self._rows[index : index + 1], self._places)

    def inside(self, place: int) -> PipelineDraws:
        """Return the numbers of an operation inside another one."""
        return PipelineDraws(self._key, self._rows, (*self._places, place))


class EagerDraws(PipelineDraws):
    """Random numbers of operations that a script calls itself: from NumPy's global generator."""

    def __init__(self, count: int = 1) -> None:
        super().__init__(0, np.arange(count))
        self._samples: dict[int, np.ndarray] = {}

    def uniform(self, place: int = 0) -> np.ndarray:
        if place not in self._samples:
            self._samples[place] = np.random.random(len(self._rows))
        return self._samples[place]

    def at(self, index: int) -> PipelineDraws:
        return self if len(self._rows) == 1 else EagerDraws()

    def inside(self, place: int) -> PipelineDraws:
        return EagerDraws(len(self._rows))


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Mix each 64-bit number in place, as `_mixed_number` mixes one."""
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(_FIRST)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_SECOND)
    bits ^= bits >> np.uint64(31)
    return bits


def _mixed_number(bits: int) -> int:
    bits &= _BITS
    bits = (bits ^ bits >> 30) * _FIRST & _BITS
    bits = (bits ^ bits >> 27) * _SECOND & _BITS
    return bits ^ bits >> 31


def seed_row(key: int, row: int) -> None:
    """Seed NumPy's and Python's global generators for a user function over one row."""
    bits = _mixed_number(row * _STEP + key)
    np.random.seed(bits >> 32)
    random.seed(bits)


@contextmanager
def own_generators() -> Generator[None]:
    """Restore the state of the global generators on exit."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
