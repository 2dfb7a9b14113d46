"""Random networks with states and activations on the host: `python -m tests.offload.random_combinations SEED COUNT`.

Each of COUNT seeds from SEED draws a network with sharded sequences, one of experts or a pipeline, an optimizer with
states, which of these and which layers' activations live on the host, a level of optimizer parallel, and whether a
search shards what has no strategy (`drawn_combinations.py`). All ranks run it as `mspc run --simulate` does, in
Float64, and so does one device, with everything on it. The results of every step, all gradients that the network hands
out, all parameters and all states must be the same on every rank.

Prints a line for each network that differs or fails, and counts; exits with 1 where there is one. `--processes K`
shares the seeds over K processes, `--only SEED` runs one network, `--show` prints its script, `--kind KIND` draws
networks of one kind.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.control.watched import Outcome
from tests.judged_seeds import judged, seeds_parser
from tests.offload.drawn_combinations import KINDS, Combination
from tests.sharded_beside_one import beside_one_device


def check(seed: int, kind: str = "") -> Outcome:
    """Return the result of a seed."""
    return beside_one_device(seed, Combination(seed, kind))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = seeds_parser("Random networks with states and activations on the host beside one device.")
    parser.add_argument("--kind", choices=KINDS, default="")
    given = parser.parse_args(arguments)
    return judged(given, lambda seed: check(seed, given.kind), lambda seed: Combination(seed, given.kind).sharded("."))


if __name__ == "__main__":
    sys.exit(main())
