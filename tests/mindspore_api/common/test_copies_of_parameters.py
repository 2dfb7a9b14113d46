"""A network's copy of a parameter stays when the parameter is overwritten after it, as outside of a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call

OLD, NEW = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
COPIES = {
    "copy": lambda w: w.copy(),
    "clone": lambda w: w.clone(),
    "contiguous": lambda w: w.contiguous(),
    "cast": lambda w: ops.cast(w, ms.float32),
    "astype": lambda w: w.astype(ms.float32),
    "float": lambda w: w.float(),
    "slice": lambda w: w[:],
    "plus": lambda w: +w,
    "sum": lambda w: sum([w]),
    "dropout": lambda w: nn.Dropout(p=0.5)(w),
    "dropout of nothing": lambda w: ops.dropout(w, p=0.0),
    "Identity": lambda w: nn.Identity()(w),
    "Tensor": lambda w: Tensor(w),
    "own gradient": lambda w: ops.HookBackward(lambda grads: grads)(w),
    "array": lambda w: ms.numpy.array(w),
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


def test_a_copy_stays_outside_of_a_network() -> None:
    w = Parameter(Tensor(OLD))
    found = [ms.numpy.copy(w), ms.numpy.array(w), w.copy()]
    ops.assign(w, Tensor(NEW))
    for copied in found:
        np.testing.assert_array_equal(copied.asnumpy(), OLD)


def test_what_hands_a_parameter_on_is_the_parameter() -> None:
    """Names, lists and functions of the script."""
    for handed in (lambda w: w, lambda w: [w][0], lambda w: w if w.shape else w + 1):
        net = Overwritten(handed)
        assert net(Tensor(NEW))[0].asnumpy().all()


def test_a_copy_that_nobody_needs_goes() -> None:
    """A weight that is not overwritten ahead of its readers is read where it is."""

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(Tensor(OLD))

        def construct(self, x: Any) -> Any:
            y = x * self.w[:].float()
            ops.assign(self.w, x)
            return y

    graph = compile_call(Net(), [Tensor(NEW)], Config()).rank_graph(0)
    assert [node.op.name for node in graph.nodes] == ["Mul", "Assign"]


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_stays(name: str) -> None:
    net = Overwritten(COPIES[name])
    for old, new in ((OLD, NEW), (NEW, 2 * NEW)):
        found, total = net(Tensor(new))
        np.testing.assert_array_equal(found.asnumpy(), old)
        np.testing.assert_array_equal(total.asnumpy(), old + new)
