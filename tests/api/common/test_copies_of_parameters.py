"""What a network copies of a parameter stays when the parameter is overwritten behind it, as outside of a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops

OLD, NEW = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
COPIES = {
    "copy": lambda w: w.copy(),
    "clone": lambda w: w.clone(),
    "contiguous": lambda w: w.contiguous(),
    "cast": lambda w: ops.cast(w, ms.float32),
}


class Overwritten(nn.Cell):
    """Hands out a copy of a weight, and overwrites the weight."""

    def __init__(self, copied: Any) -> None:
        super().__init__()
        self.w = Parameter(Tensor(OLD))
        self.copied = copied

    def construct(self, x: Any) -> Any:
        old = self.copied(self.w)
        ops.assign(self.w, x)
        return old, old + self.w


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_stays(name: str) -> None:
    net = Overwritten(COPIES[name])
    for old, new in ((OLD, NEW), (NEW, 2 * NEW)):
        found, total = net(Tensor(new))
        np.testing.assert_array_equal(found.asnumpy(), old)
        np.testing.assert_array_equal(total.asnumpy(), old + new)
