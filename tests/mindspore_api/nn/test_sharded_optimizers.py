"""Optimizers made of small operators: on ranks, with their states sharded too, and under a loss scale that
overflows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training import Training, floats

from mspc import Parameter, Tensor, amp, mint, nn, ops

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
