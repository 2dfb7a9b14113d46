"""Manual computations of `jax.shard_map`, beside NumPy device by device, and on ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import MspcError
from tests.stablehlo_texts import numbers, results_of

SIZES = (2, 2, 2)
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
BODY = f"""
      %id = stablehlo.partition_id : tensor<ui32>
      %four = stablehlo.constant dense<4> : tensor<ui32>
      %row = stablehlo.divide %id, %four : tensor<ui32>
      %number = stablehlo.convert %row : (tensor<ui32>) -> tensor<f32>
      %wide = stablehlo.broadcast_in_dim %number, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
      %0 = stablehlo.add %own, %wide : tensor<4x8xf32>
      %1 = "stablehlo.all_reduce"(%0) <{{{CHANNEL}, replica_groups = dense<[[0, 2], [1, 3], [4, 6], [5, 7]]> : tensor<4x2xi64>, use_global_device_ids}}> ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.maximum %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }}) : (tensor<4x8xf32>) -> tensor<4x8xf32>
      %2 = "stablehlo.all_gather"(%0) <{{all_gather_dim = 1 : i64, {CHANNEL}, replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}}> : (tensor<4x8xf32>) -> tensor<4x16xf32>
      %3 = "stablehlo.collective_permute"(%2) <{{{CHANNEL}, source_target_pairs = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>}}> : (tensor<4x16xf32>) -> tensor<4x16xf32>
      %4 = stablehlo.add %2, %3 : tensor<4x16xf32>
      %5 = "stablehlo.reduce_scatter"(%4) <{{{CHANNEL}, replica_groups = dense<[[0, 4, 1, 5], [2, 6, 3, 7]]> : tensor<2x4xi64>, scatter_dimension = 1 : i64, use_global_device_ids}}> ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }}) : (tensor<4x16xf32>) -> tensor<4x4xf32>
      %6 = "stablehlo.all_to_all"(%5) <{{{CHANNEL}, concat_dimension = 1 : i64, replica_groups = dense<[[0, 7], [1, 2], [3, 4], [5, 6]]> : tensor<4x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}}> : (tensor<4x4xf32>) -> tensor<2x8xf32>
      %zero = stablehlo.constant dense<0> : tensor<ui32>
      %7 = stablehlo.dynamic_slice %1, %row, %zero, sizes = [2, 8] : (tensor<4x8xf32>, tensor<ui32>, tensor<ui32>) -> tensor<2x8xf32>
      %8 = stablehlo.add %6, %7 : tensor<2x8xf32>
      %9 = stablehlo.dot_general %8, %weight, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
"""  # noqa: E501  # one operation has one line
"""Groups along one axis, along two in another order, and along none; rows that differ from device to device."""
SHARDY = f"""module @step attributes {{mhlo.num_partitions = 8 : i32}} {{
  sdy.mesh @mesh = <["a"=2, "b"=2, "c"=2]>
  func.func public @main(%x: tensor<8x32xf32>, %w: tensor<8x4xf32>) -> tensor<8x16xf32> {{
    %y = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{{"b"}}, {{"a", "c"}}]>, <@mesh, [{{}}, {{}}]>] out_shardings=[<@mesh, [{{"c", "a"}}, {{"b"}}]>] manual_axes={{"a", "b", "c"}} (%own: tensor<4x8xf32>, %weight: tensor<8x4xf32>) {{{BODY}
      %10 = stablehlo.concatenate %9, %9, dim = 1 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x8xf32>
      sdy.return %10 : tensor<2x8xf32>
    }} : (tensor<8x32xf32>, tensor<8x4xf32>) -> tensor<8x16xf32>
    return %y : tensor<8x16xf32>
  }}
}}
"""  # noqa: E501
GSPMD = f"""module @step attributes {{mhlo.num_partitions = 8 : i32}} {{
  func.func public @main(%x: tensor<8x32xf32>, %w: tensor<8x4xf32>) -> tensor<8x16xf32> {{
    %0 = stablehlo.custom_call @Sharding(%x) {{mhlo.sharding = "{{devices=[2,4]<=[2,2,2]T(1,0,2)}}"}} : (tensor<8x32xf32>) -> tensor<8x32xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {{mhlo.sharding = "{{manual}}"}} : (tensor<8x32xf32>) -> tensor<4x8xf32>
    %2 = stablehlo.custom_call @Sharding(%w) {{mhlo.sharding = "{{replicated}}"}} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {{mhlo.sharding = "{{manual}}"}} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %4 = call @shmap_body(%1, %3) : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<2x8xf32>
    %5 = stablehlo.custom_call @Sharding(%4) {{mhlo.sharding = "{{manual}}"}} : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %6 = stablehlo.custom_call @SPMDShardToFullShape(%5) {{mhlo.sharding = "{{devices=[4,2]<=[2,2,2]T(2,0,1)}}"}} : (tensor<2x8xf32>) -> tensor<8x16xf32>
    return %6 : tensor<8x16xf32>
  }}
  func.func private @shmap_body(%own: tensor<4x8xf32>, %weight: tensor<8x4xf32>) -> tensor<2x8xf32> {{{BODY}
    %10 = stablehlo.concatenate %9, %9, dim = 1 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x8xf32>
    return %10 : tensor<2x8xf32>
  }}
}}
"""  # noqa: E501


def right(x: Any, w: Any) -> Any:
    """Return the result, computed device by device."""
    at = [np.unravel_index(d, SIZES) for d in range(8)]
    own = [x[4 * b : 4 * b + 4, 8 * (2 * a + c) : 8 * (2 * a + c) + 8] + a for a, b, c in at]
    highest = [np.maximum(own[d], own[d ^ 2]) for d in range(8)]
    joined = [np.concatenate([own[d & 3], own[d | 4]], 1) for d in range(8)]
    sent = [joined[d] + (joined[d - 4] if d >= 4 else 0) for d in range(8)]
    found = list[Any](range(8))
    for group in ([0, 4, 1, 5], [2, 6, 3, 7]):
        total = sum(sent[d] for d in group)
        for k, d in enumerate(group):
            found[d] = total[:, 4 * k : 4 * k + 4]
    result = np.zeros((8, 16), np.float32)
    for group in ([0, 7], [1, 2], [3, 4], [5, 6]):
        for k, d in enumerate(group):
            a, b, c = at[d]
            mixed = np.concatenate([found[e][2 * k : 2 * k + 2] for e in group], 1) + highest[d][a : a + 2]
            result[2 * (2 * c + a) : 2 * (2 * c + a) + 2, 8 * b : 8 * b + 8] = np.tile(mixed @ w, 2)
    return result


@pytest.mark.parametrize("text", [SHARDY, GSPMD], ids=["shardy", "gspmd"])
def test_every_device_computes_its_body(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, w = numbers(8, 32), numbers(8, 4, seed=1)
    np.testing.assert_allclose(results_of(text, x, w)[0], right(x, w), 1e-5, 1e-5)
    path = tmp_path / "step.mlir"
    path.write_text(text)
    verify_target(str(path), CompileOptions(), 0)
    assert "on 8 ranks" in capsys.readouterr().out


LOOP = """module @step attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["a"=2, "b"=2]>
  func.func public @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a", ?}, {?}]>] out_shardings=[<@mesh, [{"a", ?}, {?}]>] manual_axes={"a"} (%own: tensor<2x8xf32>) {
      %id = sdy.manual_computation() in_shardings=[] out_shardings=[<@mesh, []>] manual_axes={"b"} () {
        %p = stablehlo.partition_id : tensor<ui32>
        %two = stablehlo.constant dense<2> : tensor<ui32>
        %q = stablehlo.divide %p, %two : tensor<ui32>
        %r = stablehlo.convert %q : (tensor<ui32>) -> tensor<i32>
        sdy.return %r : tensor<i32>
      } : () -> tensor<i32>
      %none = stablehlo.constant dense<-1> : tensor<i32>
      %1:2 = stablehlo.while(%n = %none, %h = %own) : tensor<i32>, tensor<2x8xf32>
      cond {
        %more = stablehlo.compare LT, %n, %id, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %next = stablehlo.add %n, %one : tensor<i32>
        %twice = stablehlo.add %h, %h : tensor<2x8xf32>
        stablehlo.return %next, %twice : tensor<i32>, tensor<2x8xf32>
      }
      %2 = "stablehlo.sort"(%1#1) <{dimension = 1 : i64}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.compare LT, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }) : (tensor<2x8xf32>) -> tensor<2x8xf32>
      sdy.return %2 : tensor<2x8xf32>
    } : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
}
"""  # noqa: E501
"""One of two axes is manual, and the number of a device is read where both are; devices repeat a loop unlike often."""


def test_some_axes_and_loops_of_other_lengths(tmp_path: Path) -> None:
    x = numbers(4, 8)
    np.testing.assert_array_equal(results_of(LOOP, x)[0], np.sort(x * [[2], [2], [4], [4]], 1))
    (tmp_path / "step.mlir").write_text(LOOP)
    verify_target(str(tmp_path / "step.mlir"), CompileOptions(), 0)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("[3, 7]]> : tensor<4x2xi64>, use", "[3, 6]]> : tensor<4x2xi64>, use",
     "groups that are not along the manual axes"),
    ('manual_axes={"a", "b", "c"}', 'manual_axes={"a", "b", "d"}', "no axes of a mesh"),
    ('manual_axes={"a", "b", "c"}', 'manual_axes={"a", "c"}', "slice is .* in the text"),
    ('[{"b"}, {"a", "c"}]', '[{}, {"a", "c", "b"}]', "slice is .* in the text"),
    ("out_shardings=[<@mesh, [", "out_shardings=[<@mesh, []>, <@mesh, [", "as many"),
    ("in_shardings=[<@mesh, ", "in_shardings=[<@other, ", "@other"),
    ("stablehlo.maximum %a", "stablehlo.power %a", "combines by power"),
])  # fmt: skip
def test_mistakes(old: str, new: str, message: str) -> None:
    assert old in SHARDY
    with pytest.raises(MspcError, match=message):
        results_of(SHARDY.replace(old, new), numbers(8, 32), numbers(8, 4))
