"""InplaceCopy and PopulationCount as scripts call them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.api.common.api import _cell_graph_executor


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64])
def test_bits_are_counted(dtype: Any) -> None:
    x = np.array([0, 1, 2, 3, 127, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    wide = 8 * x.itemsize
    expected = [(int(n) % (1 << wide)).bit_count() for n in x]
    found = ops.PopulationCount()(Tensor(x)).asnumpy()
    assert (found.dtype, found.tolist()) == (np.uint8, expected)


def test_bits_are_those_of_integers() -> None:
    with pytest.raises(TypeError, match="PopulationCount: input 0 is Float32, not an integer tensor"):
        ops.PopulationCount()(Tensor([1.0], ms.float32))


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
