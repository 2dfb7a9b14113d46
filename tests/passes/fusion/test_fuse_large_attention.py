"""On CPUs attention that is written out becomes one operator where it has many scores; else nothing changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.analysis.integer_ranges import BOUNDS
from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.compiler.call import describe_call
from mspc.compiler.driver import DumpPoint, compile_traced, trace_call
from mspc.engine.capture import capture
from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter
from mspc.ir.text.printer import print_graph
from mspc.ir.types import INT64, TensorType
from mspc.mindspore_api.state import Session
from mspc.ops.math.arithmetic import Neg
from mspc.output.programs import config_of
from mspc.passes.fusion.fuse_large_attention import FuseLargeAttention

NETWORK = """
import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

LENGTH, DEVICE = int(sys.argv[1]), sys.argv[2]
ms.set_context(mode=ms.GRAPH_MODE, device_target=DEVICE)


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.full((8, 8), 0.1, np.float32)), name="weight")
        self.mask = Tensor(np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1))

    def construct(self, x):
        q = ops.matmul(x, self.weight)
        scores = ops.matmul(q, x.swapaxes(2, 3)) * 0.3 + self.mask
        return ops.matmul(ops.softmax(scores, -1), x).sum()


network = Network()
nn.TrainOneStepCell(network, nn.SGD(network.trainable_params()))(Tensor(np.ones((4, 4, LENGTH, 8), np.float32)))
"""


SHARDED = '''
import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

KIND, HEADS = sys.argv[1], (2, 2, 1, 1)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, full_batch=True)


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        draw = np.random.default_rng(1).standard_normal
        self.wq, self.wk, self.wv = (Parameter(Tensor(draw((8, 8)).astype(np.float32)), name=n) for n in "qkv")
        self.product, self.split = ops.MatMul().shard(((2, 1), (1, 2))), ops.Transpose().shard(((2, 1, 2, 1),))
        self.scores = ops.BatchMatMul(transpose_b=True).shard((HEADS, HEADS))
        self.softmax, self.drop = ops.Softmax().shard((HEADS,)), ops.Dropout(0.6, 3, 5).shard((HEADS,))
        self.mix = ops.BatchMatMul().shard((HEADS, HEADS))

    def construct(self, x):
        query, key, value = (self.split(ops.reshape(self.product(x, w), (4, 64, 4, 2)), (0, 2, 1, 3))
                             for w in (self.wq, self.wk, self.wv))
        weights = self.softmax(self.scores(query, key))
        if KIND == "dropped":
            weights = self.drop(weights)[0]
        return ops.reduce_mean(ops.square(self.mix(weights, value)))


network = Attention()
nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 1.0))(Tensor(np.ones([256, 8]), ms.float32))
'''


def stages(folder: Path, length: int, device: str = "CPU") -> dict[str, list[str]]:
    """The operators of every stage that is dumped, and what the constants of the first one are said to be."""
    script = folder / "network.py"
    script.write_text(NETWORK, encoding="utf-8")
    captured = capture(script, [str(length), device], Session.of_rank(0, 1))
    call = trace_call(captured.target, describe_call(captured.args, []), config_of(captured, 1))
    found: dict[str, list[str]] = {}

    def look(stage: DumpPoint) -> None:
        found[stage.name] = [node.op.name for node in stage.graph.nodes]
        found.setdefault("facts", [name for value in stage.graph.parameters for name in value.attrs])

    compile_traced(call, look)
    return found


def test_many_scores_make_one_operator(tmp_path: Path) -> None:
    found = stages(tmp_path, 64)
    assert "FlashAttentionScore" in found["fuse_large_attention"]
    assert "Softmax" not in found["fuse_large_attention"]
    assert "Add" not in found["fuse_large_attention"]  # the mask is a mode of the operator
    assert "FlashAttentionScoreGrad" in found["grad"]


def test_few_scores_stay_as_they_are_written(tmp_path: Path) -> None:
    found = stages(tmp_path, 32)
    assert "triangle" not in found["facts"]
    assert not any("attention" in name for name in found)
    assert all("Softmax" in names for name, names in found.items() if name != "facts")


@pytest.mark.parametrize("length", [32, 64])
def test_a_gpu_has_the_operator_whatever_the_size(tmp_path: Path, length: int) -> None:
    assert "FlashAttentionScore" in stages(tmp_path, length, "GPU")["fuse_attention"]


@pytest.mark.parametrize("kind", ["plain", "dropped"])
def test_operators_of_one_device_are_those_of_ranks(tmp_path: Path, kind: str) -> None:
    """They are compared one by one, so that all have to be fused or none."""
    script = tmp_path / "network.py"
    script.write_text(SHARDED, encoding="utf-8")
    verify_target(str(script), CompileOptions(ranks=4, script_arguments=(kind,)), seed=1)


def test_bounds_of_what_a_loop_carries_end_here() -> None:
    """They do not hold for a slice, in a graph without attention as in one with it."""
    graph = Graph("body")
    carried = Parameter("count", TensorType(INT64, ()))
    carried.attrs[BOUNDS] = (0, 3)
    graph.parameters = [carried]
    graph.results = [Builder(graph).emit(Neg(), carried)]
    before = print_graph(graph)
    assert FuseLargeAttention().run(graph)
    assert print_graph(graph) != before
    assert not FuseLargeAttention().run(graph)
    assert BOUNDS not in carried.attrs
