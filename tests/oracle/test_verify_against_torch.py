"""`mspc verify --against torch`: equal where nothing is wrong; wrong kernels, rules and derivatives are named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.diagnostics import ExecutionError
from tests.compiled_scripts import CompileOptions, compile_target, verify_target
from tests.operators import MatMul, Mul, Tanh, TanhGrad
from tests.planted_networks import NETWORK
from tests.serving import invoke
from tests.texts import IMPORTS

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
FORWARD = IMPORTS + """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.linspace(-1, 1, 32).reshape(8, 4), ms.{dtype}), "w")
    def construct(self, x):
        return ops.softmax(ops.matmul(x, self.w))
Net()(Tensor(np.ones([2, 8]), ms.{dtype}))
"""
NO_COUNTERPART = IMPORTS + """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.linspace(-1, 1, 32).reshape(8, 4), ms.float32), "w")
        self.v = Parameter(Tensor(np.linspace(2, 3, 4), ms.float32), "v")
    def construct(self, x):
        y = ops.bessel_i0(ops.sigmoid(ops.matmul(x, self.w)))
        return (y * self.v).sum()
net = Net()
nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))(Tensor(np.ones([4, 8]), ms.float32))
"""


@pytest.fixture
def network(tmp_path: Path) -> str:
    (tmp_path / "network.py").write_text(NETWORK)
    return str(tmp_path / "network.py")


def rows_of(target: str, folder: Path, **options: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """The compared values, by kind and name."""
    verify_target(target, CompileOptions(json=folder / "rows.json", **options), seed=0, with_torch=True)
    return {(row["kind"], row["name"]): row for row in json.loads((folder / "rows.json").read_text())["values"]}


def wrong_in(target: str, folder: Path) -> tuple[set[tuple[str, str]], str]:
    """The differences, and their texts."""
    with pytest.raises(ExecutionError, match="values differ between one device and PyTorch") as raised:
        rows_of(target, folder, ranks=8)
    assert raised.value.exit_status == 1
    rows = json.loads((folder / "rows.json").read_text())["values"]
    return {(row["kind"], row["name"]) for row in rows if not row["same"]}, "; ".join(raised.value.notes)


def test_operators_rules_and_gradients_are_compared(network: str, tmp_path: Path) -> None:
    rows = rows_of(network, tmp_path, ranks=8)
    assert {("operator", "Tanh"), ("rule", "Tanh"), ("rule", "Dropout"), ("operator", "ReduceMax")} <= set(rows)
    assert {name for kind, name in rows if kind == "gradient"} == {"net.w1", "net.w2", "net.gain", "net.turn"}
    assert all(row["difference"] < 1e-12 for row in rows.values() if row["kind"] == "gradient")


def test_a_wrong_derivative_is_found(network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TanhGrad, "run", lambda self, be, y, dy: dy * (1 - y))
    wrong, said = wrong_in(network, tmp_path)
    assert wrong == {("rule", "Tanh"), ("gradient", "net.w1")}
    assert said.startswith("the first operator that differs is Tanh")


def test_a_wrong_gradient_rule_is_found(network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MatMul, "bprop", lambda self, b, x, y, out, dout: self.products(b, x, y, out))
    wrong, said = wrong_in(network, tmp_path)
    assert wrong == {("rule", "MatMul"), ("gradient", "net.w1"), ("gradient", "net.w2")}
    assert said.startswith("the first operator that differs is MatMul")


def test_a_rule_that_forgets_an_operand_is_found(network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mul, "bprop", lambda self, b, x, y, out, dout: (b.emit(Mul(), dout, y), None))
    wrong, _ = wrong_in(network, tmp_path)
    assert wrong == {("rule", "Mul"), ("gradient", "net.gain"), ("gradient", "net.turn")}


def test_a_wrong_kernel_is_found_once(network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators after it are judged on the operands that they have."""
    kernel: Callable[..., Any] = Tanh.kernel
    monkeypatch.setattr(Tanh, "kernel", lambda self, be: lambda x: kernel(self, be)(x) * 1.01)
    wrong, _ = wrong_in(network, tmp_path)
    assert ("operator", "Tanh") in wrong
    assert {name for kind, name in wrong if kind == "operator"} == {"Tanh"}


def test_a_folder(network: str, tmp_path: Path) -> None:
    compile_target(network, CompileOptions(ranks=8, out=tmp_path / "saved"))
    assert set(rows_of(str(tmp_path / "saved"), tmp_path)) == set(rows_of(network, tmp_path, ranks=8))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_network_that_is_not_trained(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "net.py").write_text(FORWARD.format(dtype=dtype))
    rows = rows_of(str(tmp_path / "net.py"), tmp_path)
    assert set(rows) == {(kind, name) for kind in ("operator", "rule") for name in ("MatMul", "Softmax")}


LOOP = """
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.linspace(-1, 1, 16).reshape(4, 4), ms.float32), "w")
    def construct(self, x):
        count = x.sum().astype(ms.int32) * 0
        while count < 3:
            x, count = ops.erf(x * self.w), count + 1
        return x.sum()
net = Net()
nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))(Tensor(np.ones([4, 4]), ms.float32))
"""


def test_gradient_rules_in_loops_are_compared(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(LOOP)
    rows = rows_of(str(tmp_path / "net.py"), tmp_path)
    assert {("operator", "Erf"), ("rule", "Erf"), ("rule", "Mul")} <= set(rows)


def test_what_has_no_counterpart_is_said(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NO_COUNTERPART)
    done = invoke("verify", str(tmp_path / "net.py"), "--against", "torch", status=0)
    assert "; without: 1 (BesselI0);" in done.stdout
    assert "branches or operators without a counterpart, not compared: w\n" in done.stdout
    assert "gradient  v " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("equal: ")


def test_gradients_of_constants_are_nobodys(tmp_path: Path) -> None:
    """That of an exponent is no number where the base is negative."""
    (tmp_path / "net.py").write_text(FORWARD.format(dtype="float32").replace("ops.softmax(", "ops.pow(2.0, ").replace(
        "ops.pow(2.0, ops.matmul(x, self.w))", "ops.pow(ops.matmul(x, self.w), 2)"))  # fmt: skip
    rows = rows_of(str(tmp_path / "net.py"), tmp_path)
    assert rows["rule", "Pow"]["same"]
