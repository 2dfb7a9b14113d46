"""Graphs with regions are sharded: what they compute stays, and ranks send no more than they must."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value, copied_region
from mspc.ops.control.regions import Call, For, Scan, emit_regions
from mspc.passes.base import PassManager, find_pass
from mspc.passes.lib.opened_graphs import close_regions, open_regions
from tests.executors import Executor, LocalComm, NumPyBackend, World
from tests.graphs import FLOAT64, REGISTRY, Collective, TensorType, check_graph, difference, parse, print_graph
from tests.interpret import Arrays, by_name, random_feeds, run_on_ranks, same
from tests.random_regions import COUNT, RandomRegions
from tests.shares import share_of

SHARED = (
    "decompose", "grad", "simplify", "recompute", "check_strategies", "search_sharding", "propagate_sharding",
    "insert_redistribution", "lower_redistribution", "fuse_gradients",
)  # fmt: skip
ROWS = TensorType(FLOAT64, (8, 16))
WEIGHT = TensorType(FLOAT64, (16, 16))


def passed(graph: Graph, names: Sequence[str]) -> Graph:
    manager = PassManager(verify="types")
    for name in names:
        graph, _ = manager.apply(find_pass(name), graph)
    return graph


def on_one_device(graph: Graph, feeds: Arrays) -> list[np.ndarray]:
    alone = copied_region(graph)
    alone.attrs = {"mode": "stand_alone", "ranks": 1}
    alone = passed(alone, ("grad", "simplify", "execute"))

    def main(comm: LocalComm) -> list[np.ndarray]:
        held = {p.name: feeds[p.name].copy() for p in alone.parameters if p.kind != "input"}
        executor = Executor(alone, NumPyBackend(comm), held)
        results = executor.run([feeds[p.name] for p in executor.inputs])
        return [*results, *(executor.parameter(p.name).copy() for p in by_name(alone))]

    return World(1).run(main)[0]


def collectives(graph: Graph) -> list[tuple[str, str]]:
    """Those that are not unused, each with the name of the graph that has it."""
    return [
        (each.name, node.op.name)
        for each in graph.graphs()
        for node in each.nodes
        if isinstance(node.op, Collective) and "unused" not in node.attrs
    ]


def region(name: str, **types: TensorType) -> Graph:
    made = Graph(name)
    made.returns_tuple = True
    made.parameters = [Parameter(parameter, type) for parameter, type in types.items()]
    return made


def emit(graph: Graph, name: str, *inputs: Value, strategy: Any = None, **attributes: Any) -> Node:
    node = Builder(graph).emit(REGISTRY[name](**attributes), *inputs)
    node.in_strategy = strategy
    return node


def loop(strategy: Any, begin: float | None = None, mode: str = "semi_auto_parallel") -> Graph:
    """Four turns of `row = Tanh(row @ w)`."""
    top = Graph("net")
    top.attrs = {"mode": mode, "ranks": 8}
    x, w = Parameter("x", ROWS), Parameter("w", WEIGHT, "parameter", trainable=True)
    top.parameters = [x, w]
    body = region("for_1_body", turn=COUNT, row=ROWS, w=WEIGHT)
    _, row, weight = body.parameters
    body.results = [emit(body, "Tanh", emit(body, "MatMul", row, weight, strategy=strategy))]
    first: Value = x if begin is None else emit(top, "BroadcastTo", Constant(begin, FLOAT64), shape=ROWS.shape)
    made = emit_regions(Builder(top), For(carried=1, turns=4), [first, w], [body])
    top.results = [emit(top, "ReduceSum", emit(top, "TupleGetItem", made, index=0), axis=(), keep_dims=False)]
    return top


@pytest.mark.parametrize("seed", range(8))
def test_what_is_opened_and_closed_is_as_before(seed: int) -> None:
    """The first time may drop operands that no region reads, and join those that are one value."""
    graph = passed(RandomRegions(seed).graph, ("simplify",))
    texts: list[str] = []
    for _ in range(2):
        open_regions(graph)
        assert not any(node.regions for node in graph.nodes)
        close_regions(graph)
        graph.verify()
        check_graph(graph)
        texts.append(print_graph(graph))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
@pytest.mark.parametrize("seed", range(400, 400 + share_of(12, 4)))
def test_ranks_compute_what_one_device_does(seed: int, mode: str) -> None:
    graph = RandomRegions(seed, mode).graph
    feeds: list[Arrays] = []
    for turns in ((2, 1), (0, 3)):
        feeds.append(random_feeds(graph, seed) | dict(zip("nk", map(np.int64, turns), strict=True)))
    wanted = [on_one_device(graph, feed) for feed in feeds]
    sharded = passed(graph, SHARED)
    read = parse(print_graph(sharded), REGISTRY).main
    assert difference(sharded, read) == ""
    check_graph(read)
    for feed, want in zip(feeds, wanted, strict=True):
        same(want, run_on_ranks(sharded, feed), 1e-10)


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
@pytest.mark.parametrize("seed", range(500, 500 + share_of(6, 3)))
def test_ranks_compute_the_gradients_of_one_device(seed: int, mode: str) -> None:
    graph = RandomRegions(seed, mode, differentiated=True).graph
    feed = random_feeds(graph, seed) | {"n": np.int64(2), "k": np.int64(1)}
    wanted = on_one_device(RandomRegions(seed, mode, differentiated=True).graph, feed)
    sharded = passed(graph, SHARED)
    check_graph(parse(print_graph(sharded), REGISTRY).main)
    same(wanted, run_on_ranks(sharded, feed), 1e-10)


def test_a_loop_carries_what_a_turn_leaves() -> None:
    """The first value is one number, which every rank could have whole; turns leave rows."""
    graph = passed(loop(((8, 1), (1, 1)), begin=0.5), SHARED)
    assert collectives(graph) == [("net", "AllReduce")]
    [body] = graph.graphs()[1:]
    assert str(body.parameters[1].layout) == "(8) [0, -]"


def test_what_every_turn_needs_alike_is_brought_ahead_of_the_loop() -> None:
    top = Graph("net")
    top.attrs = {"mode": "semi_auto_parallel", "ranks": 8}
    top.parameters = [Parameter("x", ROWS), Parameter("w", WEIGHT, "parameter", trainable=True)]
    columns = emit(top, "MatMul", *top.parameters, strategy=((1, 1), (1, 8)))
    body = region("scan_1_body", row=ROWS, columns=ROWS)
    total = emit(body, "Add", *body.parameters, strategy=((8, 1), (8, 1)))
    body.results = [emit(body, "Tanh", total)]
    made = emit_regions(Builder(top), Scan(carried=1, turns=4), [top.parameters[0], columns], [body])
    top.results = [emit(top, "ReduceSum", emit(top, "TupleGetItem", made, index=0), axis=(), keep_dims=False)]
    feeds = random_feeds(top)
    wanted = on_one_device(top, feeds)
    sharded = passed(top, SHARED)
    assert [where for where, name in collectives(sharded) if name == "AlltoAll"] == ["net"]
    assert [where for where, _ in collectives(sharded) if where != "net"] == []
    same(wanted, run_on_ranks(sharded, feeds), 1e-10)


def test_nodes_that_run_one_graph_run_one_again() -> None:
    top = Graph("net")
    top.attrs = {"mode": "semi_auto_parallel", "ranks": 8}
    weights = [Parameter(f"w{i}", WEIGHT, "parameter", trainable=True) for i in range(6)]
    top.parameters = [Parameter("x", ROWS), *weights]
    layer = region("layer", row=ROWS, w=WEIGHT)
    product = emit(layer, "MatMul", *layer.parameters, strategy=((2, 1), (1, 4)))
    layer.results = [emit(layer, "Tanh", product)]
    row: Value = top.parameters[0]
    for weight in top.parameters[1:]:
        row = emit(top, "TupleGetItem", emit_regions(Builder(top), Call(), [row, weight], [layer]), index=0)
    top.results = [emit(top, "ReduceSum", row, axis=(), keep_dims=False)]
    feeds = random_feeds(top)
    wanted = on_one_device(top, feeds)
    sharded = passed(top, SHARED)
    names = [each.name for each in sharded.graphs()]
    assert names in (["net", "layer"], ["net", "layer", "layer/copy1"])  # the first may read x in another layout
    same(wanted, run_on_ranks(sharded, feeds), 1e-10)


def test_nodes_that_run_one_graph_draw_what_they_draw_on_one_device() -> None:
    top = Graph("net")
    top.attrs = {"mode": "semi_auto_parallel", "ranks": 8}
    top.parameters = [Parameter("x", ROWS)]
    layer = region("layer", row=ROWS)
    drawn = emit(layer, "Dropout", *layer.parameters, strategy=((2, 4),), keep_prob=0.5, Seed0=3, Seed1=4)
    layer.results = [emit(layer, "TupleGetItem", drawn, index=0)]
    calls = [emit_regions(Builder(top), Call(), top.parameters, [layer]) for _ in range(2)]
    top.results = [emit(top, "TupleGetItem", call, index=0) for call in calls]
    feeds = random_feeds(top)
    wanted = on_one_device(top, feeds)
    assert (wanted[0] != wanted[1]).any()
    same(wanted, run_on_ranks(passed(top, SHARED), feeds), 0)


def test_sums_are_scattered_into_what_the_next_turn_reads() -> None:
    graph = passed(loop(((1, 8), (8, 1))), SHARED)
    assert [name for where, name in collectives(graph) if where != "net"] == ["ReduceScatter"]
    assert str(graph.graphs()[1].parameters[1].layout) == "(8) [-, 0]"


def test_a_reason_names_what_a_turn_hands_on() -> None:
    graph = loop(((1, 8), (8, 1)))
    graph.graphs()[1].nodes[1].in_strategy = ((8, 1),)
    body = passed(graph, SHARED).graphs()[1]
    reasons = [node.attrs["reason"] for node in body.nodes if isinstance(node.op, Collective)]
    told = ("a turn of For hands it on sharded (1, 8) on mesh (8)", "row, which For carries, is sharded (8, 1)")
    assert any(words in reason for words in told for reason in reasons), reasons
