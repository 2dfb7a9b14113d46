"""Strategy files: what a run and a compile write to them, and what a network that reads one becomes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.run import run_script
from mspc.ir.diagnostics import MspcError
from mspc.plans.files.strategy_file import ParameterCut, StrategyFile, layout_of, read_strategies, write_strategies
from tests.commands.view.reading import QUIET

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter
from mindspore.common.initializer import initializer
from mindspore.communication import init
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.train import Model
import mindspore.dataset as ds

init()
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", dataset_strategy="full_batch", enable_parallel_optimizer=True,
    parallel_optimizer_config={"parallel_optimizer_threshold": 0}, device_num=8, CONTEXT
)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [16, 24]), "w")
        self.v = Parameter(initializer("normal", [24, 8]), "v")
        self.first, self.second = ops.MatMul(), ops.MatMul()
        if SHARDED:
            self.first.shard(((2, 1), (1, 2)))
            self.second.shard(((2, 2), (2, 1)))

    def construct(self, x):
        return self.second(ops.relu(self.first(x, self.w)), self.v)


rows = np.ones((8, 16), np.float32), np.ones((8, 8), np.float32)
data = ds.NumpySlicesDataset(rows, ["x", "y"], shuffle=False).batch(8)
net = Net()
cell = net
METHODS
Model(cell, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9)).train(1, data)
print({p.name: str(p.part()[0]) for p in (net.w, net.v)})
"""
CUTS = {"w": "(2, 2, 2) [0.2, 1]", "v": "(2, 2, 2) [1.0.2, -]"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def script(context: str, sharded: bool, methods: str = "") -> Path:
    text = SCRIPT.replace("CONTEXT", context).replace("SHARDED", str(sharded)).replace("METHODS", methods)
    Path("train.py").write_text(text)
    return Path("train.py")


def run(context: str, sharded: bool, methods: str = "") -> None:
    run_script(script(context, sharded, methods), 8, simulate=True, only_rank=0)


def test_what_is_written_and_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    run('strategy_ckpt_save_file="made/s.ckpt"', True)
    assert capsys.readouterr().out == f"{CUTS}\n"
    found = read_strategies(Path("made/s.ckpt"))
    assert dict(found.operators) == {"MatMul_w": ((2, 1), (1, 2)), "MatMul_v": ((2, 2), (2, 1))}
    assert {name: str(layout_of(name, sharding)) for name, sharding in found.parameters.items()} == CUTS
    assert found.parameters["w"] == ParameterCut((2, 2, 2), ((2,), (1,)), 1, 2)
    run('strategy_ckpt_load_file="made/s.ckpt"', False)
    assert capsys.readouterr().out == f"{CUTS}\n"
    run("", False)
    assert capsys.readouterr().out != f"{CUTS}\n"


def test_states_are_written_where_that_is_asked() -> None:
    run('strategy_ckpt_config={"save_file": "s.json", "only_trainable_params": False}', True)
    found = read_strategies(Path("s.json"))
    assert found.parameters["moments.w"] == found.parameters["w"]
    assert {"learning_rate", "momentum"} <= found.parameters.keys()


def test_what_a_file_cuts_is_said_to_be_the_files() -> None:
    write_strategies(Path("s.json"), StrategyFile({"MatMul_w": ((2, 1), (1, 4))}))
    options = CompileOptions(8, out=Path("out"), strategies=Path("s.json"), json=Path("t.json"), loudness=QUIET)
    compile_target(str(script("", False)), options)
    origins = {row["instance"]: row["origin"] for row in json.loads(Path("t.json").read_text())["operators"]}
    assert (origins["first"], origins["second"]) == ("the strategy file", "its neighbours")


def test_files_of_auto_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    """Strategies of parameters and of operators at once; operators are found by their cells."""
    setup = "cell = AutoParallel(net); cell.dataset_strategy('full_batch'); cell.hsdp(threshold=0); "
    run("", True, setup + "cell.save_param_strategy_file('p.ckpt'); cell.save_operator_strategy_file('o.json'); "
        "cell.disable_strategy_file_only_for_trainable_params()")  # fmt: skip
    assert capsys.readouterr().out == f"{CUTS}\n"
    assert "moments.v" in read_strategies(Path("p.ckpt")).parameters
    assert all(re.fullmatch(r"Default/\S*-op\d+", name) for name in read_strategies(Path("o.json")).operators)
    run("", False, setup + "cell.load_operator_strategy_file('o.json')")
    assert capsys.readouterr().out == f"{CUTS}\n"


def test_a_compile_writes_the_file() -> None:
    compile_target(str(script('strategy_ckpt_save_file="s.ckpt"', True)), CompileOptions(ranks=8))
    assert {n: str(layout_of(n, c)) for n, c in read_strategies(Path("s.ckpt")).parameters.items()} == CUTS


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ({"MatMul_x": ((1, 2), (2, 1))}, "the strategy file s.ckpt names no operator of this network"),
        ({"MatMul_w": ((2, 1, 1), (1, 2))}, "the strategy file s.ckpt shards it ((2, 1, 1), (1, 2)), its operands"),
        ({"MatMul_w": ((2, 1), (3, 2))}, "MatMul"),
    ],
)
def test_a_file_of_another_network_is_refused(operators: dict[str, tuple[tuple[int, ...], ...]], message: str) -> None:
    write_strategies(Path("s.ckpt"), StrategyFile(operators))
    with pytest.raises(MspcError) as raised:
        run('strategy_ckpt_load_file="s.ckpt"', False)
    assert message in raised.value.render()


def test_a_file_that_is_none_is_refused() -> None:
    Path("s.ckpt").write_bytes(b"no")
    with pytest.raises(MspcError, match=r"s\.ckpt is no strategy file"):
        run('strategy_ckpt_load_file="s.ckpt"', False)
