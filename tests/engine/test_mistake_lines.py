"""Every mistake is reported at the script's line, also if the operator that finds it is in one of mspc's files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.commands.run import run_script
from mspc.ir.diagnostics import MspcError
from tests.conftest import HANG

HEAD = '''import numpy as np
import mindspore as ms
from mindspore import nn, Tensor, Parameter
from mindspore.train import Model, ModelCheckpoint
import mindspore.dataset as ds
def gen(n=2, d=8, o=2, dt=np.float32, rows=4):
    for _ in range(n): yield np.ones((rows, d), dt), np.ones((rows, o), np.float32)
def data(**k): return ds.GeneratorDataset(lambda: gen(**k), ["x", "y"], shuffle=False)
net, loss = nn.Dense(8, 2), nn.MSELoss()
opt = nn.SGD(net.trainable_params(), 0.1)
model = Model(net, loss, opt, metrics={"mse"})
step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), opt)
x = Tensor(np.ones((4, 8), np.float32))
'''
AT = HEAD.count("\n") + 1
MISTAKES = """
model.train(1, data(d=9))
model.train(1, data(o=3))
model.train(1, data(dt=np.float64))
model.fit(1, data(), data(d=9))
model.eval(data(d=7))
model.eval(data(o=5))
model.predict()
model.predict(Tensor(np.ones((4, 7), np.float32)))
model.train(1, data(rows=0))
Model(net, loss, opt, eval_indexes=[0, 1, 9], eval_network=net, metrics={"mse"}).eval(data())
Model(net, None, opt).train(1, data())
Model(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True), opt).train(1, data())
Model(net, nn.SoftmaxCrossEntropyWithLogits(), opt).train(1, data(o=3))
Model(net, lambda a: a, opt).train(1, data())
Model(net, nn.CrossEntropyLoss(), opt).train(1, data(o=3))
Model(net, nn.BCELoss(), opt).train(1, data(o=3))
ds.MnistDataset("nowhere")
ds.ImageFolderDataset("nowhere")
ms.load_checkpoint("nowhere.ckpt")
ms.load_param_into_net(net, {"a": 5})
model.train(1, data(), ModelCheckpoint(directory="/proc/nope"))
nn.TrainOneStepCell(net, opt)(5)
step(x)
step(x, Tensor(np.ones((4, 3), np.float32)))
nn.WithLossCell(net, loss)(1, 2)
ms.value_and_grad(net, 3)(x)
ms.grad(net)(5)
ms.grad(net)()
net(x, 3)
net()
net("a")
""".strip().splitlines()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("net.py")


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_mistakes_are_reported_at_the_scripts_line(script: Path) -> None:
    place = re.compile(rf"net\.py:{AT}:\d+: error: .*\n    (.*)\n    +\^+")
    elsewhere: list[str] = []
    for text in MISTAKES:
        script.write_text(f"{HEAD}{text}\n")
        with pytest.raises(MspcError) as caught:
            run_script(script, 1)
        found = place.match(str(caught.value))
        if found is None or found[1] != text:
            elsewhere.append(f"{text}: {caught.value}")
    assert not elsewhere, "\n".join(elsewhere)


def test_the_way_through_mspcs_files_is_named_below(script: Path) -> None:
    script.write_text(f"{HEAD}model.train(1, data(d=9))\n")
    with pytest.raises(MspcError) as caught:
        run_script(script, 1)
    lines = str(caught.value).splitlines()
    assert lines[:3] == [
        f"net.py:{AT}:1: error: MatMul 'matmul': dimension 1 of input 1 is 8, but dimension 1 of input 0 says 9",
        "    model.train(1, data(d=9))",
        "    ^^^^^^^^^^^^^^^^^^^^^^^^^",
    ]
    assert [re.sub(r"mspc/api/nn/(\w+).py:\d+:\d+", r"\1", line) for line in lines[3:]] == [
        "  in wrap: loss = self.network(*inputs)",
        "  in wrap: out = self._backbone(data)",
        "  in basic: x = self.matmul(x, self.weight)",
        "  note: the shapes are (4, 9), (2, 8)",
    ]


def test_a_mistake_that_is_met_twice_is_one_error(script: Path) -> None:
    script.write_text(f"{HEAD}step(x)\n")
    with pytest.raises(MspcError) as caught:
        run_script(script, 1)
    assert str(caught.value).count("construct() misses the argument 'label'") == 1
    assert "errors" not in str(caught.value)


@pytest.mark.parametrize("command", ["compile", "verify", "search"])
def test_compiles_report_them_there_too(command: str, script: Path) -> None:
    script.write_text(f"{HEAD}model.train(1, data(o=3))\n")
    done = CliRunner().invoke(app, [command, "net.py", "--ranks", "2"])
    assert done.exit_code == 2
    assert f"net.py:{AT}:1: error: Sub: dimension 1 of input 1 is 3" in done.output


@pytest.mark.parametrize("text", ['nn.Dense("a", 3)', "ms.Model(nn.Dense(3, 2)).predict(ms.Tensor([[1.0]]))"])
def test_plain_python_ends_with_the_text_and_the_status(text: str, script: Path) -> None:
    script.write_text(f"import mspc as ms\nfrom mspc import nn\n{text}\n")
    done = subprocess.run([sys.executable, "net.py"], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("net.py:3:1: error: ")
    assert "Traceback" not in done.stderr
