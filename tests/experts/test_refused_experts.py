"""Layers of experts that cannot be are refused with one message that names the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.run import run_script
from mspc.ir.diagnostics import MspcError

HEAD = """
import numpy as np
import mspc as ms
from mspc import Parameter, Tensor, nn, ops

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((8, 4, 4))), name="w")
        self.grouped = ops.auto_generate.GroupedMatmul(3, 0)
        self.batched, self.routing = ops.BatchMatMul(), ops.TopKRouter()

    def construct(self, x, given):
"""
GROUPED = "        return self.grouped([x], [self.w], None, None, None, None, None, given)[0]\n"
ROOM = """        slots = ops.tensor_scatter_update(ops.zeros((9, 4), ms.float64), given.expand_dims(-1), x)[:8]
        found = self.batched(slots.reshape(8, 1, 4), self.w).reshape(8, 4)
        return ops.gather(ops.cat((found, ops.zeros((1, 4), ms.float64)), 0), given, 0)
"""
CASES = {
    "experts that ranks do not divide": (
        GROUPED + "net = Net()\nnet.grouped.shard(((1, 1), (3, 1, 1), (1,)))", "np.arange(1, 9)", 6,
        "dimension 0 of input 1 is 8, which 3 does not divide",
    ),
    "experts that ranks do not divide, in a batch of products": (
        ROOM + "net = Net()\nnet.batched.shard(((3, 1, 1), (3, 1, 1)))", "np.arange(8)", 6,
        "is 8, which 3 does not divide",
    ),
    "no capacity": (
        "        return self.routing(given.reshape(1, 8, 1), 0, 8)[0]\nnet = Net()", "np.arange(8)", 2,
        "capacity is 0, not a positive number",
    ),
    "an expert that there is not": (
        "        return self.routing(given.reshape(1, 8, 1), 2, 8)[0]\nnet = Net()", "np.arange(8) + 2", 2,
        "TopKRouter: expert 9 is chosen, there are 8",
    ),
    "groups that end behind the last row": (
        GROUPED + "net = Net()\nnet.grouped.shard(((1, 1), (2, 1, 1), (1,)))", "np.arange(8) * 3", 2,
        "an expert's rows end at 9, but there are 8 rows",
    ),
    "a slot that there is not": (
        ROOM + "net = Net()\nnet.batched.shard(((2, 1, 1), (2, 1, 1)))", "np.arange(8) + 2", 2,
        "place 9 is named, but there are 9",
    ),
    "room for less than even shares": (
        GROUPED + "net = Net()\nnet.grouped.shard(((1, 1), (2, 1, 1), (1,)))\n"
        "net.grouped.add_prim_attr('most_rows', 0.5)", "np.arange(1, 9)", 2,
        "most_rows is 0.5, not a number from 1 on",
    ),
    "more rows than there is room for": (
        GROUPED + "net = Net()\nnet.grouped.shard(((1, 1), (2, 1, 1), (1,)))\n"
        "net.grouped.add_prim_attr('most_rows', 1.0)", "np.full(8, 8)", 2,
        "8 rows of part 0 of the batch go to the experts of rank 0 of 2, and most_rows leaves room for 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_named(name: str, tmp_path: Path) -> None:
    text, given, ranks, message = CASES[name]
    script = tmp_path / "net.py"
    script.write_text(f"{HEAD}{text}\nprint(net(Tensor(np.ones((8, 4))), Tensor(({given}).astype(np.int32))))\n")
    with pytest.raises(MspcError) as refused:
        run_script(script, ranks, simulate=True)
    assert message in refused.value.render()
