"""Memory of a GPU beside a plan, as it was measured on one where that is known."""

from __future__ import annotations

from typing import Any

import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import BFLOAT16, FLOAT32, FLOAT64, DType, TensorType
from mspc.ops.convolution.convolve import Conv2D, Conv2DBackpropFilter
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.arithmetic import Add
from mspc.ops.math.matmul import MatMul
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.runtime.workspaces import (
    CONVOLUTION,
    PRODUCTS,
    cpu_kernel_bytes,
    scratch_bytes,
    workspace_bytes,
)

MIB = 1 << 20


def graph_of(op: Any, dtype: DType, *shapes: tuple[int, ...]) -> Graph:
    graph = Graph("one")
    graph.parameters = [Parameter(f"p{i}", TensorType(dtype, s), "parameter", False) for i, s in enumerate(shapes)]
    Builder(graph).emit(op, *graph.parameters)
    return graph


def test_sums_need_nothing_and_products_what_they_share() -> None:
    assert workspace_bytes(graph_of(Add(), FLOAT32, (8,), (8,))) == 0
    assert workspace_bytes(graph_of(MatMul(), FLOAT32, (8, 8), (8, 8))) == PRODUCTS


@pytest.mark.parametrize(("dtype", "forward", "backward"),
                         [(FLOAT64, 1536, 2944), (FLOAT32, 0, 2), (BFLOAT16, 0, 0)])  # fmt: skip
def test_attention_where_products_stand_for_a_kernel(dtype: DType, forward: int, backward: int) -> None:
    """An H200 took 768 MiB and 1472 MiB for these of a transformer's layer in Float32, when it had no
    kernel."""
    batch, heads, length, depth = 8, 16, 1024, 128
    packed = (batch, length, 3 * heads, depth)
    settings: dict[str, Any] = {"scale_value": depth**-0.5, "input_layout": "BSND", "packed": heads}
    graph = graph_of(FlashAttentionScore(heads, **settings), dtype, packed)
    assert scratch_bytes(graph) == forward * MIB
    out, statistics = (batch, length, heads, depth), (batch, heads, length, 1)
    graph = graph_of(FlashAttentionScoreGrad(heads, **settings), dtype, packed, out, statistics, out)
    assert scratch_bytes(graph) == backward * MIB


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_attention_with_two_addends_has_kernels(dtype: DType) -> None:
    """No sum of both is made, and the gradient of the first is summed over the batch in registers."""
    batch, heads, length, depth = 8, 16, 1024, 64
    settings: dict[str, Any] = {"input_layout": "BSND", "packed": heads, "optional": ("real_shift", "key_shift")}
    packed, out = (batch, length, 3 * heads, depth), (batch, length, heads, depth)
    statistics = (batch, heads, length, 1)
    added = (1, heads, length, length), (batch, 1, 1, length)
    assert scratch_bytes(graph_of(FlashAttentionScore(heads, **settings), dtype, packed, *added)) == 0
    for shape, nbytes in ((added[0], 2 * MIB), ((1, heads, 1, length), 2 * 512 * MIB)):
        op = FlashAttentionScoreShiftGrad(heads, result_shape=shape, **settings)
        found = scratch_bytes(graph_of(op, dtype, packed, out, *added, statistics, out))
        assert nbytes <= found < 2 * nbytes


def test_convolutions_by_their_operands() -> None:
    small = graph_of(Conv2D(out_channel=16, kernel_size=3, pad_mode="same"), FLOAT32, (2, 16, 8, 8), (16, 16, 3, 3))
    assert scratch_bytes(small) == CONVOLUTION
    large = graph_of(Conv2D(out_channel=64, kernel_size=1), FLOAT32, (64, 64, 112, 112), (64, 64, 1, 1))
    assert scratch_bytes(large) == CONVOLUTION
    strided = graph_of(Conv2D(out_channel=64, kernel_size=1, stride=2), FLOAT32, (64, 64, 112, 112), (64, 64, 1, 1))
    assert scratch_bytes(strided) == CONVOLUTION + 64 * 64 * 56 * 56 * 4
    of_colours = graph_of(Conv2D(out_channel=16, kernel_size=3), FLOAT32, (2, 3, 8, 8), (16, 3, 3, 3))
    assert scratch_bytes(of_colours) == CONVOLUTION + 2 * (2 * 3 * 8 * 8 * 4)


@pytest.mark.parametrize(("addend", "mib"), [(True, 8), (False, 0)], ids=["the addend is copied", "nothing"])
def test_kernels_of_a_cpu_count_the_copy_of_an_addend(addend: bool, mib: int) -> None:
    shapes = [(8, 512, 512), (512, 512), *[(8, 512, 512)] * addend]
    assert cpu_kernel_bytes(graph_of(FusedMatMul(addend=addend), FLOAT32, *shapes)) == mib * MIB


def test_kernels_of_a_cpu_count_the_packed_operand_of_a_convolution() -> None:
    """32.0 MiB were measured, with a few KiB more."""
    image, weights = (16, 32, 128, 128), (32, 32, 3, 3)
    op = Conv2DBackpropFilter(filter_size=weights, out_channel=32, kernel_size=(3, 3), pad_mode="same")
    assert cpu_kernel_bytes(graph_of(op, FLOAT32, image, image)) == pytest.approx(32 * MIB, rel=0.1)
