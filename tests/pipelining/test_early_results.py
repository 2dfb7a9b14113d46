"""What a stage tells the others behind its work is sent when it is known."""

from __future__ import annotations

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, nn, ops
from mspc.analysis.cost.known_machines import H200
from mspc.api import context
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.graph import WORK, Graph
from mspc.ops.collective.point_to_point import SendToStage
from mspc.output.stage_times import predicted_work
from mspc.passes.lib.schedules import Action


class Layer(nn.Cell):
    def __init__(self, stage: int) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.eye(4, dtype=np.float32)))
        self.pipeline_stage = stage

    def construct(self, x: Tensor) -> Tensor:
        return ops.tanh(ops.matmul(x, self.w))


class Net(nn.Cell):
    def __init__(self, places: tuple[int, ...], wide: bool) -> None:
        super().__init__()
        self.layers, self.wide = nn.CellList([Layer(stage) for stage in places]), wide

    def construct(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return ops.broadcast_to(x.sum(), (64, 64)) * 1.0 if self.wide else x.sum()


def graphs(scheduler: str, places: tuple[int, ...], wide: bool = False) -> list[Graph]:
    mspc.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2,
        pipeline_config={"pipeline_interleave": len(places) > 2, "pipeline_scheduler": scheduler},
    )  # fmt: skip
    try:
        cell = nn.PipelineCell(Net(places, wide), 4)
        step = nn.TrainOneStepCell(cell, nn.SGD(cell.trainable_params(), 0.1))
        config = Config.from_context(context.freeze(step), 2)
        found = compile_call(step, (Tensor(np.ones((8, 4), np.float32)),), config)
        return [found.rank_graph(rank) for rank in range(2)]
    finally:
        mspc.reset_auto_parallel_context()


@pytest.mark.parametrize(
    ("scheduler", "places", "stage", "chunk"),
    [("zero_bubble_v", (0, 1, 1, 0), 0, 3), ("1f1b", (0, 1), 1, 1), ("gpipe", (0, 1), 1, 1),
     ("1f1b", (0, 1, 0, 1), 1, 3)],
)  # fmt: skip
def test_a_loss_is_sent_behind_the_forward_that_makes_it(
    scheduler: str, places: tuple[int, ...], stage: int, chunk: int
) -> None:
    found = graphs(scheduler, places)
    nodes = found[stage].nodes
    calls = [number for number, node in enumerate(nodes) if WORK in node.attrs]
    sent = [n for n, node in enumerate(nodes) if isinstance(node.op, SendToStage) and node.op.micro_batch < 0]
    last = next(
        n
        for n in calls
        if (nodes[n].attrs[WORK], nodes[n].attrs["micro_batch"], nodes[n].attrs["chunk"]) == ("F", 3, chunk)
    )
    assert len(sent) == 1
    assert [n for n in calls if last < n < sent[0]] == []
    assert any(n > sent[0] for n in calls), "gradients come behind it"
    _, work = predicted_work(found, H200)
    assert work.awaited is not None
    assert [*work.awaited[1 - stage]] == [(stage, Action("F", chunk, 3))]


def test_what_is_large_is_sent_behind_the_work() -> None:
    nodes = graphs("1f1b", (0, 1), wide=True)[1].nodes
    last = max(number for number, node in enumerate(nodes) if WORK in node.attrs)
    sent = [n for n, node in enumerate(nodes) if isinstance(node.op, SendToStage) and node.op.micro_batch < 0]
    assert sent
    assert min(sent) > last
