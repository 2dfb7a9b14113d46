"""Elements are put at places along a dimension: as rows where an index was broadcast, and without a range of them all.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mspc import ops
from mspc.ir.text.parser import parse
from mspc.ops.op import REGISTRY
from tests.serving import SERVED

SCRIPT = """
import mspc as ms
from mspc import Parameter, Tensor, nn, ops

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(ops.ones((4096, 512), ms.float32), name="w")

    def construct(self, slot, rows):
        given = ops.zeros((5000, 512), ms.float32)
        index = ops.broadcast_to(slot.expand_dims(-1), rows.shape)
        counts = ops.tensor_scatter_elements(given[:, 0], slot, rows[:, 0], 0, "add")
        return ops.tensor_scatter_elements(given, index, rows * self.w, 0).sum() + counts.max()

net = Net()
ms.value_and_grad(net, None, net.trainable_params())(ops.zeros((4096,), ms.int32), ops.ones((4096, 512), ms.float32))
"""


def test_rows_are_written_where_one_place_stands_for_all_elements_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SCRIPT, encoding="utf-8")
    command = [*SERVED, "compile", "net.py", "--out", "out"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out" / "rank_0").glob("*_execute_*.ir")
    graph = parse(file.read_text(encoding="utf-8"), REGISTRY, file.name).main
    names = [node.op.name for node in graph.nodes]
    assert {"TensorScatterUpdate", "TensorScatterAdd"} <= {*names}
    assert "ScatterElements" not in names
    assert all(node.type.nbytes < 64 << 20 for node in graph.nodes)
    assert all(parameter.kind != "constant" for parameter in graph.parameters)


def test_ranges_are_as_long_as_they_are() -> None:
    assert ops.arange(0, 1_000_001).shape == (1_000_001,)
    with pytest.raises(ValueError, match="maxlen is 10, not at least 20"):
        ops.range(0, 20, 1, maxlen=10)
