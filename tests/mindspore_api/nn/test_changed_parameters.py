"""A `construct` that changes parameters: it runs once in a training step, in every form of asking for gradients, and
its gradients are those of what it read."""

from typing import Any

import numpy as np
import pytest
from training import Training, floats

import mspc as ms
from mspc import Parameter, Tensor, nn, ops

ROWS, COLUMNS = 8, 4
X = floats(1, ROWS, COLUMNS)
W1, W2 = floats(2, COLUMNS, 6), floats(3, 6, 2)


class Counting(nn.Cell):
    """A loss that counts its calls."""

    def __init__(self, factor: Any = None) -> None:
        super().__init__()
        self.w1, self.w2 = Parameter(Tensor(W1), "w1"), Parameter(Tensor(W2), "w2")
        self.count = Parameter(Tensor(np.float32(0)), "count", requires_grad=False)
        self.scale = Parameter(Tensor(np.full((6,), 2, np.float32)), "scale", requires_grad=False)
        self.add, self.assign = ops.AssignAdd(), ops.Assign()

    def loss(self, x: Any, factor: Any = 1.0) -> Any:
        self.add(self.count, 1.0)
        hidden = ops.matmul(x, self.w1) * self.scale
        return (ops.matmul(hidden, self.w2) ** 2).mean() * factor

    def construct(self, x: Any, factor: Any = 1.0) -> Any:
        return self.loss(x, factor)


class Outer(nn.Cell):
    def __init__(self, net: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, x: Any) -> Any:
        return self.net(x) + 1.0


class Asking(nn.Cell):
    """Asks for gradients as one of the functions below does."""

    def __init__(self, form: Any) -> None:
        super().__init__(auto_prefix=False)
        self.net = Counting()
        self.form = form
        self.weights = ms.ParameterTuple([self.net.w1, self.net.w2])
        self.grad = ops.GradOperation(get_by_list=True)

    def construct(self, x: Any) -> Any:
        return self.form(self, x)


def by_function(cell: Any, x: Any) -> Any:
    return ms.value_and_grad(cell.net, None, cell.weights)(x)


def with_aux(cell: Any, x: Any) -> Any:
    def forward(x: Any) -> Any:
        return cell.net(x), x * 2.0

    (loss, _), grads = ms.value_and_grad(forward, None, cell.weights, has_aux=True)(x)
    return loss, grads


def in_two_calls(cell: Any, x: Any) -> Any:
    return cell.net(x), cell.grad(cell.net, cell.weights)(x)


def of_a_method(cell: Any, x: Any) -> Any:
    return cell.net.loss(x), ms.grad(cell.net.loss, None, cell.weights)(x)


def of_an_inner_function(cell: Any, x: Any) -> Any:
    def forward(x: Any) -> Any:
        return cell.net(x)

    return forward(x), ms.grad(forward, None, cell.weights)(x)


def with_a_number(cell: Any, x: Any) -> Any:
    return cell.net(x, 1.0), cell.grad(cell.net, cell.weights)(x, 1.0)


def by_name(cell: Any, x: Any) -> Any:
    return cell.net(x, factor=1.0), cell.grad(cell.net, cell.weights)(x, 1.0)


def for_weights_and_inputs(cell: Any, x: Any) -> Any:
    loss = cell.net(x)
    both = ms.grad(cell.net, 0, cell.weights)(x)
    return loss, both[1]


def for_what_comes_from_the_weights(cell: Any, x: Any) -> Any:
    hidden = x + 0.0 * cell.net.w1.sum()
    return cell.net(hidden), cell.grad(cell.net, cell.weights)(hidden)


def with_something_captured_from_the_weights(cell: Any, x: Any) -> Any:
    one = 1.0 + 0.0 * cell.net.w1.sum()
    return ms.value_and_grad(lambda x: cell.net(x) * one, None, cell.weights)(x)


FORMS = [
    by_function, with_aux, in_two_calls, of_a_method, of_an_inner_function, with_a_number, by_name,
    for_weights_and_inputs, for_what_comes_from_the_weights, with_something_captured_from_the_weights,
]  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_forward_runs_once_for_value_and_gradient(form: Any, ranks: int) -> None:
    training = Training(Asking(form), [(ROWS, COLUMNS)], ranks, "semi_auto_parallel")
    for loss, (one, two) in training.run([[X]] * 3):
        hidden = X @ W1 * 2
        out = hidden @ W2
        np.testing.assert_allclose(loss, (out**2).mean(), 1e-5)
        np.testing.assert_allclose(two, hidden.T @ (2 * out / out.size), 1e-4, 1e-4)
        np.testing.assert_allclose(one, X.T @ (2 * out / out.size @ W2.T * 2), 1e-4, 1e-4)
    assert [state["count"] for state in training.states] == [1, 2, 3]


@pytest.mark.parametrize(
    ("step", "counts"),
    [
        (lambda net, optimizer: nn.TrainOneStepCell(net, optimizer), 1),
        (lambda net, optimizer: nn.TrainOneStepCell(Outer(net), optimizer), 1),
        (lambda net, optimizer: nn.TrainOneStepCell(net, optimizer, sens=2.0), 1),
        (lambda net, optimizer: nn.TrainOneStepCell(net.recompute() or net, optimizer), 1),
        (lambda net, optimizer: nn.TrainOneStepCell(nn.GradAccumulationCell(net, 2), optimizer), 2),
        (lambda net, optimizer: nn.TrainOneStepWithLossScaleCell(net, optimizer, Tensor(np.float32(8))), 1),
        (
            lambda net, optimizer: nn.TrainOneStepWithLossScaleCell(
                net, optimizer, nn.DynamicLossScaleUpdateCell(8.0, 2, 2)
            ),
            1,
        ),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_training_step_runs_the_network_once(step: Any, counts: int, ranks: int) -> None:
    net = Counting()
    cell = step(net, nn.SGD([net.w1, net.w2], 0.01))
    training = Training(cell, [(ROWS, COLUMNS)], ranks, "semi_auto_parallel")
    training.run([[X]] * 3)
    assert [state["count"] for state in training.states] == [counts, 2 * counts, 3 * counts]


def called_twice(cell: Any, x: Any) -> Any:
    return cell.net(x) + cell.net(x), cell.grad(cell.net, cell.weights)(x)


def asked_twice(cell: Any, x: Any) -> Any:
    one = ms.value_and_grad(cell.net, None, cell.weights)(x)
    return one, ms.value_and_grad(cell.net, None, cell.weights)(x)


def changed_between(cell: Any, x: Any) -> Any:
    loss = cell.net(x)
    cell.net.assign(cell.net.scale, cell.net.scale * 2.0)
    return loss, cell.grad(cell.net, cell.weights)(x)


def with_another_value_captured(cell: Any, x: Any) -> Any:
    factor = 1.0

    def forward(x: Any) -> Any:
        return cell.net(x) * factor

    loss = forward(x)
    factor = 2.0
    return loss, ms.grad(forward, None, cell.weights)(x)


@pytest.mark.parametrize("form", [called_twice, asked_twice, changed_between, with_another_value_captured])
def test_separate_calls_are_separate_runs(form: Any) -> None:
    training = Training(Asking(form), [(ROWS, COLUMNS)])
    training.run([[X]])
    assert training.states[0]["count"] == 2


def test_a_gradient_behind_a_change_is_that_of_the_changed_parameter() -> None:
    training = Training(Asking(changed_between), [(ROWS, COLUMNS)])
    loss, (_, two) = training.run([[X]])[0]
    hidden = X @ W1
    np.testing.assert_allclose(loss, ((hidden @ W2 * 2) ** 2).mean(), 1e-5)
    np.testing.assert_allclose(two, (4 * hidden).T @ (8 * hidden @ W2 / (ROWS * 2)), 1e-4, 1e-4)


class Reading(Counting):
    """Changes what it has read: the state between two products, and the second weight."""

    def construct(self, x: Any) -> Any:
        hidden = ops.matmul(x, self.w1) * self.scale
        self.assign(self.scale, self.scale * 3.0)
        out = ops.matmul(hidden * self.scale, self.w2)
        self.add(self.w2, ops.ones_like(self.w2))
        self.assign(self.scale, self.scale + 1.0)
        return (out**2).mean()


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_use_what_the_forward_part_has_read(ranks: int, recomputed: bool) -> None:
    net = Reading()
    if recomputed:
        net.recompute()
    cell = nn.ForwardValueAndGrad(net, [net.w1, net.w2], get_by_list=True)
    training = Training(cell, [(ROWS, COLUMNS)], ranks, "semi_auto_parallel")
    scale, w2 = np.full(6, 2, np.float32), W2
    for (loss, (one, two)), state in zip(training.run([[X]] * 2), training.states, strict=True):
        hidden = X @ W1 * scale * (3 * scale)
        out = hidden @ w2
        np.testing.assert_allclose(loss, (out**2).mean(), 1e-5)
        np.testing.assert_allclose(two, hidden.T @ (2 * out / out.size), 1e-3, 1e-3)
        np.testing.assert_allclose(one, X.T @ (2 * out / out.size @ w2.T * scale * (3 * scale)), 1e-3, 1e-3)
        scale, w2 = 3 * scale + 1, w2 + 1
        np.testing.assert_allclose(state["scale"], scale)
        np.testing.assert_allclose(state["w2"], w2)


class Fed(Counting):
    """The result of an update is part of the loss."""

    def __init__(self, update: str) -> None:
        super().__init__()
        self.update = getattr(ops, update)()

    def construct(self, x: Any) -> Any:
        return self.update(self.count, (ops.matmul(x, self.w1) ** 2).mean()) ** 2


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("update", "sign", "before"), [("Assign", 1, 0), ("AssignAdd", 1, 1), ("AssignSub", -1, 1)])
def test_an_update_passes_the_gradient_of_its_result(update: str, sign: int, before: int, ranks: int) -> None:
    net = Fed(update)
    net.count.set_data(Tensor(np.float32(0.5)))
    training = Training(nn.ForwardValueAndGrad(net, [net.w1], get_by_list=True), [(ROWS, COLUMNS)], ranks,
                        "semi_auto_parallel")  # fmt: skip
    loss, (one,) = training.run([[X]])[0]
    out = X @ W1
    value = 0.5 * before + sign * (out**2).mean()
    np.testing.assert_allclose(loss, value**2, 1e-5)
    np.testing.assert_allclose(training.states[0]["count"], value, 1e-5)
    np.testing.assert_allclose(one, 2 * value * sign * X.T @ (2 * out / out.size), 1e-4, 1e-4)


class Dropping(Counting):
    """Counts, and drops elements: both results are differentiated, so that the gradient is twice what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p=0.5)
        self.w3 = Parameter(Tensor(np.ones((ROWS, COLUMNS), np.float32)), "w3")
        self.set_train()

    def construct(self, x: Any) -> Any:
        self.add(self.count, 1.0)
        dropped = self.dropout(ops.ones_like(x) * self.w3)
        return dropped.sum(), dropped


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("recomputed", [False, True])
def test_masks_of_forward_and_backward_are_equal(ranks: int, recomputed: bool) -> None:
    net = Dropping()
    if recomputed:
        net.recompute()
    cell = nn.ForwardValueAndGrad(net, [net.w3], get_by_list=True)
    training = Training(cell, [(ROWS, COLUMNS)], ranks, "semi_auto_parallel")
    for step, ((_, dropped), (gradient,)) in enumerate(training.run([[X]] * 2)):
        np.testing.assert_allclose(gradient, 2 * dropped)
        assert training.states[step]["count"] == step + 1
