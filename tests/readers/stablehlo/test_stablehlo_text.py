"""The text of StableHLO programs: both forms, constants, places, names, updates, and damaged texts."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Tensor
from mspc.ir.diagnostics import MspcError
from mspc.readers.stablehlo.network import StableHloNetwork
from mspc.readers.stablehlo.text_reader import read_module, read_text
from tests.stablehlo_texts import STEP, computed, module, numbers, results_of, step_results


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
    assert first.origin.name == "jit(step)/mlp/dot_general"
    assert called.origin.frames == first.origin.frames


GENERIC = """
"builtin.module"() <{sym_name = "jit_step"}> ({
  "func.func"() <{arg_attrs = [{}, {}], function_type = (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>, res_attrs = [{}], sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%arg0: tensor<2x3xf32>, %arg1: tensor<3xf32>):
    %0 = "stablehlo.dot_general"(%arg0, %arg1) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>}> : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>
    %1 = "stablehlo.constant"() <{value = dense<1.5> : tensor<f32>}> : () -> tensor<f32>
    %2 = "stablehlo.broadcast_in_dim"(%1) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2xf32>
    %3 = "stablehlo.compare"(%0, %2) <{compare_type = #stablehlo<comparison_type FLOAT>, comparison_direction = #stablehlo<comparison_direction GT>}> : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
    %4 = "stablehlo.select"(%3, %0, %2) {sdy.sharding_rule = #sdy.op_sharding_rule<([i], [i], [i])->([i]) {i=2}, custom>} : (tensor<2xi1>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
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
    ("dense<1> : tensor<2xf8E4M3FN>", r"1 time, first at step.mlir:3:5"),
])  # fmt: skip
def test_wrong_constants(text: str, message: str) -> None:
    body = f"    %c = stablehlo.constant {text}\n"
    source = module(["%x: tensor<f32>"], body, [("%x", "tensor<f32>")])
    with pytest.raises(MspcError) as caught:
        results_of(source, np.float32(0).reshape(()))
    assert message in "\n".join((caught.value.message, *caught.value.notes))
    assert caught.value.location is not None


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
