"""`mspc verify`: equal programs pass, a program that differs is named with its first operator."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_scale, verify_target
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.tensor.moving import Tile
from tests.compiled_scripts import verify_text

SCRIPT = """
import mindspore as ms, numpy as np
from mindspore import nn, ops, Parameter, Tensor
from mindspore.common.initializer import initializer
ms.set_auto_parallel_context(parallel_mode="{mode}", device_num=4{more})
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [8, 4]), "w")
        self.matmul = ops.MatMul(){shard}
    def construct(self, x):
        return self.matmul(x, self.w)
class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.loss = nn.MSELoss()
    def construct(self, x, y):
        return self.loss(self.net(x), y)
net = Net()
step = nn.TrainOneStepCell(Loss(net), nn.Momentum(net.trainable_params(), 0.1, 0.9))
step(Tensor(np.ones([2, 8]), ms.float32), Tensor(np.ones([2, 4]), ms.float32))
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(mode: str, shard: str = "", more: str = "") -> str:
        path = tmp_path / "train.py"
        path.write_text(SCRIPT.format(mode=mode, shard=shard, more=more))
        return str(path)

    return write


@pytest.mark.parametrize(
    ("mode", "shard", "more", "compared"),
    [
        ("semi_auto_parallel", ".shard(((2, 2), (2, 1)))", "", {"output", "gradient", "parameter"}),
        ("auto_parallel", ".shard(((1, 4), (4, 1)))", ", full_batch=True", {"output", "gradient", "parameter"}),
        ("data_parallel", "", ", gradients_mean=True", {"output", "parameter", "global output", "global parameter"}),
        ("data_parallel", "", "", {"output", "global output", "global parameter"}),
    ],
)
def test_equal_programs_pass(
    script: Callable[..., str], tmp_path: Path, mode: str, shard: str, more: str, compared: set[str]
) -> None:
    file = tmp_path / "rows.json"
    verify_target(script(mode, shard, more), CompileOptions(json=file), seed=3)
    rows = json.loads(file.read_text())["values"]
    assert {row["kind"] for row in rows} == compared
    assert all(row["same"] for row in rows)


def test_a_wrong_reduction_is_found_with_its_operator(
    script: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(self: AllReduce, be: Any) -> Callable[..., Any]:
        return lambda *arrays: arrays[0] if len(arrays) == 1 else arrays

    monkeypatch.setattr(AllReduce, "kernel", wrong)
    target = script("semi_auto_parallel", ".shard(((1, 4), (4, 1)), ((1, 1),))", ", full_batch=True")
    with pytest.raises(ExecutionError) as raised:
        verify_target(target, CompileOptions(), seed=0)
    assert raised.value.exit_status == 1
    assert " values differ between one device and 4 ranks" in str(raised.value)
    assert "the first operator that differs is " in str(raised.value)
    assert "differs" in capsys.readouterr().out


OWN_ROWS = """
import mindspore as ms, numpy as np
from mindspore import nn, ops, Parameter, Tensor
ms.set_auto_parallel_context(parallel_mode="data_parallel", device_num=4{more})
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones([8, 4]), ms.float32), "w")
        self.tile = ops.Tile()
        self.sum = ops.ReduceSum()
    def construct(self, x):
        return {result}
class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def construct(self, x):
        return ops.reduce_sum(self.net(x))
net = Net()
step = {step}
step(Tensor(np.ones([2, 8]), ms.float32))
"""
TRAINED = "nn.TrainOneStepCell(Loss(net), nn.Momentum(net.trainable_params(), 0.1, 0.9))"
RESULTS = ("self.tile(x, (3, 2))", "ops.matmul(x[:, :4], self.w[:4])", "self.sum(x[:, 0:1])", "(x, self.w, x[1])")


@pytest.fixture
def own_rows(tmp_path: Path) -> Callable[..., str]:
    def write(result: str, step: str = "net", more: str = "") -> str:
        path = tmp_path / "train.py"
        path.write_text(OWN_ROWS.format(result=result, step=step, more=more))
        return str(path)

    return write


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_results_of_the_own_rows_agree(own_rows: Callable[..., str], result: str, ranks: int) -> None:
    verify_target(own_rows(result), CompileOptions(ranks=ranks), seed=1)


@pytest.mark.parametrize("more", ["", ", gradients_mean=True"])
@pytest.mark.parametrize("result", ["self.tile(ops.matmul(x, self.w), (2, 1))", "ops.matmul(x[:1], self.w)"])
def test_training_on_own_rows_agrees(own_rows: Callable[..., str], result: str, more: str) -> None:
    verify_target(own_rows(result, TRAINED, more), CompileOptions(), seed=1)


@pytest.mark.parametrize(
    ("multiples", "result"), [((1, 2), "self.tile(x, (2, 2))"), ((2, 2), "self.sum(self.tile(x, (1, 1)))")]
)
def test_an_operator_that_is_wrong_on_a_rank_is_found(
    own_rows: Callable[..., str], monkeypatch: pytest.MonkeyPatch, multiples: tuple[int, ...], result: str
) -> None:
    monkeypatch.setattr(Tile, "localize", lambda self, placement: Tile(multiples=multiples))
    with pytest.raises(ExecutionError, match=r"^[^\n]*values differ between one device and 4 ranks") as raised:
        verify_target(own_rows(result), CompileOptions(), seed=0)
    assert "the first operator that differs is Tile 'tile'" in str(raised.value)


def test_a_wrong_slice_of_a_sharded_operator_is_a_difference(
    own_rows: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tile, "localize", lambda self, placement: Tile(multiples=(2, 2)))
    target = Path(own_rows("self.tile(x, (1, 2))"))
    target.write_text(target.read_text().replace("data_parallel", "semi_auto_parallel"))
    with pytest.raises(ExecutionError, match="values differ between one device and 4 ranks"):
        verify_target(str(target), CompileOptions(), seed=0)


def test_a_kernel_that_fails_on_a_rank_is_named(own_rows: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tile, "localize", lambda self, placement: Tile(multiples=(1, 3)))
    with pytest.raises(ExecutionError, match="Add failed on rank 0: ValueError") as raised:
        verify_target(own_rows("self.tile(x, (1, 2)) + ops.concat((x, x), 1)"), CompileOptions(), 0)
    assert raised.value.exit_status == 1


@pytest.mark.parametrize("more", ["", ", gradients_mean=True"])
def test_gradients_that_are_not_combined_are_found(
    own_rows: Callable[..., str], monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    monkeypatch.setattr(AllReduce, "bind", lambda self, comm: lambda *a: a[0] if len(a) == 1 else a)
    with pytest.raises(ExecutionError, match="values differ between one device and 4 ranks"):
        verify_target(own_rows("ops.matmul(x, self.w)", TRAINED, more), CompileOptions(), seed=0)


VIEWS = """
import mindspore as ms, numpy as np
from mindspore import nn, ops, Tensor, Parameter
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones([8, 4]), ms.float32), "w")
    def construct(self, x):
        view = {view}
        ops.assign_add(self.w, x)
        return view, self.w
Net()(Tensor(np.ones((8, 4)), ms.float32))
"""


@pytest.mark.parametrize(
    "view", ["self.w.reshape((4, 8))", "ops.transpose(self.w, (1, 0))", "self.w[2:6]", "ops.expand_dims(self.w, 0)"]
)
def test_a_view_is_read_before_the_parameter_is_updated(tmp_path: Path, view: str) -> None:
    verify_text(tmp_path, VIEWS.format(view=view), CompileOptions(ranks=4), seed=0)


def test_ranks_with_graphs_of_their_own_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(
        "import mindspore as ms, numpy as np\nfrom mindspore import nn, Tensor\n"
        "from mindspore.communication import get_rank, init\ninit()\n"
        "class Net(nn.Cell):\n    def construct(self, x):\n        return x * float(get_rank() + 1)\n"
        "Net()(Tensor(np.ones((4, 2)), ms.float32))\n"
    )
    verify_target(str(script), CompileOptions(ranks=1), seed=0)
    with pytest.raises(MspcError) as raised:
        verify_target(str(script), CompileOptions(ranks=2), seed=0)
    assert str(raised.value) == (
        "error: the network depends on get_rank(): the ranks run different graphs, so there is no step of one device "
        "to compare with\n  note: mspc run --simulate runs it on ranks of this process"
    )


def test_the_last_line_is_the_verdict(script: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    verify_target(script("semi_auto_parallel", ".shard(((2, 2), (2, 1)))"), CompileOptions(), seed=3)
    said = capsys.readouterr()
    assert said.err == ""
    assert re.fullmatch(
        r"equal: \d+ values on 4 ranks within 1e-05 of one device(; the worst is \w+ [\w.]+, by \d\.\de-\d\d)?",
        said.out.splitlines()[-1],
    )


def test_a_difference_is_the_verdict(
    own_rows: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Tile, "localize", lambda self, placement: Tile(multiples=(1, 2)))
    with pytest.raises(ExecutionError):
        verify_target(own_rows("self.tile(x, (2, 2))"), CompileOptions(), seed=0)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "differs: 2 of 2 values on 4 ranks; the worst is output 0, in shape or in finite elements "
        "where 1e-05 is allowed; they part at "
        "Tile 'tile', train.py:12"
    )


def test_json_stands_alone_on_stdout(script: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    verify_target(script("semi_auto_parallel"), CompileOptions(json=Path("-")), seed=3)
    assert {row["same"] for row in json.loads(capsys.readouterr().out)["values"]} == {True}


INTEGERS = """
import mindspore as ms
from mindspore import nn, ops
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.classes = nn.Dense(8, 5)
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True)
    def construct(self, ids, labels, mask, shifted, other):
        rows = self.table(ids.reshape((-1,))) + self.table(shifted + 1)
        return self.loss(self.classes(rows), labels), mask, other
"""


def test_integers_lie_where_the_network_has_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(INTEGERS)
    types = ("int32[2,4]", "int64[8]", "bool[8]", "int32[8]", "int32[8]")
    verify_target(f"{tmp_path}/net.py:Net", CompileOptions(ranks=4, inputs=types), seed=0)
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("input ")] == [
        "input ids: integers in [0, 16), positions of rows",
        "input labels: integers in [0, 5), positions of rows",
        "input mask: True or False",
        "input shifted: integers in [0, 8)",
        "input other: integers in [0, 8)",
    ]


def test_pytorch_is_asked_for_where_it_is_missing(script: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MspcError) as raised:
        verify_target(script("stand_alone", "", ""), CompileOptions(), seed=0, with_torch=True)
    assert raised.value.exit_status == 2
    assert raised.value.message == "verify --against torch needs PyTorch, which is not installed"
    assert list(raised.value.notes) == ["pip install 'mspc[oracle]'"]


def test_another_judge_is_no_choice() -> None:
    done = CliRunner().invoke(app, ["verify", "net.py", "--against", "numpy"])
    assert done.exit_code == 2
    assert "torch" in done.output


BRANCHES = """
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((8, 8)), ms.float32), name="w")
        self.mm = ops.MatMul().shard(((2, 1), (1, 2)))
        self.n = Parameter(Tensor(TURNS, ms.int32), name="n", requires_grad=False)

    def construct(self, x):
        y = self.mm(x, self.w)
        if x.sum() > 1e9:
            y = ops.tanh(y)
        i = ops.zeros((), ms.int32)
        while i < self.n:
            if i < 2:
                y = y * 0.5
            else:
                y = ops.sin(y)
            i = i + 1
        return ops.mean(ops.square(y))


net = Net()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
step(Tensor(np.ones((4, 8)), ms.float32))
"""


FIRST = "the branch of If at net.py:18 for which its condition is true"


@pytest.mark.parametrize("judge", [verify_target, verify_scale])
@pytest.mark.parametrize(
    ("mode", "turns", "untaken"),
    [
        ('"semi_auto_parallel", dataset_strategy="full_batch"', 3, [FIRST]),
        ('"data_parallel"', 2, [FIRST, "the branch of If at net.py:22 for which its condition is false"]),
        ('"semi_auto_parallel", dataset_strategy="full_batch"', 0, [FIRST, "the loop at net.py:21"]),
    ],
    ids=["sharded", "rows", "no turn"],
)
def test_branches_and_loops_that_no_step_takes_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], judge: Callable[..., None], mode: str, turns: int,
    untaken: list[str],
) -> None:  # fmt: skip
    path = tmp_path / "net.py"
    text = BRANCHES.replace("TURNS", str(turns))
    path.write_text(text.replace('"semi_auto_parallel", dataset_strategy="full_batch"', mode))
    judge(str(path), CompileOptions(4), 0)
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not compared, as no step")]
    assert found == [f"not compared, as no step takes it: {each}" for each in untaken]
