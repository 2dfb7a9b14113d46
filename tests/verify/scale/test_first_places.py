"""Where changes are told whose values are right somewhere else in the plan, or at some of their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

import numpy as np
import pytest

from mspc.ir.graph import Graph, Node
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import Add, Div
from mspc.ops.tensor.moving import Reshape
from mspc.verify.scale.relations import Pieces, keyed
from tests.verify.scale.changes_of_nodes import PLACE, Change, Rank, other_offset
from tests.verify.scale.changes_of_programs import KINDS, made, rank_of
from tests.verify.scale.planted_changes import Plan, judged

Edit = Callable[[Graph], Sequence[Node]]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    return {name: Plan(name, tmp_path_factory.mktemp(name) / "out") for name in ("llama", "experts")}


def nodes_of(graph: Graph) -> Iterator[Node]:
    for each in graph.graphs():
        yield from each.nodes


def reads_what_another_reads(graph: Graph) -> list[Node]:
    """Of two operators at one place of the script the second one reads what the first one does."""
    firsts: dict[object, Node] = {}
    for key, node, _ in keyed(graph):
        first = firsts.setdefault(key, node)
        if first is not node and isinstance(node.op, Reshape) and node.phase == "forward":
            node.inputs[0] = first.inputs[0]
            return [node]
    raise AssertionError


def reads_what_is_not_added_up(graph: Graph) -> list[Node]:
    """An addition reads what ranks add up, and not the sum."""
    for node in nodes_of(graph):
        for place, value in enumerate(node.inputs):
            if isinstance(node.op, Add) and isinstance(value, Node) and isinstance(value.op, AllReduce):
                node.inputs[place] = value.inputs[0]
                return [node]
    raise AssertionError


def counted_twice(graph: Graph) -> list[Node]:
    """What a gradient is divided by is added up once more."""
    for node in nodes_of(graph):
        value = node.inputs[-1] if isinstance(node.op, Div) and node.phase == "backward" else None
        if isinstance(value, Node) and isinstance(value.op, AllReduce):
            again = Node(value.op, [value], value.type, frames=value.frames)
            again.attrs[PLACE] = -1
            graph.nodes.insert(graph.nodes.index(value) + 1, again)
            for reader in graph.nodes:
                if reader is not again:
                    reader.inputs[:] = [again if v is value else v for v in reader.inputs]
            return [again]
    raise AssertionError


def another_gradient(graph: Graph) -> list[Node]:
    """An update reads what is no gradient, of the type of one."""
    *_, update = (node for node in graph.nodes if node.op.mutates)
    sums = [node for node in graph.nodes if isinstance(node.op, Add)]
    for place, value in enumerate(update.inputs):
        for other in sums:
            if isinstance(value, Node) and isinstance(value.op, TupleGetItem) and other.type == value.type:
                update.inputs[place] = other
                return [update]
    raise AssertionError


def no_result(graph: Graph) -> list[Node]:
    """A rank gives another result."""
    (result,) = graph.results
    assert isinstance(result, Node)
    graph.results[:] = [next(v for v in result.inputs if v.type == result.type and not isinstance(v, Node))]
    return [result]


@pytest.mark.parametrize(
    ("name", "edit", "told"),
    [
        ("experts", reads_what_another_reads, "Reshape"),
        ("experts", reads_what_is_not_added_up, "Add"),
        ("experts", no_result, "Sub"),
        ("llama", counted_twice, "AllReduce"),
        ("llama", another_gradient, "GroupedUpdate"),
    ],
)
def test_the_change_is_told(name: str, edit: Edit, told: str, plans: dict[str, Plan]) -> None:
    plan = plans[name]
    graphs = plan.graphs()
    changed = [edit(graph) for graph in graphs]
    first = plan.proof(graphs).first
    assert first is not None
    assert first.node.label.startswith(told)
    assert first.equals
    assert first.node.attrs.get(PLACE) in {None, *(node.attrs[PLACE] for node in changed[0])}


def test_slices_of_inputs_from_elsewhere_are_told_where_they_are_read(plans: dict[str, Plan]) -> None:
    plan = plans["llama"]
    graphs = plan.graphs()
    _, edit = other_offset(rank_of(0, graphs[0]), (0, 0), Random(0))
    for rank, graph in enumerate(graphs):
        edit(rank_of(rank, graph))
    first = plan.proof(graphs).first
    assert first is not None
    assert first.node.label == "Gather 'embed'"
    assert "its slices lie in another order on the ranks" in first.equals


def test_updates_that_are_left_out_of_a_loop_are_told_on_one_device(plans: dict[str, Plan]) -> None:
    plan = plans["experts"]
    graphs = plan.graphs()
    own = [rank_of(rank, graph) for rank, graph in enumerate(graphs)]
    place = next(place for place in _places(own[0]) if place[0] and own[0].at(place).op.mutates)
    said, edit = KINDS["left out"](own[0], place, Random(0))
    change = Change("left out", said, edit)
    found = judged(plan, change, tuple(range(4)), graphs, made(change, own))
    assert found.right
    assert "AdamWeightDecay 'moved' (None)" in found.told


def _places(rank: Rank) -> Iterator[tuple[int, int]]:
    return ((g, n) for g, graph in enumerate(rank.graphs) for n in range(len(graph.nodes)))


def test_pieces_of_which_most_numbers_are_rounding_are_told_apart() -> None:
    whole = np.full((1, 4, 8), 1e-18)
    whole[0, :, 0] = [1e-3, 2e-3, 3e-3, 4e-3]
    pieces = Pieces.of(whole, (1, 8))
    assert pieces is not None
    moved = whole[0, :, None] * (1 + 1e-14) + 1e-17
    assert pieces.has(pieces.product(moved, 1)).all()
    assert pieces.numbers(pieces.product(moved, 1)).tolist() == [0, 1, 2, 3]
