"""Collectives beside computation: the same numbers in an order that all ranks agree on, and time that it saves."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mspc.analysis.cost.nodes import seconds
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.ir.graph import Builder, Graph, Node, Parameter, Value
from mspc.ops.control.regions import Call, emit_regions
from mspc.passes.base import find_pass, parse_passes, run_passes
from mspc.passes.communication.schedule_communication import ScheduleCommunication
from mspc.passes.lib.collective_order import AHEAD_OF_SUMS, order_collectives
from mspc.runtime.memory_plan import plan_memory
from tests.compiled_scripts import Compiled, compiled_script
from tests.graphs import FLOAT32, REGISTRY, Collective, Op, TensorType, difference, parse, print_graph
from tests.interpret import run_global, run_on_ranks, same, slice_for
from tests.networks import PASSES, RandomNetwork
from tests.operators import Add, AllGather, AllReduce, AssignAdd, MatMul, Mul, Neg, Print, Receive, TupleGetItem
from tests.runtime.test_memory_plan import compare
from tests.runtime.two_streams import check_places
from tests.shares import share_of

SCHEDULED = ("schedule_communication", "execute")
SHAPE = (512, 512)
TRANSFORMER = ("12", "1024", "16", "512", "16", "2", "2", "bfloat16")


class Maker:
    """A graph of large square matrices."""

    def __init__(self, weights: int = 3) -> None:
        self.graph = Graph("net")
        type = TensorType(FLOAT32, SHAPE)
        self.graph.parameters = [Parameter("x", type), *(Parameter(f"w{i}", type, "parameter") for i in range(weights))]
        self.x, *self.weights = self.graph.parameters

    def add(self, op: Op, *inputs: Node | Parameter, phase: str = "forward") -> Node:
        node = Node(op, list(inputs), op.infer(*[value.type for value in inputs]), phase=phase)  # type: ignore[arg-type]
        self.graph.nodes.append(node)
        return node

    def scheduled(self, *results: Node) -> list[Node]:
        self.graph.results = list(results)
        ScheduleCommunication().run(self.graph)
        self.graph.verify()
        return self.graph.nodes


def reduce() -> AllReduce:
    return AllReduce(rank_list=(0, 1))


@pytest.mark.parametrize("aside_first", [False, True])
def test_a_product_that_a_reduction_does_not_need_runs_beside_it(aside_first: bool) -> None:
    make = Maker()
    x, (w, y, _) = make.x, make.weights
    made = {weight: make.add(MatMul(), x, weight) for weight in ((y, w) if aside_first else (w, y))}
    total = make.add(reduce(), made[w])
    read = make.add(Add(), total, x)
    out = make.add(Add(), read, made[y])
    assert make.scheduled(out) == [made[w], total, made[y], read, out]
    assert total.attrs == {"stream": "communication"}
    assert made[w].attrs == {}


def gradient(make: Maker, *products: Node) -> Node:
    """The sum over a group of their own of gradients that these products make."""
    total = make.add(AllReduce(rank_list=(0, 2)), *products, phase="backward")
    total.attrs["mirror_user_id"] = ", ".join(f"w{i}" for i in range(len(products)))
    return total


def test_a_bucket_lets_the_next_collective_go_first() -> None:
    make = Maker()
    x, (w, y, z) = make.x, make.weights
    made = [make.add(MatMul(), x, w), make.add(MatMul(), x, y)]
    bucket = gradient(make, *made)
    items = [make.add(TupleGetItem(i), bucket) for i in range(2)]
    first = make.add(MatMul(), x, z)
    total = make.add(reduce(), first)
    out = make.add(Add(), total, x)
    updates = [make.add(AssignAdd(), w, item, phase="update") for w, item in zip((w, y), items, strict=True)]
    make.graph.results = [out]
    assert order_collectives(make.graph)
    assert make.graph.nodes == [*made, first, total, bucket, *items, out, *updates]


def test_a_reduction_of_gradients_waits_while_another_collective_is_under_way() -> None:
    make = Maker()
    x, (w, y, z) = make.x, make.weights
    first = make.add(MatMul(), x, w)
    total = make.add(reduce(), first)
    made = make.add(Mul(), x, y)
    bucket = gradient(make, made)
    aside = make.add(Mul(), x, z)
    read = make.add(Add(), total, aside)
    update = make.add(AssignAdd(), y, bucket, phase="update")
    assert make.scheduled(read) == [first, total, made, aside, bucket, read, update]
    assert (total.attrs["stream"], bucket.attrs["stream"]) == ("communication", "reduction")


def test_a_parameter_is_read_before_it_is_updated_and_updates_wait_for_results() -> None:
    make = Maker(1)
    x, (w,) = make.x, make.weights
    loss = make.add(reduce(), make.add(MatMul(), x, x))
    update = make.add(AssignAdd(), w, x, phase="update")
    after = make.add(MatMul(), x, w)
    second = make.add(AssignAdd(), w, x, phase="update")
    nodes = make.scheduled(loss)
    assert [nodes.index(n) for n in (loss, update, after, second)] == sorted(
        nodes.index(n) for n in (loss, update, after, second)
    )


@pytest.mark.parametrize("between", [False, True], ids=["sums", "what is made of sums"])
def test_updates_come_in_the_order_of_their_sums(between: bool) -> None:
    make = Maker(2)
    x, (w, y) = make.x, make.weights
    sums = [gradient(make, make.add(MatMul(), x, x)) for _ in range(2)]
    if between:
        sums = [make.add(Mul(), total, x, phase="backward") for total in reversed(sums)][::-1]
    last = make.add(MatMul(), x, x)
    for _ in range(200):
        last = make.add(Mul(), last, x)
    late = make.add(AssignAdd(), y, sums[1], phase="update")
    early = make.add(AssignAdd(), w, sums[0], phase="update")
    assert make.scheduled(last)[-2:] == [early, late]


def test_parameters_are_gathered_a_bounded_number_of_bytes_ahead() -> None:
    make = Maker(200)
    value: Node | Parameter = make.x
    for weight in make.weights:
        gathered = make.add(AllGather(rank_list=(0, 1)), weight)
        value = make.add(MatMul(), make.add(MatMul(transpose_b=True), value, gathered), gathered)
    order_collectives(make.graph)
    assert all(isinstance(node.op, AllGather) for node in make.graph.nodes[:200])
    ahead = most = 0
    started: set[Node] = set()
    for node in make.scheduled(value):  # type: ignore[arg-type]
        if isinstance(node.op, AllGather):
            ahead += 1
        elif node.inputs[1] not in started:
            started.add(node.inputs[1])  # type: ignore[arg-type]
            ahead -= 1
        most = max(most, ahead)
    assert most == (64 << 20) // (2 * 512 * 512 * 4)


def test_gradients_are_not_reduced_behind_all_that_is_gathered() -> None:
    make = Maker(40)
    value: Node | Parameter = make.x
    sums: list[Node] = []
    for weight in make.weights:
        gathered = make.add(AllGather(rank_list=(0, 1)), weight)
        value = make.add(MatMul(), make.add(MatMul(transpose_b=True), value, gathered), gathered)
        sums.append(gradient(make, make.add(Mul(), value, make.x)))
    make.graph.results = [value, *sums]  # type: ignore[list-item]
    order_collectives(make.graph)
    order = [node for node in make.graph.nodes if isinstance(node.op, Collective)]
    gathers = [node for node in order if isinstance(node.op, AllGather)]
    assert [gathers.index(node) for node in gathers] == list(range(40))
    passed = [sum(other in gathers for other in order[: order.index(node)]) - k for k, node in enumerate(sums)]
    assert max(passed) <= AHEAD_OF_SUMS + 1
    assert passed[0] > 1, "they are gathered ahead all the same"


def test_what_prints_stays_in_order() -> None:
    """A branch that prints and updates, a Print, and one that waits for a collective."""
    make = Maker()
    x, (w, y, z) = make.x, make.weights
    branch = Graph("branch")
    branch.parameters = [Parameter("p", z.type), Parameter("q", x.type)]
    inner = Builder(branch)
    inner.emit(Print(("turn",)), branch.parameters[1])
    branch.results = [inner.emit(AssignAdd(), *branch.parameters)]
    total = make.add(reduce(), make.add(MatMul(), x, w))
    first = make.add(Print(), total)
    called = emit_regions(Builder(make.graph), Call(), [z, y], [branch])
    last = make.add(Print(), make.add(MatMul(), x, y))
    nodes = make.scheduled(make.add(Add(), total, last))
    assert [node for node in nodes if node in (first, called, last)] == [first, called, last]


def test_nothing_happens_without_collectives() -> None:
    make = Maker()
    out = make.add(MatMul(), make.x, make.weights[0])
    make.graph.results = [out]
    assert not ScheduleCommunication().run(make.graph)


def sequences(graphs: list[Graph]) -> list[list[tuple[str, tuple[int, ...]]]]:
    return [
        [(n.op.name, getattr(n.op, "rank_list", ())) for n in graph.nodes if isinstance(n.op, Collective)]
        for graph in graphs
    ]


def agree(graphs: list[Graph]) -> None:
    """Any two ranks call the collectives of their common groups in one order; blocks only go where they are needed."""
    found = [[c for c in sequence if c[0] != "NeighborExchange"] for sequence in sequences(graphs)]
    for one, other in combinations(range(len(graphs)), 2):
        both = [[c for c in found[r] if {one, other} <= set(c[1])] for r in (one, other)]
        assert both[0] == both[1]


@settings(max_examples=share_of(60), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_steps_of_random_networks_stay_the_same(seed: int, order: int) -> None:
    grown = RandomNetwork(seed)
    feeds, expected = grown.feeds, run_global(grown.graph, grown.feeds)
    shared = run_passes(RandomNetwork(seed).graph, parse_passes(PASSES))
    same(run_on_ranks(shared, feeds, SCHEDULED), expected, 1e-12)
    ranks = int(shared.attrs["ranks"])
    sliced = [run_passes(shared, parse_passes(f"slice_to_rank{{rank={rank}}}")) for rank in range(ranks)]
    before = sequences(sliced)
    graphs = [run_passes(graph, map(find_pass, SCHEDULED)) for graph in sliced]
    assert sequences(graphs) == before
    agree(graphs)
    graph = graphs[order % ranks]
    graph.verify()
    graph.returns_tuple = len(graph.results) > 1
    again = parse(print_graph(graph), REGISTRY, file="again", frames=True).main
    assert difference(graph, again) == ""
    plan = plan_memory(graph, alignment=16)
    check_places(graph, plan)
    values = {p.name: slice_for(p, order % ranks, feeds[p.name]) for p in graph.parameters}
    for i in range(2):
        compare(graph, plan, values, order + i)


def compiled(root: Path, ranks: int, *arguments: str) -> Compiled:
    return compiled_script(root / "benchmarks/networks/layers.py", ranks, *arguments)


def rank_graph(program: Compiled, rank: int, *, scheduled: bool = True) -> Graph:
    last = "schedule_communication,execute" if scheduled else "execute"
    return run_passes(program.graph, parse_passes(f"slice_to_rank{{rank={rank}}},{last}"))


@pytest.fixture(scope="module")
def transformer(root: Path) -> Compiled:
    return compiled(root, 4, *TRANSFORMER)


def test_little_but_the_forward_reductions_stays_unhidden(transformer: Compiled) -> None:
    """Nothing runs beside a reduction of the forward graph, whose reader is the next operator."""
    before, after = rank_graph(transformer, 0, scheduled=False), rank_graph(transformer, 0)
    plain, beside = StreamTimeline(before), StreamTimeline(after)
    assert plain.total == pytest.approx(plain.alone)
    assert beside.alone == pytest.approx(plain.alone)
    forward = StreamTimeline(only_forward(after))
    assert beside.total - beside.compute < forward.communication + 0.15 * beside.communication
    assert plan_memory(after).arena < 1.03 * plan_memory(before).arena


def test_updates_come_late_enough_for_a_slow_reduction(transformer: Compiled) -> None:
    """Nothing but updates is left to run when the main stream first waits for a reduction that takes twice its time."""
    nodes = rank_graph(transformer, 0).nodes
    over: dict[Value, float] = {}
    main = side = reduction = 0.0
    stalled = False
    for node in nodes:
        ready = max((over.get(value, 0.0) for value in node.inputs), default=0.0)
        if node.op.is_view:
            over[node] = ready
        elif node.attrs.get("stream") == "reduction":
            over[node] = reduction = max(reduction, main) + 2 * seconds(node)
        elif node.attrs.get("stream"):
            over[node] = side = max(side, main) + seconds(node)
        else:
            assert node.phase == "update" or not stalled
            stalled = stalled or (node.phase == "update" and ready > main)
            main = max(main, ready) + seconds(node)


def only_forward(graph: Graph) -> Graph:
    part = Graph("forward")
    part.nodes = [node for node in graph.nodes if node.phase == "forward"]
    return part


def test_many_gradients_travel_in_several_buckets_in_the_order_they_are_ready(transformer: Compiled) -> None:
    buckets = [n for n in rank_graph(transformer, 0).nodes if n.op.name == "AllReduce" and len(n.inputs) > 1]
    buckets = [n for n in buckets if "up_weight" in str(n.attrs["mirror_user_id"])]
    assert len(buckets) > 4
    assert all(sum(v.type.nbytes for v in n.inputs) <= 20 << 20 for n in buckets)
    layers = [[int(name.split(".")[1]) for name in str(n.attrs["mirror_user_id"]).split(", ")] for n in buckets]
    assert [max(found) for found in layers] == sorted((max(found) for found in layers), reverse=True)
    assert layers[0][0] == 11


# The order of collectives on the graph of all ranks: what golden cases do not show.


def test_what_is_received_without_an_operand_stays_where_the_script_has_it() -> None:
    """It is ready from the beginning on, but what it makes would be held from there on, too."""
    graph = Graph("received")
    x = Parameter("x", TensorType(FLOAT32, (2,)), kind="input")
    graph.parameters = [x]
    b = Builder(graph)
    first = b.emit(Neg(), x)
    second = b.emit(Neg(), first)
    received = b.emit(Receive(src_rank=1, shape=(2,)))
    graph.results = [b.emit(Add(), second, received)]
    before = list(graph.nodes)
    assert not order_collectives(graph)
    assert graph.nodes == before
