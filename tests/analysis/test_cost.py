"""One account of what collectives send and of how long nodes take, for all that asks."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200, KNOWN_MACHINES, LIKE, PRODUCTS, UNROUNDED, Link, Rate
from mspc.analysis.cost.nodes import (
    LONGEST_ROW,
    NOTHING,
    WAITING,
    computed,
    cost_of_lines,
    instructions,
    kind_of_traffic,
    kind_of_work,
    kinds_of_slices,
    moved_bytes,
    product_of,
    seconds,
    sent_bytes,
    share_of_scores,
    work_of,
)
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.ir.graph import Builder, Graph, Node, Parameter, Value, operand_types
from mspc.ir.varying import Looks, RankField, Varying
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, Broadcast, NeighborExchange, ReduceScatter
from mspc.ops.collective.point_to_point import Barrier, Receive, ReceiveFromStage, Send
from mspc.ops.convolution.convolve import Conv2D, Conv2DBackpropFilter, Conv2DBackpropInput
from mspc.ops.fused.body import BodyLine
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.ops.fused.grouped_rows import GroupedLookups, GroupedRowUpdate
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.op import REGISTRY, Op
from mspc.ops.tensor.embedding import Gather, GatherGrad
from mspc.passes.lib.redistribution import plan
from mspc.runtime.profile import traffic_and_operations
from mspc.search.calibration.machine_file import read_machine, write_machine
from mspc.search.calibration.measured import ON_GPU
from mspc.search.calibration.timed_operators import timing_tasks, traffic
from tests.graphs import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, Collective, DType, Layout, TensorType
from tests.operators import Add, Assign, Depend, Erf, FusedMatMul, FusedUpdate, If, ReduceSum, Scan, StridedSlice
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


H100 = KNOWN_MACHINES["h100"]


def kind_node(op: Op, *shapes: tuple[int, ...], dtype: DType = BFLOAT16) -> Node:
    return of_types(op, *[TensorType(dtype, shape) for shape in shapes])


def of_types(op: Op, *types: TensorType) -> Node:
    return Node(op, [Parameter(f"x{i}", type) for i, type in enumerate(types)], op.infer(*types))


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (kind_node(MatMul(), (8192, 1024), (1024, 1024)), "products"),
        (kind_node(MatMul(transpose_a=True), (8192, 1024), (8192, 1024)), "deep_products"),
        (kind_node(BatchMatMul(transpose_a=True), (8, 2560, 2816), (8, 2560, 1024)), "products"),
        (kind_node(MatMul(transpose_b=True), (64, 480), (1024, 480)), "flat_products"),
        (kind_node(MatMul(transpose_b=True), (64, 479), (1024, 479)), "products_of_2_bytes"),
        (kind_node(MatMul(transpose_b=True), (128, 479), (1024, 479)), "products_of_2_bytes"),
        (kind_node(MatMul(transpose_b=True), (128, 1500), (6000, 1500)), "products_of_8_bytes"),
        (kind_node(MatMul(transpose_b=True), (128, 1500), (30522, 1500)), "products_of_4_bytes"),
        (kind_node(MatMul(transpose_b=True), (128, 479), (1024, 479), dtype=FLOAT32), "products_of_4_bytes"),
        (kind_node(MatMul(), (512, 478), (478, 512), dtype=FLOAT64), "products"),
        (kind_node(Conv2D(8, 3, pad_mode="same"), (2, 8, 4, 4), (8, 8, 3, 3)), "convolutions"),
        (kind_node(Conv2D(8, 1), (2, 8, 4, 4), (8, 8, 1, 1)), "pointwise_convolutions"),
        (kind_node(Conv2D(8, 3, group=8), (2, 8, 4, 4), (8, 1, 3, 3)), "grouped_convolutions"),
        (kind_node(Conv2D(8, 3), (2, 3, 4, 4), (8, 3, 3, 3)), "shallow_convolutions"),
        (kind_node(Conv2DBackpropInput(8, 1, input_size=(2, 8, 4, 4)), (2, 8, 4, 4), (8, 8, 1, 1)),
         "pointwise_convolution_inputs"),
        (kind_node(Conv2DBackpropFilter(8, 3, filter_size=(8, 3, 3, 3)), (2, 8, 2, 2), (2, 3, 4, 4)),
         "shallow_convolution_filters"),
    ],
)  # fmt: skip
def test_kinds_follow_from_shapes(made: Node, kind: str) -> None:
    assert kind_of_work(made) == kind


def attention(op: type[Any], *added: TensorType, **settings: Any) -> Node:
    each = TensorType(BFLOAT16, (2, 64, 4, 16))
    behind = [] if op is FlashAttentionScore else [TensorType(FLOAT32, (2, 4, 64, 1)), each]
    types = [each] * (3 if op is FlashAttentionScore else 4) + [*added, *behind]
    optional = ("real_shift", "key_shift")[: len(added)]
    return of_types(op(4, input_layout="BSND", optional=optional, **settings), *types)


OF_KEYS, OF_SCORES = TensorType(FLOAT32, (2, 1, 1, 64)), TensorType(FLOAT32, (4, 64, 64))


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (attention(FlashAttentionScore), "attention"),
        (attention(FlashAttentionScore, sparse_mode=2), "causal_attention"),
        (attention(FlashAttentionScore, sparse_mode=2, keep_prob=0.9), "dropped_attention"),
        (attention(FlashAttentionScore, OF_KEYS), "masked_attention"),
        (attention(FlashAttentionScore, OF_SCORES), "biased_attention"),
        (attention(FlashAttentionScore, OF_SCORES, OF_KEYS), "biased_attention"),
        (attention(FlashAttentionScoreGrad, OF_KEYS, keep_prob=0.9), "masked_dropped_attention_gradients"),
        (attention(FlashAttentionScoreShiftGrad, OF_SCORES, keep_prob=0.9),
         "biased_dropped_attention_addend_gradients"),
    ],
)  # fmt: skip
def test_kinds_of_attention_follow_from_what_is_done_to_scores(made: Node, kind: str) -> None:
    assert kind_of_work(made) == kind
    while kind != PRODUCTS:
        kind = LIKE[kind]  # all have rates, whatever a file lists


def test_no_kind_asks_where_weights_that_a_rank_drops_begin() -> None:
    looks = Looks()
    begin: Any = Varying(RankField(0, 0, "begin"), (0, 0, 16, 0), looks)
    first: Any = Varying(RankField(0, 0, "first_query"), 16, looks)
    place = {"shape": (2, 4, 64, 64), "begin": begin, "local": (2, 4, 16, 64), "first_query": first}
    assert kind_of_work(attention(FlashAttentionScore, keep_prob=0.9, **place)) == "dropped_attention"
    assert not looks.answers
    assert kind_of_work(attention(FlashAttentionScore, sparse_mode=2, first_query=first)) == "causal_attention"
    assert looks.answers == {("value", first.slot, None): 16}


def test_slices_may_be_of_other_kinds() -> None:
    grouped = kind_node(Conv2D(8, 3, group=8), (2, 8, 4, 4), (8, 1, 3, 3))
    assert "convolutions" in kinds_of_slices(grouped)
    assert kinds_of_slices(attention(FlashAttentionScore, sparse_mode=2)) == ("causal_attention", "attention")
    assert kinds_of_slices(attention(FlashAttentionScore, keep_prob=0.9)) == ("dropped_attention",)
    assert {"products", "deep_products"} < set(kinds_of_slices(kind_node(MatMul(), (8, 8), (8, 8))))


def test_scores_that_no_query_sees_are_not_computed() -> None:
    full, causal = attention(FlashAttentionScore), attention(FlashAttentionScore, sparse_mode=2)
    assert share_of_scores(causal) == pytest.approx(65 / 128)
    assert traffic_and_operations(causal)[1] == pytest.approx(65 / 128 * work_of(causal)), "of a profile"
    assert share_of_scores(causal, 16) == pytest.approx((1 + 2 + 3 + 4) / 16)
    assert computed(causal, H100) == computed(full, H100), "one block of queries and keys"
    assert computed(causal, replace(H100, device="CPU")) == computed(full, H100)
    some = TensorType(BFLOAT16, (2, 100, 4, 16))
    odd = of_types(FlashAttentionScore(4, input_layout="BSND"), some, some, some)
    assert computed(odd, H100) == pytest.approx(computed(odd, replace(H100, device="CPU")) * (128 / 100) ** 2)


def test_products_are_filled_up_on_gpus() -> None:
    small = kind_node(BatchMatMul(), (8, 27, 27), (8, 27, 128))
    assert computed(small, replace(H100, device="CPU")) == 2 * 8 * 27 * 27 * 128
    assert computed(small, H100) == 2 * 8 * 64 * 32 * 128
    one = product_of(kind_node(BatchMatMul(), (8, 27, 16), (16, 128)))
    assert one is not None
    assert (one.batch, one.rows, one.summed, one.columns) == (1, 8 * 27, 16, 128)


@pytest.mark.parametrize(
    ("left", "right", "pieces"),
    [
        ((8, 2, 64, 64), (2, 64, 64), 2), ((2, 8, 64, 64), (8, 64, 64), 2), ((8, 2, 64, 64), (8, 2, 64, 64), 1),
        ((8, 2, 64, 64), (64, 64), 1), ((3, 4, 5, 64, 64), (5, 64, 64), 12),
    ],
)  # fmt: skip
def test_operands_that_repeat_along_one_dimension_make_several_products(
    left: tuple[int, ...], right: tuple[int, ...], pieces: int
) -> None:
    product = product_of(kind_node(BatchMatMul(), left, right))
    assert product is not None
    assert product.pieces == pieces


def test_rows_that_begin_at_gaps_are_even() -> None:
    made = kind_node(MatMul(transpose_b=True), (128, 480), (1023, 480))
    assert kind_of_work(made) == "products_of_2_bytes"
    made.attrs["row_pitch"] = (1024,)
    assert kind_of_work(made) == "products"


FIRST = "ReduceSum(t0, keep_dims=false, axis=(0))"


def fused(*lines: str, returns: tuple[int, ...], shapes: Any) -> Node:
    return kind_node(FusedElementwise(lines, returns), *shapes, dtype=FLOAT32)


def test_every_choice_of_axes_is_a_pass() -> None:
    shape = (64, 32, 8)
    one = fused("Mul(x0, x1)", FIRST, returns=(0, 1), shapes=(shape, shape))
    assert cost_of_lines(one).asides == ()
    assert kind_of_traffic(one) == "column_sums"
    two = fused("Mul(x0, x1)", FIRST, "ReduceSum(x0, keep_dims=false, axis=(0, 1))", returns=(1, 2),
                shapes=(shape, shape))  # fmt: skip
    assert cost_of_lines(two).asides == (2 * 64 * 32 * 8 * 4,)
    slow = replace(H100, memory=Rate.of(1e9), traffic={"column_sums": Rate.of(1e8)}, kernel=0.0)
    assert seconds(two, slow) > 1.9 * seconds(one, slow) * (2 / 3)


def test_sums_of_columns_ahead_of_rows_are_passes() -> None:
    shape = (64, 32)
    made = fused("Mul(x0, x1)", FIRST, "Softmax(x0, axis=-1)", returns=(1, 2), shapes=(shape, shape))
    assert cost_of_lines(made).asides == (2 * 64 * 32 * 4,)
    assert kind_of_traffic(made) == ""


@pytest.mark.parametrize("row", [1024, LONGEST_ROW, LONGEST_ROW * 2, LONGEST_ROW * 3])
def test_rows_that_neither_registers_nor_shared_memory_hold_are_read_again(row: int) -> None:
    made = fused("Softmax(x0, axis=-1)", returns=(0,), shapes=((4, row),))
    assert cost_of_lines(made).again == (2 * 4 * row * 4 if 4 * row > WAITING else 0)


def test_instructions_follow_from_expressions() -> None:
    made = fused("Erf(x0)", "Mul(t0, x0)", returns=(1,), shapes=((8, 16),))
    assert cost_of_lines(made).operations == 8 * 16 * (instructions(Erf()) + 1)
    assert cost_of_lines(kind_node(MatMul(), (8, 8), (8, 8))) is NOTHING
    drawn = fused(
        "DropoutMask(keep_prob=0.5, Seed0=0, Seed1=1, sizes=(8, 16), shape=(8, 16), begin=(0, 0), local=(8, 16))",
        "DropoutGrad(x0, t0, keep_prob=0.5)", returns=(1,), shapes=((8, 16),),
    )  # fmt: skip
    assert cost_of_lines(drawn).draws == 8 * 16
    known = replace(H100, work={**H100.work, "draws": {"Float32": Rate.of(1e3)}})
    assert seconds(drawn, known) > 0.1 > seconds(drawn, H100)


def test_traffic_has_kinds() -> None:
    assert kind_of_traffic(kind_node(ReduceSum(axis=(0,)), (8, 16))) == "column_sums"
    assert kind_of_traffic(kind_node(ReduceSum(axis=(1,)), (8, 16))) == ""
    assert kind_of_traffic(kind_node(Assign(), (8, 16), (8, 16))) == "updates"
    added = of_types(GatherGrad(16), TensorType(FLOAT32, (8, 4)), TensorType(INT32, (8,)))
    assert kind_of_traffic(added) == "row_sums"


def test_tables_count_by_the_rows_that_are_named() -> None:
    """Ids are 8 Int32, rows 8 x 4 Float32; one table has 100 rows, one has 4."""
    large, small = TensorType(FLOAT32, (100, 4)), TensorType(FLOAT32, (4, 4))
    rows, ids, rate = TensorType(FLOAT32, (8, 4)), TensorType(INT32, (8,)), TensorType(FLOAT32, ())
    looked_up = of_types(GroupedLookups.of([Gather(), Gather()], None), large, ids, small, ids)
    assert moved_bytes(looked_up) == (128 + 32 + 128) + (64 + 32 + 128)
    plain = FusedUpdate(("Mul(x1, x2)", "Sub(x0, t0)"), (1,), (2,))
    op = GroupedRowUpdate.of(plain, 1, [GatherGrad(100), GatherGrad(4)])
    updated = of_types(op, large, rows, ids, rate, small, rows, ids, rate)
    assert moved_bytes(updated) == (2 * 128 + 128 + 32) + (2 * 64 + 4 + 128 + 32)


def test_calibration_times_every_kind_as_what_it_is() -> None:
    kinds: set[str] = set()
    for timed in timing_tasks(ON_GPU):
        kinds.add(timed.kind)
        for node in (node for group in timed.groups() for node in group):
            assert timed.kind in ("elementwise", "draws") or kind_of_work(node) == timed.kind
            assert operand_types(node)[0].dtype.name == (UNROUNDED if timed.rounds else timed.rates)
    assert kinds <= {*LIKE, PRODUCTS, "elementwise", "draws"}
    for kind, groups in traffic(ON_GPU):
        assert {kind_of_traffic(one) for each in groups for one in each} == {kind}


def test_files_have_traffic_and_may_lack_it(tmp_path: Path) -> None:
    machine = replace(H100, traffic={"column_sums": Rate(((1e6, 1e12), (1e8, 2e12))), "updates": Rate.of(2e12)})
    write_machine(tmp_path / "m.toml", machine)
    assert read_machine(tmp_path / "m.toml") == machine
    assert H100.moving_seconds(1e6, "updates") == H100.moving_seconds(1e6)
    assert machine.moving_seconds(1e6, "updates") == 1e6 / 2e12


def test_halves_have_one_rate() -> None:
    only = replace(H100, work={PRODUCTS: {"BFloat16": Rate.of(5e14), "Float32": Rate.of(1e14)}})
    assert only.work_rate("causal_attention", FLOAT16) == Rate.of(5e14)


def test_kernels_read_of_a_slice_what_it_takes() -> None:
    part = StridedSlice(begin=(0, 0), end=(64, 32), strides=(1, 1))
    lines = [BodyLine(part, (("x", 0),)), BodyLine(Add(), (("t", 0), ("x", 1)))]
    made = kind_node(FusedElementwise.of(lines, (1,)), (64, 1024), (64, 32))
    assert moved_bytes(made) == 3 * 64 * 32 * BFLOAT16.itemsize
