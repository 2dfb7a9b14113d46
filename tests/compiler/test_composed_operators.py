"""MindSpore's operators that are several here, sharded as their strategies say; functions whose operators carry
facts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from tests.compiler.test_operator_strategies import HEAD

NETWORKS = {
    "Index of a sharded table": """
from mindspore.ops.auto_generate.gen_ops_prim import Index
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(8, 16), "w")
        self.index = Index().shard(((2, 4), ((1,), (1,))))
    def construct(self, i, j):
        return self.index(self.w, (i, j - 16))
ids = Tensor(random.integers(0, 8, (12,)), ms.int32)
net = Net()
ms.value_and_grad(net, None, net.trainable_params())(ids, ids)
""",
    "GroupNorm": """
from mindspore.ops.auto_generate.gen_ops_def import GroupNorm
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w, self.b = Parameter(tensor(6), "w"), Parameter(tensor(6), "b")
        self.norm = GroupNorm().shard(((4, 1, 1), (1,), (1,)))
    def construct(self, x):
        out, mean, scale = self.norm(x, 3, self.w, self.b, 1e-5)
        return out, mean * scale
net = Net()
ms.value_and_grad(net, 0, net.trainable_params())(tensor(8, 6, 4))
""",
    "dropout_ext_op": """
from mindspore.ops.auto_generate import dropout_ext_op
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.drop = dropout_ext_op.shard(((4, 2), (), ()))
        self.seed = Parameter(Tensor(3), "seed", requires_grad=False)
    def construct(self, x):
        return self.drop(x, 0.5, 3, 1)[0] + self.drop(x, 0.5, self.seed, self.seed)[0]
Net()(tensor(16, 8))
""",
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_one_device(tmp_path: Path, name: str) -> None:
    script = tmp_path / "net.py"
    script.write_text(HEAD + NETWORKS[name])
    verify_target(str(script), CompileOptions(), seed=1)


def test_values_of_one_device() -> None:
    x = np.random.default_rng(0).standard_normal((2, 6, 5)).astype(np.float32)
    out, mean, scale = ops.GroupNorm()(Tensor(x), 2, Tensor(np.ones(6, np.float32)), Tensor(np.zeros(6, np.float32)))
    groups = x.reshape(2, 2, 15)
    expected = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out.asnumpy(), expected.reshape(x.shape), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean.asnumpy(), groups.mean(-1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(scale.asnumpy(), 1 / np.sqrt(groups.var(-1) + 1e-5), rtol=1e-4)
    places = Tensor(np.array([0, -1, 1]))
    np.testing.assert_array_equal(ops.Index()(Tensor(x), (places, places)).asnumpy(), x[[0, -1, 1], [0, -1, 1]])
    assert ops.tuple_len((1, 2, 3)) == 3


def test_what_gradients_do_not_pass_may_be_missing() -> None:
    class Net(nn.Cell):
        def construct(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            mask, (y, none) = ops.stop_gradient(mask), ops.stop_gradient((x, None))
            return x * x + y if mask is None and none is None else x

    x = Tensor(np.array([1.0, 3.0], np.float32))
    np.testing.assert_allclose(ms.grad(Net())(x).asnumpy(), [2.0, 6.0])
    assert ops.stop_gradient(None) is None


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: ops.Index()(x, x), "Index: indices must be a tuple of tensors, not Tensor"),
    (lambda x: ops.Index().shard(((1, 1), ((1,), (1,))))(x, (Tensor([1]), Tensor([1, 2]))),
     "Index: with a strategy all indices have one shape, not [(1,), (2,)]"),
    (lambda x: ops.GroupNorm()(x, 4), "GroupNorm: 6 channels are no multiple of num_groups 4"),
])  # fmt: skip
def test_wrong_operands_are_refused(call, message) -> None:
    with pytest.raises(ms.MspcError) as error:
        call(Tensor(np.ones((4, 6), np.float32)))
    assert error.value.message == message
