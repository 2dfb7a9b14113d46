"""The planner: plans are executed on simulated ranks, and their bytes compared with what is missing."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from mspc.ops.collective.exchange import Regroup, regrouping
from mspc.passes.lib import redistribution
from mspc.passes.lib.redistribution import cost, plan
from mspc.sharding import pieces
from mspc.sharding.pieces import rank_exchange
from tests.errors import error_of
from tests.graphs import FLOAT64, Graph, Layout, Node, Parameter, TensorType
from tests.interpret import run_on_ranks
from tests.redistributions import (
    Pair,
    execute,
    expected,
    holders,
    missing,
    one_collective_suffices,
    parts_of,
    random_pairs,
    strategy_pairs,
)

SMALL = (4, 6, 8, 12, 16)


def check(pair: Pair) -> None:
    """Execute the plan of a pair; for finished values, no byte and no message may be in vain."""
    source, target, shape = pair
    parts = parts_of(source, shape)
    found = plan(source, target, shape, parts.itemsize)
    outcome = execute(found, source, target, parts)
    for mine, wanted in zip(outcome.arrays, expected(source, target, parts), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-14 if source.reduction == "mean" else 0)
    assert sum(outcome.sent) == pytest.approx(found.nbytes * source.ranks)
    assert outcome.largest <= max(math.prod(source.local_shape(shape)), math.prod(target.local_shape(shape)))
    if source.partial:
        return
    least = missing(source, target, shape)
    assert sum(outcome.sent) == least.sum() * parts.itemsize
    assert (np.array(outcome.received) <= holders(source, target, shape)).all()
    assert found.messages == max(outcome.received)
    names = [step.op.name for step in found.steps]
    if found.collectives > 1 or "Exchange" in names:
        assert not one_collective_suffices(source, target, shape), f"{source} to {target}: {names}"


@pytest.mark.parametrize("ranks", SMALL)
def test_strategy_pairs(ranks: int) -> None:
    pairs = list(strategy_pairs((ranks,)))
    for pair in pairs[:: max(1, len(pairs) // 150)]:
        check(pair)


@pytest.mark.parametrize("seed", range(4))
def test_random_pairs_of_layouts(seed: int) -> None:
    for pair in random_pairs(seed, 100, SMALL):
        check(pair)


@pytest.mark.parametrize("seed", range(4))
def test_random_pairs_with_partial_sources(seed: int) -> None:
    for pair in random_pairs(seed, 150, (2, 4, 6, 8, 12), partial=True):
        check(pair)


def test_no_elements_are_lost_on_64_ranks() -> None:
    for source, target, shape in itertools.islice(strategy_pairs((64,)), 0, None, 97):
        found = plan(source, target, shape, 4)
        assert found.nbytes * 64 == pytest.approx(missing(source, target, shape).sum() * 4)


MOVES = [
    ("(8) [0, -]", ((8,), [(0,), ()]), ((8,), [(0,), ()]), [], 0),
    ("slice", ((2, 4), [(0,), ()]), ((2, 4), [(0,), (1,)]), ["LocalSlice"], 0),
    ("gather", ((8,), [(), (0,)]), ((8,), [(), ()]), ["AllGather"], 7 * 32),
    ("gather two", ((2, 4), [(0,), (1,)]), ((8,), [(), ()]), ["AllGather", "AllGather"], 7 * 32),
    ("all to all", ((8,), [(0,), ()]), ((2, 4), [(0,), (1,)]), ["AlltoAll"], 24),
    ("slice, gather", ((2, 4), [(0,), ()]), ((2, 4), [(), (1,)]), ["LocalSlice", "AllGather"], 32),
    ("all to all, gather", ((2, 4), [(0, 1), ()]), ((2, 4), [(), (1,)]), ["AlltoAll", "AllGather"], 24 + 32),
    ("swap", ((2, 4), [(0,), (1,)]), ((2, 4), [(1,), (0,)]), ["Exchange"], 24),
    ("major axis goes", ((2, 4), [(0, 1), ()]), ((2, 4), [(1,), ()]), ["Exchange"], 56),
]


@pytest.mark.parametrize(("source", "target", "names", "elements"), [m[1:] for m in MOVES], ids=[m[0] for m in MOVES])
def test_steps_of_finished_values(source, target, names, elements) -> None:
    pair = Layout.of(*source), Layout.of(*target), (16, 16)
    found = plan(*pair, 4)
    assert [step.op.name for step in found.steps] == names
    assert found.nbytes == 4 * elements
    check(pair)


REDUCTIONS = [
    ("all-reduced", ((8,), [(), ()], (0,)), ((8,), [(), ()]), ["AllReduce"], 2 * 7 / 8 * 256),
    ("scatter", ((2, 4), [(0,), ()], (1,)), ((2, 4), [(0,), (1,)]), ["ReduceScatter"], 3 / 4 * 128),
    ("both", ((2, 4), [(), ()], (0, 1)), ((2, 4), [(), (0,)]), ["ReduceScatter", "AllReduce"], 128 + 2 * 3 / 4 * 128),
    ("sliced before", ((2, 4), [(), ()], (0,)), ((2, 4), [(1,), ()]), ["LocalSlice", "AllReduce"], 64),
    ("replicas share the work", ((4, 2), [(), ()], (0,)), ((8,), [(), ()]), ["LocalSlice", "AllReduce", "AllGather"],
     2 * 3 / 4 * 128 + 128),
    ("scattered before", ((2, 4), [(1,), ()], (0,)), ((2, 4), [(), (1,)], (0,)), ["AlltoAll"], 3 / 4 * 64),
    ("some scattered before", ((2, 4), [(), ()], (0, 1)), ((2, 4), [(1,), ()], (0,)), ["ReduceScatter"], 3 / 4 * 256),
    ("no dimension divides", ((8,), [()], (0,)), ((8,), [()]), ["AllReduce"], 2 * 7 / 8 * 10),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "target", "names", "elements"), [m[1:] for m in REDUCTIONS], ids=[m[0] for m in REDUCTIONS]
)
def test_steps_of_partial_values(source, target, names, elements) -> None:
    shape = (16, 16) if len(source[1]) == 2 else (10,)
    pair = Layout.of(*source), Layout.of(*target), shape
    found = plan(*pair, 4)
    assert found.nbytes == pytest.approx(4 * elements)
    assert sorted(step.op.name for step in found.steps) == sorted(names)
    check(pair)


def test_a_mean_is_scaled_once_behind_the_last_reduction() -> None:
    source = Layout.of((2, 2, 2), [(0,), ()], (1, 2), "mean")
    found = plan(source, Layout.of((2, 2, 2), [(0,), (1,)]), (8, 8), 4)
    assert [step.scale for step in found.steps] == [1.0, 0.25]


@pytest.mark.parametrize(("reduction", "op"), [("all", "min"), ("any", "max"), ("mean", "sum"), ("prod", "prod")])
def test_reductions_by_collective(reduction: str, op: str) -> None:
    source = Layout.of((4,), [()], (0,), reduction)
    (step,) = plan(source, Layout.replicated(4, 1), (3,), 1).steps
    assert step.op.attributes() == {"op": op, "mesh": (4,), "axes": (0,)}


def test_a_group_is_named_on_the_coarsest_mesh() -> None:
    source, target = Layout.of((2, 2, 2), [(0,), (1, 2)]), Layout.of((2, 4), [(0,), ()])
    (step,) = plan(source, target, (8, 8), 4).steps
    assert step.op.attributes() == {"axis": 1, "mesh": (2, 4), "axes": (1,)}


def test_cost_is_the_plan_s_bytes() -> None:
    source, target = Layout.of((8,), [(), (0,)]), Layout.replicated(8, 2)
    assert cost(source, target, (16, 16), 8) == plan(source, target, (16, 16), 8).nbytes == 7 * 32 * 8
    assert cost(source, source, (16, 16), 8) == 0.0


BAD = [
    (Layout.replicated(4, 2), Layout.replicated(8, 2),
     "there is no way from layout (4) [-, -] to (8) [-, -] for a tensor of shape (8, 8)"),
    (Layout.replicated(8, 2), Layout.of((2, 4), [(), ()], (0,)),
     "layout (2, 4) [-, -] sum[0] is partial where (8) [-, -] is not"),
    (Layout.of((2, 4), [(), ()], (0,), "max"), Layout.of((2, 4), [(1,), ()], (0,), "sum"),
     "layout (2, 4) [1, -] sum[0] is partial where (2, 4) [-, -] max[0] is not"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "message"), BAD)
def test_impossible_pairs(source: Layout, target: Layout, message: str) -> None:
    assert error_of(plan, source, target, (8, 8), 4).message == message


def test_readers_are_dealt_evenly_to_replicas() -> None:
    """16 ranks, rank (i, j) holds block i and needs block j: three others read each block."""
    source, target = Layout.of((4, 4), [(0,), ()]), Layout.of((4, 4), [(1,), ()])
    sends = [len(rank_exchange(source, target, (16, 16), rank).sends) for rank in range(16)]
    assert max(sends) == 1
    assert sum(sends) == 12


def test_a_piece_comes_from_the_nearest_replica() -> None:
    """Ranks 0 to 3 and 4 to 7 hold the same halves; nobody reaches over to the other four."""
    source, target = Layout.of((2, 2, 2), [(1,)]), Layout.replicated(8, 1)
    for rank in range(8):
        assert [r // 4 for r, _ in rank_exchange(source, target, (16,), rank).receives] == [rank // 4]


@pytest.mark.parametrize("exact", [0, 512])
def test_senders_and_receivers_agree(exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to choose senders: every block that a rank expects is sent to it, and no other."""
    monkeypatch.setattr(pieces, "_EXACT", exact)
    for source, target, shape in random_pairs(11, 60, SMALL):
        parts = [rank_exchange(source, target, shape, rank) for rank in range(source.ranks)]
        sent = {(rank, to, box) for rank, part in enumerate(parts) for to, box in part.sends}
        received = {(of, rank, box) for rank, part in enumerate(parts) for of, box in part.receives}
        assert sent == received


def test_a_rank_s_exchange_on_4096_ranks_looks_at_few_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: the blocks computed for one rank's exchange are few beside the ranks."""
    source, target = Layout.of((64, 64), [(0,), ()]), Layout.of((64, 64), [(1,), ()])
    seen = SimpleNamespace(count=0)
    original = pieces._Grid.index

    def counted(grid: pieces._Grid, rank: int) -> tuple[int, ...]:
        seen.count += 1
        return original(grid, rank)

    monkeypatch.setattr(pieces._Grid, "index", counted)
    part = rank_exchange(source, target, (4096, 64), 70)
    assert [box.size for _, box in part.receives] == [4096]
    assert seen.count < 300


# Many small blocks become one all-to-all, one gather and a local transposition; the bytes stay the least.


PAIRS = [
    (Layout.of((2, 2, 3), [(0, 1, 2), ()]), Layout.of((2, 2, 3), [(0,), (1,)])),
    (Layout.of((2, 3, 2), [(), (0, 1, 2)]), Layout.of((2, 3, 2), [(1,), ()])),
    (Layout.of((2, 2, 2, 2), [(0, 1, 2, 3), (), ()]), Layout.of((2, 2, 2, 2), [(), (), (2, 0)])),
    (Layout.of((2, 2, 2, 2), [(1, 2, 3), (0,)]), Layout.of((2, 2, 2, 2), [(1,), (0, 2)])),
    (Layout.of((6, 2), [(), (0,), (1,)]), Layout.of((3, 2, 2), [(), (), (2, 1, 0)])),
    (Layout.of((3, 2, 2), [(), (2, 1), (0,)]), Layout.of((6, 2), [(0,), (1,), ()])),
    (Layout.of((2, 3, 2), [(), (0, 1), (2,)]), Layout.of((2, 3, 2), [(1,), (), (2, 0)])),
]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_regrouping_brings_every_rank_its_slice(source: Layout, target: Layout) -> None:
    graph = Graph("regroup")
    shape = (48, 24, 12)[: len(source.dims)]
    x = Parameter("x", TensorType(FLOAT64, shape), layout=source)
    node = Node(Regroup(source=source, target=target), [x], x.type)
    node.layout = target
    graph.parameters, graph.nodes, graph.results = [x], [node], [node]
    graph.attrs = {"ranks": source.ranks}
    value = np.random.default_rng(0).random(shape)
    np.testing.assert_array_equal(run_on_ranks(graph, {"x": value})[0], value)


def test_thousands_of_ranks_need_few_messages() -> None:
    source, target = Layout.from_strategy((4096, 1), 4096), Layout.from_strategy((2, 4), 4096)
    found = plan(source, target, (8192, 32), 4)
    assert [step.op.name for step in found.steps] == ["Regroup"]
    assert found.messages == 3 + 511
    needed, held = 4096 * 8, 2 * 8
    assert found.nbytes == (needed - held) * 4


@pytest.mark.parametrize(("few", "names"), [(32, ["Exchange"]), (0, ["AllGather", "AlltoAll"])])
def test_many_blocks_in_another_order_are_gathered(few: int, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redistribution, "FEW", few)
    monkeypatch.setattr(redistribution, "plan", plan.__wrapped__)
    source, target, shape = Layout.of((4, 2), [(0,), (1,)]), Layout.of((4, 2), [(1,), ()]), (8, 6)
    found, parts = redistribution.plan(source, target, shape, 8), parts_of(source, shape)
    assert [step.op.name for step in found.steps] == names
    outcome = execute(found, source, target, parts)
    for mine, wanted in zip(outcome.arrays, expected(source, target, parts), strict=True):
        np.testing.assert_array_equal(mine, wanted)
    assert sum(outcome.sent) == pytest.approx(found.nbytes * source.ranks)


def test_what_is_no_regrouping() -> None:
    assert regrouping(Layout.of((3, 4), [(0,), (1,)]), Layout.of((4, 3), [(0,), (1,)])) is None
    assert regrouping(Layout.of((2, 4), [(0, 1), ()]), Layout.of((2, 4), [(1,), (0,)])) is None
