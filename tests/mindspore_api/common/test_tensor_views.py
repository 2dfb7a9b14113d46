"""Writes to views of a tensor, outside of a network: NumPy is the judge, MindSpore 2.10 names the views."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, mint, nn, ops
from mspc.mindspore_api.ops.method_table import method_names
from tests.errors import error_of

START = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

# name: (a view by mspc, the same view by NumPy)
VIEWS: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "row": (lambda x: x[0], lambda x: x[0]),
    "row of a row": (lambda x: x[1][2], lambda x: x[1][2]),
    "slices": (lambda x: x[:, 1:, ::2], lambda x: x[:, 1:, ::2]),
    "reversed": (lambda x: x[1][..., None], lambda x: x[1][..., None]),
    "loop": (lambda x: list(x)[1], lambda x: list(x)[1]),
    "view": (lambda x: x.view(6, 4), lambda x: x.reshape(6, 4)),
    "same shape": (lambda x: x.view(2, 3, 4), lambda x: x),
    "reshape": (lambda x: x.reshape(-1), lambda x: x.reshape(-1)),
    "flatten": (lambda x: x.flatten(), lambda x: x.reshape(-1)),
    "ravel": (lambda x: x.ravel(), lambda x: x.reshape(-1)),
    "T": (lambda x: x.T, lambda x: x.T),
    "T of a slice": (lambda x: x[1, :, 1:].T, lambda x: x[1, :, 1:].T),
    "transpose": (lambda x: x.transpose(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
    "permute": (lambda x: x.permute(1, 0, 2), lambda x: x.transpose(1, 0, 2)),
    "swapaxes": (lambda x: x.swapaxes(0, 2), lambda x: x.swapaxes(0, 2)),
    "expand_dims": (lambda x: x.expand_dims(1), lambda x: x[:, None]),
    "squeeze": (lambda x: x[:1].squeeze(0), lambda x: x[0]),
    "narrow": (lambda x: x.narrow(1, 1, 2), lambda x: x[:, 1:3]),
    "chunk": (lambda x: x.chunk(2, 2)[1], lambda x: x[:, :, 2:]),
    "split": (lambda x: x.split(1, 0)[1], lambda x: x[1:]),
    "unbind": (lambda x: x.unbind(1)[2], lambda x: x[:, 2]),
    "astype": (lambda x: x.astype(ms.float32), lambda x: x),
    "cast": (lambda x: ops.cast(x, ms.float32), lambda x: x),
    "Cast": (lambda x: ops.Cast()(x[0], ms.float32), lambda x: x[0]),
    "Tensor": (Tensor, lambda x: x),
    "Tensor of a type": (lambda x: Tensor(x[1], ms.float32), lambda x: x[1]),
    "data": (lambda x: x.data, lambda x: x),
    "contiguous": (lambda x: x.contiguous(), lambda x: x),
    "diagonal": (lambda x: x.diagonal(), lambda x: np.lib.stride_tricks.as_strided(x, (4, 2), (4, 64))),
    "ops.diagonal": (lambda x: ops.diagonal(x[0], 1), lambda x: x.reshape(-1)[1:12:5]),
    "ops.reshape": (lambda x: ops.reshape(x, (4, 6)), lambda x: x.reshape(4, 6)),
    "ops.Transpose": (lambda x: ops.Transpose()(x, (2, 1, 0)), lambda x: x.T),
    "mint.select": (lambda x: mint.select(x, 1, 0), lambda x: x[:, 0]),
    "view of a view": (lambda x: x.view(6, 4)[2:].T[1], lambda x: x.reshape(6, 4)[2:].T[1]),
}


@pytest.mark.parametrize("owner", [Tensor, lambda data: Parameter(data, name="p")], ids=["tensor", "parameter"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_write_goes_through(name: str, owner: Callable[[Any], Any]) -> None:
    view, judge = VIEWS[name]
    x, expected = owner(START.copy()), START.copy()
    part, right = view(x), judge(expected)
    part[0] = -7.0
    right[0] = -7.0
    np.testing.assert_array_equal(x.asnumpy(), expected)
    np.testing.assert_array_equal(part.asnumpy(), right)
    part[..., -1:] = part[..., -1:] * 2
    right[..., -1:] = right[..., -1:] * 2
    np.testing.assert_array_equal(x.asnumpy(), expected)


@pytest.mark.parametrize(
    ("method", "judge"),
    [
        (lambda x: x.add_(2.0), lambda x: np.add(x, 2, out=x)),
        (lambda x: x.mul_(3.0), lambda x: np.multiply(x, 3, out=x)),
        (lambda x: x.zero_(), lambda x: x.fill(0)),
        (lambda x: x.fill_(5.0), lambda x: x.fill(5)),
        (lambda x: x.copy_(x * 0 - 3), lambda x: x.fill(-3)),
        (lambda x: ops.assign(x, x + 1), lambda x: np.add(x, 1, out=x)),
    ],
)
@pytest.mark.parametrize("name", ["row", "T of a slice", "view", "chunk", "view of a view"])
def test_methods_in_place_go_through(name: str, method: Callable[[Any], Any], judge: Callable[[Any], Any]) -> None:
    view, of_numpy = VIEWS[name]
    x, expected = Tensor(START.copy()), START.copy()
    method(view(x))
    judge(of_numpy(expected))
    np.testing.assert_array_equal(x.asnumpy(), expected)


@pytest.mark.parametrize("name", VIEWS)
def test_views_show_what_is_written_to_the_whole(name: str) -> None:
    view, judge = VIEWS[name]
    x, expected = Tensor(START.copy()), START.copy()
    part, other, right = view(x), view(x), judge(expected)
    x[1] = 50.0
    x[0, 0] = 60.0
    expected[1], expected[0, 0] = 50, 60
    np.testing.assert_array_equal(part.asnumpy(), right)
    part[0] = 9.0
    right[0] = 9
    np.testing.assert_array_equal(other.asnumpy(), right)


@pytest.mark.parametrize(
    "view", [Tensor, lambda x: x.astype(ms.float32), lambda x: x.data, lambda x: Tensor(Tensor(x))]
)
def test_views_of_values_that_are_not_sampled_yet(view: Callable[[Any], Any]) -> None:
    for x in (ops.zeros((2, 2)), Tensor(shape=(2, 2), dtype=ms.float32, init="zeros")):
        part, other = view(x), view(x)
        part[0] = 3.0
        assert x.asnumpy().tolist() == other.asnumpy().tolist() == [[3, 3], [0, 0]]
        x[1] = 4.0
        assert part.asnumpy().tolist() == other.asnumpy().tolist() == [[3, 3], [4, 4]]


def test_a_row_that_is_repeated_is_one_row() -> None:
    x = Tensor(START[0, :1].copy())
    x.broadcast_to((3, 4))[1] = 9.0
    assert x.asnumpy().tolist() == [[9, 9, 9, 9]]


@pytest.mark.parametrize("default", [START[0], ops.zeros((3, 4))], ids=["array", "initializer"])
def test_the_data_of_a_parameter_are_a_tensor(default: Any) -> None:
    p = Parameter(default, name="p")
    expected, data = p.asnumpy(), p.data
    assert type(data) is Tensor
    data[0] = 5.0
    expected[0] = 5
    np.testing.assert_array_equal(p.asnumpy(), expected)
    p.set_data(Tensor(expected + 1))
    data[1, 0] = 7.0  # only this element: the others have changed since
    expected += 1
    expected[1, 0] = 7
    np.testing.assert_array_equal(p.asnumpy(), expected)
    p.data = Tensor(expected * 2)
    np.testing.assert_array_equal(p.asnumpy(), expected * 2)


def test_rows_of_a_loop_and_chained_indices() -> None:
    x, expected = Tensor(START.copy()), START.copy()
    for row, right in zip(x, expected, strict=True):
        row[0][1] = 42.0
        right[0][1] = 42
    x[1][2][3] = 5.0
    expected[1][2][3] = 5
    np.testing.assert_array_equal(x.asnumpy(), expected)


def test_an_index_with_arrays_writes_as_in_mindspore() -> None:
    x = Tensor(START.copy())
    x[[1, 0]][0] = 5.0
    x[x < 3][0] = 8.0
    expected = START.copy()
    expected[1], expected[0, 0, 0] = 5, 8
    np.testing.assert_array_equal(x.asnumpy(), expected)


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x.copy(), lambda x: x.clone(), lambda x: x + 0, lambda x: x * 1.0, lambda x: mint.clone(x),
        lambda x: x.T.reshape(-1), lambda x: x.astype(ms.float64), lambda x: Tensor(x.asnumpy()), lambda x: x.abs(),
        lambda x: Tensor(x, ms.float16), lambda x: Parameter(x, name="p"), lambda x: mint.diag(x[0][:, :3])[None],
        lambda x: x.tile((1, 1, 1)), lambda x: x.clamp(-100.0, 100.0), lambda x: ops.concat((x,)), lambda x: x.round(),
    ],
)  # fmt: skip
def test_values_of_their_own_stay_apart(copy: Callable[[Any], Any]) -> None:
    x = Tensor(START.copy())
    own = copy(x)
    own[0] = -1.0
    np.testing.assert_array_equal(x.asnumpy(), START)
    own = copy(x)
    before = own.asnumpy()
    x[0] = -1.0
    np.testing.assert_array_equal(own.asnumpy(), before)


def test_an_augmented_assignment_makes_another_tensor() -> None:
    x = Tensor(START.copy())
    part = x[0]
    part += 1
    np.testing.assert_array_equal(x.asnumpy(), START)


def test_views_of_a_parameter_that_was_trained() -> None:
    """A view of a parameter has the values of its time; a write goes to the parameter as it is now."""
    net = nn.Dense(3, 2, weight_init="ones", has_bias=False)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.5))
    before = net.weight[0]
    x, y = Tensor(np.ones((1, 3), np.float32)), Tensor(np.zeros((1, 2), np.float32))
    step(x, y)
    expected = net.weight.asnumpy()
    assert before.asnumpy().tolist() == [1, 1, 1]
    assert not np.array_equal(expected[0], [1, 1, 1])
    net.weight[0][1] = 5.0
    net.weight.view(-1)[3] = 7.0
    expected[0, 1], expected[1, 0] = 5, 7
    np.testing.assert_array_equal(net.weight.asnumpy(), expected)
    np.testing.assert_allclose(net(x).asnumpy(), np.ones((1, 3)) @ expected.T, rtol=1e-6)


def test_what_a_network_was_fed_with_stays() -> None:
    """A graph may hold the array of a tensor that it was fed with."""
    net = nn.ReLU()
    x = Tensor(START.copy())
    first = net(x)
    x[0][0] = 5.0
    np.testing.assert_array_equal(first.asnumpy(), START)
    np.testing.assert_array_equal(net(x).asnumpy(), x.asnumpy())


def test_a_tensor_that_was_replaced_is_let_go() -> None:
    x = Tensor(START.copy())
    part = x[0]
    x.assign_value(Tensor(START * 2))
    part[0] = 1.0
    x.set_dtype(ms.float16)
    part[1] = 3.0
    assert part.asnumpy()[1].tolist() == [3, 3, 3, 3]
    assert x.asnumpy()[0, 1].tolist() == [8, 10, 12, 14]


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
    error = error_of(lambda: OfAValue()(WIDE))
    assert error.message == "Assign overwrites a parameter, and its first operand is a computed value"
    assert error.notes == (
        "a value has no place: give the result a name, as in x = x.add(1) instead of x.add_(1)",
    )


def test_a_parameter_says_what_it_is_trained_for() -> None:
    weight = ms.Parameter(Tensor(X), "w")
    assert weight.requires_grad_(False) is weight
    assert not weight.requires_grad
    assert Tensor(X).requires_grad_().shape == (2, 3)
