"""Random networks in stages beside one device: `python -m tests.pipelining.random_networks SEED COUNT`.

Each of COUNT seeds from SEED draws a network, where it is cut, and how it is trained (`drawn_network.py`). All ranks
run it as `mspc run --simulate` does, in Float64, and one device does the same with the parts of the batch one after the
other. What every step gives must be the same on every rank, and so must parameters, averages and states of optimizers
be, which ranks of other stages ask for. `--mpi` starts real ranks by mpirun.

Prints a line for each network that differs or fails, and counts; exits with 1 where there is one. `--processes K`
shares the seeds over K processes, `--only SEED` runs one network, `--show` prints its script, `--stages S` draws
networks of so many stages, `--way WAY` such as are trained in one way.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mspc.commands.run import run_script
from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment
from mspc.engine.script import ScriptError
from mspc.ir.diagnostics import MspcError
from mspc.ops.modules import load_operators
from tests.control.watched import Outcome, watched
from tests.pipelining.drawn_network import WAYS, DrawnNetwork

Arrays = Mapping[str, np.ndarray]
EQUAL, WRONG, REFUSED, FAILS, HANGS = "equal", "differs", "is refused", "fails", "hangs"
SECONDS = 120.0
"""How long a network may take."""


class Different(Exception):
    """A rank does not have the numbers of one device."""


def run(text: str, ranks: int, folder: Path, mpi: bool = False) -> list[Arrays]:
    """What every rank of a script has written."""
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


def check(seed: int, stages: int = 0, ways: Sequence[str] = WAYS, mpi: bool = False) -> Outcome:
    """What comes of the network of a seed."""
    network = DrawnNetwork(seed, stages, ways)
    kind, message = EQUAL, ""
    try:
        with tempfile.TemporaryDirectory() as folder:
            (alone,) = run(network.alone(folder), 1, Path(folder))
            compare(network, run(network.pipeline(folder), network.ranks, Path(folder), mpi), alone)
    except Different as error:
        kind, message = WRONG, str(error)
    except ScriptError as error:
        kind, message = FAILS, error.render()
    except MspcError as error:
        kind, message = REFUSED, error.render()
    except Exception as error:
        kind, message = FAILS, f"{type(error).__name__}: {error}"
    return Outcome(seed, kind, message and f"({network.about}) {message}", text=network.pipeline("."))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Random networks in stages beside one device.")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=20)
    parser.add_argument("--stages", type=int, default=0)
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--mpi", action="store_true", help="start ranks by mpirun")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long a network may take")
    parser.add_argument("--only", type=int, help="the seed of one network")
    parser.add_argument("--show", action="store_true", help="print the script of that network")
    given = parser.parse_args(arguments)
    ways = tuple(given.way or WAYS)
    if given.only is not None and given.show:
        print(DrawnNetwork(given.only, given.stages, ways).pipeline("."))
    load_operators()
    start, kinds = time.perf_counter(), Counter[str]()
    seeds = range(given.seed, given.seed + given.count) if given.only is None else [given.only]

    def work(seed: int) -> Outcome:
        return check(seed, given.stages, ways, given.mpi)

    for outcome in watched(work, seeds, given.processes, given.seconds, HANGS):
        kinds[outcome.kind] += 1
        if outcome.kind != EQUAL:
            shown = outcome.message if given.only is not None else " ".join(outcome.message.split())[:500]
            print(f"seed {outcome.seed} {outcome.kind}: {shown}", flush=True)
    counts = ", ".join(f"{kinds[kind]} {said}" for kind, said in (
        (EQUAL, "equal"), (WRONG, "differ"), (REFUSED, "are refused"), (FAILS, "fail"), (HANGS, "hang")))  # fmt: skip
    print(f"{len(seeds)} networks from seed {given.seed}: {counts}, {time.perf_counter() - start:.1f} s")
    return int(kinds[EQUAL] != len(seeds))


if __name__ == "__main__":
    sys.exit(main())
