"""Planned memory of a step: shared by lifetimes, on two streams, found right by running it in any order."""

import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mspc.ir.graph import Builder, Graph, Node, Parameter, Value
from mspc.ops.control.structural import Depend, MakeTuple, TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.ops.tensor.reshape import ReduceSum, Reshape
from mspc.runtime.arena import MemoryBlock, assign, peak_live_bytes
from mspc.runtime.memory import MemoryPlan
from mspc.verify.scale.memory_use import MemoryCheck
from tests.compiled_scripts import compiled_script
from tests.conftest import LOADED
from tests.copied_parameters import random_copies
from tests.executors import Executor, NumPyBackend, parse_passes, plan_memory, run_passes
from tests.graphs import FLOAT32, REGISTRY, Collective, MspcError, Op, TensorType, difference, parse, print_graph
from tests.interpret import slice_for
from tests.networks import PASSES, RandomNetwork
from tests.operators import Adam, Add, AllReduce, AssignAdd, FusedMatMul, GroupedUpdate, MatMul, ReduceMean, Tanh
from tests.runtime.two_streams import Alone, TwoStreams, check_places
from tests.shares import share_of

SHAPE = (16, 16)
TYPE = TensorType(FLOAT32, SHAPE)
SIZE = 1024
SIDE = {"stream": "communication"}


class Maker:
    """A graph of square matrices of 1024 bytes."""

    def __init__(self) -> None:
        self.graph = Graph("net")
        self.graph.parameters = [Parameter("x", TYPE), *(Parameter(n, TYPE, "parameter") for n in ("w", "m", "v"))]
        self.graph.parameters[1].trainable = True
        self.x, self.w, self.m, self.v = self.graph.parameters

    def add(self, op: Op, *inputs: Value, side: bool = False) -> Node:
        node = Node(op, list(inputs), op.infer(*[value.type for value in inputs]))  # type: ignore[arg-type]
        node.attrs = dict(SIDE) if side else {}
        self.graph.nodes.append(node)
        return node

    def done(self, *results: Value) -> MemoryPlan:
        self.graph.results = list(results)
        plan = plan_memory(self.graph)
        check_places(self.graph, plan)
        for seed in range(20):
            compare(self.graph, plan, self.values(), seed)
        return plan

    def values(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)
        return {p.name: rng.random(SHAPE).astype(np.float32) / 4 for p in self.graph.parameters}


def all_reduce() -> AllReduce:
    return AllReduce(rank_list=(0, 1))


def compare(graph: Graph, plan: MemoryPlan, values: dict[str, np.ndarray], seed: int) -> None:
    """A step in planned memory, in the order that `seed` draws, gives what the executor gives."""
    comm = Alone(int(graph.attrs.get("rank", 0)), int(graph.attrs.get("ranks", 2)))
    plain = {name: array.copy() for name, array in values.items()}
    executor = Executor(graph, NumPyBackend(comm), plain)  # type: ignore[arg-type]
    expected = executor.run([plain[p.name] for p in executor.inputs])
    planned = {name: array.copy() for name, array in values.items()}
    found = TwoStreams(graph, plan, planned, comm, seed).run()
    tolerance = 1e-12 if all(a.dtype != np.float32 for a in values.values()) else 1e-5
    for one, other in zip([*expected, *plain.values()], [*found, *planned.values()], strict=True):
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)


def offsets(plan: MemoryPlan, *values: Value) -> list[int]:
    places = [plan.places[value][0] for value in values]
    assert all(place.kind == "arena" for place in places)
    return [place.offset for place in places]


def tag(nodes: Iterable[Node], seed: int = 0) -> None:
    """Collectives on side streams: those of a group all on one, as a runtime needs it."""
    generator = random.Random(seed)
    streams: dict[tuple[int, ...], str] = {}
    for node in nodes:
        if isinstance(node.op, Collective):
            group = tuple(sorted(getattr(node.op, "rank_list", ())))
            node.attrs["stream"] = streams.setdefault(group, generator.choice(["communication", "reduction"]))


def test_a_dead_value_makes_room_and_elementwise_operators_work_in_place() -> None:
    make = Maker()
    first = make.add(MatMul(), make.x, make.w)
    second = make.add(Tanh(), first)
    third = make.add(MatMul(), second, make.w)
    fourth = make.add(MatMul(), third, make.w)
    plan = make.done(make.add(ReduceSum(), fourth))
    a, b, c, d = offsets(plan, first, second, third, fourth)
    assert a == b == d != c
    assert plan.lower_bound == 2 * SIZE
    assert plan.arena == 2 * SIZE


@pytest.mark.parametrize("reads", ["neither", "x", "y", "view"])
def test_a_product_lies_over_what_it_adds_to_unless_it_multiplies_that(reads: str) -> None:
    make = Maker()
    addend, other = make.add(Tanh(), make.x), make.add(Tanh(), make.w)
    shown = make.add(Reshape(SHAPE), make.add(Reshape((SHAPE[0] * SHAPE[1],)), addend))
    x = {"x": addend, "view": shown}.get(reads, other)
    product = make.add(FusedMatMul(addend=True), x, addend if reads == "y" else other, addend)
    plan = make.done(make.add(ReduceSum(), product))
    before, made = offsets(plan, addend, product)
    assert (before == made) == (reads == "neither")
    plan.places[product] = plan.places[addend]
    found = [str(misuse) for misuse in MemoryCheck(make.graph, plan, early=False).misuses()]
    assert bool(found) == (reads != "neither"), found


def test_what_only_shows_has_the_place_of_its_operand_and_keeps_it() -> None:
    make = Maker()
    first = make.add(MatMul(), make.x, make.w)
    pair = make.add(MakeTuple(), first, make.w)
    shown = make.add(Depend(), make.add(TupleGetItem(0), pair), make.x)
    second = make.add(Tanh(), first)
    plan = make.done(make.add(Add(), shown, second))
    assert plan.places[pair] == (plan.places[first][0], plan.places[make.w][0])
    assert plan.places[shown] == plan.places[first]
    assert plan.places[second] != plan.places[first]  # `shown` is read once more
    assert plan.places[make.w][0].kind == "kept"


@pytest.mark.parametrize("returns", [(0, 1), (1, 0)])
def test_of_several_results_each_stands_over_an_operand_that_it_is_made_of(returns: tuple[int, ...]) -> None:
    """The first line needs operand 0 alone: over operand 1 it would be stored while that is still being loaded."""
    make = Maker()
    one, other = make.add(Tanh(), make.x), make.add(Tanh(), make.w)
    both = make.add(FusedElementwise(("Tanh(x0)", "Mul(t0, x1)"), returns), one, other)
    plan = make.done(both)
    wanted = dict(zip((0, 1), offsets(plan, one, other), strict=True))
    assert [place.offset for place in plan.places[both]] == [wanted[line] for line in returns]


def test_an_operand_that_is_broadcast_is_not_overwritten() -> None:
    make = Maker()
    row = make.add(ReduceSum(axis=(0,), keep_dims=True), make.x)
    column = make.add(ReduceSum(axis=(1,), keep_dims=True), make.x)
    square = make.add(Add(), row, column)
    flat = make.add(ReduceSum(axis=(0,), keep_dims=True), square)
    outer = FusedElementwise(("Add(x0, x1)", "ReduceSum(t0, keep_dims=false, axis=(0))"), (1,))
    make.done(make.add(ReduceSum(), make.add(outer, make.add(Tanh(), flat), make.add(Tanh(), column))))
    fused = make.graph.nodes[-2]
    plan = make.done(fused)
    assert len({*offsets(plan, fused, *fused.inputs)}) == 3  # type: ignore[arg-type]


def test_a_sum_over_one_element_lies_in_no_operand_s_place() -> None:
    """It is as large as its operand, and stored while the other result is still computed."""
    make = Maker()
    row = make.add(Reshape(shape=(1, 256)), make.add(Tanh(), make.x))
    body = ("Tanh(x0)", "ReduceSum(t0, keep_dims=true, axis=(0))", "Square(x0)")
    both = make.add(FusedElementwise(body, (1, 2)), row)
    plan = make.done(both)
    total, square = (place.offset for place in plan.places[both])
    (operand,) = offsets(plan, row)
    assert total != operand == square


def test_results_of_grouped_updates_are_the_parameters() -> None:
    make = Maker()
    grouped = make.add(GroupedUpdate("AssignAdd()", 2), make.w, make.x, make.m, make.x)
    plan = make.done(make.add(TupleGetItem(1), grouped))
    assert [place.value for place in plan.places[grouped]] == [make.w, make.m]


def test_the_results_of_an_update_are_the_parameters() -> None:
    make = Maker()
    gradient = make.add(MatMul(), make.x, make.w)
    scalars = [make.add(ReduceMean(), make.x) for _ in range(6)]
    update = make.add(Adam(), make.w, make.m, make.v, *scalars, gradient)
    plan = make.done(make.add(TupleGetItem(1), update))
    assert [place.value for place in plan.places[update]] == [make.w, make.m, make.v]
    assert (plan.weights, plan.states, plan.inputs) == (SIZE, 2 * SIZE, SIZE)
    assert plan.gradients == SIZE


def test_what_shows_a_parameter_that_changes_before_it_is_read_is_copied() -> None:
    make = Maker()
    before = make.add(Depend(), make.w)
    first = make.add(AssignAdd(), make.w, make.x)
    second = make.add(AssignAdd(), make.w, make.x)
    plan = make.done(make.add(Add(), make.add(Add(), before, first), second))
    assert list(plan.copied) == [before, first]
    assert [places[0].value for places in plan.copied.values()] == [make.w, make.w]
    assert plan.places[second][0].value is make.w


def test_main_stream_leaves_a_collective_s_operand_alone_until_it_waits() -> None:
    make = Maker()
    first = make.add(MatMul(), make.x, make.w)
    reduced = make.add(all_reduce(), first, side=True)
    beside = make.add(MatMul(), make.x, make.m)
    more = make.add(MatMul(), beside, make.m)
    plan = make.done(make.add(Add(), make.add(MatMul(), reduced, make.w), more))
    assert plan.places[reduced] == plan.places[first]  # in place
    assert len({*offsets(plan, first, beside, more)}) == 3
    assert [(n.op.name, c) for n, c in plan.waits.items()] == [("MatMul", (reduced,))]


def test_nobody_waits_for_what_nobody_reads_until_the_end() -> None:
    make = Maker()
    first = make.add(MatMul(), make.x, make.w)
    make.add(all_reduce(), first, side=True)
    second = make.add(MatMul(), make.x, make.w)
    plan = make.done(make.add(MatMul(), second, make.w))
    assert plan.waits == {}
    assert plan.arena == 3 * SIZE


def test_an_update_waits_for_the_collective_that_reads_its_parameter() -> None:
    make = Maker()
    reduced = make.add(all_reduce(), make.w, side=True)
    update = make.add(AssignAdd(), make.w, make.x)
    plan = make.done(update)
    assert plan.waits == {update: (reduced,)}


def test_a_bucket_is_one_block() -> None:
    make = Maker()
    small = make.add(ReduceSum(), make.x)
    first = make.add(MatMul(), make.x, make.w)
    second = make.add(MatMul(), first, make.w)
    third = make.add(MatMul(), second, make.m)
    reduced = make.add(all_reduce(), first, small, third, side=True)
    parts = [make.add(TupleGetItem(i), reduced) for i in range(3)]
    sums = make.add(Add(), make.add(Add(), parts[0], parts[2]), parts[1])
    plan = make.done(sums)
    begin = plan.buckets[reduced].offset
    assert offsets(plan, first, small, third) == [begin, begin + SIZE, begin + SIZE + 32]
    assert plan.buckets[reduced].nbytes == 2 * SIZE + 32
    assert offsets(plan, *parts) == offsets(plan, first, small, third)


def test_an_operand_needed_after_the_reduction_is_no_member_of_a_block() -> None:
    make = Maker()
    first = make.add(MatMul(), make.x, make.w)
    second = make.add(MatMul(), first, make.w)
    reduced = make.add(all_reduce(), first, second)
    plan = make.done(make.add(TupleGetItem(0), reduced), make.add(TupleGetItem(1), reduced), first)
    assert plan.buckets == {}
    one, two = plan.places[reduced]
    assert two == plan.places[second][0]
    assert one != plan.places[first][0]


@settings(max_examples=share_of(100), deadline=None)
@given(st.integers(0, 2**32))
def test_copies_of_parameters_stand_from_step_to_step(seed: int) -> None:
    graph = random_copies(seed)
    assert difference(parse(print_graph(graph), REGISTRY).main, graph) == ""
    plan = plan_memory(graph, alignment=16)
    check_places(graph, plan)
    comm = Alone(0, 2)
    rng = np.random.default_rng(seed)
    values = {p.name: rng.random(SHAPE).astype(np.float32) / 4 for p in graph.parameters}
    planned = {name: array.copy() for name, array in values.items()}
    executor = Executor(graph, NumPyBackend(comm), values)  # type: ignore[arg-type]
    step: TwoStreams | None = None
    for number in range(3):
        expected = executor.run([values["x"]])
        step = TwoStreams(graph, plan, planned, comm, seed + number, step)
        for one, other in zip([*expected, *values.values()], [*step.run(), *planned.values()], strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)


def test_many_of_these_graphs_keep_copies() -> None:
    plans = [plan_memory(random_copies(seed)) for seed in range(40)]
    assert sum(bool(plan.shadow_weights.copies) for plan in plans) > 20
    assert sum(bool(plan.shadow_weights.inner) for plan in plans) > 5
    assert sum(len(plan.waits) > 0 and bool(plan.shadow_weights.copies) for plan in plans) > 5


def network(seed: int, rank: int = 0) -> tuple[Graph, dict[str, np.ndarray]]:
    """The execute graph of a random network, on the second stream what communicates, and its parameters' slices."""
    grown = RandomNetwork(seed)
    shared = run_passes(grown.graph, parse_passes(PASSES))
    rank %= int(shared.attrs["ranks"])
    graph = run_passes(shared, parse_passes(f"slice_to_rank{{rank={rank}}},execute"))
    tag(graph.nodes, seed)
    return graph, {p.name: slice_for(p, rank, grown.feeds[p.name]) for p in graph.parameters}


@settings(max_examples=share_of(75), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 11), st.integers(0, 2**32))
def test_any_order_of_a_random_network_gives_the_same(seed: int, rank: int, order: int) -> None:
    graph, values = network(seed, rank)
    plan = plan_memory(graph, alignment=16)
    check_places(graph, plan)
    assert plan.lower_bound <= plan.arena
    for i in range(3):
        compare(graph, plan, values, order + i)


def test_a_plan_that_knows_no_second_stream_is_found_out() -> None:
    wrong = 0
    for seed in range(12):
        graph, values = network(seed)
        for node in graph.nodes:
            node.attrs.pop("stream", None)
        unaware = plan_memory(graph, alignment=16)
        tag(graph.nodes)
        aware = plan_memory(graph, alignment=16)
        plan = MemoryPlan(unaware.places, unaware.arena, 0, unaware.buckets, aware.waits, unaware.copied)
        try:
            for order in range(10):
                compare(graph, plan, values, order)
        except AssertionError:
            wrong += 1
    assert wrong > 0


def transformer(root: Path, layers: int, *more: str) -> Graph:
    script = root / "benchmarks/networks/layers.py"
    graph = compiled_script(script, 8, str(layers), *more).rank_graph(0)
    tag(graph.nodes)
    return graph


@pytest.mark.parametrize("width", ["64", "512"])
def test_twelve_layers_pack_well_and_fast(root: Path, width: str) -> None:
    graph = transformer(root, 12, width)
    start = time.perf_counter()
    plan = plan_memory(graph)
    assert time.perf_counter() - start < 0.5 * LOADED
    assert plan.arena <= 1.05 * plan.lower_bound
    assert sum(len(node.inputs) for node in plan.buckets) == 72


@settings(max_examples=share_of(100), deadline=None)
@given(st.integers(0, 2**32))
def test_blocks_alive_together_are_apart(seed: int) -> None:
    rng = random.Random(seed)
    blocks: list[MemoryBlock] = []
    for _ in range(rng.randint(1, 60)):
        start = rng.randint(0, 40)
        last = start + rng.randint(0, 12)
        free = last + 1 + rng.choice([0, 0, rng.randint(1, 8)])
        blocks.append(MemoryBlock(rng.randint(0, 2000), start, rng.random() < 0.3, last, free, last + 1))
    distance = 0
    for block in rng.sample(blocks, min(3, len(blocks))):
        block.tied, block.reserved = (7, distance), -(-block.nbytes // 32) * 32
        distance += block.reserved
    size = assign(blocks, 64)
    assert peak_live_bytes(blocks) <= size
    for i, one in enumerate(blocks):
        assert one.tied is not None or one.offset % 64 == 0
        for other in blocks[:i]:
            early, late = sorted((one, other), key=lambda b: b.start)
            if late.start < (early.free_on_side if late.on_side else early.free) or one.start == other.start:
                begin, end = max(one.offset, other.offset), min(
                    one.offset + (one.reserved or one.nbytes), other.offset + (other.reserved or other.nbytes)
                )
                assert begin >= end
    tied = [block for block in blocks if block.tied is not None]
    assert len({block.offset - block.tied[1] for block in tied if block.tied}) <= 1


def test_rows_with_gaps_take_their_pitch_and_share_memory_with_their_like() -> None:
    graph = Graph("gaps")
    graph.parameters = [Parameter("x", TensorType(FLOAT32, (4, 3)), "input")]
    b = Builder(graph)
    first = b.emit(Add(), *graph.parameters * 2)
    second = b.emit(Add(), first, first)
    graph.results = [b.emit(Add(), second, second)]
    first.attrs["row_pitch"] = second.attrs["row_pitch"] = (8,)
    plan = plan_memory(graph)
    (one,), (other,), (last,) = (plan.places[node] for node in graph.nodes)
    assert (one.pitch, one.nbytes, last.pitch, last.nbytes) == (8, 128, 0, 48)
    assert one.offset == other.offset
    assert last.offset != one.offset  # its rows lie closer, and it would overwrite what is still to be read


@pytest.mark.parametrize("pitch", [8, (8, 8), (2,), (-8,), ("8",), (8.5,)], ids=str)
def test_a_pitch_that_cannot_be_is_refused(pitch: Any) -> None:
    graph = Graph("gaps")
    graph.parameters = [Parameter("x", TensorType(FLOAT32, (4, 3)), "input")]
    graph.results = [Builder(graph).emit(Add(), *graph.parameters * 2)]
    graph.nodes[0].attrs["row_pitch"] = pitch
    with pytest.raises(MspcError, match=r"has row_pitch .* cannot lie in memory so"):
        plan_memory(graph)
