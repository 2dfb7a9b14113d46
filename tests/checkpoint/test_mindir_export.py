"""Graphs that are exported to `.mindir` files: read back here, refused where they cannot be said, and run by MindSpore
where `MSPC_MINDSPORE` names its Python."""

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
from mspc import Parameter, Symbol, Tensor, nn, ops
from mspc.checkpoint import mindir_writing
from mspc.ir.diagnostics import MspcError
from tests.conftest import HANG

PYTHON = os.environ.get("MSPC_MINDSPORE", "")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def floats(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).normal(0, 2, shape).astype(np.float32))


class Images(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.same = nn.Conv2d(4, 4, (3, 1), dilation=(2, 1), group=2)
        self.norm, self.pool, self.average = nn.BatchNorm2d(4), nn.MaxPool2d(2, 2), nn.AvgPool2d(2, 1)
        self.flatten, self.dense, self.layer = nn.Flatten(), nn.Dense(4, 5), nn.LayerNorm((5,))
        self.mean = ops.ReduceMean(keep_dims=True)
        self.padded = nn.MaxPool2d(2, pad_mode="pad", padding=1)
        self.averaged = nn.AvgPool2d(3, 2, pad_mode="pad", padding=(1, 0))

    def construct(self, x: Any) -> Any:
        y = self.average(self.pool(ops.relu(self.norm(self.same(self.conv(x))))))
        y = self.layer(self.dense(self.flatten(y)))
        y = ops.gelu(y) + ops.tanh(y) * ops.sigmoid(y) - self.mean(y, 1)
        a, b = ops.split(ops.concat((y, y), 1), 5, 1)
        borders = self.padded(-ops.abs(x)) + self.averaged(ops.pad(x, (1, 2, 3, 1), value=2.0))[..., 0:1, 0:1]
        return borders, ops.transpose(a, (1, 0)), ops.reshape(b, (-1,)), ops.sum(b), b[:, 1:3], ops.exp(a).mean(axis=1)


class Words(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.query = nn.Embedding(10, 4), nn.Dense(4, 4)

    def construct(self, ids: Any, mask: Any) -> Any:
        h = self.table(ids)
        s = ops.matmul(self.query(h), ops.swapaxes(h, -1, -2)) / 2.0
        s = ops.softmax(s + (1 - mask) * -1e4)
        kept = ops.where(mask > 0, s, mask)
        return ops.bmm(s, h), ops.argmax(s, -1), ops.cast(s, ms.float16), (ops.stack((h, h)), kept)


class Many(nn.Cell):
    """Operators with fields of all kinds."""

    def construct(self, x: Any, places: Any) -> Any:
        image = x.reshape((1, 1, 2, 4))
        values, where = ops.topk(x, 2)
        greatest = ops.ArgMaxWithValue(1, True)(x)[1]
        return (
            ops.squeeze(x[None], 0), ops.gather_d(x, 1, places), ops.one_hot(places, 5, Tensor(1.0), Tensor(0.0)),
            ops.cumsum(x, 1), values, where, greatest, ops.elu(x), ops.ReverseV2([0])(x), ops.round(x), ops.triu(x),
            ops.ResizeBilinearV2()(image, (4, 4)), ops.tril(x), ops.AvgPool(2, 1)(image),
            ops.clamp(x, 0.0, 1.0),
            ops.masked_fill(x, x > 0, 2.0), ops.tile(x, (2, 1)), ops.zeros((2,), ms.float32) + x[:, 0], ops.arange(5),
            ops.UnsortedSegmentSum()(x, Tensor([0, 1]), 2), ops.logsumexp(x, 1), ops.Stack(1)((x, x)),
            ops.flatten(image), ops.Pad(((1, 1), (0, 0)))(x), *ops.Unstack(0)(x),
            ops.sort(x)[0], ops.softplus(x), x % 2.0,
            ops.ScatterNd()(Tensor([[0], [1]]), Tensor([1.0, 2.0]), (3,)), ops.broadcast_to(x, (3, 2, 4)),
            ops.log_softmax(x), ops.std(x, axis=0), ops.AddN()((x, x)), ops.floor_divide(x, 2.0), ops.argmin(x, 1),
        )  # fmt: skip


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
    "words": (Words, (Tensor([[1, 2, 3]], ms.int32), Tensor(np.ones((1, 3, 3), np.float32)))),
    "loops": (Loops, (floats(2, 4), Tensor(3, ms.int32))),
    "many": (Many, (floats(2, 4), Tensor([[0, 1, 0, 1], [1, 1, 0, 0]]))),
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


class Trains(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def construct(self, x: Any) -> Any:
        return self.norm(x)


def attempt(net: Any, *inputs: Any, **arguments: Any) -> Callable[[], None]:
    return lambda: ms.export(net, *inputs, **{"file_name": "m", "file_format": "MINDIR"} | arguments)


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (attempt(nn.ReLU(), floats(2), file_format="AIR"), ValueError,
     "export: file_format must be 'MINDIR', not 'AIR'"),
    (attempt(nn.ReLU(), floats(2), file_format="ONNX"), ValueError,
     "export: file_format must be 'MINDIR', not 'ONNX'"),
    (attempt(nn.ReLU(), floats(2), file_name=""), TypeError, "export: file_name must be the name of a file, not ''"),
    (attempt(nn.ReLU(), floats(2), enc_key=b"1"), ValueError, "export: enc_key is not supported"),
    (attempt(3, floats(2)), TypeError, "export: net must be a Cell or a function, not int"),
    (attempt(nn.ReLU(), np.ones(2)), TypeError, "export: input 0 must be a Tensor, a number or a tuple of them, not "
     "ndarray"),
    (attempt(nn.ReLU(), Tensor(shape=[Symbol(), 2], dtype=ms.float32)), ValueError,
     "export: input 0 has shape (-1, 2), and a file has the shapes of one call"),
    (attempt(Trains().set_train(), floats(2, 4)), RuntimeError, "changes parameters or needs gradients, which is not "
     "written"),
    (attempt(lambda x: ops.MaxPool3D(2)(x) + ops.bessel_i0(x), floats(1, 1, 2, 2, 2)), RuntimeError,
     "export: operators that are not written: BesselI0, MaxPool3D"),
    (attempt(nn.MaxPool2d(2, pad_mode="pad", padding=1, ceil_mode=True), floats(1, 1, 2, 2)), RuntimeError,
     "export: MaxPool 'max_pool' with ceil_mode=True cannot be written"),
    (attempt(nn.AvgPool2d(2, pad_mode="pad", padding=1, count_include_pad=False), floats(1, 1, 2, 2)), RuntimeError,
     "export: AvgPool 'avg_pool' with count_include_pad=False cannot be written"),
    (attempt(lambda x: x if x.sum() > 0 else x[:1], floats(2)), MspcError, "export: the shapes of the network's "
     "results depend on the contents of a tensor"),
    (attempt(lambda x: {"a": x}, floats(2)), MspcError, "export: the network returns dict, which is not written"),
    (attempt(nn.ReLU(), floats(2), file_name="missing/m"), MspcError, "cannot write"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), MISTAKES)
def test_mistakes(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, MspcError)
    assert message in caught.value.message
    assert not list(Path().iterdir())


def test_a_file_that_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mindir_writing, "LARGEST", 100)
    with pytest.raises(MspcError, match=r"m.mindir would have \d+ bytes, and a file of one message has 100 at most"):
        attempt(nn.ReLU(), floats(2))()


JUDGE = """
import sys
import numpy as np, mindspore as ms
from mindspore import nn, Tensor

def flat(results):
    return [a for r in results for a in flat(r)] if isinstance(results, tuple) else [results.asnumpy()]

for name in sys.argv[1:]:
    kept = np.load(f"{name}.npz")
    inputs = [Tensor(kept[key]) for key in sorted(kept.files)]
    np.savez(f"{name}.found.npz", *flat(nn.GraphCell(ms.load(f"{name}.mindir"))(*inputs)))
"""


@pytest.mark.skipif(not PYTHON or shutil.which(PYTHON) is None, reason="MSPC_MINDSPORE names no Python with MindSpore")
def test_mindspore_computes_what_is_exported() -> None:
    expected = {name: exported(name) for name in CASES}
    for name, (_, inputs) in CASES.items():
        np.savez(f"{name}.npz", *(each.asnumpy() for each in inputs))
    Path("judge.py").write_text(JUDGE)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run([PYTHON, "judge.py", *CASES], env=environment, capture_output=True, text=True, check=False,
                          timeout=HANG)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for name, wanted in expected.items():
        kept = np.load(f"{name}.found.npz")
        found = [kept[f"arr_{i}"] for i in range(len(kept.files))]
        assert [a.dtype for a in found] == [a.dtype for a in wanted]
        for result, value in zip(found, wanted, strict=True):
            rough = 1e-3 if value.dtype == np.float16 else 1e-5
            assert np.allclose(result, value, rtol=rough, atol=1e-5)
