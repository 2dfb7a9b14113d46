"""Commands that hold what seeds draw to one device: what comes of a seed, and of many, which are watched."""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence

from mspc.engine.script import ScriptError
from mspc.ir.diagnostics import MspcError
from mspc.ops.op import load_operators
from tests.control.watched import Outcome, watched

EQUAL, WRONG, REFUSED, FAILS, HANGS = "equal", "differs", "is refused", "fails", "hangs"
SECONDS = 120.0
"""How long a network may take."""


class Different(Exception):
    """A rank does not have the numbers of one device."""


def outcome_of(seed: int, about: str, text: str, compare: Callable[[], None]) -> Outcome:
    """The result of a seed. about: what it drew, in words. text: its script. compare: raises Different."""
    kind, message = EQUAL, ""
    try:
        compare()
    except Different as error:
        kind, message = WRONG, str(error)
    except ScriptError as error:
        kind, message = FAILS, error.render()
    except MspcError as error:
        kind, message = REFUSED, error.render()
    except Exception as error:
        kind, message = FAILS, f"{type(error).__name__}: {error}"
    return Outcome(seed, kind, message and f"({about}) " * bool(about) + message, text=text)


def seeds_parser(description: str) -> argparse.ArgumentParser:
    """The arguments that all such commands have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=20)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long a network may take")
    parser.add_argument("--only", type=int, help="the seed of one network")
    parser.add_argument("--show", action="store_true", help="print the script of that network")
    return parser


def judged(
    given: argparse.Namespace, work: Callable[[int], Outcome], script: Callable[[int], str],
    seeds_of: Callable[[int, int], Sequence[int]] = lambda first, count: range(first, first + count),
    legal: Sequence[str] = (EQUAL,),
) -> int:  # fmt: skip
    """Print the seeds that are not equal, and counts; return 1 if there is any.

    script: returns the text of a seed. seeds_of: returns the seeds for the first one and their number. legal: outcomes
    that are no error."""
    if given.only is not None and given.show:
        print(script(given.only))
    load_operators()
    start, kinds = time.perf_counter(), Counter[str]()
    seeds = seeds_of(given.seed, given.count) if given.only is None else [given.only]
    for outcome in watched(work, seeds, given.processes, given.seconds, HANGS):
        kinds[outcome.kind] += 1
        if outcome.kind != EQUAL:
            shown = outcome.message if given.only is not None else " ".join(outcome.message.split())[:500]
            print(f"seed {outcome.seed} {outcome.kind}: {shown}", flush=True)
    counts = ", ".join(f"{kinds[kind]} {said}" for kind, said in (
        (EQUAL, "equal"), (WRONG, "differ"), (REFUSED, "are refused"), (FAILS, "fail"), (HANGS, "hang")))  # fmt: skip
    print(f"{len(seeds)} networks from seed {given.seed}: {counts}, {time.perf_counter() - start:.1f} s")
    return int(sum(kinds[kind] for kind in legal) != len(seeds))
