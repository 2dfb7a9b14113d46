"""The timeline of a compile: from the times of its graphs' nodes, which may be measured, and of messages by border."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.analysis.cost.known_machines import H200
from mspc.analysis.cost.nodes import seconds
from mspc.api.state import Session
from mspc.compiler.driver import compile_call
from mspc.engine.capture import capture
from mspc.ir.graph import WORK, Graph, Node
from mspc.ops.collective.point_to_point import SendToStage
from mspc.output.programs import config_of
from mspc.output.stage_times import stage_times

SCRIPT = """\
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Parameter, Tensor
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=3)
class Layer(nn.Cell):
    def __init__(self, stage, width):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((4, width), np.float32)))
        self.back = Parameter(Tensor(np.ones((width, 4), np.float32)))
        self.pipeline_stage = stage
    def construct(self, x):
        return ops.matmul(x, self.w)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = Layer(0, 32), Layer(1, 2), Layer(2, 4)
        self.back = Parameter(Tensor(np.ones((32, 4), np.float32)))
        self.more = Parameter(Tensor(np.ones((2, 4), np.float32)))
    def construct(self, x):
        x = ops.tanh(self.first(x))
        x = self.second(ops.MatMul().set_stage(1)(x, self.back))
        return self.last(ops.MatMul().set_stage(2)(ops.tanh(x), self.more)).sum()
cell = nn.PipelineCell(Net(), 4)
step = nn.TrainOneStepCell(cell, nn.SGD(cell.trainable_params(), 0.1))
step(Tensor(np.ones((8, 4), np.float32)))
"""


@pytest.fixture
def graphs(tmp_path: Path) -> list[Graph]:
    """Of the ranks of three stages, between which 2 x 32 and 2 x 2 numbers go."""
    (tmp_path / "net.py").write_text(SCRIPT)
    captured = capture(tmp_path / "net.py", [], Session.of_rank(0, 3))
    compiled = compile_call(captured.target, captured.args, config_of(captured, 3))
    return [compiled.rank_graph(rank) for rank in range(3)]


def test_nodes_and_messages_take_what_is_measured(graphs: list[Graph]) -> None:
    """A forward of 1 and a backward of 2; messages of 0.25 a number of the border, which the first one hides."""

    def own(node: Node) -> float:
        return {"F": 1.0, "B": 2.0}.get(node.attrs.get(WORK, ""), 0.0)

    found = stage_times(graphs, own=own, way=lambda node: node.inputs[0].type.nbytes / 16)
    starts = [spans[0].start for spans in found.spans]
    assert starts == [0, 1 + 16, 17 + 1 + 1]
    assert found.spans[1][-1].end - found.spans[2][-1].end == 1 + 2
    assert found.spans[0][-1].end - found.spans[1][-1].end == 16 + 2
    assert [tail.end - tail.start for tail in found.tails.values()] == [0, 0, 0]
    assert stage_times(graphs, own=own, way=lambda _: 0.0).makespan == 6 * 3


def test_updates_are_behind_the_last_micro_batch(graphs: list[Graph]) -> None:
    """Each takes 1 here; the first stages wait for the loss, which the last one sends behind its own work."""
    updates = [sum(node.phase == "update" and not node.op.is_view for node in graph.nodes) for graph in graphs]

    def own(node: Node) -> float:
        return {"F": 1.0, "B": 2.0}.get(node.attrs.get(WORK, ""), float(node.phase == "update"))

    found = stage_times(graphs, own=own, way=lambda _: 0.0)
    assert all(updates)
    assert [tail.end - tail.start for tail in found.tails.values()] == updates
    assert [tail.start for tail in found.tails.values()] == [18, 16, 14]
    assert found.makespan == 18 + updates[0]


def test_a_machine_says_what_is_not_measured(graphs: list[Graph]) -> None:
    found = stage_times(graphs)
    calls = [node for node in graphs[1].nodes if WORK in node.attrs]
    busy = found.busy(1)
    assert busy > sum(seconds(node) for node in calls)
    assert busy < sum(seconds(node) for node in graphs[1].nodes)
    (slow, quick) = (
        max(seconds(n) for n in graph.nodes if isinstance(n.op, SendToStage)) for graph in (graphs[0], graphs[2])
    )
    assert slow == H200.collective_seconds("Send", 256, range(2))
    assert slow > quick
