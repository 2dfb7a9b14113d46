"""`mspc verify --scale` beside `mspc verify`: `python -m tests.verify.scale.agreement SEED COUNT [SOURCE]`.

Each seed draws a network that is small enough to be run whole: in stages under a schedule, of experts, or over sharded
sequences (`stages`, `experts`, `context`), by turns or of SOURCE alone. Both commands judge what is compiled of it, and
then the same with a change of what ranks execute (`changes_of_programs.py`). Prints a line for each of which they say
different things, with what full size says, and counts; exits with 1 where a program is wrong at full size and equal at
small sizes, or the other way where it was not changed. A change that is found at small sizes alone may be too small for
the tolerance of full size, which has Float32.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from mspc.engine.script import ScriptError
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.text.printer import print_graph
from mspc.ops.check_graph import check_graph
from mspc.ops.op import load_operators
from mspc.verify.scale.proof import ScaleProof
from mspc.verify.scale.small_programs import Unfit
from tests.verify.scale.changes_of_nodes import Unusable
from tests.verify.scale.changes_of_programs import draw, made, rank_of
from tests.verify.scale.networks_that_are_right import WRITTEN
from tests.verify.scale.planted_changes import Plan

AGREE, MISSED, ALARM, FINER = "agree", "MISSED", "FALSE ALARM", "found at small sizes alone"
OWN = "equal at their own sizes, not at small ones"
SOURCES = ("stages", "experts", "context")
TRIES = 40
"""Changes that are drawn of a network until one can be made."""


def verdicts(plan: Plan, graphs: list[Graph]) -> tuple[ScaleProof | None, str]:
    """(what `mspc verify --scale` finds, None where it refuses; what full size says)."""
    texts = [print_graph(graph) for graph in graphs]
    try:
        proof = plan.proof(graphs)
    except (MspcError, Unfit):
        proof = None
    return proof, plan.differs([plan.program.graph(rank, text) for rank, text in enumerate(texts)])


def changed(plan: Plan, generator: random.Random) -> list[Graph] | None:
    """The programs of ranks with one change, of all ranks of a kind or of one; None where none can be made."""
    for _ in range(TRIES):
        graphs = plan.graphs()
        kind = generator.choice(plan.kinds)
        ranks = kind if generator.random() < 0.6 else (generator.choice(kind),)
        of = [rank_of(rank, graphs[rank]) for rank in ranks]
        try:
            made(draw(of[0], generator), of)
            for rank in ranks:
                check_graph(graphs[rank])
        except (Unusable, MspcError):
            continue
        return graphs
    return None


def said(proof: ScaleProof | None, full: str, right: bool) -> str:
    """The sum of the verdicts. right: whether nothing was changed."""
    same = proof is not None and proof.same
    if right and proof is not None and proof.whole:
        return OWN
    if same == (not full):
        return AGREE
    if same:
        return MISSED
    return ALARM if right else FINER


def judged(seed: int, source: str = "") -> list[tuple[str, str]]:
    """(what was judged and what came of it, what full size says) of a seed."""
    source = source or SOURCES[seed % len(SOURCES)]
    text, ranks = WRITTEN[source](seed)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "net.py"
        script.write_text(text, encoding="utf-8")
        try:
            plan = Plan(source, Path(folder) / "out", script, ranks)
        except (MspcError, ScriptError) as error:
            return [("refused", str(error))]
        proof, full = verdicts(plan, plan.graphs())
        found = [(f"right: {said(proof, full, True)}", full)]
        graphs = changed(plan, random.Random(seed))
        if graphs is not None:
            proof, full = verdicts(plan, graphs)
            found.append((f"changed: {said(proof, full, False)}", full))
        return found


def main() -> int:
    """Judge networks, and count."""
    first, count, source = int(sys.argv[1]), int(sys.argv[2]), "".join(sys.argv[3:])
    load_operators()
    counts: Counter[str] = Counter()
    start = time.perf_counter()
    for seed in range(first, first + count):
        for what, full in judged(seed, source):
            counts[what] += 1
            if not what.endswith(AGREE):
                print(f"seed {seed} {what}: {full or 'equal at full size'}"[:300], flush=True)
    print(f"{count} networks in {time.perf_counter() - start:.0f} s")
    for what, number in sorted(counts.items()):
        print(f"{number:5} {what}")
    return int(any(what.endswith((MISSED, ALARM, OWN)) for what in counts))


if __name__ == "__main__":
    sys.exit(main())
