"""Loops, branches and calls of StableHLO programs."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.compiler.frontend.trace import trace
from mspc.readers.pytorch.evaluation import FEW
from mspc.readers.stablehlo.network import StableHloNetwork
from mspc.readers.stablehlo.text_reader import read_text
from tests.stablehlo_texts import computed, module, numbers, results_of

H, W = numbers(2, 3), 0.5 * numbers(3, 3, seed=1)


def scanned(turns: int, last_first: bool) -> str:
    """h = tanh(h @ w + a row of x) for all rows, the first or the last one first, and every h in its row."""
    index = "      %j = stablehlo.convert %i : (tensor<i32>) -> tensor<i32>"
    if last_first:
        last = f"      %k = stablehlo.constant dense<{turns - 1}> : tensor<i32>\n"
        index = last + "      %j = stablehlo.subtract %k, %i : tensor<i32>"
    return f"""module @jit_scan {{
  func.func public @main(%h: tensor<2x3xf32>, %w: tensor<3x3xf32>, %x: tensor<{turns}x3xf32>) -> (tensor<2x3xf32>, tensor<{turns}x2x3xf32>) {{
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<{turns}x2x3xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:5 = stablehlo.while(%xs = %x, %v = %w, %i = %c, %s = %h, %o = %y) : tensor<{turns}x3xf32>, tensor<3x3xf32>, tensor<i32>, tensor<2x3xf32>, tensor<{turns}x2x3xf32>
    cond {{
      %n = stablehlo.constant dense<{turns}> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    }} do {{
{index}
      %1 = stablehlo.constant dense<0> : tensor<i32>
      %2 = stablehlo.dynamic_slice %xs, %j, %1, sizes = [1, 3] : (tensor<{turns}x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
      %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<1x3xf32>) -> tensor<2x3xf32>
      %4 = stablehlo.dot_general %s, %v, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x3xf32>) -> tensor<2x3xf32>
      %5 = stablehlo.add %4, %3 : tensor<2x3xf32>
      %6 = stablehlo.tanh %5 : tensor<2x3xf32>
      %7 = func.call @put(%o, %6, %j) : (tensor<{turns}x2x3xf32>, tensor<2x3xf32>, tensor<i32>) -> tensor<{turns}x2x3xf32>
      %8 = stablehlo.constant dense<1> : tensor<i32>
      %9 = stablehlo.add %i, %8 : tensor<i32>
      stablehlo.return %xs, %v, %9, %6, %7 : tensor<{turns}x3xf32>, tensor<3x3xf32>, tensor<i32>, tensor<2x3xf32>, tensor<{turns}x2x3xf32>
    }}
    return %0#3, %0#4 : tensor<2x3xf32>, tensor<{turns}x2x3xf32>
  }}
  func.func private @put(%o: tensor<{turns}x2x3xf32>, %r: tensor<2x3xf32>, %i: tensor<i32>) -> tensor<{turns}x2x3xf32> {{
    %0 = stablehlo.broadcast_in_dim %r, dims = [1, 2] : (tensor<2x3xf32>) -> tensor<1x2x3xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %o, %0, %i, %c, %c : (tensor<{turns}x2x3xf32>, tensor<1x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<{turns}x2x3xf32>
    return %1 : tensor<{turns}x2x3xf32>
  }}
}}
"""  # noqa: E501  # one operation has one line


@pytest.mark.parametrize(("turns", "last_first"), [(3, False), (FEW + 2, False), (FEW + 2, True)])
def test_a_scan(turns: int, last_first: bool) -> None:
    """Many iterations are one loop, whose rows are stacked after it; few are unrolled."""
    rows, h = numbers(turns, 3, seed=2), H
    states = np.zeros((turns, 2, 3), np.float32)
    for row in reversed(range(turns)) if last_first else range(turns):
        states[row] = h = np.tanh(h @ W + rows[row])
    text = scanned(turns, last_first)
    last, made = results_of(text, H, W, rows)
    np.testing.assert_allclose(last, h, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made, states, rtol=1e-4, atol=1e-5)
    network = StableHloNetwork(read_text(text, "scan.mlir"))
    nodes = trace(network, network.input_types).graph.nodes
    names = [node.op.name for node in nodes]
    assert names.count("Tanh") == (turns if turns <= FEW else 0)
    carried = [node for node in nodes if node.op.name == "Scan"]
    assert all((turns, 2, 3) not in [value.shape for value in node.inputs] for node in carried)


def test_a_loop_that_ends_when_a_condition_fails() -> None:
    body = """    %0:2 = stablehlo.while(%a = %x, %n = %c) : tensor<2xf32>, tensor<i32>
    cond {
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %m = stablehlo.constant dense<100.0> : tensor<f32>
      %1 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
      %2 = stablehlo.compare LT, %1, %m, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %1 = stablehlo.add %a, %a : tensor<2xf32>
      %2 = stablehlo.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %n, %2 : tensor<i32>
      stablehlo.return %1, %3 : tensor<2xf32>, tensor<i32>
    }"""  # noqa: E501  # one operation has one line
    types = [("%0#0", "tensor<2xf32>"), ("%0#1", "tensor<i32>")]
    for value, turns in ((1.0, 6), (30.0, 1), (100.0, 0)):
        x = np.full(2, value, np.float32)
        found, count = computed(body, types, x=x, c=np.array(0, np.int32))
        np.testing.assert_allclose(found, x * 2**turns)
        assert count == turns


BRANCHES = """    %0 = "stablehlo.case"(%i) ({
      %1 = stablehlo.negate %x : tensor<2xf32>
      stablehlo.return %1 : tensor<2xf32>
    }, {
      %1 = stablehlo.exponential %x : tensor<2xf32>
      stablehlo.return %1 : tensor<2xf32>
    }, {
      stablehlo.return %x : tensor<2xf32>
    }) : (tensor<i32>) -> tensor<2xf32>
    %c = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.compare LT, %i, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %3 = "stablehlo.if"(%2) ({
      stablehlo.return %x : tensor<2xf32>
    }, {
      %4 = stablehlo.add %x, %x : tensor<2xf32>
      stablehlo.return %4 : tensor<2xf32>
    }) : (tensor<i1>) -> tensor<2xf32>"""


def test_branches_by_a_number_that_the_run_knows() -> None:
    x = numbers(2)
    for number, expected in ((0, -x), (1, np.exp(x)), (2, x), (7, x), (-1, x)):
        found, other = computed(BRANCHES, [("%0", "tensor<2xf32>"), ("%3", "tensor<2xf32>")], x=x,
                                i=np.array(number, np.int32))  # fmt: skip
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        np.testing.assert_allclose(other, x if number < 1 else 2 * x)


def test_a_branch_by_a_number_that_is_known_is_the_only_one() -> None:
    text = module(["%x: tensor<2xf32>"], "    %i = stablehlo.constant dense<0> : tensor<i32>\n" + BRANCHES,
                  [("%0", "tensor<2xf32>")])  # fmt: skip
    network = StableHloNetwork(read_text(text, "case.mlir"))
    assert [node.op.name for node in trace(network, network.input_types).graph.nodes] == ["Neg"]
