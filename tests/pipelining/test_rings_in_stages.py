"""Ranks meet in their exchanges of keys in one order where gradients of weights are apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify import verify_target

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Layout, Parameter, Tensor, nn, ops
from mindspore.ops.operations.nn_ops import FlashAttentionScore

ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2,
    pipeline_config={{"pipeline_scheduler": "{schedule}"}},
)
WIDTH = 8
layout = Layout((1, 2), ("data", "context"))
draw = np.random.RandomState(0)


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (
            Parameter(Tensor(draw.randn(WIDTH, WIDTH) * 0.3, ms.float32), name=name) for name in "qkvo"
        )
        self.attention = FlashAttentionScore(2, scale_value=0.5, input_layout="BSH", sparse_mode=2)
        rows = layout("data", "context", "None")
        self.attention.shard((rows, rows, rows, layout("None", "None")))
        self.attention.add_prim_attr("enable_ring_attention", True)
        self.mask = Tensor(np.triu(np.ones((2048, 2048), np.uint8), 1))

    def construct(self, x):
        query, key, value = (ops.matmul(x, weight) for weight in (self.query, self.key, self.value))
        found = self.attention(query, key, value, None, None, None, self.mask, None)[3]
        return x + ops.matmul(found, self.out)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Attention() for _ in range(4)])
        for number, layer in enumerate(self.layers):
            layer.pipeline_stage = {stages}[number]
        self.layers[1].recompute()
        self.layers[3].recompute()

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).mean()


cell = nn.PipelineCell(Net(), 2)
step = nn.TrainOneStepCell(cell, nn.SGD(cell.trainable_params(), 0.1))
step(Tensor(draw.randn(4, 8, WIDTH), ms.float32))
"""


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [("zero_bubble_h1", (0, 0, 1, 1)), ("zero_bubble_2p", (0, 0, 1, 1)), ("zero_bubble_v", (0, 1, 1, 0))],
)  # fmt: skip
def test_computing_again_sends_in_the_order_of_all_ranks(
    schedule: str, stages: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "net.py"
    script.write_text(SCRIPT.format(schedule=schedule, stages=stages))
    verify_target(str(script), CompileOptions(ranks=4, loudness=Loudness(quiet=True)), seed=0)
    assert capsys.readouterr().out.startswith("equal: ")
