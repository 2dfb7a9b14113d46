"""Random networks with sharded sequences beside one device: `python -m tests.context.random_networks SEED COUNT`.

Each of COUNT seeds from SEED draws a transformer, how its sequences are sharded, and how its attention is written
(`drawn_network.py`). All ranks run it as `mspc run --simulate` does, in Float64, and so does one device. Losses and
parameters must be the same on every rank.

Prints a line for each network that differs or fails, and counts; exits with 1 where there is one. `--processes K`
shares the seeds over K processes, `--only SEED` runs one network, `--show` prints its script, `--way WAY` draws such as
are sharded in one way.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mspc.engine.script import ScriptError
from mspc.ir.diagnostics import MspcError
from mspc.ops.modules import load_operators
from tests.context.drawn_network import WAYS, DrawnNetwork
from tests.control.watched import Outcome, watched
from tests.pipelining.random_networks import EQUAL, FAILS, HANGS, REFUSED, SECONDS, WRONG, far, run

TOLERANCE = 1e-10
"""How far numbers may be apart, relative to numbers above one."""


def check(seed: int, ways: Sequence[str] = WAYS) -> Outcome:
    """What comes of the network of a seed."""
    network = DrawnNetwork(seed, ways)
    kind, message = EQUAL, ""
    try:
        with tempfile.TemporaryDirectory() as folder:
            (alone,) = run(network.alone(folder), 1, Path(folder))
            ranks = run(network.sharded(folder), network.ranks, Path(folder))
            worst = max((far(each[name], wanted), name) for name, wanted in alone.items() for each in ranks)
            if worst[0] > TOLERANCE:
                kind, message = WRONG, f"{worst[1]} differs by {worst[0]:.2e}"
    except ScriptError as error:
        kind, message = FAILS, error.render()
    except MspcError as error:
        kind, message = REFUSED, error.render()
    except Exception as error:
        kind, message = FAILS, f"{type(error).__name__}: {error}"
    return Outcome(seed, kind, message and f"({network.about}) {message}", text=network.sharded("."))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Random networks with sharded sequences beside one device.")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=20)
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long a network may take")
    parser.add_argument("--only", type=int, help="the seed of one network")
    parser.add_argument("--show", action="store_true", help="print the script of that network")
    given = parser.parse_args(arguments)
    ways = tuple(given.way or WAYS)
    if given.only is not None and given.show:
        print(DrawnNetwork(given.only, ways).sharded("."))
    load_operators()
    start, kinds = time.perf_counter(), Counter[str]()
    seeds = range(given.seed, given.seed + given.count) if given.only is None else [given.only]
    for outcome in watched(lambda seed: check(seed, ways), seeds, given.processes, given.seconds, HANGS):
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
