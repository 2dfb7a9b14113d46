"""Parameters and initial values."""

from __future__ import annotations

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, ParameterTuple, Tensor, nn, ops
from mspc.mindspore_api import common
from mspc.mindspore_api.common.initializers import XavierUniform

initializer = common.initializer.initializer


class Store:
    """Keeps the values of one parameter."""

    def __init__(self, array):
        self.array = array

    def read(self, parameter):
        return self.array

    def write(self, parameter, array):
        self.array = array


def test_values_come_from_the_store_while_it_is_attached():
    w = Parameter(Tensor([1.0, 2.0]), "w")
    w.store = Store(np.array([5.0, 6.0], np.float32))
    assert w.asnumpy().tolist() == [5, 6]
    assert (w + 1).array.tolist() == [6, 7]
    w.set_data(Tensor([7.0, 8.0]))
    assert w.store.array.tolist() == [7, 8]
    assert w.shape == (2,)


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
def test_a_parameter_and_the_tensor_of_its_values_change_apart(mode: int):
    ms.set_context(mode=mode)
    mine = np.array([1.0, 2.0], np.float32)
    x = Tensor(mine)
    w, other = Parameter(x, "w"), Parameter(Tensor([0.0, 0.0]), "other")
    other.set_data(x)

    class Counts(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = w

        def construct(self, y):
            return ops.assign_add(self.w, y)

    Counts()(Tensor([10.0, 10.0]))
    assert w.asnumpy().tolist() == [11, 12]
    other[0] = 5.0
    assert x.asnumpy().tolist() == [1, 2]
    x[1] = 7.0
    mine[:] = 100.0
    assert (x.asnumpy().tolist(), w.asnumpy().tolist(), other.asnumpy().tolist()) == ([1, 7], [11, 12], [5, 2])


def test_set_data_checks_shape_and_kind():
    w = Parameter(Tensor(np.zeros((2, 2)), ms.float32), "w")
    with pytest.raises(ValueError, match=r"parameter 'w' has shape \(2, 2\), the new values \(2,\)"):
        w.set_data(Tensor([1.0, 2.0]))
    n = Parameter(Tensor([1], ms.int32), "n")
    with pytest.raises(TypeError, match="parameter 'n' is Int32, the new values are Float32"):
        n.set_data(Tensor([1.0]))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Parameter(1.0, 3), TypeError, "Parameter: name must be a string or None, not 3"),
        (lambda: Parameter(1.0, " "), ValueError, "the name of a parameter must not be empty"),
        (lambda: Parameter(1.0, "w", 1), TypeError, "requires_grad must be True or False, not 1"),
        (lambda: ParameterTuple([Tensor(1)]), TypeError, "ParameterTuple takes Parameters, not Tensor"),
        (lambda: initializer("nrmal", [2]), ValueError, "unknown initializer 'nrmal'; known are "),
        (lambda: initializer("normal", [2, -1]), ValueError, "shape (2, -1) has a negative size"),
        (
            lambda: initializer(XavierUniform(), [2]).asnumpy(),
            ValueError,
            "needs at least 2 dimensions, not shape (2,)",
        ),
        (
            lambda: initializer([1], [2]),
            TypeError,
            "an initializer is a name, a number or an Initializer, not list",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert message in caught.value.message


def test_clone_of_a_tuple_names_and_fills():
    w = Parameter(initializer("normal", [2, 3]), "w", layerwise_parallel=True)
    (m,) = ParameterTuple([w]).clone("moments", "zeros")
    assert (m.name, m.shape, m.dtype, m.layerwise_parallel) == ("moments.w", (2, 3), ms.float32, True)
    assert not m.asnumpy().any()
    same = w.clone()
    assert (same.asnumpy() == w.asnumpy()).all()
    assert same is not w


def test_same_seed_gives_same_values_and_counter_different_ones():
    def draw():
        ms.set_seed(7)
        return [initializer("normal", [16]).asnumpy() for _ in range(2)]

    first, again = draw(), draw()
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert not np.array_equal(first[0], first[1])
    ms.set_seed(8)
    assert not np.array_equal(initializer("normal", [16]).asnumpy(), first[0])


def test_values_do_not_depend_on_when_they_are_drawn():
    ms.set_seed(1)
    a, b = initializer("normal", [4]), initializer("normal", [4])
    late = b.asnumpy(), a.asnumpy()
    ms.set_seed(1)
    early = initializer("normal", [4]).asnumpy(), initializer("normal", [4]).asnumpy()
    assert np.array_equal(late[1], early[0])
    assert np.array_equal(late[0], early[1])


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
