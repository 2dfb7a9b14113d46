"""The results of ranks for a drawn network beside those of one device alone.

`python -m tests.sharded_beside_one SEED COUNT --drawn sequences` draws COUNT networks from SEED with sharded sequences,
experts, in `stages`, or `combinations` of these with optimizers, states and activations on the host. All ranks run
them as `mspc run --simulate` does, in Float64, and so does one device. Prints a line for each network that differs or
fails, and counts; exits with 1 if there is one. `--processes K` shares the seeds over K processes, `--only SEED` runs
one network, `--show` prints its script, `--kind KIND` draws networks of one way, form or kind.
"""

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mspc.commands.run import run_script
from tests.control.watched import Outcome
from tests.judged_seeds import Different, judged, outcome_of, seeds_parser

Arrays = Mapping[str, np.ndarray]


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


def run(text: str, ranks: int, folder: Path) -> list[Arrays]:
    """The results that every rank of a script has written."""
    path = folder / "net.py"
    path.write_text(text, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run_script(path, ranks, simulate=True)
    return [dict(np.load(folder / f"rank_{rank}.npz")) for rank in range(ranks)]


def far(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, relative to numbers above one; infinite where the shapes differ or one is no number."""
    if found.shape != wanted.shape:
        return float("inf")
    found, wanted = found.astype(float), wanted.astype(float)
    with np.errstate(invalid="ignore"):
        apart = np.abs(found - wanted) / (1 + np.abs(wanted))
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    largest = float(np.max(np.where(same, 0.0, apart), initial=0.0))
    return largest if largest == largest else float("inf")


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
    from tests.pipelining.drawn_network import WAYS
    from tests.pipelining.drawn_network import DrawnNetwork as DrawnStages

    kinds: dict[str, Callable[..., Any]] = {
        "sequences": lambda seed, *kind: DrawnNetwork(seed, *([kind] if kind else [])),
        "experts": lambda seed, *kind: DrawnExperts(seed, *([kind] if kind else [])),
        "stages": lambda seed, *kind: DrawnStages(seed, only=kind or WAYS),
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
