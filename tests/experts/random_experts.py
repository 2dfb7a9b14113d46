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
from tests.control.watched import Outcome, watched
from tests.experts.drawn_experts import FORMS, DrawnExperts
from tests.pipelining.random_networks import EQUAL, FAILS, HANGS, REFUSED, SECONDS, WRONG, Different, far, run


def check(seed: int, forms: Sequence[str] = FORMS) -> Outcome:
    """What comes of the layers of a seed."""
    drawn = DrawnExperts(seed, tuple(forms))
    kind, message = EQUAL, ""
    try:
        with tempfile.TemporaryDirectory() as folder:
            (alone,) = run(drawn.alone(folder), 1, Path(folder))
            for rank, found in enumerate(run(drawn.sharded(folder), drawn.ranks, Path(folder))):
                for name, wanted in alone.items():
                    away = far(found[name], drawn.on_rank(name, rank, wanted))
                    if away > drawn.tolerance:
                        raise Different(f"{name} differs on rank {rank} by {away:.2e}")
    except Different as error:
        kind, message = WRONG, str(error)
    except ScriptError as error:
        kind, message = FAILS, error.render()
    except MspcError as error:
        kind, message = REFUSED, error.render()
    except Exception as error:
        kind, message = FAILS, f"{type(error).__name__}: {error}"
    return Outcome(seed, kind, message and f"({drawn.about}) {message}", text=drawn.sharded("."))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Random layers of experts beside one device.")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=20)
    parser.add_argument("--form", choices=FORMS, action="append")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long a network may take")
    parser.add_argument("--only", type=int, help="the seed of one network")
    parser.add_argument("--show", action="store_true", help="print the script of that network")
    given = parser.parse_args(arguments)
    forms = tuple(given.form or FORMS)
    if given.only is not None and given.show:
        print(DrawnExperts(given.only, forms).sharded("."))
    load_operators()
    start, kinds = time.perf_counter(), Counter[str]()
    seeds = range(given.seed, given.seed + given.count) if given.only is None else [given.only]
    for outcome in watched(lambda seed: check(seed, forms), seeds, given.processes, given.seconds, HANGS):
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
