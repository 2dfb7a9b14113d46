"""`mspc search --memory`: plans that fit, and what is said where none does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.commands.search import memory_of
from mspc.ir.diagnostics import MspcError
from mspc.passes.base import VERIFY

pytestmark = pytest.mark.usefixtures("brief_searches")

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weights = ms.ParameterTuple([
            Parameter(Tensor(np.ones((128, 128)), ms.float32), name=f"w{i}") for i in range(3)
        ])
        self.matmul, self.relu = ops.MatMul(), ops.ReLU()
    def construct(self, x):
        for weight in self.weights:
            x = self.relu(self.matmul(x, weight))
        return ops.reduce_mean(x)
net = Net()
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params()))(Tensor(np.ones((1024, 128)), ms.float32))
"""


def search(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.chdir(folder)
    monkeypatch.delenv(VERIFY, raising=False)
    Path("net.py").write_text(SCRIPT)
    return CliRunner().invoke(app, ["search", "net.py", "--ranks", "8", "--json", "-", *arguments])


def plans(done: Any) -> dict[str, Any]:
    assert done.exit_code == 0, done.output
    return {plan["name"]: plan for plan in json.loads(done.stdout)["plans"]}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plans without a limit."""
    with pytest.MonkeyPatch.context() as patch:
        return plans(search(tmp_path_factory.mktemp("free"), patch))


@pytest.mark.thorough
def test_a_limit_brings_memory_down(every: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = every["search"]
    limit = min(free["memory"], every["data parallel"]["memory"]) - 200_000
    found = plans(search(tmp_path, monkeypatch, "--memory", str(limit)))
    assert found["search"]["memory"] <= limit
    assert found["search"]["step"] >= free["step"]
    assert all(plan["memory"] <= limit for plan in found.values())
    assert found["data parallel"]["made_to_fit"]


def test_a_limit_that_holds_changes_nothing(
    every: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = every["search"]
    limited = plans(search(tmp_path, monkeypatch, "--memory", "1GB"))["search"]
    same = ("step", "nbytes", "collectives", "memory")
    assert [limited[key] for key in same] == [free[key] for key in same]


def test_where_nothing_fits_the_smallest_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = search(tmp_path, monkeypatch, "--memory", "900kB")
    assert done.exit_code == 2
    assert re.search(r"no plan (that was found fits|needs at most) 878\.9 KiB \(900,000 bytes\) of memory", done.stderr)
    assert "take more ranks, or allow more memory" in done.stderr


@pytest.mark.parametrize(("text", "nbytes"), [
    (None, 0), ("1000", 1000), ("80GB", 80 * 10**9), ("1.5 GiB", 3 << 29), ("512MiB", 512 << 20), ("2kB", 2000),
])  # fmt: skip
def test_sizes(text: str | None, nbytes: int) -> None:
    assert memory_of(text) == nbytes


@pytest.mark.parametrize("text", ["", "much", "-5GB", "0", "80XB", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(MspcError) as error:
        memory_of(text)
    assert error.value.message == f"--memory is {text!r}, not a size as in 80GB or 512MiB"
