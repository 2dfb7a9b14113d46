"""Parameters and initial values.

A network's copy of a parameter stays when the parameter is overwritten after it, as outside of a network.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.mindspore_api import common

initializer = common.initializer.initializer


def test_set_data_checks_shape_and_kind():
    w = Parameter(Tensor(np.zeros((2, 2)), ms.float32), "w")
    with pytest.raises(ValueError, match=r"parameter 'w' has shape \(2, 2\), the new values \(2,\)"):
        w.set_data(Tensor([1.0, 2.0]))
    n = Parameter(Tensor([1], ms.int32), "n")
    with pytest.raises(TypeError, match="parameter 'n' is Int32, the new values are Float32"):
        n.set_data(Tensor([1.0]))


def test_seed_must_be_a_small_integer():
    with pytest.raises(ValueError, match=r"set_seed\(-1\): the seed must be from 0 to 4294967295"):
        ms.set_seed(-1)
    with pytest.raises(TypeError, match="set_seed: seed must be an integer"):
        ms.set_seed("1")


def test_set_seed_seeds_numpy():
    ms.set_seed(3)
    first = np.random.rand()
    ms.set_seed(3)
    assert np.random.rand() == first
    assert ms.get_seed() == 3


def test_value_is_a_tensor_of_the_present_values():
    w = Parameter(Tensor([1.0, 2.0]), "w")
    drawn = Parameter(initializer("ones", (2,)), "drawn")
    found = w.value()
    assert type(found) is type(w.value().value()) is type(drawn.value()) is Tensor
    assert drawn.value().asnumpy().tolist() == [1, 1]
    ops.assign(w, Tensor([5.0, 6.0]))
    w[0] = 9.0
    w.set_data(Tensor([7.0, 8.0]))
    assert found.asnumpy().tolist() == [1, 2]
    found = w.value()
    found[0] = 100.0
    assert (found.asnumpy().tolist(), w.asnumpy().tolist()) == ([100, 8], [7, 8])
    x = Tensor([1.0, 2.0])
    assert x.value() is x


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
def test_value_does_not_follow_training(mode: int):
    ms.set_context(mode=mode)

    class Scales(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(Tensor([2.0]), "w")
            self.fixed = Tensor([4.0])

        def construct(self, x):
            return x * self.w.value() + x.value() * self.fixed.value()

    net = Scales()
    optimizer = nn.SGD(net.trainable_params(), 0.5)
    before = net.w.value()
    step = nn.TrainOneStepCell(net, optimizer)
    assert step(Tensor([3.0])).asnumpy().tolist() == [18]
    between = net.w.value()
    assert step(Tensor([3.0])).asnumpy().tolist() == [13.5]
    assert [t.asnumpy().tolist() for t in (before, between, net.w.value())] == [[2], [0.5], [-1]]


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
