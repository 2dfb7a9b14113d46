"""`x.add_(y)`: outside of a network the tensor itself becomes the result, in a network a parameter does, and what the
network computes is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.ops.method_table import method_names

X = np.array([[0.5, -0.25, 0.75], [0.1, 0.9, -0.6]], np.float32)
ROW = Tensor(np.array([0], np.int32))
ONE = Tensor(np.ones((1, 3), np.float32))
SQUARE = Tensor(np.ones((2, 2), np.float32))
WIDE = Tensor(np.ones((2, 3), np.float32))
MASK = Tensor(X > 0)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys("add_ sub_ mul_ div_ floor_divide_ remainder_ fill_ fill_diagonal_".split(), (2.0,)),
    "clamp_": (0.0, 0.5), "masked_fill_": (MASK, 1.0), "masked_scatter_": (MASK, WIDE), "index_add_": (0, ROW, ONE),
    "index_copy_": (0, ROW, ONE), "index_fill_": (0, ROW, 2.0), "index_put_": ((ROW, ROW), Tensor(9.0)),
    "scatter_": (1, Tensor(np.array([[0], [2]])), 3.0), "put_": (ROW, ONE[0, :1]), "copy_": (ONE,),
    "scatter_add_": (1, Tensor(np.array([[0], [2]])), WIDE), "addmm_": (SQUARE, WIDE),
    "addr_": (SQUARE[0], ONE[0]), "exp_": (),
}  # fmt: skip
DRAWN = {"bernoulli_", "exponential_", "normal_", "random_", "uniform_"}
NAMES = sorted(name for name in method_names() if name.endswith("_"))


class Changed(nn.Cell):
    """A parameter after a change."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.w = ms.Parameter(Tensor(np.abs(X)), "w")
        self.name, self.arguments = name, arguments

    def construct(self, x: Any) -> Any:
        getattr(self.w, self.name)(*self.arguments)
        return self.w * x


class OfAValue(nn.Cell):
    """A change of what the network computes."""

    def construct(self, x: Any) -> Any:
        y = x * 2
        y.add_(1)
        return y


@pytest.mark.parametrize("name", sorted(set(NAMES) - DRAWN))
def test_a_tensor_becomes_what_the_method_gives(name: str) -> None:
    arguments = ARGUMENTS.get(name, ())
    x = Tensor(np.abs(X))
    before = x.array
    found = getattr(x, name)(*arguments)
    assert found is x
    assert before is not x.array
    plain = getattr(Tensor(np.abs(X)), name[:-1], None)
    if plain is not None and name != "copy_":
        np.testing.assert_array_equal(x.asnumpy(), plain(*arguments).astype(ms.float32).asnumpy())
    net = Changed(name, arguments)
    np.testing.assert_allclose(net(WIDE).asnumpy(), x.asnumpy(), rtol=1e-6)
    np.testing.assert_allclose(net.w.asnumpy(), x.asnumpy(), rtol=1e-6)


def test_what_has_no_other_form() -> None:
    assert Tensor(X).zero_().asnumpy().tolist() == np.zeros((2, 3)).tolist()
    assert Tensor(X).fill_(2).asnumpy().tolist() == np.full((2, 3), 2.0).tolist()
    assert Tensor(X).copy_(ONE).asnumpy().tolist() == np.ones((2, 3)).tolist()
    assert Tensor(X).index_copy_(0, ROW, ONE).asnumpy()[0].tolist() == [1, 1, 1]
    assert Tensor(X).put_(Tensor([-1]), Tensor([5.0])).asnumpy()[1, 2] == 5
    assert Tensor(X).put_(Tensor([0, 0]), Tensor([5.0, 1.0]), True).asnumpy()[0, 0] == 6.5


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_drawn_numbers_take_the_place_of_the_tensor(name: str) -> None:
    x = Tensor(np.full((50, 40), 0.5, np.float32))
    assert getattr(x, name)() is x
    mean = {"bernoulli_": 0.5, "exponential_": 1.0, "normal_": 0.0, "random_": 2**23, "uniform_": 0.5}[name]
    assert abs(x.asnumpy().mean() - mean) < 0.08 * max(1, mean)


def test_the_result_keeps_the_type_and_calls_follow_each_other() -> None:
    x = Tensor(np.array([1, 2], np.int32))
    assert x.add_(1.7).mul_(2).dtype == ms.int32
    assert x.asnumpy().tolist() == [4, 6]
    assert ops.tanh_(Tensor(X)).asnumpy().tolist() == np.tanh(X).tolist()


def test_a_value_of_a_network_has_no_place() -> None:
    with pytest.raises(MspcError) as caught:
        OfAValue()(WIDE)
    assert caught.value.message == "Assign overwrites a parameter, and its first operand is a computed value"
    assert caught.value.notes == (
        "a value has no place: give the result a name, as in x = x.add(1) instead of x.add_(1)",
    )


def test_a_parameter_says_what_it_is_trained_for() -> None:
    weight = ms.Parameter(Tensor(X), "w")
    assert weight.requires_grad_(False) is weight
    assert not weight.requires_grad
    assert Tensor(X).requires_grad_().shape == (2, 3)
