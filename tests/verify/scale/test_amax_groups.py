"""Largest magnitudes that ranks take over the wrong group are found, at small sizes and at those of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.graph import Graph, Node
from mspc.ops.collective.collectives import AllReduce
from tests.shares import share_of
from tests.verify.scale.planted_changes import PLANS, Plan

SCRIPT = Path(__file__).parent / "float8_layers.py"
NETWORKS = [(0, 4, "tensorwise"), (1, 8, "tensorwise"), (2, 4, "delayed"), (3, 8, "delayed"), (4, 8, "tensorwise")]
"""Seeds, numbers of ranks and recipes."""
CHANGES = ("group of another axis", "left out", "sum", "one rank left out")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Plan]:
    found: dict[int, Plan] = {}
    for seed, ranks, recipe in NETWORKS[: share_of(len(NETWORKS))]:
        name = f"float8_{seed}"
        PLANS[name] = (str(SCRIPT), ranks, (str(seed), str(ranks), recipe))
        found[seed] = Plan(name, tmp_path_factory.mktemp(name))
        del PLANS[name]
    return found


def maxima(graph: Graph) -> list[Node]:
    """The collectives that give a scale its magnitude."""
    return [node for node in graph.nodes if isinstance(node.op, AllReduce) and node.op.op == "max"]


def other_group(ranks: Sequence[int], rank: int, count: int) -> tuple[int, ...]:
    """A group that the rank has in a mesh of two axes, other than this one."""
    step = next(n for n in (1, 2, 4) if tuple(ranks) != (pair := tuple(sorted((rank, rank ^ n)))) and max(pair) < count)
    return tuple(sorted((rank, rank ^ step)))


def plant(change: str, graphs: Sequence[Graph], number: int) -> None:
    """Change one of the collectives on all of its ranks."""
    for rank, graph in enumerate(graphs):
        found = maxima(graph)
        node = found[number % len(found)]
        op: Any = node.op
        if change == "left out" or (change == "one rank left out" and rank == op.rank_list[-1]):
            graph.replace({node: node.inputs[0]})
            graph.nodes.remove(node)
        elif change == "sum":
            node.op = replace(op, op="sum")
        else:
            alone = change == "one rank left out"
            ranks = op.rank_list[:-1] if alone else other_group(op.rank_list, rank, len(graphs))
            node.op = replace(op, rank_list=ranks, group=f"of {ranks}")


@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_group_is_found(change: str, plans: dict[int, Plan]) -> None:
    for seed, plan in plans.items():
        graphs = plan.graphs()
        plant(change, graphs, seed + CHANGES.index(change))
        assert not plan.proof(graphs).same, f"{plan.name}: {change}"
        assert plan.differs(graphs), f"{plan.name}: {change}"


def test_nothing_is_found_without_a_change(plans: dict[int, Plan]) -> None:
    for plan in plans.values():
        assert plan.proof(plan.graphs()).same, plan.name
        assert plan.differs(plan.graphs()) == "", plan.name
