"""Optimizers: rates, groups, states, and formulas that `tests/oracle` has not. `construct` runs at once here: the same
operators as in a graph, with NumPy.
"""

from typing import Any

import numpy as np
import pytest
from training import Training, floats

import mspc as ms
from mspc import Parameter, Tensor, amp, mint, nn, ops
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


X, Y = floats(3, 8, 8), floats(4, 8, 16)
SHAPES = [(8, 8), (8, 16)]
OPTIMIZERS = {
    "amsgrad": lambda p: nn.Adam(p, 0.05, use_amsgrad=True, weight_decay=0.1),
    "lars": lambda p: nn.LARS(nn.Momentum(p, 0.1, 0.9, 0.01), coefficient=0.1),
    "rmsprop": lambda p: nn.RMSProp(p, 0.05, centered=True, weight_decay=0.1),
    "mint adamw": lambda p: mint.optim.AdamW(p, 0.05, amsgrad=True),
    "mint groups": lambda p: mint.optim.Adam([{"params": p[:1], "betas": (0.5, 0.8)}, {"params": p[1:]}], 0.05),
    "mint sgd": lambda p: mint.optim.SGD(p, 0.05, 0.9, weight_decay=0.1),
}
SPREAD: list[dict[str, Any]] = [
    {"mode": "semi_auto_parallel", "parallel_optimizer": True, "parallel_optimizer_threshold": 0},
    {"mode": "auto_parallel"},
]


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(floats(1, 8, 16)), "w")
        self.b = Parameter(Tensor(floats(2, 16)), "b")
        self.product = ops.MatMul().shard(((2, 2), (2, 1)))

    def construct(self, x: Any, y: Any) -> Any:
        return ops.square(self.product(x, self.w) + self.b - y).mean()


def trained(make: Any, **spread: Any) -> Any:
    net = Net()
    training = Training(nn.TrainOneStepCell(net, make(net.trainable_params())), SHAPES, **spread)
    training.run([(X, Y)] * 3)
    return training.states[-1]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ranks_equal_one_device(name: str) -> None:
    alone = trained(OPTIMIZERS[name])
    for spread in SPREAD:
        for state, array in trained(OPTIMIZERS[name], ranks=4, **spread).items():
            np.testing.assert_allclose(array, alone[state], rtol=1e-5, atol=1e-6, err_msg=f"{state}, {spread}")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_overflow_changes_no_state(name: str) -> None:
    class Loss(nn.Cell):
        def construct(self, logits: Any, label: Any) -> Any:
            return ops.square(logits - label).mean()

    net, manager = nn.Dense(8, 16), amp.DynamicLossScaleManager(2.0, 2, 1000)
    optimizer = OPTIMIZERS[name](net.trainable_params())
    step = amp.build_train_network(net, optimizer, Loss(), "O2", loss_scale_manager=manager)
    training = Training(step, SHAPES)
    found = training.run([(X, Y), (X, Y * np.float32(1e25)), (X, Y)])
    assert [bool(overflow) for _, overflow, _ in found] == [False, True, False]
    changed = {s for s, a in training.states[0].items() if a.tobytes() != training.states[1][s].tobytes()}
    assert changed == {"scale_sense", "current_iterator_step", "last_overflow_iterator_step"}
    assert (training.states[1]["weight"] != training.states[2]["weight"]).any()


class SelfAttention(nn.Cell):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout)
        self.norm = nn.LayerNorm((8,))

    def construct(self, x: Any) -> Any:
        return self.norm(x + self.attention(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize(
    "make",
    [lambda: nn.LSTM(8, 4, 2, bidirectional=True), lambda: nn.GRU(8, 4, batch_first=True),
     lambda: SelfAttention(0.0), lambda: SelfAttention(0.5)],
    ids=["lstm", "gru", "attention", "attention with dropout"],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
def test_layers_of_sequences(make: Any, mode: str) -> None:
    class Step(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.layer = make()
            self.both = ops.value_and_grad(self.loss, None, list(self.layer.trainable_params()))

        def loss(self, x: Any) -> Any:
            found = self.layer(x)
            return ops.square(found[0] if isinstance(found, tuple) else found).sum()

        def construct(self, x: Any) -> Any:
            loss, gradients = self.both(x)
            return loss, gradients

    cell, x = Step().set_train(), floats(5, 4, 8, 8)
    loss, gradients = Training(cell, [x.shape]).run([(x,)])[0]
    sharded, found = Training(cell, [x.shape], 4, mode).run([(x,)])[0]
    np.testing.assert_allclose(sharded, loss, rtol=1e-5)
    for one, other in zip(found, gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
