"""Dropout in micro-batches: the gradient of one has the mask of its forward part, and every one has another mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mspc.commands.run import run_script

PARTS, ROWS, WIDTH = 4, 3, 64
SCRIPT = """
import numpy as np
import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.communication import get_rank, init

init()
ms.set_seed(3)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2,
                             pipeline_config={{"pipeline_scheduler": "{schedule}"}})


class Dropped(nn.Cell):
    def __init__(self):
        super().__init__()
        self.scale = Parameter(Tensor(np.ones({width})), name="scale")
        self.dropout = nn.Dropout(p=0.5)

    def construct(self, x):
        return self.dropout(x * self.scale)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.last = Dropped(), Dropped()
        self.first.pipeline_stage, self.last.pipeline_stage = 0, 1

    def construct(self, x, y):
        first, last = self.first(x), self.last(y)
        return ((first * first).sum() + (last * last).sum()) / 2


net = Net()
if {again}:
    net.first.recompute()
    net.last.recompute()
cell = nn.PipelineCell(net, {parts}).set_train()
grad = ms.jit(ops.value_and_grad(cell, (0, 1), None))
x = Tensor(np.ones(({parts} * {rows}, {width})))
found = [grad(x, x) for _ in range(2)]
np.savez({folder!r} + f"/rank_{{get_rank()}}.npz", losses=[loss.asnumpy() for loss, _ in found],
         gradients=[[each.asnumpy() for each in gradients] for _, gradients in found])
"""


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble_v"])
def test_masks_are_those_of_their_micro_batch(schedule: str, again: bool, tmp_path: Path) -> None:
    """A gradient is 4 where both masks keep an element. Were they others the loss, 2 for each that the forward one
    keeps, would be more than half of all gradients."""
    script = tmp_path / "net.py"
    script.write_text(
        SCRIPT.format(schedule=schedule, again=again, parts=PARTS, rows=ROWS, width=WIDTH, folder=str(tmp_path)),
        encoding="utf-8",
    )
    run_script(script, 2, simulate=True)
    for rank in range(2):
        with np.load(tmp_path / f"rank_{rank}.npz") as found:
            losses, gradients = found["losses"], found["gradients"]
        assert set(np.unique(gradients)) == {0.0, 4.0}
        np.testing.assert_array_equal(losses, gradients.sum((1, 2, 3)) / 2)
        masks = gradients.reshape(2 * 2 * PARTS, -1)  # of two steps, two layers
        assert len(np.unique(masks, axis=0)) == len(masks), "two micro-batches, layers or steps have one mask"
        kept = (masks > 0).mean()
        assert 0.4 < kept < 0.6
