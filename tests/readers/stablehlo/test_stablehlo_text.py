"""The text of StableHLO programs: both forms, constants, places, names, updates, and damaged texts."""

import importlib.util
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Tensor
from mspc.commands.options import ImportOptions
from mspc.commands.search import SearchOptions, search_target
from mspc.commands.verify import programs_of_partitioned
from mspc.readers.stablehlo.module import HloModule
from mspc.readers.stablehlo.network import StableHloNetwork
from mspc.readers.stablehlo.partition_specs import spec_of
from mspc.readers.stablehlo.shardings import layout_of
from mspc.readers.stablehlo.text_reader import read_module, read_text
from tests.compiled_scripts import CompileOptions, Loudness, compile_target, verify_scale, verify_target
from tests.errors import error_of
from tests.graphs import ExecutionError, Layout, MspcError
from tests.stablehlo_texts import STEP, computed, module, numbers, results_of, step_results
from tests.texts import text_of


def test_a_step_updates_donated_arguments_and_returns_the_rest() -> None:
    network = StableHloNetwork(read_text(STEP, "step.mlir"))
    assert [(each.name, each.target) for each in network.arguments] == [
        ("params.up", 0), ("params.down", 1), ("x", -1)]  # fmt: skip
    up, down, x = numbers(8, 16), numbers(16, 8, seed=1), numbers(4, 8, seed=2)
    network.held["params.up"].set_data(Tensor(up))
    network.held["params.down"].set_data(Tensor(down))
    loss = network(Tensor(x)).asnumpy()
    expected = step_results(up, down, x)
    for found, right in zip((*(each.asnumpy() for each in network.held.values()), loss), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)


def test_places_are_lines_of_the_source_and_scopes() -> None:
    first, called, *_ = read_text(STEP, "step.mlir").main.body.operations
    assert [str(frame) for frame in first.origin.frames] == ["step.py:7:11", "step.py:12:4"]
    assert (first.origin.name, called.origin.frames) == ("jit(step)/mlp/dot_general", first.origin.frames)


GENERIC = """
"builtin.module"() <{sym_name = "jit_step"}> ({
  "func.func"() <{arg_attrs = [{}, {}], function_type = (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>, res_attrs = [{}], sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%arg0: tensor<2x3xf32>, %arg1: tensor<3xf32>):
    %0 = "stablehlo.dot_general"(%arg0, %arg1) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>}> : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>
    %1 = "stablehlo.constant"() <{value = dense<1.5> : tensor<f32>}> : () -> tensor<f32>
    %2 = "stablehlo.broadcast_in_dim"(%1) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2xf32>
    %3 = "stablehlo.compare"(%0, %2) <{compare_type = #stablehlo<comparison_type FLOAT>, comparison_direction = #stablehlo<comparison_direction GT>}> : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
    %4 = "stablehlo.select"(%3, %0, %2) : (tensor<2xi1>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    "func.return"(%4) : (tensor<2xf32>) -> ()
  }) : () -> ()
}) : () -> ()
"""  # noqa: E501  # one operation has one line


def test_the_generic_form() -> None:
    x, w = numbers(2, 3), numbers(3, seed=1)
    np.testing.assert_allclose(results_of(GENERIC, x, w)[0], np.maximum(x @ w, 1.5), rtol=1e-5)


def constant(text: str, type: str, others: str = "") -> Any:
    """Return the elements of a constant, through an operation that reads them."""
    body = f"    %c = stablehlo.constant {text} : {type}\n    %0 = stablehlo.reshape %c : ({type}) -> {type}"
    return results_of(module(["%x: tensor<f32>"], body, [("%0", type)]) + others, np.float32(0).reshape(()))[0]


def test_constants_in_all_forms() -> None:
    np.testing.assert_array_equal(constant("dense<[[1, -2], [3, 4]]>", "tensor<2x2xi32>"), [[1, -2], [3, 4]])
    np.testing.assert_array_equal(constant("dense<[true, false]>", "tensor<2xi1>"), [True, False])
    np.testing.assert_array_equal(constant('dense<"0x05">', "tensor<8xi1>"), [1, 0, 1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(constant("dense<7>", "tensor<3xui32>"), [7, 7, 7])
    np.testing.assert_array_equal(constant('dense<"0x0000803F000000C0">', "tensor<2xf32>"), [1, -2])
    np.testing.assert_array_equal(constant("dense<[0x7FC00000, 0xFF800000]>", "tensor<2xf32>"), [np.nan, -np.inf])
    np.testing.assert_array_equal(constant("dense<[(1.0, -2.0), (0.5, 3.0)]>", "tensor<2xcomplex<f32>>"),
                                  [1 - 2j, 0.5 + 3j])  # fmt: skip
    assert constant("dense<>", "tensor<0x2xf32>").shape == (0, 2)
    blob = '{-# dialect_resources: {builtin: {w: "0x040000000000803F0000004000004040"}} #-}\n'
    np.testing.assert_array_equal(constant("dense_resource<w>", "tensor<3xf32>", blob), [1, 2, 3])


@pytest.mark.parametrize(("text", "message"), [
    ("dense<[1, 2]> : tensor<3xi32>", "2 elements, and its type has 3"),
    ('dense<"0x012"> : tensor<3xi8>', "hexadecimal"),
    ("dense<[a, b]> : tensor<2xi32>", "no Int32"),
    ("dense<1> : tensor<99999999999999999999xi8>", "no type"),
    ("dense<1> : tensor<i32>\n    %c = stablehlo.constant dense<2> : tensor<i32>", "%c is defined twice"),
    ("dense<1>", "no type"), ("dense<1> : tensor<2xf8E4M3FN>", r"1 time, first at step.mlir:3:5"),
])  # fmt: skip
def test_wrong_constants(text: str, message: str) -> None:
    body = f"    %c = stablehlo.constant {text}\n"
    source = module(["%x: tensor<f32>"], body, [("%x", "tensor<f32>")])
    error = error_of(results_of, source, np.float32(0).reshape(()))
    assert message in "\n".join((error.message, *error.notes))
    assert error.location is not None


def test_unknown_kinds_are_named_together() -> None:
    body = "".join(f"    %{i} = stablehlo.{name} %x : tensor<2xf32>\n" for i, name in enumerate((
        "rise", "fall", "rise"))) + "    stablehlo.custom_call @mine(%x) : (tensor<2xf32>) -> ()\n"  # fmt: skip
    source = module(["%x: tensor<2xf32>"], body, [("%x", "tensor<2xf32>")])
    with pytest.raises(MspcError, match="3 kinds of operations that are not known") as caught:
        StableHloNetwork(read_text(source, "step.mlir"))
    assert list(caught.value.notes) == [
        "stablehlo.rise: 2 times, first at step.mlir:3:5", "stablehlo.fall: 1 time, first at step.mlir:4:5",
        "stablehlo.custom_call @mine: 1 time, first at step.mlir:6:5",
    ]  # fmt: skip


def test_dynamic_sizes_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="argument 0 is tensor<"):
        StableHloNetwork(read_text(module(["%x: tensor<?xf32>"], "", [("%x", "tensor<?xf32>")]), "step.mlir"))
    (tmp_path / "a.mlir").write_bytes(b"ML\xefR\x01")
    with pytest.raises(MspcError, match="bytecode of MLIR"):
        read_module(tmp_path / "a.mlir")
    with pytest.raises(MspcError, match="has no function"):
        read_text("module {\n}\n", "a.mlir")
    with pytest.raises(MspcError, match="%y is read, which nothing before it gives") as caught:
        results_of(module(["%x: tensor<f32>"], "", [("%y", "tensor<f32>")]), np.float32(0).reshape(()))
    assert str(caught.value.location).startswith("step.mlir:4")
    loops = module(["%x: tensor<f32>"], "    %0 = call @f(%x) : (tensor<f32>) -> tensor<f32>", [("%0", "tensor<f32>")],
                   "  func.func private @f(%x: tensor<f32>) -> tensor<f32> {\n    %0 = call @f(%x) : (tensor<f32>) -> "
                   "tensor<f32>\n    return %0 : tensor<f32>\n  }\n")  # fmt: skip
    with pytest.raises(MspcError, match="a function may call itself"):
        results_of(loops, np.float32(0).reshape(()))


MARKS = ("(", ")", "{", "}", "<", ">", "[", "]", ",", ":", "%0", "tensor<2x3xf32>", "dense<1>", "@relu", "#loc1", '"x',
         "9" * 30, "loc(", "?", "->", "=", " x ", "\x00", "é")  # fmt: skip


def damaged(rng: random.Random, text: str) -> str:
    """Return the text with one to three places changed."""
    for _ in range(rng.randint(1, 3)):
        at, length = rng.randrange(max(1, len(text))), rng.randint(1, 100)
        text = rng.choice((
            text[:at] + text[at + length // 5 :], text[:at] + rng.choice(MARKS) + text[at:], text[:at],
            text[: at + length] + text[at:], text[:at] + chr(rng.randint(32, 126)) + text[at + 1 :],
        ))  # fmt: skip
    return text


def test_damaged_texts_are_refused_with_a_place() -> None:
    rng = random.Random(67)
    messages: list[str] = []
    for case in range(2000):
        source = damaged(rng, STEP if case % 2 else GENERIC)
        try:
            StableHloNetwork(read_text(source, "step.mlir"))
        except MspcError as error:
            messages.append(f"{error.message} {error.location}")
    assert len(messages) > 1000
    assert all("step.mlir" in message for message in messages)


def test_deep_and_long_texts_take_linear_time() -> None:
    with pytest.raises(MspcError, match="nested deeper"):
        read_text("module attributes {a = " + "[" * 100_000, "step.mlir")
    lines = "".join(f"    %{i + 1} = stablehlo.add %{i}, %{i} : tensor<2xf32>\n" for i in range(8000))
    source = module(["%0: tensor<2xf32>"], lines, [("%8000", "tensor<2xf32>")])
    begin = time.process_time()
    assert len(read_text(source, "step.mlir").main.body.operations) == 8001
    assert time.process_time() - begin < 5
    with pytest.raises(MspcError):
        read_text(source.replace("}", "", 1), "step.mlir")


def test_regions_of_operations_in_pretty_form() -> None:
    body = """    %i = stablehlo.iota dim = 0 : tensor<4xi32>
    %a = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %b = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.reduce(%x init: %a), (%i init: %b) across dimensions = [0] : (tensor<4xf32>, tensor<4xi32>, tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<i32>)
     reducer(%p: tensor<f32>, %q: tensor<f32>) (%r: tensor<i32>, %s: tensor<i32>)  {
      %1 = stablehlo.compare  GT, %p, %q,  FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %2 = stablehlo.select %1, %p, %q : tensor<i1>, tensor<f32>
      %3 = stablehlo.select %1, %r, %s : tensor<i1>, tensor<i32>
      stablehlo.return %2, %3 : tensor<f32>, tensor<i32>
    }"""  # noqa: E501  # one operation has one line
    x = np.array([1, 5, -2, 3], np.float32)
    found = computed(body, [("%0#0", "tensor<f32>"), ("%0#1", "tensor<i32>")], x=x)
    assert [each.item() for each in found] == [5, 1]


MODULES = Path(__file__).with_name("partitioned_modules.mlir")
AFTER = text_of(MODULES, "step")
"""The module of `STEP` for four devices."""
ROWS = text_of(MODULES, "rows")
"""A step with a loop over rows of its parameter, whose gradients it stacks."""
WHOLE = module(["%x: tensor<8x8xf32>"], "", [("%x", "tensor<8x8xf32>")])


def check(folder: Path, step: str, after: str, name: str = "after.mlir") -> None:
    """Compare a module with a step. Raise MspcError if they differ, or one cannot be read."""
    (folder / "step.mlir").write_text(step)
    (folder / name).write_text(after)
    verify_scale(str(folder / "step.mlir"), CompileOptions(loudness=Loudness(False, True)), 0, folder / name)


def test_the_module_computes_the_step(tmp_path: Path) -> None:
    check(tmp_path, STEP, AFTER)


@pytest.mark.parametrize(("old", "new"), [
    ("dense<[[0, 1], [2, 3]]>", "dense<[[0, 3], [1, 2]]>"), ("stablehlo.maximum", "stablehlo.minimum"),
    ("dense<1.000000e-01>", "dense<2.000000e-01>"), ("stablehlo.subtract %arg0, %5", "stablehlo.subtract %5, %arg0"),
    ("stablehlo.add %arg3, %arg4", "stablehlo.maximum %arg3, %arg4"),
    ("stablehlo.dot_general %2, %8", "stablehlo.dot_general %2, %7"),
    ("stablehlo.subtract %arg1, %10", "stablehlo.subtract %arg1, %9"),
    ("handle = 2, type = 0>, replica_groups = dense<[[0, 2], [1, 3]]>",
     "handle = 2, type = 0>, replica_groups = dense<[[0, 1], [2, 3]]>"),
])  # fmt: skip
def test_single_changes_are_found(tmp_path: Path, old: str, new: str) -> None:
    assert old in AFTER
    with pytest.raises(ExecutionError, match=r"differ|cannot be computed") as caught:
        check(tmp_path, STEP, AFTER.replace(old, new, 1))
    assert caught.value.frames[-1].file.endswith("after.mlir")


@pytest.mark.parametrize("name", ["gather", "ring", "line", "slices", "scatter", "other_order_in_memory", "loop"])
def test_collectives(tmp_path: Path, name: str) -> None:
    """Modules of four devices with two rows of x each, which give x back, whole or in slices."""
    check(tmp_path, WHOLE, text_of(MODULES, name))
    if name == "gather":  # groups have an order
        with pytest.raises(ExecutionError, match="differ"):
            check(tmp_path, WHOLE, text_of(MODULES, name).replace("[[0, 1, 2, 3]]", "[[0, 2, 1, 3]]"))


FUSED = """"mhlo.fusion"(%iterArg, %c_1) <{fusion_kind = #mhlo<fusion_kind kLoop>}> ({
      ^bb0(%a: tensor<i32>, %b: tensor<i32>):
        %made = stablehlo.OPERATION %a, %b : (tensor<i32>, tensor<i32>) -> tensor<TYPE>
        mhlo.return %made : tensor<TYPE>
      }) : (tensor<i32>, tensor<i32>) -> tensor<TYPE>"""


def test_loops_that_count_in_fusions_have_a_number_of_iterations(tmp_path: Path) -> None:
    """As in modules that XLA has compiled: collectives inside count as often as they run."""
    after = text_of(MODULES, "loop")
    for operation, type in (("compare  LT,", "i1"), ("add", "i32")):
        fused = FUSED.replace("OPERATION", operation).replace("TYPE", type)
        after, count = re.subn(rf"stablehlo.{operation} %iterArg, %c_1 : .*", lambda _, to=fused: to, after)
        assert count == 1
    (tmp_path / "step.mlir").write_text(WHOLE)
    (tmp_path / "after.mlir").write_text(after)
    proved = programs_of_partitioned(tmp_path / "step.mlir", tmp_path / "after.mlir")
    assert not any(node.regions for kind in proved.kinds for node in kind.graph.all_nodes())
    check(tmp_path, WHOLE, after)


def test_a_start_beyond_the_end_is_tried(tmp_path: Path) -> None:
    """A slice that each device takes from the middle of the slice of all: for starts beyond the end it is another."""
    types = "(tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x6xf32>"
    body = f"""    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %x, %c, %s, sizes = [2, 6] : {types}"""
    step = module(["%x: tensor<2x8xf32>", "%s: tensor<i32>"], body, [("%0", "tensor<2x6xf32>")])
    check(tmp_path, step, text_of(MODULES, "slices_in_two"))
    with pytest.raises(ExecutionError, match="differ"):
        check(tmp_path, step, text_of(MODULES, "start_beyond"))


@pytest.mark.parametrize(("old", "new", "message"), [
    ("num_partitions = 4", "num_partitions = 8", "is for 8 devices, and .* for 4"),
    ("num_partitions = 4", "num_replicas = 2 : i32, mhlo.num_partitions = 4", "is for 8 devices"),
    ("mhlo.fusion", "mhlo.rise", "not known: mhlo.rise"), ("[2, 3]]>", "[2, 9]]>", "is in no group"),
    ("devices=[2,1,2]<=[4]", "devices=[1,1,4]<=[4]", "argument x is .*no slice of"),
])  # fmt: skip
def test_mistakes(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in AFTER
    with pytest.raises(MspcError, match=message):
        check(tmp_path, STEP, AFTER.replace(old, new))


def test_a_module_of_another_step(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match=r"has 1 arguments, and .* has 3"):
        check(tmp_path, STEP, text_of(MODULES, "gather"))


@pytest.mark.skipif(
    "MSPC_JAX_PYTHON" in os.environ or importlib.util.find_spec("jax") is not None, reason="JAX is installed"
)
def test_hlo_is_converted_by_jax(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match=r"cannot read .*after.hlo: .*No module named 'jax'"):
        check(tmp_path, WHOLE, "HloModule rows, num_partitions=4", "after.hlo")


@pytest.mark.thorough
def test_random_steps_of_jax(tmp_path: Path) -> None:
    """Modules that XLA makes of random steps compute them."""
    pytest.importorskip("jax", reason="JAX is not installed")
    command = [sys.executable, "-m", "tests.readers.stablehlo_random_steps"]
    subprocess.run([*command, "write", str(tmp_path), "--count", "4"], check=True, capture_output=True)
    subprocess.run([*command, "judge", str(tmp_path), "--only", "0", "2", "3"], check=True)


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
    x, y, w = numbers(4, 8), numbers(8, 16), numbers(16, 16, seed=1)
    np.testing.assert_array_equal(results_of(LOOP, x)[0], np.sort(x * [[2], [2], [4], [4]], 1))
    np.testing.assert_allclose(results_of(PART, y, w)[0], np.tile((y @ w)[:4] + (y @ w)[4:], (2, 1)), 1e-4, 1e-5)
    for text in (LOOP, PART):
        (tmp_path / "step.mlir").write_text(text)
        verify_target(str(tmp_path / "step.mlir"), CompileOptions(), 0)


PART = """module @step attributes {mhlo.num_partitions = 8 : i32} {
  func.func public @main(%x: tensor<8x16xf32> {mhlo.sharding = "{devices=[2,2,2]<=[8] last_tile_dim_replicate}"}, %w: tensor<16x16xf32> {mhlo.sharding = "{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}"}) -> tensor<8x16xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<8x16xf32>) -> tensor<4x16xf32>
    %2 = stablehlo.custom_call @Sharding(%w) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{replicated}"} : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %4 = call @body(%1, %3) : (tensor<4x16xf32>, tensor<16x16xf32>) -> tensor<4x16xf32>
    %5 = stablehlo.custom_call @SPMDShardToFullShape(%4) {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x16xf32>) -> tensor<8x16xf32>
    return %5 : tensor<8x16xf32>
  }
  func.func private @body(%own: tensor<4x16xf32>, %weight: tensor<16x16xf32>) -> tensor<4x16xf32> {
    %0 = stablehlo.dot_general %own, %weight, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x16xf32>) -> tensor<4x16xf32>
    %1 = stablehlo.custom_call @Sharding(%0) {mhlo.sharding = "{devices=[2,2,2]<=[2,4]T(1,0) last_tile_dims={manual}}"} : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      %t = stablehlo.custom_call @Sharding(%s) {mhlo.sharding = "{devices=[2,4]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<f32>) -> tensor<f32>
      stablehlo.return %t : tensor<f32>
    }) : (tensor<4x16xf32>) -> tensor<4x16xf32>
    return %2 : tensor<4x16xf32>
  }
}
"""  # noqa: E501  # one of three axes is manual, as the older partitioner reads it


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
def test_mistakes_in_manual_computations(old: str, new: str, message: str) -> None:
    assert old in SHARDY
    with pytest.raises(MspcError, match=message):
        results_of(SHARDY.replace(old, new), numbers(8, 32), numbers(8, 4))


QUIET = Loudness(False, True)


def with_sharding(text: str) -> tuple[HloModule, Any]:
    """Return a module, and the sharding that its argument has."""
    source = module([f"%x: tensor<16x16xf32> {{{text}}}"], "", [("%x", "f32")])
    found = read_text(f'sdy.mesh @m = <["a"=2, "b"=4]>\n{source}', "step.mlir")
    return found, next(iter(found.main.argument_attributes[0].values()))


@pytest.mark.parametrize(("text", "first", "last"), [
    ('sdy.sharding = #sdy.sharding<@m, [{"a"}, {"b"}]>', [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3] * 2),
    ('sdy.sharding = #sdy.sharding<@m, [{"b", "a"}, {}]>', [0, 2, 4, 6, 1, 3, 5, 7], [0] * 8),
    ('sdy.sharding = #sdy.sharding<@m, [{"b":(2)2}, {"a", ?}p1], replicated={"b":(1)2}>', [0, 1, 0, 1] * 2,
     [0, 0, 0, 0, 1, 1, 1, 1]),
    ('mhlo.sharding = "{devices=[2,4]<=[8]}"', [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3] * 2),
    ('mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"', [0, 1, 2, 3] * 2, [0] * 8),
    ('mhlo.sharding = "{devices=[2,2,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"', [0, 0, 0, 0, 1, 1, 1, 1],
     [0, 0, 1, 1] * 2),
    ('mhlo.sharding = "{devices=[2,4]<=[4,2]T(1,0)}"', [0, 1] * 4, [0, 0, 1, 1, 2, 2, 3, 3]),
    ('mhlo.sharding = "{devices=[2,1,4]0,1,4,5,2,3,6,7 last_tile_dim_replicate}"', [0, 0, 1, 1] * 2, [0] * 8),
    ('mhlo.sharding = "{{devices=[2,2,2]4,0,5,1,2,6,7,3 last_tile_dim_replicate shard_as 1}}"',
     [0, 0, 1, 1] * 2, [0, 1] * 4),
    ('mhlo.sharding = "{devices=[1,2,2,2]<=[2,4]T(1,0) last_tile_dims={replicated, manual}}"', [0] * 8,
     [0, 0, 1, 1] * 2),
])  # fmt: skip
def test_layouts(text: str, first: list[int], last: list[int]) -> None:
    """The number of the slice of both dimensions on each of 8 ranks."""
    layout = layout_of(*with_sharding(text), 2)
    assert layout is not None
    slices = [layout.to_layout().slice_index(rank) for rank in range(8)]
    assert [list(each) for each in zip(*slices, strict=True)] == [first, last]


def test_open_dimensions_and_wrong_shardings() -> None:
    for text in ("sdy.sharding = #sdy.sharding<@m, [{?}, {?}]>", 'mhlo.sharding = "{maximal device=0}"',
                 'mhlo.sharding = "{manual}"', 'mhlo.sharding = "{unknown shard_like 3}"'):  # fmt: skip
        assert layout_of(*with_sharding(text), 2) is None
    for text, message in (
        ('sdy.sharding = #sdy.sharding<@n, [{"a"}, {}]>', "there is no mesh @n"),
        ('sdy.sharding = #sdy.sharding<@m, [{"c"}, {}]>', "names 'c', which is no axis"),
        ('sdy.sharding = #sdy.sharding<@m, [{"a"}]>', "1 dimensions is given to a tensor of 2"),
        ('mhlo.sharding = "{devices=[3,1]<=[8]}"', "does not fit 3 devices"),
        ('mhlo.sharding = "{devices=[2,4]0,1,2,3,4,5,7,6}"', "lists devices otherwise"),
        ('mhlo.sharding = "{devices=[2,2,2]<=[8] last_tile_dims={unreduced}}"', "subgroup that mspc does not read"),
        ('mhlo.sharding = "{devices=[2,4]<=[8] last_tile_dim_replicate}"', "does not fit 8 devices and 2 dimensions"),
    ):
        with pytest.raises(MspcError, match=message):
            layout_of(*with_sharding(text), 2)


@pytest.fixture
def step(own_folder: Path) -> Path:
    (own_folder / "step.mlir").write_text(STEP)
    return own_folder


def test_ranks_compute_as_one_device(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On as many ranks as the text is for, in its shardings; on others by the batch."""
    verify_target("step.mlir", CompileOptions(), 0)
    assert "on 4 ranks" in capsys.readouterr().out
    verify_target("step.mlir", CompileOptions(ranks=2), 0)
    both = capsys.readouterr()
    assert "on 2 ranks" in both.out
    assert "its shardings are left out" in both.err


def test_compiled_files_have_the_layouts_of_the_text(step: Path) -> None:
    compile_target("step.mlir", CompileOptions(level=2, out=Path("made"), loudness=QUIET))
    (program,) = (step / "made" / "rank_3").glob("*_execute_*.ir")
    text = program.read_text()
    assert "%para1_x: <Tensor[Float32], (2, 8)>" in text
    assert "ref_key=params.up" in text
    assert "(8, 8)" in next(line for line in text.splitlines() if "ref_key=params.up" in line)
    assert "step.py(7)" in text
    with pytest.raises(MspcError, match="--loss is for a network of PyTorch"):
        compile_target("step.mlir", CompileOptions(out=Path("made"), imported=ImportOptions(loss="mse")))


LOWERED = """
class Lowered:
    def as_text(self, debug_info=False):
        assert debug_info
        return open("step.mlir").read()

lowered = Lowered()
def make(flag):
    assert flag == 3
    return lowered
def other():
    return 1
"""


def test_a_script_that_lowers_a_step(step: Path) -> None:
    """The script runs in another process, which needs JAX only if the script does."""
    from mspc.commands.stablehlo import lowered_text
    from mspc.engine.capture import NamedTarget

    (step / "jit.py").write_text(LOWERED)
    Path("json.py").write_text("raise SystemExit('a module of the current folder')")
    for name, arguments in (("lowered", ()), ("make", (3,))):
        assert lowered_text(NamedTarget(Path("jit.py"), name, arguments, ())) == STEP
    for name, message in (("other", "gives int"), ("missing", "defines no 'missing'"), ("make", "cannot lower")):
        with pytest.raises(MspcError, match=message):
            lowered_text(NamedTarget(Path("jit.py"), name, (), ()))


def sent_in(text: str, **options: Any) -> list[str]:
    """Return the collectives of rank 5 for a step, which is written as step.mlir."""
    Path("step.mlir").write_text(text)
    compile_target("step.mlir", CompileOptions(out=Path("made"), loudness=QUIET, **options))
    (program,) = Path("made", "rank_5").glob("*_execute_*.ir")
    return re.findall(r"= (All\w+|ReduceScatter|NeighborExchange)\(", program.read_text())


@pytest.mark.usefixtures("step")
def test_updates_run_on_the_slices_of_their_parameters() -> None:
    """The gradient is added up to these slices once, for its norm too; the momentum is not moved."""
    assert sent_in(text_of(MODULES, "momentum")) == ["AllGather", "ReduceScatter", "AllReduce", "AllReduce"]
    verify_scale("step.mlir", CompileOptions(ranks=8), 0)
    whole = text_of(MODULES, "momentum").replace('[{"fsdp"}, {"model"}]', "[{}, {}]", 1)  # only its state is sharded
    sent_in(whole)
    assert "the result of Sub is sharded" in next(Path("made", "rank_5").glob("*_execute_*.ir")).read_text()
    assert sent_in(ROWS) == ["AllGather", "ReduceScatter", "AllReduce"]  # each row of a scan, in its iteration


@pytest.mark.usefixtures("step")
def test_a_search_plans_a_scan() -> None:
    Path("step.mlir").write_text(ROWS)
    search_target("step.mlir", SearchOptions(CompileOptions(loudness=QUIET), (8,), free=True, out=Path("plan.toml")))
    assert Path("plan.toml").read_text().count("/MatMul-op") == 2
    sent_in(ROWS, strategies=Path("plan.toml"), out_jax=Path("specs.py"))
    assert "'w': P(" in Path("specs.py").read_text()
    verify_target("step.mlir", CompileOptions(ranks=8, strategies=Path("plan.toml")), 0)


def test_a_plan_as_partition_specs(step: Path) -> None:
    """The layouts of a compile over the mesh of the text; a search's over a mesh of its own."""
    compile_target("step.mlir", CompileOptions(out=Path("made"), out_jax=Path("specs.py"), loudness=QUIET))
    text = (step / "specs.py").read_text()
    assert "MESH = {'data': 2, 'model': 2}" in text
    assert """    "params['up']": P(None, 'model'),\n    "params['down']": P('model'),\n    'x': P('data'),\n""" in text
    compile(text, "specs.py", "exec")
    lines = "from mspc import nn\nclass Net(nn.Cell):\n    def construct(self, x):\n        return x\n"
    (step / "net.py").write_text(lines)
    with pytest.raises(MspcError, match="--out-jax writes PartitionSpecs for a step of JAX"):
        compile_target("net.py:Net()", CompileOptions(
            inputs=("float32[2]",), out=Path("made"), out_jax=Path("specs.py"), loudness=QUIET))  # fmt: skip
    layout = Layout.of((4, 2, 3), ((2, 0), (), (1,)))
    assert spec_of(layout, (("a", 2), ("b", 2), ("c", 2), ("d", 3))) == "P(('d', 'a', 'b'), None, 'c')"
