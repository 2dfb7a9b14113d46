"""Values that branches leave in other shapes, types or lengths are used as the one that they are, as Python does."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from interpret import run_global

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.frontend.trace import trace
from mspc.ir.types import FLOAT32, TensorType
from mspc.mindspore_api.common.gradient import value_and_grad
from mspc.mindspore_api.common.tensor import Tensor as ContextTensor
from tests.errors import error_of

CASES: list[Callable[[Any], Any]] = []


def case(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    CASES.append(function)
    return function


@case
def returned(x):
    return x if x.sum() > 0 else x[:1]


@case
def used_and_returned(x):
    y = x.sum() if x.sum() > 0 else x
    z = -y + 1
    return z, {"a": [z * x, 3]}, z > 0


@case
def heavy(x):
    if x.sum() > 0:
        y = ops.exp(x).reshape(1, 2)
    else:
        y = x * x
    return ops.tanh(y).sum() + y.shape[0], y[..., 0]


@case
def types(x):
    if x.sum() > 0:
        x = x.astype(ms.float64) * x.astype(ms.float64)
    return x.mean(), x * 2


@case
def a_number_or_a_tensor(x):
    y = 2.5 if x.sum() > 0 else x.astype(ms.int32)
    return y * 2, x + y


@case
def lists(x):
    y = [1, 2] if x.sum() > 0 else [3, 4, 5]
    return y[1] + y[0] + x, len(y) + x


@case
def tensors_in_lists(x):
    y = [x, x * 2] if x.sum() > 0 else [x + 1, x, x]
    return y[0] + y[-1]


@case
def two_of_them(x):
    y = x if x.sum() > 0 else x[:1]
    z = x[1:] if x[0] > 0 else x
    return y + z


@case
def in_branches_of_branches(x):
    if x.sum() > 0:
        y = x if x[0] > 1 else x[:1]
        z = (y * 2).sum()
    else:
        z = x[1]
    return z


@case
def returns_of_other_structures(x):
    if x.sum() > 0:
        return x * x
    return x, x * x


@case
def calls_of_methods(x):
    y = ops.tanh(x) if x.sum() > 0 else x[:1]
    return y.reshape(-1, 1).sum(0), y.shape, y.dtype == x.dtype


def square(x, by=None):
    return x * x + (0 if by is None else by)


@case
def functions(x):
    y = x if x.sum() > 0 else x[:1]
    return square(y, by=y).sum(), ops.relu(y).max(), isinstance(y, Tensor)


VALUES = ([2.0, 3.0], [-1.0, -2.0], [-1.0, 3.0], [2.0, -3.0], [0.5, 1.0])


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [each for item in value.values() for each in flat(item)]
    if isinstance(value, tuple | list):
        return [each for item in value for each in flat(item)]
    return [np.asarray(value.asnumpy() if isinstance(value, Tensor) else value)]


@pytest.mark.parametrize("function", CASES)
@pytest.mark.parametrize("values", VALUES)
def test_it_is_what_python_gives(function: Callable[[Any], Any], values: list[float]) -> None:
    x = Tensor(np.array(values, np.float32))
    found, wanted = flat(ms.jit(function)(x)), flat(function(x))
    assert [each.shape for each in found] == [each.shape for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(("values", "gradient"), [([2.0, 3.0], [0.5, 1 / 3]), ([0.0, -2.0], [0.0, -4.0])])
def test_gradients_are_those_of_the_way_taken(values: list[float], gradient: list[float]) -> None:
    """The logarithm of what is not there leaves no trace in the gradient."""

    def function(x: Any) -> Any:
        y = x if x.sum() > 0 else x[1:]
        return ops.log(y).sum() if y.shape[0] == 2 else (y * y).sum()

    found = ms.jit(lambda x: ms.grad(function)(x))(Tensor(np.array(values, np.float32)))
    np.testing.assert_allclose(found.asnumpy(), gradient, rtol=1e-6)


class Updates(nn.Cell):
    """A call with such a value updates where it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.count = Parameter(np.zeros((), np.float32), "count")

    def add(self, y: Any) -> Any:
        self.count += y.sum()
        return y

    def construct(self, x: Any) -> Any:
        y = x if x.sum() > 0 else x[:1]
        return self.add(y) * 2


def test_what_is_called_with_it_updates_once() -> None:
    net = Updates()
    for values, result, count in (([2.0, 3.0], [4.0, 6.0], 5.0), ([-1.0, 0.5], [-2.0], 4.0)):
        assert net(Tensor(np.array(values, np.float32))).asnumpy().tolist() == result
        assert net.count.asnumpy() == count


X = np.arange(6, dtype=np.float32).reshape(2, 3)
LEFT: list[str] = []


class Shifted:
    """A context of the script."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __enter__(self) -> float:
        return self.by

    def __exit__(self, *error: Any) -> None:
        self.by = 0.0


def null_context(x):
    with contextlib.nullcontext(), contextlib.nullcontext(3) as three:
        x = x * three
    return x


def own_context(x):
    shifted = Shifted(2.0)
    with shifted as by:
        inside = x + by + shifted.by
    return inside - shifted.by


def returned_from_a_context(x):
    with Shifted(1.0) as by:
        return x + by


def nothing_joined(x):
    return ops.concat((x[:, 3:], x[:, :0], x * 2, x[:, 2:1]), 1)


def sum_of_nothing(x):
    return x[2:].sum() + ops.relu(x[::-1][5:]).sum() + x.sum()


@pytest.mark.parametrize(
    "function", [null_context, own_context, returned_from_a_context, nothing_joined, sum_of_nothing],
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_the_graph_gives_what_python_gives(function: Callable[..., Any]) -> None:
    result = trace(function, [TensorType(FLOAT32, X.shape)])
    (found,) = run_global(result.graph, {result.graph.parameters[0].name: X})
    np.testing.assert_allclose(found, function(ContextTensor(X)).asnumpy())


class Holder(nn.Cell):
    """Sets an attribute that its own method and another cell read."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 2)

    def construct(self, x: Any) -> Any:
        self.hidden = self.dense(x)
        self.rows = x.shape[0]
        return self.scaled() + self.hidden

    def scaled(self) -> Any:
        return self.hidden * self.rows


def test_an_attribute_holds_its_new_value_until_the_call_ends(capsys: pytest.CaptureFixture[str]) -> None:
    net = Holder()
    value, gradients = value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())(ContextTensor(X))
    weight, bias = net.dense.weight.asnumpy(), net.dense.bias.asnumpy()
    np.testing.assert_allclose(value.asnumpy(), (3 * (X @ weight.T + bias)).sum(), rtol=1e-5)
    np.testing.assert_allclose(gradients[0].asnumpy(), np.tile(3 * X.sum(0), (2, 1)), rtol=1e-5)
    assert not hasattr(net, "hidden")
    said = "attribute 'hidden' keeps its new value until the compiled function ends; the script does not see it"
    assert said in capsys.readouterr().err


def test_what_is_set_between_two_calls_counts_in_the_second() -> None:
    class Reads(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.by = 1.0

        def construct(self, x: Any) -> Any:
            return x * self.by

    reads = Reads()

    class Sets(nn.Cell):
        def construct(self, x: Any) -> Any:
            reads.by = 2.0
            first = reads(x)
            reads.by = 5.0
            return first, reads(x)

    twice, five = Sets()(ContextTensor(X))
    np.testing.assert_array_equal(twice.asnumpy(), 2 * X)
    np.testing.assert_array_equal(five.asnumpy(), 5 * X)
    assert reads.by == 1.0


class Wrong(nn.Cell):
    def __init__(self, use: Callable[..., Any]) -> None:
        super().__init__()
        self.use = use
        self.count = ContextTensor(np.zeros(3, np.float32))
        self.dense = nn.Dense(3, 3)

    def construct(self, x: Any) -> Any:
        return self.use(self, x)


def counted(self, x):
    self.count = self.count + x
    return self.count


def replaced_cell(self, x):
    self.dense = x
    return x


def of_the_class(self, x):
    self.training = False
    return x


@pytest.mark.parametrize(("use", "message"), [
    (counted, "attribute 'count' is set after it is read, so that its value would be stored from call to call"),
    (replaced_cell, "attribute 'dense' cannot become another cell or Parameter: make them in __init__"),
    (of_the_class, "attribute 'training' cannot be set inside a compiled function"),
], ids=lambda value: getattr(value, "__name__", ""))  # fmt: skip
def test_what_cannot_be_set_is_refused(use: Callable[..., Any], message: str) -> None:
    assert error_of(lambda: Wrong(use)(ContextTensor(X))).message == message
