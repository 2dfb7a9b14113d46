"""MindSpore's operators that are several here, sharded as their strategies say; functions whose operators carry
facts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from tests.compiler.sharded_networks import check_equals_one_device, networks

NETWORKS = networks("composed_operators")


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_one_device(tmp_path: Path, name: str) -> None:
    check_equals_one_device(tmp_path, NETWORKS[name])


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
