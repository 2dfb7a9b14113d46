"""Functions that draw: their distribution, seeds, shapes and element types.

InplaceCopy as scripts call it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, float16, nn, ops
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.common.api import _cell_graph_executor


def test_distributions() -> None:
    for drawn in (ops.randn(4000), ops.standard_normal((4000,))):
        found = drawn.asnumpy()
        assert (abs(found.mean()), abs(found.std() - 1)) < (0.06, 0.06)
        assert abs((found**3).mean()) < 0.25
        assert abs((found**4).mean() - 3) < 0.5
    moved = ops.normal((4000,), 3.0, 0.5).asnumpy()
    assert abs(moved.mean() - 3) < 0.05
    assert abs(moved.std() - 0.5) < 0.05
    even = ops.uniform((4000,), Tensor(-1.0), Tensor(3.0)).asnumpy()
    assert even.min() >= -1
    assert even.max() < 3
    assert abs(even.mean() - 1) < 0.1
    ones = ops.bernoulli(ops.zeros((4000,), float16), 0.3).asnumpy()
    assert ones.dtype == np.float16
    assert set(ones.tolist()) == {0.0, 1.0}
    assert abs(ones.astype(float).mean() - 0.3) < 0.05


def test_shapes_seeds_and_types() -> None:
    class Draws(nn.Cell):
        def construct(self) -> Any:
            return ops.rand(8, seed=3), ops.rand(8, seed=3), ops.rand(8, seed=4)

    assert (ops.rand(2, 3).shape, ops.rand((2, 3)).shape) == ((2, 3), (2, 3))
    assert ops.randn(2, dtype=float16).dtype == float16
    first, again, other = (found.asnumpy() for found in Draws()())
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)

    class Unseeded(nn.Cell):
        def construct(self) -> Any:
            return ops.randn(8), ops.randn(8), ops.rand(8), ops.rand(8)

    found = [part.asnumpy() for part in Unseeded()()]
    assert not np.array_equal(found[0], found[1])
    assert not np.array_equal(found[2], found[3])
    with pytest.raises(MspcError, match=r"rand: size\[0\] must be an integer"):
        ops.rand("x")
    with pytest.raises(MspcError, match=r"rand\(\): sizes must be 0 or more"):
        ops.rand(-1)


@pytest.mark.parametrize(("cell", "shape"), [
    (nn.Dropout1d, (64, 32, 3)), (nn.Dropout2d, (64, 32, 2, 3)), (nn.Dropout3d, (64, 32, 2, 1, 3)),
])  # fmt: skip
def test_whole_channels_are_left_out(cell: type[nn.Cell], shape: tuple[int, ...]) -> None:
    drop = cell(0.25)
    x = Tensor(np.ones(shape, np.float32))
    assert np.array_equal(drop(x).asnumpy(), x.asnumpy())
    drop.set_train()
    found = drop(x).asnumpy().reshape(64, 32, -1)
    assert np.array_equal(found.min(axis=2), found.max(axis=2)), "a channel is stored or left out entirely"
    assert {round(float(n), 5) for n in np.unique(found)} == {0.0, round(1 / 0.75, 5)}
    assert abs((found == 0).mean() - 0.25) < 0.05
    alone = drop(Tensor(np.ones(shape[1:], np.float32))).asnumpy().reshape(32, -1)
    assert np.array_equal(alone.min(axis=1), alone.max(axis=1))


class Copy(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.zeros((4, 2), np.float32)), "w")
        self.copy = ops.InplaceCopy()

    def construct(self, x: Any) -> Any:
        return self.copy(self.w, x) * 2.0


def test_a_copy_changes_the_parameter() -> None:
    net = Copy()
    out = net(Tensor(np.array([3.0, 5.0], np.float32)))
    assert out.asnumpy().tolist() == [[6.0, 10.0]] * 4
    assert net.w.asnumpy().tolist() == [[3.0, 5.0]] * 4


@pytest.mark.parametrize("shape", [(3,), (1, 4, 2), (8, 2)])
def test_what_does_not_fit_is_not_copied(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="InplaceCopy"):
        _cell_graph_executor.compile(Copy(), Tensor(np.ones(shape, np.float32)))
