"""A share of the changes that `python -m tests.verify.scale.planted_changes` plants, and plans without a change."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from mspc.ir.graph import Node, element_types
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from tests.shares import share_of
from tests.verify.scale.changes_of_nodes import Change, with_op
from tests.verify.scale.changes_of_programs import made, rank_of
from tests.verify.scale.planted_changes import PLANS, Plan, judged, planted

SEEDS = range(share_of(7, 2))
"""Of changes in every plan."""


@pytest.mark.parametrize("name", PLANS)
def test_changes_are_found_at_their_place(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = Plan(name, tmp_path_factory.mktemp(name) / "out")
    assert plan.proof(plan.graphs()).same
    assert len(plan.compared) > 50
    found = [planted(plan, random.Random(seed)) for seed in SEEDS]
    assert {each.verdict for each in found} <= {"found", "harmless"}
    told = [each.right for each in found if each.verdict == "found"]
    assert len(told) > len(SEEDS) / 2
    assert sum(told) >= len(told) - 1


def test_ranks_that_take_other_entries_of_a_tuple_are_not_of_one_kind(tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = Plan("llama", tmp_path_factory.mktemp("tuples") / "out")
    graphs = plan.graphs()
    own = rank_of(3, graphs[3])
    node, other = next(_with_an_equal_entry(own.graphs[0].nodes))
    change = Change("setting", node.label, lambda rank: with_op(node, TupleGetItem(other)))
    found = judged(plan, change, (3,), graphs, made(change, [own]))
    assert found.verdict == "found"


def _with_an_equal_entry(nodes: Sequence[Node]) -> Iterator[tuple[Node, int]]:
    """Sums of gradients that are taken out of a tuple, each with another entry of its type."""
    for node in nodes:
        if isinstance(node.op, TupleGetItem) and node.phase == "update" and isinstance(node.inputs[0].op, AllReduce):  # type: ignore[attr-defined]  # a node
            for index, type in enumerate(element_types(node.inputs[0].type)):
                if type == node.type and index != node.op.index:
                    yield node, index
