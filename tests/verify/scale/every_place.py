"""Each kind of change in every place of a plan: `python -m tests.verify.scale.every_place [PLAN ...]`.

The kinds of errors that TrainVerify (arXiv 2506.15961) plants: collectives that are missing, doubled, added, of another
reduction or along another axis, among other ranks or in another order, messages under other tags, exchanged slices and
slices from elsewhere, numbers that scale, operands that are exchanged or others, operators that are left out. Each is
made once at every place where it can be, on all ranks of a kind; those of collectives on one rank, too. `--collectives`
takes these alone, `--others` all but these, `--stride N` every Nth place of others. The output and the questions are as
in `planted_changes.py`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from mspc.ops.op import Op
from tests.verify.scale.changes_of_nodes import Change, Rank, meets
from tests.verify.scale.changes_of_programs import KINDS, OF_COLLECTIVES, rank_of
from tests.verify.scale.planted_changes import PLANS, Outcome, Plan, tried

ASIDE = {"axis", "setting"}
"""Changes of any field of any operator, which are no kind of their own."""
TRIES = 4
"""The draw at a place: which field and which value."""


def outcomes(plan: Plan, kinds: Sequence[str], stride: int) -> Iterator[Outcome]:
    """The results of every change of some kinds."""
    for ranks in plan.kinds:
        first = rank_of(ranks[0], plan.graphs()[ranks[0]])
        places = [(g, n) for g, graph in enumerate(first.graphs) for n in range(len(graph.nodes))]
        for what in kinds:
            for place in places[::1 if what in OF_COLLECTIVES else stride]:
                node = first.at(place)
                if isinstance(node.op, Op) and (what not in OF_COLLECTIVES or meets(node)):
                    for some in (ranks, ranks[-1:]) if what in OF_COLLECTIVES and len(ranks) > 1 else (ranks,):
                        found = _planted(plan, what, place, some)
                        if found is not None:
                            yield found


def _planted(plan: Plan, what: str, place: tuple[int, int], ranks: tuple[int, ...]) -> Outcome | None:
    """None where the change cannot be made there."""
    for number in range(TRIES):
        found = tried(plan, ranks, lambda own: _change(own, what, place, number))  # noqa: B023  # called at once
        if found is not None:
            return found
    return None


def _change(own: Rank, what: str, place: tuple[int, int], number: int) -> Change:
    said, edit = KINDS[what](own, place, random.Random(number))
    return Change(what, f"{own.at(place).label}: {said}", edit)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Each kind of change in every place of a plan.")
    parser.add_argument("plans", nargs="*", choices=[*PLANS, []])
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--collectives", action="store_true")
    some.add_argument("--others", action="store_true")
    parser.add_argument("--stride", type=int, default=1)
    given = parser.parse_args(arguments)
    asked = [what for what in KINDS if what not in ASIDE]
    if given.collectives or given.others:
        asked = [what for what in asked if (what in OF_COLLECTIVES) == given.collectives]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in given.plans or PLANS:
            start, counts, kinds = time.perf_counter(), Counter[str](), Counter[str]()
            for found in outcomes(Plan(name, Path(folder) / name), asked, given.stride):
                kinds[found.change.what] += 1
                counts[found.verdict] += 1
                counts["told elsewhere"] += not found.right
                missed += found.verdict in ("MISSED", "CRASHED")
                if found.verdict in ("MISSED", "CRASHED") or not found.right:
                    verdict = found.verdict if found.right else "ELSEWHERE"
                    print(f"{name}: {verdict}: {found.change.what} at {found.change.label} on ranks {found.ranks}: "
                          f"{found.told}", flush=True)  # fmt: skip
            told = ", ".join(f"{n} {what}" for what, n in counts.items())
            seconds = time.perf_counter() - start
            print(f"{name}: {sum(kinds.values())} changes of {len(kinds)} kinds in {seconds:.0f} s: {told}; "
                  f"{dict(kinds)}", flush=True)  # fmt: skip
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
