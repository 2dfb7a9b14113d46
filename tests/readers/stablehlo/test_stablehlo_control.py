"""Loops, branches and calls of StableHLO programs."""

from pathlib import Path

import numpy as np
import pytest

from mspc.compiler.frontend.trace import trace
from mspc.readers.pytorch.evaluation import FEW
from mspc.readers.stablehlo.network import StableHloNetwork
from mspc.readers.stablehlo.text_reader import read_text
from tests.stablehlo_texts import computed, module, numbers, results_of
from tests.texts import text_of

TEXTS = Path(__file__).with_name("stablehlo_control.mlir")

H, W = numbers(2, 3), 0.5 * numbers(3, 3, seed=1)


def scanned(turns: int, last_first: bool) -> str:
    """h = tanh(h @ w + a row of x) for all rows, the first or the last one first, and every h in its row."""
    index = "      %j = stablehlo.convert %i : (tensor<i32>) -> tensor<i32>"
    if last_first:
        last = f"      %k = stablehlo.constant dense<{turns - 1}> : tensor<i32>\n"
        index = last + "      %j = stablehlo.subtract %k, %i : tensor<i32>"
    return text_of(TEXTS, "scanned", turns=turns, index=index)


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
    graph = trace(network, network.input_types).graph
    nodes = graph.nodes
    names = [node.op.name for node in nodes]
    assert names.count("Tanh") == (turns if turns <= FEW else 0)
    assert not {"Gather", "ReverseV2"} & {node.op.name for node in graph.all_nodes()}
    carried = [node for node in nodes if node.op.name == "Scan"]
    assert all(node.op.reverse == last_first for node in carried)  # rows are read and stacked in the loop's order
    assert not carried or "Stack" not in names  # the loop gives its rows as one tensor
    assert all((turns, 2, 3) not in [value.shape for value in node.inputs] for node in carried)


def test_a_loop_that_ends_when_a_condition_fails() -> None:
    body = text_of(TEXTS, "a_loop_that_ends_when_a_condition_fails")
    types = [("%0#0", "tensor<2xf32>"), ("%0#1", "tensor<i32>")]
    for value, turns in ((1.0, 6), (30.0, 1), (100.0, 0)):
        x = np.full(2, value, np.float32)
        found, count = computed(body, types, x=x, c=np.array(0, np.int32))
        np.testing.assert_allclose(found, x * 2**turns)
        assert count == turns


BRANCHES = text_of(TEXTS, "branches")


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
