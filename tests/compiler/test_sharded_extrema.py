"""Extrema along a sharded dimension and means of integers equal one device; strategies that an operator cannot take.

Collectives of a transformer under data and tensor parallelism: counted, for twelve layers.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ops.collective.base import Collective
from tests.compiled_scripts import compiled_script
from tests.compiler.sharded_networks import check_equals_one_device, compiled

NETWORK = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(random.integers(-3, 4, (16, 32)), ms.float32), "w")
        self.op = {made}
    def construct(self, x):
        return {result}
{call}(Tensor(random.integers(-3, 4, (16, 32)), ms.float32))
"""
GRADIENT, FORWARD = "C.GradOperation(get_all=True)(Net())", "Net()"
NETWORKS = {
    "the place of a maximum": ("P.Argmax(axis=1).shard(((2, 4),))", "self.op(x * self.w)", FORWARD),
    "the place of a minimum": ("P.Argmin(0, ms.int64).shard(((8, 1),))", "self.op(x * self.w)", FORWARD),
    "by a Layout": ('P.Argmax(axis=-1).shard((layout("dp", ("sp", "mp")),))', "self.op(x * self.w)", FORWARD),
    "a minimum and its place": ("P.ArgMinWithValue(axis=1).shard(((2, 4),))", "self.op(x * self.w)[1]", GRADIENT),
    "a maximum that keeps its dimension": (
        "P.ArgMaxWithValue(axis=0, keep_dims=True).shard(((4, 2),))", "self.op(x * self.w)[1]", GRADIENT,
    ),
    "the mean of integers": (
        "P.ReduceMean().shard(((2, 4),))", "self.op(ops.cast(x * self.w, ms.int32), 1)", FORWARD,
    ),
    "the mean of all integers": (
        "P.ReduceMean(True).shard(((8, 1),))", "self.op(ops.cast(x * self.w, ms.int64))", FORWARD,
    ),
    "a reshape of what is sharded": (
        "P.Reshape().shard(((2, 4),))", "self.op(self.w, (32, 16)) * ops.reshape(x, (32, 16))", GRADIENT,
    ),
    "a lookup by an offset": (
        "P.EmbeddingLookup().shard(((4, 1), (1, 1)))",
        "self.op(self.w * x, Tensor(np.array([[5, 17], [6, 30]]), ms.int32), 5)", GRADIENT,
    ),
}  # fmt: skip
REFUSED = {
    "P.Reshape().shard(((2, 4),), ((8, 1),))|self.op(x, (32, 16))":
        "Reshape: a strategy says how input 0 is sharded, and nothing else",
    "P.Reshape().shard(((2, 3),))|self.op(x, (32, 16))":
        "ShardingConstraint 'op': dimension 1 of input 0 is 32, which 3 does not divide",
    "P.StridedSlice(ellipsis_mask=1).shard(((2, 4),))|self.op(x, (0, 0), (16, 32), (1, 1))":
        "StridedSlice 'op': it takes no strategy with an ellipsis_mask: name every dimension",
    'P.ReLU().shard((layout("dp", "mp"),), (layout("dp", "mp"),))|self.op(x)':
        "ReLU 'op': it takes no out_strategy of Layouts: the result is laid out as the inputs are",
    'P.Add().shard((layout("dp", "mp"),) * 2, (layout("dp", "mp"),))|self.op(x, self.w)':
        "Add 'op': it takes no out_strategy of Layouts: the result is laid out as the inputs are",
    "P.GatherNd().shard(((1, 2), (4, 1)))|self.op(x, ops.zeros((8, 1), ms.int32))":
        "GatherNd 'op': its strategy may shard the indices alone, and is (1, 2) for input 0",
    "P.Argmax(axis=1).shard(((2, 3),))|self.op(x)":
        "Argmax: dimension 1 of input 0 is 32, which 3 does not divide",
}  # fmt: skip


def text_of(made: str, result: str, call: str) -> str:
    return NETWORK.format(made=made, result=result, call=call)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_one_device(tmp_path: Path, name: str) -> None:
    check_equals_one_device(tmp_path, text_of(*NETWORKS[name]))


@pytest.mark.parametrize("written", REFUSED)
def test_a_strategy_that_the_operator_cannot_take(tmp_path: Path, written: str) -> None:
    with pytest.raises(MspcError) as raised:
        compiled(tmp_path, text_of(*written.split("|"), FORWARD))
    assert raised.value.message == REFUSED[written]


LAYERS = 12


@pytest.fixture(scope="module")
def rank_zero(root: Path) -> Graph:
    script = root / "benchmarks/networks/layers.py"
    return compiled_script(script, 8, str(LAYERS)).rank_graph(0)


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
