"""`with` inside of networks, attributes that `construct` sets, and slices that take nothing: what Python gives on eager
tensors, or a refusal with what to write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from interpret import run_global

from mspc import nn, ops
from mspc.compiler.frontend.trace import trace
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, TensorType
from mspc.mindspore_api.common.gradient import value_and_grad
from mspc.mindspore_api.common.tensor import Tensor

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
    np.testing.assert_allclose(found, function(Tensor(X)).asnumpy())


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
    value, gradients = value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())(Tensor(X))
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

    twice, five = Sets()(Tensor(X))
    np.testing.assert_array_equal(twice.asnumpy(), 2 * X)
    np.testing.assert_array_equal(five.asnumpy(), 5 * X)
    assert reads.by == 1.0


class Wrong(nn.Cell):
    def __init__(self, use: Callable[..., Any]) -> None:
        super().__init__()
        self.use = use
        self.count = Tensor(np.zeros(3, np.float32))
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
    with pytest.raises(MspcError) as raised:
        Wrong(use)(Tensor(X))
    assert raised.value.message == message
