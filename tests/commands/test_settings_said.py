"""Commands say once, on stderr, which settings of a script change nothing; pipelines are refused."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.run import run_script
from mspc.ir.diagnostics import MspcError

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch"{more})

class Net(nn.Cell):
    def construct(self, x):
        return ops.relu(x)

net = Net()
for _ in range(2):
    net(Tensor(np.ones((4, 8)), ms.float32))
net(Tensor(np.ones((8, 8)), ms.float32))
"""
TWO = ", loss_repeated_mean=False, gradients_mean=True"
SAID = (
    "warning: net.py:6:1: set_auto_parallel_context(loss_repeated_mean=False) changes nothing here: a loss that "
    "ranks repeat always counts once\n"
    "warning: net.py:6:1: set_auto_parallel_context(gradients_mean=True) changes nothing here: it counts in "
    "data_parallel and hybrid_parallel mode, and the mode is semi_auto_parallel\n"
)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    linecache.clearcache()  # other tests have files of that name
    return Path("net.py")


def test_both_commands_say_it_once(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(SCRIPT.format(more=TWO))
    compile_target("net.py", CompileOptions(ranks=2))
    assert capsys.readouterr().err == SAID
    run_script(script, 2, simulate=True)
    assert capsys.readouterr().err == SAID
    run_script(script, simulate=True)
    assert capsys.readouterr().err == SAID


def test_a_script_that_wants_more_ranks_says_it_once(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is started on one rank first, and again on all once it is known how many it wants."""
    script.write_text(SCRIPT.format(more=f"{TWO}, device_num=2"))
    run_script(script, simulate=True)
    assert capsys.readouterr().err == SAID


def test_a_script_that_depends_on_its_rank_says_it_once(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SCRIPT.format(more=TWO).replace("ops.relu(x)", "ops.relu(x) * SCALE")
    scale = "ms.communication.init(); SCALE = 1 + ms.communication.get_rank()"
    script.write_text(text.replace("\nms.set", f"{scale}\nms.set", 1))
    compile_target("net.py", CompileOptions(ranks=2))
    said = capsys.readouterr()
    assert said.err == SAID
    assert "the network depends on get_rank()" in said.out


@pytest.mark.parametrize("setting", ["auto_pipeline=True", "grad_accumulation_step=4"])
def test_what_would_change_the_numbers_is_refused(script: Path, setting: str) -> None:
    script.write_text(SCRIPT.format(more=f", {setting}"))
    for command in (
        lambda: compile_target("net.py", CompileOptions(ranks=2)),
        lambda: run_script(script, 2, simulate=True),
    ):
        said = rf"set_auto_parallel_context\({setting}\): (.* not supported|give )"
        with pytest.raises(MspcError, match=said) as raised:
            command()
        assert raised.value.exit_status == 2
        assert raised.value.location is not None
        assert raised.value.location.line == 6


def test_a_compile_says_what_the_front_end_noticed(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(SCRIPT.format(more="").replace("        return", "        print(x, sep='-')\n        return"))
    compile_target("net.py", CompileOptions(ranks=2))
    assert "print() inside a compiled function: sep changes nothing" in capsys.readouterr().err
