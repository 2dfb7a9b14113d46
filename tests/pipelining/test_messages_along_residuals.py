"""What stages send each other along residuals: one tensor a border and micro-batch, there and back."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, nn, ops
from mspc.api import context
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ops.collective.point_to_point import SendToStage

STAGES, PARTS, ROWS, WIDTH = 4, 8, 4, 8


class Layer(nn.Cell):
    def __init__(self, stage: int) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((WIDTH, WIDTH), np.float32)), name="weight")
        self.pipeline_stage = stage

    def construct(self, x: Tensor) -> Tensor:
        return x + ops.tanh(ops.matmul(x, self.weight))


class Net(nn.Cell):
    def __init__(self, places: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.CellList([Layer(stage) for stage in places])

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return ((x - y) ** 2).mean()


def sent(schedule: str, places: tuple[int, ...]) -> Counter[tuple[int, int]]:
    """How many messages of micro-batches go from each stage to each other one."""
    settings = {"pipeline_stages": STAGES, "pipeline_config": {"pipeline_scheduler": schedule}}
    mspc.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, **settings)
    try:
        cell = nn.PipelineCell(Net(places), PARTS)
        step = nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.1, 0.9))
        batch = Tensor(np.ones((ROWS * PARTS, WIDTH), np.float32))
        compiled = compile_call(step, (batch, batch), Config.from_context(context.freeze(step), STAGES))
        found: Counter[tuple[int, int]] = Counter()
        for rank in range(STAGES):
            ops_of_rank = [node.op for node in compiled.rank_graph(rank).nodes]
            found.update((rank, op.stage) for op in ops_of_rank if isinstance(op, SendToStage) and op.micro_batch >= 0)
        return found
    finally:
        mspc.reset_auto_parallel_context()


@pytest.mark.parametrize(("schedule", "places"), [
    ("1f1b", (0, 1, 2, 3)), ("gpipe", (0, 0, 1, 2, 3, 3)), ("zero_bubble_h1", (0, 1, 2, 3)),
])  # fmt: skip
def test_neighbours_alone_send_to_each_other(schedule: str, places: tuple[int, ...]) -> None:
    borders = [(stage, stage + 1) for stage in range(STAGES - 1)]
    there_and_back = [*borders, *((b, a) for a, b in borders)]
    assert sent(schedule, places) == dict.fromkeys(there_and_back, PARTS)


def test_chunks_there_and_back_send_as_often() -> None:
    """Of the eight chunks' seven borders the one in the middle is within the last stage."""
    found = sent("zero_bubble_v", (0, 1, 2, 3, 3, 2, 1, 0))
    assert sum(found.values()) == 2 * 6 * PARTS
    assert all(abs(a - b) == 1 for a, b in found)
