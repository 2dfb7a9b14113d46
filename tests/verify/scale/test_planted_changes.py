"""A share of the changes that `python -m tests.verify.scale.planted_changes` plants, and plans without a change."""

from __future__ import annotations

import random

import pytest

from tests.verify.scale.planted_changes import PLANS, Plan, planted

SEEDS = range(7)
"""Of changes in every plan."""


@pytest.mark.parametrize("name", PLANS)
def test_changes_are_found_at_their_place(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = Plan(name, tmp_path_factory.mktemp(name) / "out")
    assert plan.proof(plan.graphs()).same
    assert len(plan.compared) > 50
    found = [planted(plan, random.Random(seed)) for seed in SEEDS]
    assert {each.verdict for each in found} <= {"found", "harmless"}
    told = [each.right for each in found if each.verdict == "found"]
    assert len(told) >= 4
    assert sum(told) >= len(told) - 1


def test_ranks_that_take_other_entries_of_a_tuple_are_not_of_one_kind(tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = Plan("llama", tmp_path_factory.mktemp("tuples") / "out")
    found = planted(plan, random.Random(324))
    assert (found.change.label, found.ranks) == ("TupleGetItem: index 5 becomes 7", (3,))
    assert found.verdict == "found"
