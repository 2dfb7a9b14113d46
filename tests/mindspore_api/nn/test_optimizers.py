"""Optimizers: rates, groups, states, and formulas that `tests/oracle` has not. `construct` runs at once here: the same
operators as in a graph, with NumPy.
"""

from __future__ import annotations

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn
from mspc.mindspore_api.nn.optim.optimizer import opt_init_args_register

START = np.array([1.0, -2.0, 3.0], np.float32)
GRADS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def run(make, steps=GRADS, name="w"):
    """The values of one parameter after every step."""
    w = Parameter(Tensor(START.copy()), name)
    optimizer = make([w])
    found = []
    for gradient in steps:
        optimizer.construct((Tensor(gradient),))
        found.append(w.asnumpy())
    return np.array(found), optimizer


def close(found, expected):
    np.testing.assert_allclose(found, np.array(expected), rtol=2e-6, atol=1e-6)


def test_states_have_the_names_of_their_parameters():
    _, optimizer = run(lambda p: nn.Momentum(p, 0.1, 0.9))
    assert optimizer.global_step.asnumpy().tolist() == [4]
    assert optimizer.moments[0].name == "moments.w"


def test_decay_spares_beta_and_gamma():
    plain, _ = run(lambda p: nn.Momentum(p, 0.1, 0.9), name="norm.beta")
    decayed, _ = run(lambda p: nn.Momentum(p, 0.1, 0.9, weight_decay=0.5), name="norm.beta")
    close(plain, decayed)


@pytest.mark.parametrize("half", [ms.float16, ms.bfloat16], ids=str)
def test_adam_of_halves_has_its_numbers_in_float32(half):
    """0.999 is 1 in BFloat16."""
    w = Parameter(Tensor(START, half), "w")
    optimizer = nn.Adam([w], 0.1)
    expected, _ = run(lambda p: nn.Adam(p, 0.1))
    for gradient, value in zip(GRADS, expected, strict=True):
        optimizer.construct((Tensor(gradient, half),))
        np.testing.assert_allclose(w.asnumpy().astype(np.float32), value, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("power", "l1", "l2"), [(-0.5, 0.0, 0.0), (-0.5, 0.4, 0.1), (-0.3, 0.4, 0.0)])
def test_ftrl(power, l1, l2):
    found, optimizer = run(lambda p: nn.FTRL(p, 0.2, 0.1, power, l1, l2))
    w, a, z, expected = START.astype(float), 0.2, 0.0, []
    for g in GRADS:
        b = a + g * g
        z = z + g - (b**-power - a**-power) / 0.1 * w
        w = np.where(np.abs(z) > l1, (np.sign(z) * l1 - z) / (b**-power / 0.1 + 2 * l2), 0.0)
        a = b
        expected.append(w)
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-4, atol=1e-6)
    assert [optimizer.moments[0].name, optimizer.linear[0].name] == ["moments.w", "linear.w"]


def test_lamb_moves_a_parameter_of_zeros():
    w = Parameter(Tensor(np.zeros(3, np.float32)), "w")
    nn.Lamb([w], 0.5).construct((Tensor(GRADS[0]),))
    np.testing.assert_allclose(w.asnumpy(), -0.5 * np.sign(GRADS[0]), rtol=1e-4)


def test_learning_rates_as_a_list_hold_the_last():
    found, optimizer = run(lambda p: nn.SGD(p, [0.4, 0.2, 0.1]))
    rates = np.array([0.4, 0.2, 0.1, 0.1])
    close(found, START - np.cumsum(rates[:, None] * GRADS, 0))
    assert optimizer.learning_rate.shape == (3,)


def test_schedules():
    found, _ = run(lambda p: nn.SGD(p, nn.CosineDecayLR(0.1, 0.5, 2)))
    rates = np.array([0.5, 0.3, 0.1, 0.1])
    close(found, START - np.cumsum(rates[:, None] * GRADS, 0))
    found, _ = run(lambda p: nn.SGD(p, nn.WarmUpLR(0.4, 2)))
    close(found, START - np.cumsum(np.array([0, 0.2, 0.4, 0.4])[:, None] * GRADS, 0))
    found, _ = run(lambda p: nn.SGD(p, nn.ExponentialDecayLR(0.4, 0.5, 2, is_stair=True)))
    close(found, START - np.cumsum(np.array([0.4, 0.4, 0.2, 0.2])[:, None] * GRADS, 0))


def test_groups_have_their_own_rate_and_decay():
    a, b = Parameter(Tensor([1.0]), "a"), Parameter(Tensor([1.0]), "b")
    groups = [{"params": [a], "lr": 0.5, "weight_decay": 0.1}, {"params": [b]}, {"order_params": [a, b]}]
    optimizer = nn.SGD(groups, 0.1)
    assert [rate.name for rate in optimizer.learning_rate] == ["learning_rate_group_0", "learning_rate_group_1"]
    optimizer.construct((Tensor([1.0]), Tensor([1.0])))
    assert (a.item(), b.item()) == (pytest.approx(1 - 0.5 * 1.1), pytest.approx(0.9))


def test_dynamic_rates():
    assert nn.exponential_decay_lr(0.1, 0.5, 4, 2, 1) == [0.1, 0.1, 0.05, 0.05]


def test_a_gradient_too_few_is_an_error():
    optimizer = nn.SGD([Parameter(Tensor([1.0]), "a"), Parameter(Tensor([1.0]), "b")])
    with pytest.raises(ValueError, match=r"SGD\.prepared: these arguments do not fit: gradients="):
        optimizer.construct((Tensor([1.0]),))


def test_the_learning_rate_is_one_tensor_unless_groups_have_their_own():
    _, optimizer = run(lambda p: nn.Momentum(p, [0.4, 0.3, 0.2, 0.1, 0.05], 0.9))
    assert optimizer.get_lr().asnumpy() == np.float32(0.05)
    w, v = (Parameter(Tensor(START), name) for name in "wv")
    grouped = nn.Momentum([{"params": [w], "lr": 0.5}, {"params": [v]}], 0.1, 0.9)
    assert [rate.asnumpy() for rate in grouped.get_lr()] == [np.float32(0.5), np.float32(0.1)]


@pytest.mark.parametrize(("kind", "name"), [(nn.Adam, "var"), (nn.SGD, "parameters"), (nn.AdamWeightDecay, "var")])
def test_only_floating_point_parameters_are_trained(kind, name):
    count = Parameter(Tensor(np.ones(3, np.int32)), "count")
    message = rf"{kind.__name__}: input 0 \({name}\) is Int32; only floating-point parameters are trained"
    with pytest.raises(TypeError, match=message):
        kind([count])((Tensor(np.ones(3, np.int32)),))


def test_optimizers_of_scripts_have_constructors_of_their_own():
    class Mine(nn.SGD):
        @opt_init_args_register
        def __init__(self, params, learning_rate=0.1, *, power: float = 2.0):
            super().__init__(params, learning_rate * power)

    assert Mine([Parameter(Tensor(START.copy()), "w")], 0.5, power=3.0).get_lr() == 1.5


@pytest.mark.parametrize("make", [
    nn.Adam, nn.AdamWeightDecay, nn.Lamb, nn.Momentum, nn.SGD,
])  # fmt: skip
def test_a_weight_decay_of_steps_counts_from_0(make):
    """The decay of the first step is what the cell gives for 0, as the rate of the first step is its schedule's."""

    class AfterTheFirst(nn.Cell):
        def construct(self, step):
            return 100.0 * step.astype(ms.float32)

    def after_a_step(decay):
        weight = Parameter(Tensor(np.array([2.0, -3.0], np.float32)), "w")
        named = {"momentum": 0.0} if make is nn.Momentum else {}
        make([weight], learning_rate=0.1, weight_decay=decay, **named)((Tensor(np.array([0.5, 1.0], np.float32)),))
        return weight.asnumpy()

    np.testing.assert_allclose(after_a_step(AfterTheFirst()), after_a_step(0.0), rtol=1e-6)
