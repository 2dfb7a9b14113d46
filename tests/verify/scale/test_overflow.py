"""Ranks that do not hear of an overflow that others find are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify_scale import verify_scale
from mspc.ir.diagnostics import ExecutionError
from tests.verify.test_networks_in_stages import SCRIPT

QUIET = Loudness(quiet=True)
SCALED = """
import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up = Parameter(initializer(Normal(0.02), [16, 32], ms.float32))
        self.down = Parameter(initializer(Normal(0.02), [32, 16], ms.float32))
        self.first = ops.MatMul().shard(((2, 1), (1, 2)))
        self.second = ops.MatMul().shard(((2, 2), (2, 1)))

    def construct(self, x):
        return ops.reduce_mean(ops.square(self.second(ops.gelu(self.first(x, self.up)), self.down)))


ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
net = Net()
scale = nn.DynamicLossScaleUpdateCell(loss_scale_value=1024, scale_factor=2, scale_window=10)
step = nn.TrainOneStepWithLossScaleCell(net, nn.Adam(net.trainable_params(), 1e-3), scale)
step(Tensor(np.ones((64, 16)), ms.float32))
"""
EDITS = {
    "nobody tells others": (r"%26(, %para5_current)", r"%25\1"),
    "others are told": (r"(= AllReduce\(%25\).*rank_list: )\((0, 1|2, 3)\)", r"\1(0, 1, 2, 3)"),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scaled")
    (folder / "net.py").write_text(SCALED)
    compile_target(str(folder / "net.py"), CompileOptions(ranks=4, out=folder / "out", loudness=QUIET, weights=True))
    return folder / "out"


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staged")
    (folder / "net.py").write_text(SCRIPT.replace("SCHEDULER", "1f1b").replace("DROPS", "False"))
    compile_target(str(folder / "net.py"), CompileOptions(ranks=4, out=folder / "out", loudness=QUIET, weights=True))
    return folder / "out"


def edited(compiled: Path, pattern: str, by: str) -> None:
    for path in compiled.glob("rank_*/*_execute_*.ir"):
        changed, count = re.subn(pattern, by, path.read_text())
        assert count == 1
        path.write_text(changed)


def test_an_overflow_that_all_hear_of(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify_scale(str(compiled), CompileOptions(loudness=QUIET), 0)
    edited(compiled, *EDITS["others are told"])
    verify_scale(str(compiled), CompileOptions(loudness=QUIET), 0)
    assert capsys.readouterr().out.count("equal: 32 values of 4 ranks of 1 kind") == 2


def test_an_overflow_that_some_do_not_hear_of(compiled: Path) -> None:
    edited(compiled, *EDITS["nobody tells others"])
    with pytest.raises(ExecutionError) as caught:
        verify_scale(str(compiled), CompileOptions(loudness=QUIET), 0)
    notes = "\n".join(caught.value.notes)
    assert "that of AllFinite 'all_finite' on rank 1, 3" in notes
    assert "these ranks alone find an overflow there" in notes


def test_an_overflow_that_a_stage_does_not_hear_of(staged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify_scale(str(staged), CompileOptions(loudness=QUIET), 0)
    assert "equal: 52 values of 4 ranks of 2 kinds" in capsys.readouterr().out
    for path in staged.glob("rank_[23]/*_execute_*.ir"):
        changed, count = re.subn(r"AllFinite\((%\d+), (%\d+), ", r"AllFinite(\2, \2, ", path.read_text())
        assert count == 1
        path.write_text(changed)
    with pytest.raises(ExecutionError) as caught:
        verify_scale(str(staged), CompileOptions(loudness=QUIET), 0)
    assert any("that of AllFinite 'all_finite' on rank 0, 1" in note for note in caught.value.notes)
