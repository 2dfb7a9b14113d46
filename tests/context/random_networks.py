"""Random networks with sharded sequences beside one device: `python -m tests.context.random_networks SEED COUNT`.

Each of COUNT seeds from SEED draws a transformer, how its sequences are sharded, and how its attention is written
(`drawn_network.py`). All ranks run it as `mspc run --simulate` does, in Float64, and so does one device. Losses and
parameters must be the same on every rank.

Prints a line for each network that differs or fails, and counts; exits with 1 where there is one. `--processes K`
shares the seeds over K processes, `--only SEED` runs one network, `--show` prints its script, `--way WAY` draws such as
are sharded in one way.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.context.drawn_network import WAYS, DrawnNetwork
from tests.control.watched import Outcome
from tests.judged_seeds import Different, judged, outcome_of, seeds_parser
from tests.pipelining.random_networks import far, run

TOLERANCE = 1e-10
"""How far numbers may be apart, relative to numbers above one."""


def check(seed: int, ways: Sequence[str] = WAYS) -> Outcome:
    """Return the result of the network of a seed."""
    network = DrawnNetwork(seed, ways)

    def compared() -> None:
        with tempfile.TemporaryDirectory() as folder:
            (alone,) = run(network.alone(folder), 1, Path(folder))
            ranks = run(network.sharded(folder), network.ranks, Path(folder))
            worst = max((far(each[name], wanted), name) for name, wanted in alone.items() for each in ranks)
            if worst[0] > TOLERANCE:
                raise Different(f"{worst[1]} differs by {worst[0]:.2e}")

    return outcome_of(seed, network.about, network.sharded("."), compared)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = seeds_parser("Random networks with sharded sequences beside one device.")
    parser.add_argument("--way", choices=WAYS, action="append")
    given = parser.parse_args(arguments)
    ways = tuple(given.way or WAYS)
    return judged(given, lambda seed: check(seed, ways), lambda seed: DrawnNetwork(seed, ways).sharded("."))


if __name__ == "__main__":
    sys.exit(main())
