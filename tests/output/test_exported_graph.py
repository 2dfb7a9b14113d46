"""Graphs that are exported to files: read back here, trained, and refused if they cannot be written or are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Symbol, Tensor, nn, ops
from mspc.ir.diagnostics import MspcError


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def floats(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).normal(0, 2, shape).astype(np.float32))


class Images(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.norm, self.flatten, self.dense = nn.BatchNorm2d(4), nn.Flatten(), nn.Dense(64, 5)

    def construct(self, x: Any) -> Any:
        y = ops.relu(self.norm(self.conv(x)))
        a, b = ops.split(self.dense(self.flatten(y)), 3, 1)
        return ops.max_pool2d(y, 2), (a, ops.topk(b, 1))


class Loops(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, 4)

    def construct(self, x: Any, most: Any) -> Any:
        i = Tensor(0, ms.int32)
        while i < most:
            x = ops.tanh(self.dense(x))
            if x.sum() > 1:
                x = ops.exp(x) * 0.5
            else:
                x = self.dense(x)
            i = i + 1
        for k in range(most):
            x = x + self.dense(x) * 0.1 * k
            j = most
            while j > 1:
                x = ops.sin(x)
                j = j - 1
                if x.max() > 0.9:
                    break
        return x, i


CASES: dict[str, tuple[Callable[[], nn.Cell], tuple[Tensor, ...]]] = {
    "images": (Images, (floats(2, 3, 8, 8),)),
    "loops": (Loops, (floats(2, 4), Tensor(3, ms.int32))),
}


def flat(results: Any) -> list[np.ndarray]:
    if isinstance(results, tuple):
        return [array for result in results for array in flat(result)]
    return [results.asnumpy()]


def exported(name: str) -> list[np.ndarray]:
    """The results of the network whose file is written."""
    ms.set_seed(1)
    network, inputs = CASES[name]
    net = network().set_train(False)
    ms.export(net, *inputs, file_name=name, file_format="MINDIR")
    return flat(net(*inputs))


@pytest.mark.parametrize("name", CASES)
def test_what_is_exported_is_loaded(name: str) -> None:
    expected = exported(name)
    net = nn.GraphCell(ms.load(f"{name}.mindir"))
    found = flat(net(*CASES[name][1]))
    assert [a.dtype for a in found] == [a.dtype for a in expected]
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert {p.name for p in net.get_parameters()} == {p.name for p in CASES[name][0]().get_parameters()}


def test_parameters_have_the_values_of_now_and_large_constants_are_in_the_file() -> None:
    table = Tensor(np.arange(4096, dtype=np.float32).reshape(64, 64))
    weight = Parameter(np.ones((64,), np.float32), name="weight")

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def construct(self, x: Any, factor: float) -> Any:
            return (x @ table) * self.weight * factor, None, 3

    net, x = Net(), floats(2, 64)
    weight.set_data(Tensor(np.full(64, 2, np.float32)))
    ms.export(net, x, 0.5, file_name="m.mindir", file_format="MINDIR")
    found, nothing, three = nn.GraphCell(ms.load("m.mindir"))(x)
    assert np.allclose(found.asnumpy(), x.asnumpy() @ table.asnumpy())
    assert (nothing, three) == (None, 3)


def test_a_function_and_one_input_among_several(capsys: Any) -> None:
    ms.export(ms.jit(lambda pair: pair[0] + pair[1]), (floats(2), floats(2)), file_name="f", file_format="MINDIR")
    assert np.array_equal(nn.GraphCell(ms.load("f.mindir"))(floats(2), floats(2)).asnumpy(), 2 * floats(2).asnumpy())


def test_a_loaded_graph_is_trained_with_other_values() -> None:
    ms.export(nn.Dense(4, 3, activation="tanh"), floats(2, 4), file_name="m", file_format="MINDIR")
    net = nn.GraphCell(ms.load("m.mindir"), params_init={"bias": Tensor(np.full(3, 9, np.float32))})
    assert np.allclose(net(floats(2, 4)).asnumpy(), 1)
    net = nn.GraphCell(ms.load("m.mindir"))
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
    losses = [float(step(floats(2, 4), Tensor(np.zeros((2, 3), np.float32))).asnumpy()) for _ in range(5)]
    assert losses[-1] < losses[0]


class Trains(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def construct(self, x: Any) -> Any:
        return self.norm(x)


def attempt(net: Any, *inputs: Any, **arguments: Any) -> Callable[[], None]:
    return lambda: ms.export(net, *inputs, **{"file_name": "m", "file_format": "MINDIR"} | arguments)


def loaded(change: Callable[[bytes], bytes] = bytes) -> ms.train.mindir.LoadedGraph:
    attempt(nn.Dense(4, 3), floats(2, 4))()
    Path("m.mindir").write_bytes(change(Path("m.mindir").read_bytes()))
    return ms.load("m.mindir")


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (attempt(nn.ReLU(), floats(2), file_format="AIR"), ValueError,
     "export: file_format must be 'MINDIR', not 'AIR'"),
    (attempt(nn.ReLU(), floats(2), file_name=""), TypeError, "export: file_name must be the name of a file, not ''"),
    (attempt(nn.ReLU(), floats(2), enc_key=b"1"), ValueError, "export: enc_key is not supported"),
    (attempt(3, floats(2)), TypeError, "export: net must be a Cell or a function, not int"),
    (attempt(nn.ReLU(), np.ones(2)), TypeError, "export: input 0 must be a Tensor, a number or a tuple of them, not "
     "ndarray"),
    (attempt(nn.ReLU(), Tensor(shape=[Symbol(), 2], dtype=ms.float32)), ValueError,
     "export: input 0 has shape (-1, 2), and a file has the shapes of one call"),
    (attempt(Trains().set_train(), floats(2, 4)), RuntimeError, "changes parameters or needs gradients, which is not "
     "written"),
    (attempt(lambda x: {"x": x}, floats(2)), MspcError, "export: the network returns dict, which is not written"),
    (lambda: ms.load("m.mindir"), MspcError, "there is no file 'm.mindir'"),
    (lambda: ms.load("m.ckpt"), ValueError, "load: 'm.ckpt' does not end in .mindir"),
    (lambda: ms.load(3), TypeError, "load: file_name must be the name of a file, not 3"),  # type: ignore[arg-type]
    (lambda: loaded(lambda raw: b"MindSpore 2.10.0"), MspcError,
     "'m.mindir' is no file that mspc exported, or is damaged: its header is longer than the file"),
    (lambda: loaded(lambda raw: raw.replace(b"MatMul(", b"MatMux(")), MspcError,
     "load: 'm.mindir' has unknown operators: MatMux"),
    (lambda: loaded(lambda raw: raw.replace(b'"weight":{', b'"height":{')), MspcError,
     "it has no tensor 'weight' of type <Tensor[Float32], (3, 4)>"),
    (lambda: nn.GraphCell("m.mindir"), TypeError, "GraphCell takes a result of load, not str"),
    (lambda: nn.GraphCell(loaded(), {"weights": Tensor(1.0)}), ValueError,
     "GraphCell: the graph has no parameter 'weights'"),
    (lambda: nn.GraphCell(loaded())(floats(2, 4), floats(2, 4)), ValueError,
     "GraphCell: the graph has 1 inputs, not 2"),
    (lambda: nn.GraphCell(loaded())(floats(3, 4)), ValueError,
     "GraphCell: input 0 is <Tensor[Float32], (3, 4)>, and the graph was exported for <Tensor[Float32], (2, 4)>"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), MISTAKES)
def test_mistakes(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, MspcError)
    assert message in str(caught.value)


def test_no_byte_is_trusted() -> None:
    """A file that is cut off or changed is refused, or is another graph."""
    loaded()
    whole = Path("m.mindir").read_bytes()
    for place in range(0, len(whole), 29):
        for raw in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :]):
            Path("m.mindir").write_bytes(raw)
            try:
                nn.GraphCell(ms.load("m.mindir"))(floats(2, 4))
            except MspcError:
                continue
