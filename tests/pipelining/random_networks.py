"""Random networks in stages beside one device: `python -m tests.pipelining.random_networks SEED COUNT`.

Each of COUNT seeds from SEED draws a network, where it is cut, and how it is trained (`drawn_network.py`). All ranks
run it as `mspc run --simulate` does, in Float64, and one device does the same with the parts of the batch one after the
other. The results of every step must be the same on every rank, and so must parameters, averages and states of
optimizers be, which ranks of other stages ask for. `--mpi` starts real ranks by mpirun.

Prints a line for each network that differs or fails, and counts; exits with 1 where there is one. `--processes K`
shares the seeds over K processes, `--only SEED` runs one network, `--show` prints its script, `--stages S` draws
networks of so many stages, `--way WAY` such as are trained in one way.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mspc.commands.run import run_script
from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment
from tests.control.watched import Outcome
from tests.judged_seeds import SECONDS, Different, judged, outcome_of, seeds_parser
from tests.pipelining.drawn_network import WAYS, DrawnNetwork

Arrays = Mapping[str, np.ndarray]


def run(text: str, ranks: int, folder: Path, mpi: bool = False) -> list[Arrays]:
    """The results that every rank of a script has written."""
    path = folder / "net.py"
    path.write_text(text, encoding="utf-8")
    if mpi and ranks > 1:
        command = [find_mpirun(), "--oversubscribe", "-n", str(ranks), sys.executable, "-m", "mspc", "run", str(path)]
        found = subprocess.run(
            command, env=mpirun_environment(), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if found.returncode:
            raise RuntimeError(f"mpirun: {found.stderr[-1500:]}")
    else:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run_script(path, ranks, simulate=True)
    return [dict(np.load(folder / f"rank_{rank}.npz")) for rank in range(ranks)]


def compare(network: DrawnNetwork, ranks: Sequence[Arrays], alone: Arrays) -> None:
    """Raises Different where a rank has other numbers than one device."""
    for name, wanted in alone.items():
        away = [far(each[name], wanted) for each in ranks]
        if max(away) > network.tolerance:
            wrong = [rank for rank, apart in enumerate(away) if apart > network.tolerance]
            raise Different(f"{name} differs on ranks {wrong} by {max(away):.2e}")


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


def check(
    seed: int, stages: int = 0, ways: Sequence[str] = WAYS, mpi: bool = False, draws: bool = False
) -> Outcome:  # fmt: skip
    """Compare the network of a seed in stages with one device."""
    network = DrawnNetwork(seed, stages, ways, draws=draws)

    def compared() -> None:
        with tempfile.TemporaryDirectory() as folder:
            (alone,) = run(network.alone(folder), 1, Path(folder))
            compare(network, run(network.pipeline(folder), network.ranks, Path(folder), mpi), alone)

    return outcome_of(seed, network.about, network.pipeline("."), compared)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = seeds_parser("Random networks in stages beside one device.")
    parser.add_argument("--stages", type=int, default=0)
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--draws", action="store_true", help="with layers that draw random numbers")
    parser.add_argument("--mpi", action="store_true", help="start ranks by mpirun")
    given = parser.parse_args(arguments)
    ways = tuple(given.way or WAYS)
    return judged(
        given,
        lambda seed: check(seed, given.stages, ways, given.mpi, given.draws),
        lambda seed: DrawnNetwork(seed, given.stages, ways, draws=given.draws).pipeline("."),
    )


if __name__ == "__main__":
    sys.exit(main())
