"""A search shares long texts by rings, by heads or both where that is quicker, and says what its plan compiles to."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mspc.commands.report.plan_summary import summary_lines
from mspc.engine.capture import CapturedCall, capture
from mspc.mindspore_api.state import Session
from mspc.ops.op import load_operators
from mspc.plans.files.plan_file import write_plan
from mspc.search.calibration.machine_file import machine_of
from mspc.search.plans.alternatives import WAYS, PlanRequest
from mspc.search.plans.row import SEARCH, PlanResult, Plans
from mspc.search.plans.table import plan_of_file, plans_for

load_operators()

NETWORK = Path(__file__).resolve().parents[2] / "benchmarks" / "networks" / "long_llama.py"
MACHINE = machine_of("h200")
FULL = "lazy 2 4096 32 8 14336 128256"
"""Two of the 32 layers of LLaMA 3 8B."""
RING = "lazy 2 1024 4 1 3584 32000 1 8 1 65536"


@cache
def searched(given: str, ranks: int) -> tuple[CapturedCall, PlanRequest, Plans]:
    captured = capture(NETWORK, given.split(), Session.of_rank(0, ranks))
    asked = PlanRequest(ranks, MACHINE, free=True)
    return captured, asked, plans_for(captured, asked, ways=WAYS[:1])


def words_of(plan: PlanResult) -> str:
    """The context parallelism that the summary states."""
    (line,) = summary_lines([plan], MACHINE)
    return line.partition(" x CP ")[2].partition(" x EP ")[0]


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("given", "ranks", "words"),
    [
        (RING, 8, "8 (ring)"),
        (f"{FULL} 1 8 8 131072", 64, "16 (ring 8 x Ulysses 2)"),
        ("lazy 2 1024 8 2 3584 32000 1 8 1 65536", 8, "8 (Ulysses)"),
        ("2 1024 4 1 3584 32000 8 1 1 4096", 8, "1"),
    ],
)
def test_long_texts_are_shared_and_the_plan_says_what_it_compiles_to(
    given: str, ranks: int, words: str, tmp_path: Path
) -> None:
    captured, asked, found = searched(given, ranks)
    (plan,) = found.plans
    assert words_of(plan) == words
    file = tmp_path / "plan.toml"
    write_plan(file, found.files[SEARCH])
    again = plan_of_file(captured, replace(asked, memory=0), file)
    assert again.columns == plan.columns


def test_a_ring_is_balanced_and_quicker_than_keys_that_are_gathered(tmp_path: Path) -> None:
    """A plan that shards the queries alone has the last rank do nearly twice the mean."""
    captured, asked, found = searched(RING, 8)
    file = tmp_path / "plan.toml"
    write_plan(file, found.files[SEARCH])
    ring = "= [\"(8) [-, 0, -, -]\", \"(8) [-, 0, -, -]\", \"(8) [-, 0, -, -]\"]"
    gathered = ring.replace("(8) [-, 0, -, -]\", \"(8) [-, 0, -, -]\", \"(8) [-, 0, -, -]",
                            "(8) [-, 0, -, -]\", \"(8) [-, -, -, -]\", \"(8) [-, -, -, -]")  # fmt: skip
    text = file.read_text(encoding="utf-8")
    assert text.count(ring) == 1
    file.write_text(text.replace(ring, gathered), encoding="utf-8")
    assert plan_of_file(captured, asked, file).compute > 1.2 * found.plans[0].compute
