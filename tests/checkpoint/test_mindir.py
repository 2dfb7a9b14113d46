"""Graphs in MindSpore's `.mindir` files: read from a file made here, refused where it is damaged, and held against
MindSpore's own results where `MSPC_MINDSPORE` names its Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.tensors import put_bytes, put_integer, put_text
from tests.conftest import HANG

PYTHON = os.environ.get("MSPC_MINDSPORE", "")
FLOAT, BOOL, INT, TENSORS, MONAD = 1, 9, 7, 19, 23
WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4) / 10
BIAS = np.array([-3, 0, 2], np.float32)


def tensor(name: str, value: np.ndarray, key: str = "") -> bytes:
    sizes = b"".join(put_integer(1, size) for size in value.shape)
    return sizes + put_integer(2, FLOAT) + put_text(7, name) + put_bytes(9, value.tobytes()) + put_text(13, key)


def node(output: str, operator: str, *inputs: str, attributes: bytes = b"") -> bytes:
    given = b"".join(put_text(1, each) for each in inputs)
    return put_bytes(1, given + put_text(2, output) + put_text(4, operator) + attributes)


def constant(name: str, kind: int, value: bytes) -> bytes:
    return node(name, "Constant", attributes=put_bytes(5, put_text(1, "value") + value + put_integer(16, kind)))


def model(operator: str = "ReLU", extra: bytes = b"") -> bytes:
    """relu(x @ weight.T + bias), as MindSpore writes it."""
    primitives = {"Load:1": "Load", "MatMul:2": "MatMul", "BiasAdd:3": "BiasAdd", "Last:4": operator,
                  "U:5": "UpdateState", "Depend:6": "Depend"}  # fmt: skip
    graph = b"".join([
        constant("u", MONAD, b""),
        constant("no", BOOL, put_integer(3, 0)), constant("yes", BOOL, put_integer(3, 1)),
        constant("format", INT, put_integer(3, 0)),
        node("w", "REF::Load:1", "g:weight", "u"), node("b", "REF::Load:1", "g:bias", "u"),
        node("y", "REF::MatMul:2", "x", "w", "no", "yes"),
        node("z", "REF::BiasAdd:3", "y", "b", "format"),
        node("r", "REF::Last:4", "z"),
        node("s", "REF::U:5", "u", "r"), node("out", "REF::Depend:6", "r", "s"),
        put_bytes(3, tensor("g:weight", WEIGHT, "net.weight")), put_bytes(3, tensor("g:bias", BIAS, "net.bias")),
        put_bytes(5, put_text(1, "x")), put_bytes(6, put_text(1, "out")),
    ])  # fmt: skip
    named = [put_bytes(12, put_text(1, name) + put_text(2, kind)) for name, kind in primitives.items()]
    return put_text(1, "1.1") + put_bytes(7, graph) + b"".join(named) + extra


def named_graph(name: str, inputs: str, output: str, *nodes: bytes) -> bytes:
    ends = b"".join(put_bytes(5, put_text(1, each)) for each in inputs.split()) + put_bytes(6, put_text(1, output))
    return put_text(2, name) + b"".join(nodes) + ends


def branches(called: str = "a", extra: str = "") -> bytes:
    """tanh(x + x) where x is greater than limit, else (x * limit, which graph a gives, + x); then relu of that.
    `called`: what graph b calls in the place of a, "loop" itself. extra: another input of b."""
    primitives = ["Greater", "Partial", "Switch", "Add", "Tanh", "ReLU", "Mul"]
    more = [extra] if extra else []
    main = named_graph(
        "main", "x limit", "r",
        node("c", "REF::Greater", "x", "limit"), node("p", "REF::Partial", "then", "x"),
        node("q", "REF::Partial", "b", "x", *more, "limit"), node("s", "REF::Switch", "c", "p", "q"),
        node("y", "REF::s"), node("r", "REF::ReLU", "y"),
    )  # fmt: skip
    functions = [
        named_graph("then", "t:x", "t:z", node("t:y", "REF::Add", "t:x", "t:x"), node("t:z", "REF::Tanh", "t:y")),
        named_graph("a", "a:x a:y", "a:z", node("a:z", "REF::Mul", "a:x", "a:y")),
        named_graph("b", "b:x b:y", "b:w", node("b:z", "REF::" + called.replace("loop", "b"), "b:x", "b:y"),
                    node("b:w", "REF::Add", "b:z", "b:x")),
    ]  # fmt: skip
    return b"".join([
        put_bytes(7, main), *(put_bytes(8, each) for each in functions),
        *(put_bytes(12, put_text(1, name) + put_text(2, name)) for name in primitives),
    ])  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(raw: bytes) -> str:
    Path("m.mindir").write_bytes(raw)
    return "m.mindir"


X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def test_a_graph_is_a_cell() -> None:
    net = nn.GraphCell(ms.load(written(model())))
    assert [parameter.name for parameter in net.get_parameters()] == ["net.weight", "net.bias"]
    assert np.allclose(net(Tensor(X)).asnumpy(), np.maximum(X @ WEIGHT.T + BIAS, 0), atol=1e-6)
    other = nn.GraphCell(ms.load("m.mindir"), params_init={"net.bias": Tensor(np.full(3, 9, np.float32))})
    assert np.allclose(other(Tensor(X)).asnumpy(), X @ WEIGHT.T + 9, atol=1e-6)


def test_it_can_be_trained() -> None:
    net = nn.GraphCell(ms.load(written(model("Tanh"))))
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
    losses = [float(step(Tensor(X), Tensor(np.zeros((2, 3), np.float32))).asnumpy()) for _ in range(5)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("value", [1.0, -2.0])
def test_branches_and_calls_are_in_one_graph(value: float) -> None:
    net = nn.GraphCell(ms.load(written(branches())))
    expected = np.tanh(2 * value) if value > -1 else -value + value
    assert float(net(Tensor(value), Tensor(-1.0)).asnumpy()) == pytest.approx(max(expected, 0))
    function = ms.grad(net)
    slope = 2 * (1 - np.tanh(2 * value) ** 2) if value > -1 else 0
    assert float(function(Tensor(value), Tensor(-1.0)).asnumpy()) == pytest.approx(slope, rel=1e-4)


def counted(first: str = "zero", step: str = "one") -> bytes:
    """for i in (0, 1): x = x * x + i, as a loop that a constant of the file counts. first, step: of the counter."""
    primitives = ["Less", "Partial", "Switch", "Add", "Mul", "UpdateState", "Depend"]
    numbers = [put_bytes(12, tensor("", np.array(value, np.float32))) for value in (0, 1)]
    main = named_graph(
        "main", "x", "r", constant("zero", TENSORS, numbers[0]), constant("one", TENSORS, numbers[1]),
        constant("two", INT, put_integer(3, 2)), constant("u", MONAD, b""), node("r", "REF::head", first, "x", "u"),
    )  # fmt: skip
    head = named_graph(
        "head", "h:i h:x h:u", "h:r", node("h:c", "REF::Less", "h:i", "two"),
        node("h:p", "REF::Partial", "body", "h:i", "h:x", "h:u"), node("h:q", "REF::Partial", "end", "h:x"),
        node("h:s", "REF::Switch", "h:c", "h:p", "h:q"), node("h:r", "REF::h:s"),
    )  # fmt: skip
    body = named_graph(
        "body", "b:i b:x b:u", "b:r", node("b:n", "REF::Add", "b:i", step), node("b:y", "REF::Mul", "b:x", "b:x"),
        node("b:z", "REF::Add", "b:y", "b:i"), node("b:w", "REF::head", "b:n", "b:z", "b:u"),
        node("b:v", "REF::UpdateState", "b:u", "b:w"), node("b:r", "REF::Depend", "b:w", "b:v"),
    )  # fmt: skip
    return b"".join([
        put_bytes(7, main), *(put_bytes(8, each) for each in (head, body, named_graph("end", "e:x", "e:x"))),
        *(put_bytes(12, put_text(1, name) + put_text(2, name)) for name in primitives),
    ])  # fmt: skip


def test_a_loop_that_a_constant_counts_is_followed_step_by_step() -> None:
    net = nn.GraphCell(ms.load(written(counted())))
    assert net(Tensor(3.0)).asnumpy() == 3.0**4 + 1
    assert ms.grad(net)(Tensor(3.0)).asnumpy() == 4 * 3.0**3


def breaking(typed: bool = True) -> bytes:
    """while i < n: x = x * x + i; if x > 9: return x * n; i = i + 1, and x behind it. typed: the file tells what the
    graph of the `return` takes."""
    primitives = ["Less", "Greater", "Partial", "Switch", "Add", "Mul"]
    one, nine = (put_bytes(12, tensor("", np.array(value, np.float32))) for value in (1, 9))
    main = named_graph(
        "main", "x n zero", "r", constant("one", TENSORS, one), constant("nine", TENSORS, nine),
        node("r", "REF::head", "zero", "x", "n"),
    )  # fmt: skip
    head = named_graph(
        "head", "h:i h:x h:n", "h:r", node("h:c", "REF::Less", "h:i", "h:n"),
        node("h:p", "REF::Partial", "body", "h:i", "h:x", "h:n"), node("h:q", "REF::Partial", "end", "h:x"),
        node("h:s", "REF::Switch", "h:c", "h:p", "h:q"), node("h:r", "REF::h:s"),
    )  # fmt: skip
    body = named_graph(
        "body", "b:i b:x b:n", "b:r", node("b:y", "REF::Mul", "b:x", "b:x"), node("b:z", "REF::Add", "b:y", "b:i"),
        node("b:c", "REF::Greater", "b:z", "nine"), node("b:p", "REF::Partial", "found", "b:z", "b:n"),
        node("b:q", "REF::Partial", "next", "b:i", "b:z", "b:n"), node("b:s", "REF::Switch", "b:c", "b:p", "b:q"),
        node("b:r", "REF::b:s"),
    )  # fmt: skip
    following = named_graph(
        "next", "t:i t:x t:n", "t:r", node("t:j", "REF::Add", "t:i", "one"),
        node("t:r", "REF::head", "t:j", "t:x", "t:n"),
    )  # fmt: skip
    number = put_bytes(2, put_integer(2, FLOAT)) if typed else b""
    ends = put_bytes(5, put_text(1, "found:x") + number) + put_bytes(5, put_text(1, "found:n"))
    found = put_text(2, "found") + node("found:r", "REF::Mul", "found:x", "found:n") + ends
    found += put_bytes(6, put_text(1, "found:r"))
    return b"".join([
        put_bytes(7, main), *(put_bytes(8, each) for each in (head, body, following, found)),
        put_bytes(8, named_graph("end", "e:x", "e:x")),
        *(put_bytes(12, put_text(1, name) + put_text(2, name)) for name in primitives),
    ])  # fmt: skip


@pytest.mark.parametrize("count", [0.0, 1.0, 3.0, 5.0])
def test_a_loop_that_a_tensor_counts_is_a_loop(count: float) -> None:
    net = nn.GraphCell(ms.load(written(counted("x"))))
    x, i, slope, slope_of_i = count, count, 1.0, 1.0
    while i < 2:
        x, i, slope = x * x + i, i + 1, 2 * x * slope + slope_of_i
    assert net(Tensor(count)).asnumpy() == x
    assert ms.grad(net)(Tensor(count)).asnumpy() == slope


@pytest.mark.parametrize("count", [0.0, 1.0, 2.0, 3.0, 9.0])
@pytest.mark.parametrize("first", [0.5, 2.0])
def test_a_loop_that_a_return_ends_is_a_loop(first: float, count: float) -> None:
    def expected(x: float) -> float:
        i = 0.0
        while i < count:
            x = x * x + i
            if x > 9:
                return x * count
            i = i + 1
        return x

    net = nn.GraphCell(ms.load(written(breaking())))
    found = net(Tensor(first), Tensor(count), Tensor(0.0)).asnumpy()
    assert found == pytest.approx(expected(first), rel=1e-6)


def deep(count: int) -> bytes:
    """A sequence in sequences."""
    inner = b""
    for _ in range(count):
        inner = put_bytes(17, put_integer(16, 20) + inner)
    return inner


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ms.load("missing.mindir"), MspcError, "there is no file 'missing.mindir'"),
    (lambda: ms.load("m.ckpt"), ValueError, "load: 'm.ckpt' does not end in .mindir"),
    (lambda: ms.load(3), TypeError, "load: file_name must be the name of a file, not 3"),  # type: ignore[arg-type]
    (lambda: ms.load(written(model()), dec_key=b"1"), ValueError, "load: dec_key is not supported"),
    (lambda: ms.load(written(b"")), MspcError, "'m.mindir' is no complete MindIR file: it has 0 graphs"),
    (lambda: ms.load(written(model()[:100])), MspcError,
     "'m.mindir' is no complete MindIR file: a field at byte 8 has 452 bytes, and 92 are left"),
    (lambda: ms.load(written(put_bytes(12, put_text(1, "p") + put_bytes(3, put_integer(16, 20) + deep(5000))))),
     MspcError, "'m.mindir' is no complete MindIR file: sequences nest too deep in it"),
    (lambda: ms.load(written(branches("loop"))), MspcError,
     "'m.mindir' has a recursion over contents of tensors, which cannot be compiled: b calls itself before its last "
     "step"),
    (lambda: ms.load(written(breaking(typed=False))), MspcError,
     "'m.mindir' is no complete MindIR file: the type of 'found:x', which a loop computes, is unknown"),
    (lambda: ms.load(written(counted("x").replace(b"body", b"head"))), MspcError,
     "'m.mindir' is no complete MindIR file: graph 'head' calls itself without end"),
    (lambda: ms.load(written(counted(step="zero"))), MspcError,
     "'m.mindir' is no complete MindIR file: its graphs call each other more than 8192 times"),
    (lambda: ms.load(written(branches("missing"))), MspcError,
     "'m.mindir' is no complete MindIR file: there is no graph 'missing'"),
    (lambda: ms.load(written(branches(extra="x"))), MspcError,
     "'m.mindir' is no complete MindIR file: graph 'b' takes 2 inputs, not 3"),
    (lambda: nn.GraphCell(ms.load(written(model("Lstm")))), RuntimeError,
     "GraphCell: 'm.mindir' has operators that are not read: Lstm"),
    (lambda: nn.GraphCell(ms.load(written(model().replace(b"out", b"our", 1)))), RuntimeError,
     "GraphCell: 'm.mindir' gives 'out', which no node computes"),
    (lambda: nn.GraphCell("m.mindir"), TypeError, "GraphCell takes a result of load, not str"),
    (lambda: nn.GraphCell(ms.load(written(model())), {"net.b": Tensor(1.0)}), ValueError,
     "GraphCell: the graph has no parameter 'net.b'"),
    (lambda: nn.GraphCell(ms.load(written(model())))(Tensor(X), Tensor(X)), ValueError,
     "GraphCell: the graph has 1 inputs, not 2"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), MISTAKES)
def test_mistakes(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, MspcError)
    assert message in str(caught.value)


def test_no_byte_is_trusted() -> None:
    """A file that is cut off or changed is told as such, or is another graph."""
    for whole in (model(), branches(), counted("x"), breaking()):
        for place in range(0, len(whole), 3):
            for raw in (whole[:place], whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]):
                try:
                    nn.GraphCell(ms.load(written(raw)))
                except MspcError:
                    continue


NETWORKS = """
import numpy as np, mindspore as ms
from mindspore import nn, ops, Tensor

class Images(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.norm, self.pool, self.average = nn.BatchNorm2d(4), nn.MaxPool2d(2, 2), nn.AvgPool2d(2, 1)
        self.flatten, self.dense, self.layer = nn.Flatten(), nn.Dense(4, 5), nn.LayerNorm((5,))
        self.mean = ops.ReduceMean(keep_dims=True)
        self.padded = nn.MaxPool2d(2, pad_mode="pad", padding=1)
        self.averaged = nn.AvgPool2d(3, 2, pad_mode="pad", padding=(1, 0))

    def construct(self, x):
        y = self.average(self.pool(ops.relu(self.norm(self.conv(x)))))
        y = self.layer(self.dense(self.flatten(y)))
        y = ops.gelu(y) + ops.tanh(y) * ops.sigmoid(y) - self.mean(y, 1)
        a, b = ops.split(ops.concat((y, y), 1), 5, 1)
        borders = self.padded(-ops.abs(x)), self.averaged(ops.pad(x, (1, 2, 3, 1), value=2.0))
        return *borders, ops.transpose(a, (1, 0)), ops.reshape(b, (-1,)), ops.sum(b), b[:, 1:3], ops.exp(a).mean(axis=1)

class Words(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table, self.query = nn.Embedding(10, 4), nn.Dense(4, 4)

    def construct(self, ids, mask):
        h = self.table(ids)
        s = ops.matmul(self.query(h), ops.swapaxes(h, -1, -2)) / 2.0
        s = ops.softmax(s + (1 - mask) * -1e4)
        kept = ops.where(mask > 0, s, mask)
        return ops.bmm(s, h), ops.argmax(s, -1), ops.cast(s, ms.float16), ops.stack((h, h)), kept

class Chooses(nn.Cell):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Dense(4, 4), nn.Dense(4, 4)

    def construct(self, x, limit):
        y = self.one(x)
        if x.sum() > limit:
            y = self.other(y) + 1
            z = ops.tanh(y)
        elif x.max() > limit:
            y = y * 2
            z = y
        else:
            z = ops.exp(y)
        return ops.relu(y), z

class Loops(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)

    def turns(self, x, most):
        i = Tensor(0, ms.float32)
        while i < most:
            j = Tensor(0, ms.float32)
            while j < most:
                x = x + ops.tanh(self.dense(x)) * 0.1
                if x.sum() > 6:
                    x = x * 0.5
                    break
                j = j + 1
            if x.sum() < 3:
                i = i + 2
                continue
            if x.sum() > 5:
                return x - i
            i = i + 1
        return x

    def construct(self, x, most):
        y = self.turns(x, most)
        if most > 2:
            z = self.turns(y + 0.1, most - 1)
        else:
            z = y * most
        return y, z

ms.set_seed(1)
ms.set_context(mode=ms.GRAPH_MODE)
LOOPS = Loops()
CHOOSES = Chooses()
NUMBERS = Tensor(np.linspace(-1, 2, 8).reshape(2, 4), ms.float32)
for name, network, inputs in (
    ("images", Images().set_train(False), [Tensor(np.random.RandomState(0).rand(2, 3, 8, 8), ms.float32)]),
    ("words", Words(), [Tensor([[1, 2, 3]], ms.int32), Tensor(np.ones((1, 3, 3)), ms.float32)]),
    *((f"chooses{limit}", CHOOSES, [NUMBERS, Tensor(limit, ms.float32)]) for limit in (1, 3, 5)),
    *((f"loops{most}", LOOPS, [NUMBERS, Tensor(most, ms.float32)]) for most in (0, 2, 5)),
):
    ms.export(network, *inputs, file_name=name, file_format="MINDIR")
    results = network(*inputs)
    np.savez(name, *[each.asnumpy() for each in (*inputs, *results)], inputs=len(inputs))
"""


@pytest.mark.skipif(not PYTHON or shutil.which(PYTHON) is None, reason="MSPC_MINDSPORE names no Python with MindSpore")
def test_what_mindspore_exports_gives_its_results(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    (tmp_path / "networks.py").write_text(NETWORKS)
    done = subprocess.run([PYTHON, "networks.py"], env=environment, capture_output=True, text=True, check=False,
                          timeout=HANG)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("images", "words", "chooses1", "chooses3", "chooses5", "loops0", "loops2", "loops5"):
        kept = np.load(f"{name}.npz")
        arrays = [kept[f"arr_{i}"] for i in range(len(kept.files) - 1)]
        count = int(kept["inputs"])
        found = nn.GraphCell(ms.load(f"{name}.mindir"))(*map(Tensor, arrays[:count]))
        for result, expected in zip(found, arrays[count:], strict=True):
            assert result.shape == expected.shape
            assert result.asnumpy().dtype == expected.dtype
            rough = 1e-3 if expected.dtype == np.float16 else 1e-5
            assert np.allclose(result.asnumpy(), expected, rtol=rough, atol=1e-6)
