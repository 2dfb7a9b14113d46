"""`mint`: each function against NumPy, and a network of its cells on ranks against one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, mint
from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target

X = np.arange(24, dtype=np.float32).reshape(4, 6) / 7 - 1.5
Y = np.flip(X, 1).copy() + 0.25
SQUARE = X[:, :4] @ X[:, :4].T


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


FUNCTIONS: list[tuple[str, Any, Any]] = [
    ("add", lambda x, y: mint.add(x, y, alpha=2), X + 2 * Y),
    ("sub", lambda x, y: mint.sub(x, y, alpha=3), X - 3 * Y),
    ("mul", lambda x, y: mint.mul(x, y), X * Y),
    ("matmul", lambda x, y: mint.matmul(x, mint.t(y)), X @ Y.T),
    ("addmm", lambda x, y: mint.addmm(x, x, mint.matmul(mint.t(y), y), beta=2, alpha=0.5), 2 * X + X @ (Y.T @ Y) / 2),
    ("cat", lambda x, y: mint.cat((x, y), dim=1), np.concatenate([X, Y], 1)),
    ("stack", lambda x, y: mint.stack((x, y), dim=1), np.stack([X, Y], 1)),
    ("chunk", lambda x, y: mint.chunk(x, 3, 1)[1], X[:, 2:4]),
    ("split", lambda x, y: mint.split(x, 2, 1)[2], X[:, 4:]),
    ("split of sizes", lambda x, y: mint.split(x, [1, 5], 1)[1], X[:, 1:]),
    ("flatten", lambda x, y: mint.flatten(x), X.reshape(-1)),
    ("unsqueeze", lambda x, y: mint.unsqueeze(x, 1), X[:, None]),
    ("squeeze", lambda x, y: mint.squeeze(mint.unsqueeze(x, 1), 1), X),
    ("transpose", lambda x, y: mint.transpose(x, 0, 1), X.T),
    ("permute", lambda x, y: mint.permute(x, (1, 0)), X.T),
    ("narrow", lambda x, y: mint.narrow(x, 1, 2, 3), X[:, 2:5]),
    ("index_select", lambda x, y: mint.index_select(x, 1, Tensor([4, 0])), X[:, [4, 0]]),
    ("repeat_interleave", lambda x, y: mint.repeat_interleave(x, 2, 1), X.repeat(2, axis=1)),
    ("sum", lambda x, y: mint.sum(x, 1, True), X.sum(1, keepdims=True)),
    ("mean", lambda x, y: mint.mean(x), X.mean()),
    ("prod", lambda x, y: mint.prod(x, 0), X.prod(0)),
    ("amax", lambda x, y: mint.amax(x, 1), X.max(axis=1)),
    ("max", lambda x, y: mint.max(x), X.max()),
    ("max along a dimension", lambda x, y: mint.max(x, 1)[1], X.argmax(1)),
    ("min along a dimension", lambda x, y: mint.min(y, 0, True)[0], Y.min(0, keepdims=True)),
    ("all", lambda x, y: mint.all(mint.gt(x, -9.0)), np.array(True)),
    ("any", lambda x, y: mint.any(mint.gt(x, 0.5), 1), (X > 0.5).any(1)),
    ("cumsum", lambda x, y: mint.cumsum(x, 1), X.cumsum(1)),
    ("sort", lambda x, y: mint.sort(x, descending=True)[0], -np.sort(-X)),
    ("topk", lambda x, y: mint.topk(x, 2)[0], X[:, [5, 4]]),
    ("softmax", lambda x, y: mint.softmax(x, 0), softmax(X, 0)),
    ("functional.relu", lambda x, y: mint.nn.functional.relu(x), X.clip(0)),
    ("functional.linear", lambda x, y: mint.nn.functional.linear(x, y), X @ Y.T),
    ("functional.log_softmax", lambda x, y: mint.nn.functional.log_softmax(x, 1), np.log(softmax(X, 1))),
    ("nn.Softmax", lambda x, y: mint.nn.Softmax(1).construct(x), softmax(X, 1)),
    ("nn.GELU", lambda x, y: mint.nn.GELU("tanh").construct(x), gelu(X)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "expected"), FUNCTIONS, ids=[f[0] for f in FUNCTIONS])
def test_functions(name: str, function: Any, expected: np.ndarray) -> None:
    found = function(Tensor(X), Tensor(Y)).asnumpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="mint has no 'frobnicate'"):
        _ = mint.frobnicate
    with pytest.raises(AttributeError, match=r"mint\.nn has no 'Conv9d'; did you mean Conv"):
        _ = mint.nn.Conv9d
    with pytest.raises(ValueError, match="GELU: approximate 'erf' is neither 'none' nor 'tanh'"):
        mint.nn.GELU("erf")
    with pytest.raises(ValueError, match="Embedding: max_norm, scale_grad_by_freq and sparse are not supported"):
        mint.nn.Embedding(4, 2, max_norm=1.0)
    assert ms.mint is mint


NETWORK = """
import mindspore as ms, numpy as np
from mindspore import nn, mint, Layout, Tensor
import mindspore.mint.nn.functional as F
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)
layout = Layout((2, 4), ("dp", "mp"))
random = np.random.default_rng(3)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = mint.nn.Embedding(32, 16)
        self.norm = mint.nn.LayerNorm(16)
        self.wide = mint.nn.Linear(16, 32)
        self.act = mint.nn.GELU()
        self.narrow = mint.nn.Linear(32, 8, bias=False)
        self.mm = ms.shard(mint.matmul, (layout("dp", "mp"), layout("mp", "None")))
        self.w = ms.Parameter(Tensor(random.normal(size=(8, 8)), ms.float32), "w")
    def construct(self, ids):
        x = self.act(self.wide(self.norm(mint.mean(self.embedding(ids), 1))))
        return mint.nn.functional.log_softmax(self.mm(F.relu(self.narrow(x)), self.w), dim=1)
class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net, self.loss = net, mint.nn.CrossEntropyLoss()
    def construct(self, ids, labels):
        return self.loss(self.net(ids), labels)
net = Net()
train = nn.TrainOneStepCell(Loss(net), nn.Momentum(net.trainable_params(), 0.1, 0.9))
train(Tensor(random.integers(0, 32, (8, 4)), ms.int32), Tensor(random.integers(0, 8, (8,)), ms.int32))
"""


def test_a_network_of_its_cells(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(NETWORK)
    verify_target(str(script), CompileOptions(), seed=1)


def test_arguments_of_cells_that_only_some_runs_show(capsys: pytest.CaptureFixture[str]) -> None:
    weight = mint.nn.PReLU(3, -0.5, dtype=ms.float16).w
    assert (weight.dtype, weight.asnumpy().tolist()) == (ms.float16, [-0.5] * 3)
    with pytest.raises(TypeError, match="PReLU: init must be a number, not 'x'"):
        mint.nn.PReLU(init="x")
    mint.nn.Hardtanh(inplace=True), mint.nn.Dropout2d(inplace=True)
    said = capsys.readouterr().err
    assert "Hardtanh(inplace=True) does not change its input" in said
    assert "Dropout2d(inplace=True) does not change its input" in said
