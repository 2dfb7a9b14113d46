"""Collectives of a transformer under data and tensor parallelism: counted, for twelve layers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mspc.compiler.driver import compile_call
from mspc.engine.capture import capture
from mspc.ir.graph import Graph
from mspc.mindspore_api.state import Session
from mspc.ops.collective.base import Collective
from mspc.output.programs import config_of

LAYERS = 12


@pytest.fixture(scope="module")
def rank_zero(root: Path) -> Graph:
    script = root / "benchmarks/networks/layers.py"
    captured = capture(script, [str(LAYERS)], Session.of_rank(0, 8))
    return compile_call(captured.target, captured.args, config_of(captured, 8)).rank_graph(0)


def test_at_most_four_reductions_a_layer_and_no_layout_change(rank_zero: Graph) -> None:
    """Two forward and two backward a layer, none after the first layer's input."""
    tensor = Counter(
        node.op.name
        for node in rank_zero.nodes
        if isinstance(node.op, Collective) and node.op.ranks == (0, 1, 2, 3)
    )
    assert tensor == {"AllReduce": 4 * LAYERS - 1}


def test_gradients_travel_in_one_bucket(rank_zero: Graph) -> None:
    data = [node for node in rank_zero.nodes if isinstance(node.op, Collective) and node.op.ranks == (0, 4)]
    assert [(node.op.name, len(node.inputs)) for node in data] == [("AllReduce", 1), ("AllReduce", 6 * LAYERS)]
    assert data[0].inputs[0].shape == ()  # the loss, of which the ranks that share a batch have the same part
    of_all_ranks = [node for node in rank_zero.nodes if isinstance(node.op, Collective) and len(node.op.ranks) == 8]
    assert of_all_ranks == []
