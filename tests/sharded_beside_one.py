"""The results of ranks for a drawn network beside those of one device alone.

`python -m tests.sharded_beside_one SEED COUNT --drawn sequences` draws COUNT networks from SEED with sharded sequences,
experts, or `combinations` of both and of pipelines with optimizers, states and activations on the host. All ranks run
them as `mspc run --simulate` does, in Float64, and so does one device. Prints a line for each network that differs or
fails, and counts; exits with 1 if there is one. `--processes K` shares the seeds over K processes, `--only SEED` runs
one network, `--show` prints its script, `--kind KIND` draws networks of one way, form or kind.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tests.control.watched import Outcome
from tests.judged_seeds import Different, judged, outcome_of, seeds_parser
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


def main() -> int:
    from tests.context.drawn_network import DrawnNetwork  # late: these networks are for the command line alone
    from tests.experts.drawn_experts import DrawnExperts
    from tests.offload.drawn_combinations import Combination

    kinds: dict[str, Callable[..., Any]] = {
        "sequences": lambda seed, *kind: DrawnNetwork(seed, *([kind] if kind else [])),
        "experts": lambda seed, *kind: DrawnExperts(seed, *([kind] if kind else [])),
        "combinations": Combination,
    }
    parser = seeds_parser("Random networks on ranks beside one device.")
    parser.add_argument("--drawn", choices=kinds, required=True)
    parser.add_argument("--kind")
    given = parser.parse_args()

    def network(seed: int) -> Any:
        return kinds[given.drawn](seed, *([given.kind] if given.kind else []))

    return judged(given, lambda seed: beside_one_device(seed, network(seed)), lambda seed: network(seed).sharded("."))


if __name__ == "__main__":
    sys.exit(main())
