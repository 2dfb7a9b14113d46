"""One account of what collectives send and of how long nodes take, for all that asks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200, KNOWN_MACHINES, Link, Rate
from mspc.analysis.cost.nodes import seconds, sent_bytes
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.ir.graph import Builder, Graph, Node, Parameter, Value
from mspc.ir.layout import Layout
from mspc.ir.types import BFLOAT16, BOOL, FLOAT32, INT64, DType, TensorType
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, Broadcast, NeighborExchange, ReduceScatter
from mspc.ops.collective.point_to_point import Barrier, Receive, ReceiveFromStage, Send
from mspc.ops.control.regions import If, Scan
from mspc.ops.control.structural import Depend
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.arithmetic import Add
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.op import REGISTRY, Op, load_operators
from mspc.passes.lib.redistribution import plan
from tests.runtime.region_graphs import graph, run_graphs

GROUP = (0, 1, 2, 3)
NBYTES = 8 * 16 * 4


def node(op: Op, *shapes: tuple[int, ...], dtype: DType = FLOAT32) -> Node:
    inputs = [Parameter(f"x{i}", TensorType(dtype, shape)) for i, shape in enumerate(shapes)]
    return Node(op, inputs, op.infer(*[value.tensor_type for value in inputs]))


@pytest.mark.parametrize(
    ("op", "sent"),
    [
        (AllReduce(rank_list=GROUP), 2 * 3 / 4),
        (AllReduce(op="max", rank_list=GROUP), 2 * 3 / 4),
        (AllGather(rank_list=GROUP), 3),
        (ReduceScatter(rank_list=GROUP), 3 / 4),
        (AlltoAll(4, 0, 1, rank_list=GROUP), 3 / 4),
        (Broadcast(0, rank_list=GROUP), 3 / 4),
        (NeighborExchange((1,), (1,), ((8, 16),), rank_list=GROUP), 1),
        (Send(dest_rank=1), 1),
        (Barrier(rank_list=GROUP), 0),
        (AllReduce(rank_list=(2,)), 0),
        (AllReduce(), 1),
    ],
    ids=str,
)
def test_bytes_that_a_rank_sends(op: Collective, sent: float) -> None:
    made = node(op, (8, 16))
    assert sent_bytes(made) == sent * NBYTES
    assert seconds(made) == H200.collective_seconds("AllReduce", sent * NBYTES, (0, 1))


def test_what_is_received_is_not_sent() -> None:
    assert sent_bytes(node(Receive(shape=(8, 16)))) == 0
    assert sent_bytes(node(Add(), (8, 16), (8, 16))) == 0


def test_every_collective_says_what_it_sends_and_with_whom() -> None:
    load_operators()
    kinds = [c for c in REGISTRY.values() if issubclass(c, Collective) and c.__module__.startswith("mspc.")]
    assert len(kinds) >= 9
    for kind in kinds:
        assert kind.sent_bytes(64.0, 1) <= 64
        assert 0 <= kind.sent_bytes(64.0, 8) <= 7 * 64


def test_partners_and_channels() -> None:
    reduced, gathered = AllReduce(rank_list=(3, 1)), AllGather(rank_list=(3, 1))
    assert reduced.partners(1) == gathered.partners(1) == (3,)
    assert reduced.channel(1) == ((1, 3), -1)
    assert gathered.channel(1) == ((3, 1), -1), "the order of the ranks is that of the result"
    sent, received = Send(sr_tag=2, dest_rank=0), Receive(sr_tag=2, src_rank=1)
    assert sent.partners(1) == (0,)
    assert received.partners(0) == (1,)
    assert sent.channel(1) == received.channel(0) == ((1, 0), 2), "its direction tells them apart"
    exchange = NeighborExchange((2, 1), (5,), ((1,),), rank_list=tuple(range(6)))
    assert exchange.partners(1) == (2, 5)
    assert [op.communicates for op in (reduced, AllReduce(rank_list=(1,)), sent, exchange)] == [True, False, True, True]


SHAPE = (16, 16)
SOURCE = Layout((4,), ((0,), ()))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (SOURCE, Layout((4,), ((), ()))),
        (SOURCE, Layout((4,), ((), (0,)))),
        (Layout((4,), ((), ()), (0,), "sum"), SOURCE),
        (Layout((4,), ((), ()), (0,), "sum"), Layout((4,), ((), ()))),
    ],
    ids=["AllGather", "AlltoAll", "ReduceScatter", "AllReduce"],
)
def test_the_planner_counts_the_same_bytes(source: Layout, target: Layout) -> None:
    (step,) = plan(source, target, SHAPE, 4).steps
    assert isinstance(step.op, Collective)
    local = step.op.with_ranks(GROUP)
    assert step.nbytes == sent_bytes(node(local, source.local_shape(SHAPE)))


@pytest.mark.parametrize(
    ("op", "shapes", "operations"),
    [
        (MatMul(), ((8, 16), (16, 4)), 2 * 8 * 16 * 4),
        (MatMul(transpose_a=True, transpose_b=True), ((16, 8), (4, 16)), 2 * 8 * 16 * 4),
        (BatchMatMul(), ((3, 8, 16), (3, 16, 4)), 3 * 2 * 8 * 16 * 4),
        (BatchMatMul(transpose_b=True), ((2, 3, 8, 16), (4, 16)), 6 * 2 * 8 * 16 * 4),
        (BatchMatMul(), ((2, 1, 8, 16), (3, 16, 4)), 6 * 2 * 8 * 16 * 4),
        (FusedMatMul(bias=True, activation="gelu"), ((8, 16), (16, 4), (4,)), 2 * 8 * 16 * 4),
        (Add(), ((8, 16), (8, 16)), 0),
    ],
    ids=str,
)
def test_operations_of_products(op: Op, shapes: Any, operations: float) -> None:
    assert op.operations([TensorType(FLOAT32, shape) for shape in shapes]) == operations


def test_time_of_a_product_depends_on_the_element_type() -> None:
    sides = ((4096, 4096), (4096, 4096))
    narrow, wide = node(MatMul(), *sides, dtype=BFLOAT16), node(MatMul(), *sides)
    moving = 3 * 4096**2 * 2 / 3.2e12
    assert seconds(narrow) == pytest.approx(H200.kernel + math.hypot(2 * 4096**3 / 600e12, moving))
    assert seconds(wide) == pytest.approx(H200.kernel + math.hypot(2 * 4096**3 / 50e12, 2 * moving))
    rounded = seconds(wide, H200.under({"matmul_allow_tf32": True}))
    assert rounded == pytest.approx(H200.kernel + math.hypot(2 * 4096**3 / 300e12, 2 * moving))
    assert seconds(node(MatMul(), *sides, dtype=INT64)) > seconds(wide)


def test_another_machine_may_be_asked() -> None:
    slow = replace(H200, link=Link(1.0, Rate.of(1e3)), memory=Rate.of(1e3), kernel=0.0)
    assert seconds(node(AllReduce(rank_list=GROUP), (8, 16)), slow) == 1.0 + 1.5 * NBYTES / 1e3
    assert seconds(node(Add(), (8, 16), (8, 16)), slow) == 3 * NBYTES / 1e3


def test_a_step_beside_its_collectives() -> None:
    graph = Graph("net")
    x = Parameter("x", TensorType(FLOAT32, (1024, 1024)))
    reduced = Node(AllReduce(rank_list=(0, 1)), [x], x.type)
    reduced.attrs["stream"] = "communication"
    product = Node(MatMul(), [x, x], x.type)
    graph.parameters, graph.nodes = [x], [reduced, product, Node(Depend(), [product, reduced], x.type)]
    found = StreamTimeline(graph)
    assert found.communication == seconds(reduced)
    assert found.compute == seconds(product)
    assert found.total == max(seconds(reduced), seconds(product))


def test_a_message_comes_while_its_stage_works() -> None:
    """It is received right before it is read, and was on its way meanwhile."""
    graph = Graph("net")
    x = Parameter("x", TensorType(FLOAT32, (4096, 4096)))
    product = Node(MatMul(), [x, x], x.type)
    came = Node(ReceiveFromStage(0, 1, 0, (4096,), FLOAT32, 0), [], TensorType(FLOAT32, (4096,)))
    came.attrs["stream"] = "communication"
    graph.parameters, graph.nodes = [x], [product, came, Node(Add(), [product, came], x.type)]
    found = StreamTimeline(graph)
    assert seconds(came) < seconds(product)
    assert found.spans[came] == (seconds(product) - seconds(came), seconds(came))
    assert found.total == found.compute
    graph.nodes = graph.nodes[1:2]
    assert StreamTimeline(graph).total == seconds(came)


def test_a_loop_takes_what_its_turns_take() -> None:
    rows = TensorType(FLOAT32, (256, 256))

    def layer(b: Builder, x: Value, w: Value) -> list[Value]:
        return [b.emit(AllReduce(rank_list=GROUP), b.emit(MatMul(), x, w))]

    def unrolled(b: Builder, x: Value, w: Value) -> list[Value]:
        for _ in range(6):
            (x,) = layer(b, x, w)
        return [x]

    inner = graph("inner", [rows] * 2, layer)
    outer = graph("outer", [rows] * 2, lambda b, *v: run_graphs(b, Scan(turns=2, carried=1), v, inner))
    looped = graph("main", [rows] * 2, lambda b, *v: run_graphs(b, Scan(turns=3, carried=1), v, outer))
    one, other = StreamTimeline(looped), StreamTimeline(graph("main", [rows] * 2, unrolled))
    assert (one.compute, one.communication) == pytest.approx((other.compute, other.communication))
    assert one.total == pytest.approx(other.total)
    assert seconds(looped.nodes[0]) == pytest.approx(other.total)


def test_a_choice_takes_the_longer_branch() -> None:
    rows = TensorType(FLOAT32, (256, 256))
    then = graph("then", [rows] * 2, lambda b, x, w: [b.emit(MatMul(), b.emit(MatMul(), x, w), w)])
    otherwise = graph("else", [rows] * 2, lambda b, x, w: [b.emit(MatMul(), x, w)])
    choice = graph("main", [TensorType(BOOL, ()), rows, rows], lambda b, *v: run_graphs(b, If(), v, then, otherwise))
    assert seconds(choice.nodes[0]) == pytest.approx(sum(map(seconds, then.nodes)))



def test_collectives_take_as_long_as_public_tables_say() -> None:
    """AIConfigurator's of NCCL 2.29 on one host, autoparallel's between hosts."""
    for name, operator, sent, ranks, measured in (
        ("h100", "AllReduce", 1.75 * (512 << 20), range(8), 2.111e-3),
        ("b200", "AlltoAll", 0.875 * (8 << 20), range(8), 34.7e-6),
        ("gb200", "ReduceScatter", 0.75 * (512 << 20), range(4), 0.7333e-3),
        ("h100", "ReduceScatter", 31 / 32 * (1 << 20), range(0, 256, 8), 0.2114e-3),
        ("h100", "AllGather", 7 << 30, range(0, 64, 8), 156.694e-3),
    ):
        assert KNOWN_MACHINES[name].collective_seconds(operator, sent, ranks) == pytest.approx(measured, rel=0.15)


def test_cards_domains_and_pods_change_the_time() -> None:
    h100, row, everyone = KNOWN_MACHINES["h100"], range(0, 512, 8), range(512)
    pods = replace(h100, ranks_per_pod=256, oversubscription=4.0)
    for machine, operator, ranks, times in (
        (replace(h100, cards=4), "ReduceScatter", row, 2), (pods, "AllReduce", everyone, 1),
        (pods, "AllReduce", (0, 256), 4), (pods, "AlltoAll", everyone, 2),
    ):  # fmt: skip
        slower = machine.collective_seconds(operator, 1e9, ranks) / h100.collective_seconds(operator, 1e9, ranks)
        assert slower == pytest.approx(times, rel=0.05)
    gb200 = KNOWN_MACHINES["gb200"]
    rack, racks = (replace(gb200, ranks_per_host=n).collective_seconds("AllReduce", 1e9, range(72)) for n in (72, 8))
    assert rack < 0.8 * racks
    assert h100.collective_seconds("AllReduce", 1e3, row) < 0.2 * h100.collective_seconds("AllGather", 1e3, row)
    wired = KNOWN_MACHINES["mi300x"].link
    assert wired.seconds("AllReduce", 1e9, 2) > 6 * wired.seconds("AllReduce", 1e9, 8)
