"""InplaceCopy as scripts call it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from mspc.mindspore_api.common.api import _cell_graph_executor


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
