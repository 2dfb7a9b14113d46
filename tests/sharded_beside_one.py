"""The results of ranks for a drawn network beside those of one device alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Protocol

import numpy as np

from tests.control.watched import Outcome
from tests.judged_seeds import Different, outcome_of
from tests.pipelining.random_networks import far, run


class DrawnOnRanks(Protocol):
    """A network for some ranks. about: what was drawn. tolerance: how far numbers may be apart, relative to numbers
    above one."""

    @property
    def ranks(self) -> int: ...

    @property
    def about(self) -> str: ...

    @property
    def tolerance(self) -> float: ...

    def alone(self, folder: str) -> str:
        """The script for one device."""
        ...

    def sharded(self, folder: str) -> str:
        """The script for all ranks."""
        ...

    def on_rank(self, name: str, rank: int, wanted: np.ndarray) -> np.ndarray:
        """A rank's part of an array of one device."""
        ...


def beside_one_device(seed: int, drawn: DrawnOnRanks) -> Outcome:
    """The comparison of a network: everything that one device makes has to be on every rank, too."""

    def compared() -> None:
        with tempfile.TemporaryDirectory() as folder:
            (alone,) = run(drawn.alone(folder), 1, Path(folder))
            for rank, found in enumerate(run(drawn.sharded(folder), drawn.ranks, Path(folder))):
                for name, wanted in alone.items():
                    away = far(found[name], drawn.on_rank(name, rank, wanted))
                    if away > drawn.tolerance:
                        raise Different(f"{name} differs on rank {rank} by {away:.2e}")

    return outcome_of(seed, drawn.about, drawn.sharded("."), compared)
