"""The stubs are those of the names that there are, and type checkers find what is right and wrong in a script."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mspc.mindspore_api import mint, numpy, ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.index.stubs import PACKAGES, result_of, write
from tests.conftest import HANG

SCRIPT = """
import {first} as ms
import {first}.nn as cells
from {first} import Tensor, nn, ops
from {first}.common.initializer import Normal
from {first}.nn import Dense

net: nn.Cell = nn.Dense(4, 2)
other: cells.Dense = Dense(4, 2, weight_init=Normal(0.1))
x = ms.Tensor([1.0])
y: Tensor = ms.Parameter(x)
ops.relu(x)
ms.ops.MatMul(transpose_b=True)
ms.nn.Adam(net.trainable_params())
nn.Dense(4)
ops.reluu(x)
print(ms.Tensr)
"""

RIGHT = """import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter
from mindspore.train import Model
from mindspore import mint
x = Tensor([1.0])
a: Tensor = x + 1
b: Tensor = 2 * x - np.ones(1) / x
c: Tensor = -(x @ x) ** 2
d: Tensor = x < 3
e: Tensor = x == 3
f: Tensor = x[0]
g: tuple[int, ...] = x.shape
h: Tensor = x.reshape((1, 1)).sum(axis=0)
i: Tensor = ops.matmul(x, x)
j: Tensor = ops.add(x, 1)
k: tuple[Tensor, ...] = ops.top_k(x, 1)
l: Tensor = ops.MatMul(transpose_b=True)(x, x)
m: Tensor = mint.add(x, 1)
n: np.ndarray = x.asnumpy()
o: Tensor = x.astype(ms.float32).abs()
p: float = float(x)
q: Tensor = Parameter(x) + x
r = ops.MatMul().shard(((1, 1), (1, 1)))
s: Tensor = r(x, x)
t: Tensor = x.T
x += 1
for row in x:
    u: Tensor = row
v, w = ops.top_k(x, 1)
net = nn.Dense(1, 1)
net.matmul.shard(((1, 1), (1, 1)))
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8)
ms.set_context(mode=ms.GRAPH_MODE)
model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params()), loss_scale_manager=None)
y: Tensor = model.predict(x)
z = net(x) + 1
net.recompute(mp_comm_recompute=False)
ms.set_algo_parameters(fully_use_devices=False)
aa: Tensor = ops.addcmul(x, x, x) + mint.argmax(x)
bb: tuple[int, ...] = ops.shape(x)
class Two(nn.Cell):
    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x
dd: Tensor = net(x)
ee: tuple[Tensor, Tensor] = Two()(x)
ff: Tensor = ops.max_pool2d(x, 2) + mint.max(x)
gg: tuple[Tensor, ...] = ops.max_pool2d(x, 2, return_indices=True) + mint.max(x, 1) + ops.max(x)
"""
WRONG = """Model(net, loss_fnn=nn.MSELoss())
model.train(1, None, callback=[])
ms.set_auto_parallel_context(paralel_mode="semi_auto_parallel")
ms.set_context(modus=0)
ms.set_auto_parallel_context(device_num="8")
ops.MatMul().shard(instrategy=((1,),))
ops.MatMul(transpose_c=True)
net.shard(in_strat=((1, 1),))
x + "a"
x.nope()
ops.matmul(x, x).nope()
wrong: int = ops.relu(x)
net.recompute(mp_com_recompute=False)
ms.set_algo_parameters(fully_use_device=False)
also: int = ops.argmax(x)
called: int = net(x)
pair: Tensor = Two()(x)
flagged: Tensor = ops.nonzero(x, as_tuple=True)
"""
"""Every line is a mistake that a type checker finds."""
FOUND = ("reportCallIssue", "reportArgumentType", "reportOperatorIssue", "reportAttributeAccessIssue",
         "reportAssignmentType", "reportIndexIssue", "reportGeneralTypeIssues")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both stub packages."""
    folder = tmp_path_factory.mktemp("stubs")
    write(folder)
    return folder


def test_a_row_has_its_parameters_and_its_words(made: Path) -> None:
    text = (made / "mspc-stubs/mint/__init__.pyi").read_text(encoding="utf-8")
    assert 'def cat(tensors: Sequence[Any], dim: int = ...) -> Tensor:\n    """Tensors one after another' in text
    assert "from mspc.ops import sinc as sinc\n" in text or "import sinc as sinc\n" in text


def test_every_stub_is_python(made: Path) -> None:
    files = sorted(made.rglob("*.pyi"))
    assert len(files) > 50
    for file in files:
        ast.parse(file.read_text(encoding="utf-8"))


def test_stubs_are_written_over_those_of_before(made: Path, tmp_path: Path) -> None:
    (tmp_path / "mspc-stubs").mkdir()
    (tmp_path / "mspc-stubs/gone.pyi").write_text("")
    write(tmp_path)
    assert {p.relative_to(tmp_path) for p in tmp_path.rglob("*")} == {p.relative_to(made) for p in made.rglob("*")}


SAMPLES = ("samples/quickstart/net.py", "samples/transformer/net.py", "tests/doctor/scripts/quickstart.py")
"""Scripts of which a type checker must know every name of MindSpore."""
UNKNOWN = ("reportAttributeAccessIssue", "reportCallIssue", "reportMissingImports", "reportMissingModuleSource")


@pytest.mark.thorough
def test_a_type_checker_sees_what_is_right_and_wrong(root: Path, made: Path, tmp_path: Path) -> None:
    """Laid out as an installation has it."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "mspc").symlink_to(root)
    for name in PACKAGES:
        (site / name).symlink_to(made / name)
    for first in ("mspc", "mindspore"):
        (tmp_path / f"with_{first}.py").write_text(SCRIPT.format(first=first))
    (tmp_path / "with_types.py").write_text(RIGHT + WRONG)
    for number, sample in enumerate(SAMPLES):
        (tmp_path / f"with_sample_{number}.py").write_text((root / sample).read_text(encoding="utf-8"))
    settings = {"include": ["with_*.py"], "extraPaths": ["site"], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "-p", str(tmp_path), "--pythonpath", sys.executable, "--outputjson"]
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=HANG)
    if not done.stdout.lstrip().startswith("{"):
        pytest.skip("pyright does not start here: it needs node, or a network to fetch it")
    found = json.loads(done.stdout)["generalDiagnostics"]
    found = [d for d in found if d["severity"] == "error"]
    assert [d for d in found if "with_sample" in d["file"] and d["rule"] in UNKNOWN] == []
    rules = {"nn.Dense(4)": "reportCallIssue", "ops.reluu(x)": "reportAttributeAccessIssue",
             "print(ms.Tensr)": "reportAttributeAccessIssue"}  # fmt: skip
    for first in ("mspc", "mindspore"):
        file = tmp_path / f"with_{first}.py"
        lines = file.read_text().splitlines()
        wrong = [(lines[d["range"]["start"]["line"]], d["rule"]) for d in found if Path(d["file"]) == file]
        assert {line for line, _ in wrong} == set(rules)
        assert set(rules.items()) <= set(wrong)
    wrong_lines = {
        d["range"]["start"]["line"] for d in found if d["file"].endswith("with_types.py") and d["rule"] in FOUND
    }
    assert wrong_lines == set(range(RIGHT.count("\n"), (RIGHT + WRONG).count("\n")))


def _name(found: object) -> str:
    is_list = isinstance(found, list) and all(isinstance(each, Tensor) for each in found)
    return "list[Tensor]" if is_list else type(found).__name__


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_results_have_the_types_that_stubs_state() -> None:
    """Test the functions that take one or two tensors."""
    x = Tensor(np.linspace(0.1, 0.9, 16, dtype=np.float32).reshape(4, 4))
    wrong: list[str] = []
    checked = 0
    for home in (ops, mint, mint.nn.functional, numpy):
        for name in dir(home):
            function = getattr(home, name)
            if isinstance(function, type) or (stated := result_of(function)) == "Any":
                continue
            for arguments in ((x,), (x, x), (x, 1)):
                with contextlib.suppress(Exception):  # it takes other arguments
                    found = function(*arguments)
                    several = isinstance(found, tuple) and all(isinstance(each, Tensor) for each in found)
                    sizes = isinstance(found, tuple) and all(isinstance(each, int) for each in found)
                    real = "tuple[int, ...]" if sizes else "tuple[Tensor, ...]" if several else _name(found)
                    wrong += [f"{name} is {real}, not {stated}"] * (real != stated)
                    checked += 1
                    break
    assert not wrong
    assert checked > 400


def test_methods_and_operators_of_tensors_are_stated(made: Path) -> None:
    (tensor,) = [
        node for node in ast.parse((made / "mspc-stubs/mindspore_api/common/tensor.pyi").read_text()).body
        if isinstance(node, ast.ClassDef)
    ]  # fmt: skip
    stated = {node.name: node for node in tensor.body if isinstance(node, ast.FunctionDef)}
    assert {name for name in dir(Tensor([1.0])) if not name.startswith("_")} <= stated.keys() | {
        node.target.id for node in tensor.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    returns = {name: "" if node.returns is None else ast.unparse(node.returns) for name, node in stated.items()}
    tensors = [name for name, kind in returns.items() if kind in ("Tensor", "Self")]
    assert {"__add__", "__radd__", "__eq__", "__getitem__", "abs", "astype", "reshape", "sum"} <= set(tensors)
    assert len(tensors) > 250
