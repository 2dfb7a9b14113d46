"""A compile for a GPU says which operators have no kernel there, and where the script has them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.serving import SERVED

SCRIPT = """
import mspc as ms
from mspc import Tensor, nn, ops

ms.set_context(mode=ms.GRAPH_MODE, device_target="{device}")

class Net(nn.Cell):
    def construct(self, x):
        x = ops.sort(x)[0]
        return ops.cholesky(x) + ops.cholesky(x * 2).max()

Net()(ops.ones((4, 4), ms.float32))
"""


@pytest.mark.parametrize("device", ["GPU", "CPU"])
def test_operators_without_kernels_are_named_with_their_lines(tmp_path: Path, device: str) -> None:
    (tmp_path / "net.py").write_text(SCRIPT.format(device=device), encoding="utf-8")
    command = [*SERVED, "compile", "net.py", "--json", "facts.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    rows = json.loads((tmp_path / "facts.json").read_text(encoding="utf-8"))["without_kernels"]
    if device == "CPU":
        assert rows == []
        assert "CuPy" not in text
        return
    wanted = "no kernel of mspc's for GPUs, so they run through CuPy, in more launches: Cholesky (2 nodes: net.py:10)"
    assert wanted in text
    assert rows[0] == {"operator": "Cholesky", "nodes": 2, "lines": ["net.py:10"]}
    assert {row["operator"] for row in rows} == {"Cholesky"}
