"""`mint`: each function against NumPy, and a network of its cells on ranks against one device.

Arguments are called and placed as in MindSpore 2.10.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, mint, nn, ops
from tests.compiled_scripts import verify_text


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
    verify_text(tmp_path, NETWORK)


X = Tensor(np.array([[1.5, -2.0], [3.0, 7.25]], np.float32))
PLACES = Tensor(np.array([[1, 0]]))

CASES: list[tuple[str, Callable[[], Any], Any]] = [
    ("frac", lambda: mint.frac(input=X), [[0.5, 0], [0, 0.25]]),
    ("mv", lambda: mint.mv(input=X, vec=X[0]), [6.25, -10]),
    ("ones", lambda: mint.ones(size=(2,), dtype=ms.float32), [1, 1]),
    ("SiLU", lambda: mint.nn.SiLU(inplace=False)(X * 0), [[0, 0], [0, 0]]),
    ("ReLU6", lambda: mint.nn.ReLU6(inplace=False)(X), [[1.5, 0], [3, 6]]),
    ("ELU", lambda: mint.nn.ELU(2.0, False)(X), [[1.5, -1.7293294], [3, 7.25]]),
    ("Dropout", lambda: mint.nn.Dropout(0.5, False).set_train(False)(X), X.asnumpy()),
    ("true_divide", lambda: ops.true_divide(dividend=X, divisor=X), [[1, 1], [1, 1]]),
    ("PReLU", lambda: nn.PReLU(2, [0.5, 0.25])(X), [[1.5, -0.5], [3, 7.25]]),
    ("gather_d", lambda: ops.gather_d(x=X, dim=0, index=PLACES), [[3, -2]]),
]


@pytest.mark.parametrize(("make", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_arguments_by_name(make: Callable[[], Any], expected: Any) -> None:
    np.testing.assert_allclose(make().asnumpy(), expected, rtol=1e-6)


def test_a_transposed_convolution_is_padded_by_its_third_argument() -> None:
    convolution = ops.Conv2DTranspose(1, 3, "same", stride=2)
    x, weight = (Tensor(np.ones((1, 1, n, n), np.float32)) for n in (2, 3))
    found = convolution(x, weight, (1, 1, 4, 4))
    np.testing.assert_array_equal(found.asnumpy()[0, 0], [[1, 1, 2, 1], [1, 1, 2, 1], [2, 2, 4, 2], [1, 1, 2, 1]])
