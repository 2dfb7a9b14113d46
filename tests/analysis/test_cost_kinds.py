"""Which kinds of work and of traffic nodes are, and what the lines of fused operators take beside one pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import KNOWN_MACHINES, LIKE, PRODUCTS, UNROUNDED, Rate
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
    share_of_scores,
)
from mspc.ir.graph import Node, Parameter, operand_types
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, DType, TensorType
from mspc.ir.varying import Looks, RankField, Varying
from mspc.ops.convolution.convolve import Conv2D, Conv2DBackpropFilter, Conv2DBackpropInput
from mspc.ops.fused.body import BodyLine
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.ops.fused.grouped_rows import GroupedLookups, GroupedRowUpdate
from mspc.ops.fused.updates import FusedUpdate
from mspc.ops.math.arithmetic import Add
from mspc.ops.math.elementwise import Erf
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.op import Op
from mspc.ops.optim.optimizer import Assign
from mspc.ops.tensor.embedding import Gather, GatherGrad
from mspc.ops.tensor.reshape import ReduceSum
from mspc.ops.tensor.slicing import StridedSlice
from mspc.search.calibration.machine_file import read_machine, write_machine
from mspc.search.calibration.measured import ON_GPU
from mspc.search.calibration.timed_operators import timing_tasks, traffic

H100 = KNOWN_MACHINES["h100"]


def node(op: Op, *shapes: tuple[int, ...], dtype: DType = BFLOAT16) -> Node:
    return of_types(op, *[TensorType(dtype, shape) for shape in shapes])


def of_types(op: Op, *types: TensorType) -> Node:
    return Node(op, [Parameter(f"x{i}", type) for i, type in enumerate(types)], op.infer(*types))


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (node(MatMul(), (8192, 1024), (1024, 1024)), "products"),
        (node(MatMul(transpose_a=True), (8192, 1024), (8192, 1024)), "deep_products"),
        (node(BatchMatMul(transpose_a=True), (8, 2560, 2816), (8, 2560, 1024)), "products"),
        (node(MatMul(transpose_b=True), (64, 480), (1024, 480)), "flat_products"),
        (node(MatMul(transpose_b=True), (64, 479), (1024, 479)), "products_of_2_bytes"),
        (node(MatMul(transpose_b=True), (128, 479), (1024, 479)), "products_of_2_bytes"),
        (node(MatMul(transpose_b=True), (128, 1500), (6000, 1500)), "products_of_8_bytes"),
        (node(MatMul(transpose_b=True), (128, 1500), (30522, 1500)), "products_of_4_bytes"),
        (node(MatMul(transpose_b=True), (128, 479), (1024, 479), dtype=FLOAT32), "products_of_4_bytes"),
        (node(MatMul(), (512, 478), (478, 512), dtype=FLOAT64), "products"),
        (node(Conv2D(8, 3, pad_mode="same"), (2, 8, 4, 4), (8, 8, 3, 3)), "convolutions"),
        (node(Conv2D(8, 1), (2, 8, 4, 4), (8, 8, 1, 1)), "pointwise_convolutions"),
        (node(Conv2D(8, 3, group=8), (2, 8, 4, 4), (8, 1, 3, 3)), "grouped_convolutions"),
        (node(Conv2D(8, 3), (2, 3, 4, 4), (8, 3, 3, 3)), "shallow_convolutions"),
        (node(Conv2DBackpropInput(8, 1, input_size=(2, 8, 4, 4)), (2, 8, 4, 4), (8, 8, 1, 1)),
         "pointwise_convolution_inputs"),
        (node(Conv2DBackpropFilter(8, 3, filter_size=(8, 3, 3, 3)), (2, 8, 2, 2), (2, 3, 4, 4)),
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
    grouped = node(Conv2D(8, 3, group=8), (2, 8, 4, 4), (8, 1, 3, 3))
    assert "convolutions" in kinds_of_slices(grouped)
    assert kinds_of_slices(attention(FlashAttentionScore, sparse_mode=2)) == ("causal_attention", "attention")
    assert kinds_of_slices(attention(FlashAttentionScore, keep_prob=0.9)) == ("dropped_attention",)
    assert {"products", "deep_products"} < set(kinds_of_slices(node(MatMul(), (8, 8), (8, 8))))


def test_scores_that_no_query_sees_are_not_computed() -> None:
    full, causal = attention(FlashAttentionScore), attention(FlashAttentionScore, sparse_mode=2)
    assert share_of_scores(causal) == pytest.approx(65 / 128)
    assert share_of_scores(causal, 16) == pytest.approx((1 + 2 + 3 + 4) / 16)
    assert computed(causal, H100) == computed(full, H100), "one block of queries and keys"
    assert computed(causal, replace(H100, device="CPU")) == computed(full, H100)
    some = TensorType(BFLOAT16, (2, 100, 4, 16))
    odd = of_types(FlashAttentionScore(4, input_layout="BSND"), some, some, some)
    assert computed(odd, H100) == pytest.approx(computed(odd, replace(H100, device="CPU")) * (128 / 100) ** 2)


def test_products_are_filled_up_on_gpus() -> None:
    small = node(BatchMatMul(), (8, 27, 27), (8, 27, 128))
    assert computed(small, replace(H100, device="CPU")) == 2 * 8 * 27 * 27 * 128
    assert computed(small, H100) == 2 * 8 * 64 * 32 * 128
    one = product_of(node(BatchMatMul(), (8, 27, 16), (16, 128)))
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
    product = product_of(node(BatchMatMul(), left, right))
    assert product is not None
    assert product.pieces == pieces


def test_rows_that_begin_at_gaps_are_even() -> None:
    made = node(MatMul(transpose_b=True), (128, 480), (1023, 480))
    assert kind_of_work(made) == "products_of_2_bytes"
    made.attrs["row_pitch"] = (1024,)
    assert kind_of_work(made) == "products"


FIRST = "ReduceSum(t0, keep_dims=false, axis=(0))"


def fused(*lines: str, returns: tuple[int, ...], shapes: Any) -> Node:
    return node(FusedElementwise(lines, returns), *shapes, dtype=FLOAT32)


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
    assert cost_of_lines(node(MatMul(), (8, 8), (8, 8))) is NOTHING
    drawn = fused(
        "DropoutMask(keep_prob=0.5, Seed0=0, Seed1=1, sizes=(8, 16), shape=(8, 16), begin=(0, 0), local=(8, 16))",
        "DropoutGrad(x0, t0, keep_prob=0.5)", returns=(1,), shapes=((8, 16),),
    )  # fmt: skip
    assert cost_of_lines(drawn).draws == 8 * 16
    known = replace(H100, work={**H100.work, "draws": {"Float32": Rate.of(1e3)}})
    assert seconds(drawn, known) > 0.1 > seconds(drawn, H100)


def test_traffic_has_kinds() -> None:
    assert kind_of_traffic(node(ReduceSum(axis=(0,)), (8, 16))) == "column_sums"
    assert kind_of_traffic(node(ReduceSum(axis=(1,)), (8, 16))) == ""
    assert kind_of_traffic(node(Assign(), (8, 16), (8, 16))) == "updates"
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
    made = node(FusedElementwise.of(lines, (1,)), (64, 1024), (64, 32))
    assert moved_bytes(made) == 3 * 64 * 32 * BFLOAT16.itemsize
