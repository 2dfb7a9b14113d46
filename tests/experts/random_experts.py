"""Random layers of experts on ranks beside one device: `python -m tests.experts.random_experts SEED COUNT`.

Each of COUNT seeds from SEED draws layers in one of the forms that public networks write them in, how they route (ties,
experts that nobody chooses, more tokens than there is room for, groups of experts), and how 2 to 16 ranks share batch,
experts and their products (`drawn_experts.py`). All ranks run it as `mspc run --simulate` does, in Float64, and one
device runs it without strategies: the loss, all gradients and all parameters behind two steps must be the same.

Prints a line for each network that differs or fails, and counts; exits with 1 where there is one. `--processes K`
shares the seeds over K processes, `--only SEED` runs one network, `--show` prints its script, `--form FORM` draws
networks of one form.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.control.watched import Outcome
from tests.experts.drawn_experts import FORMS, DrawnExperts
from tests.judged_seeds import judged, seeds_parser
from tests.sharded_beside_one import beside_one_device


def check(seed: int, forms: Sequence[str] = FORMS) -> Outcome:
    """Return the result of the layers of a seed."""
    return beside_one_device(seed, DrawnExperts(seed, tuple(forms)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = seeds_parser("Random layers of experts beside one device.")
    parser.add_argument("--form", choices=FORMS, action="append")
    given = parser.parse_args(arguments)
    forms = tuple(given.form or FORMS)
    return judged(given, lambda seed: check(seed, forms), lambda seed: DrawnExperts(seed, forms).sharded("."))


if __name__ == "__main__":
    sys.exit(main())
