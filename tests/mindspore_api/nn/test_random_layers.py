"""Layers that draw, under the names of operators, functions and cells; and batch norms of neighbouring ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops


@pytest.mark.parametrize(("operator", "shape"), [(ops.Dropout2D, (16, 32, 3, 2)), (ops.Dropout3D, (16, 32, 2, 3, 2))])
def test_channels_are_dropped_as_a_whole(operator: Any, shape: tuple[int, ...]) -> None:
    out, mask = (t.asnumpy() for t in operator(0.75)(Tensor(np.full(shape, 3.0, np.float32))))
    assert out.shape == mask.shape == shape
    assert mask.dtype == np.bool_
    channels = mask.reshape(16, 32, -1)
    assert (channels == channels[:, :, :1]).all()
    assert 0.65 < channels[:, :, 0].mean() < 0.85
    np.testing.assert_array_equal(out, np.where(mask, np.float32(4.0), np.float32(0.0)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.Dropout2D()(ops.ones((2, 3, 4))), "Dropout2D: the input of shape (2, 3, 4) must have 4"),
        (lambda: ops.Dropout3D(0.0)(ops.ones((2, 3, 1, 1, 1))), "Dropout3D: keep_prob is 0.0, not above 0"),
        (lambda: nn.RReLU(0.5, 0.25), "RReLU: lower 0.5 is above upper 0.25"),
        (lambda: nn.RReLU("a"), "RReLU(): lower must be a number, not 'a'"),
        (lambda: ops.rrelu(ops.ones((2,)), 2, 1), "rrelu(): lower 2 is above upper 1"),
        (lambda: nn.GlobalBatchNorm(4, device_num_each_group=0), "GlobalBatchNorm: device_num_each_group"),
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        call()
    assert message in str(refused.value)


@pytest.mark.parametrize("relu", [nn.RReLU(0.25, 0.5), lambda x: ops.rrelu(x, 0.25, 0.5)])
def test_negative_numbers_get_slopes_of_their_own(relu: Any) -> None:
    x = np.linspace(-8, 8, 256, dtype=np.float32).reshape(16, 16)
    found = relu(Tensor(x)).asnumpy()
    np.testing.assert_array_equal(found[x >= 0], x[x >= 0])
    slopes = found[x < 0] / x[x < 0]
    assert slopes.min() >= 0.2499
    assert slopes.max() <= 0.5001
    assert len(np.unique(slopes)) > 100


@pytest.mark.parametrize(
    ("mode", "groups"),
    [("data_parallel", ((0, 1), (2, 3))), ("semi_auto_parallel", ()), ("stand_alone", ((0, 1), (2, 3)))],
)
def test_a_global_batch_norm_groups_neighbours(mode: str, groups: tuple[Any, ...]) -> None:
    ms.set_auto_parallel_context(parallel_mode=mode, device_num=4)
    layer = nn.GlobalBatchNorm(8, device_num_each_group=2)
    assert layer.bn_train.op.groups == groups


def test_a_global_batch_norm_needs_equal_groups() -> None:
    ms.set_auto_parallel_context(parallel_mode="data_parallel", device_num=4)
    with pytest.raises(ValueError, match="device_num_each_group 3 must divide the number of ranks, 4"):
        nn.GlobalBatchNorm(8, device_num_each_group=3)
