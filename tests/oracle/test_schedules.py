"""Learning rates against PyTorch's schedules, and lists against cells; MindSpore counts lists in epochs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

T = torch.optim.lr_scheduler
STEPS = 12


def judged(make: Any, start: float = 0.4) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], start)
    schedule, found = make(optimizer), []
    for _ in range(STEPS):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return found


def taken(schedule: Any) -> list[float]:
    """The rates of the steps of a compiled optimizer."""
    weight = Parameter(Tensor(np.zeros(1, np.float32)), "w")
    optimizer, before, found = nn.SGD([weight], schedule), 0.0, []
    for _ in range(STEPS):
        optimizer((Tensor(np.ones(1, np.float32)),))
        found.append(before - float(weight.asnumpy()[0]))
        before = float(weight.asnumpy()[0])
    return found


CASES: list[tuple[str, Any, Any]] = [  # beside those of optimizer_cases
    ("polynomial that begins anew", lambda: nn.PolynomialDecayLR(0.4, 0.1, 4, 0.5, True),
     lambda o: T.LambdaLR(o, lambda s: (0.3 * (1 - s / (4 * max(1, math.ceil(s / 4)))) ** 0.5 + 0.1) / 0.4)),
    ("natural stairs", lambda: nn.NaturalExpDecayLR(0.4, 0.3, 4, True),
     lambda o: T.LambdaLR(o, lambda s: math.exp(-0.3 * 4 * (s // 4)))),
    ("inverse stairs", lambda: nn.InverseDecayLR(0.4, 0.5, 4, True),
     lambda o: T.LambdaLR(o, lambda s: 1 / (1 + 0.5 * (s // 4)))),
]  # fmt: skip


@pytest.mark.parametrize(("mine", "theirs"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_cells(mine: Any, theirs: Any) -> None:
    np.testing.assert_allclose(taken(mine()), judged(theirs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rates", "cell"),
    [
        (lambda: nn.exponential_decay_lr(0.4, 0.5, STEPS, 1, 4), lambda: nn.ExponentialDecayLR(0.4, 0.5, 4)),
        (lambda: nn.exponential_decay_lr(0.4, 0.5, STEPS, 1, 4, True),
         lambda: nn.ExponentialDecayLR(0.4, 0.5, 4, True)),
        (lambda: nn.natural_exp_decay_lr(0.4, 0.3, STEPS, 1, 4), lambda: nn.NaturalExpDecayLR(0.4, 0.3, 4)),
        (lambda: nn.natural_exp_decay_lr(0.4, 0.3, STEPS, 1, 4, True),
         lambda: nn.NaturalExpDecayLR(0.4, 0.3, 4, True)),
        (lambda: nn.inverse_decay_lr(0.4, 0.5, STEPS, 1, 4), lambda: nn.InverseDecayLR(0.4, 0.5, 4)),
        (lambda: nn.inverse_decay_lr(0.4, 0.5, STEPS, 1, 4, True), lambda: nn.InverseDecayLR(0.4, 0.5, 4, True)),
        (lambda: nn.cosine_decay_lr(0.1, 0.4, STEPS, 1, 8), lambda: nn.CosineDecayLR(0.1, 0.4, 8)),
        (lambda: nn.polynomial_decay_lr(0.4, 0.1, STEPS, 1, 8, 2.0), lambda: nn.PolynomialDecayLR(0.4, 0.1, 8, 2.0)),
        (lambda: nn.polynomial_decay_lr(0.4, 0.1, STEPS, 1, 4, 0.5, True),
         lambda: nn.PolynomialDecayLR(0.4, 0.1, 4, 0.5, True)),
        (lambda: nn.warmup_lr(0.4, STEPS, 1, 5), lambda: nn.WarmUpLR(0.4, 5)),
    ],
)  # fmt: skip
def test_lists_are_cells_counted_in_epochs(rates: Any, cell: Any) -> None:
    listed = rates()
    np.testing.assert_allclose(listed, taken(cell()), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(taken(listed), listed, rtol=1e-5, atol=1e-6)


def test_epochs_are_whole() -> None:
    assert nn.exponential_decay_lr(0.1, 0.9, 6, 2, 1) == pytest.approx([0.1, 0.1, 0.09, 0.09, 0.081, 0.081])
    assert nn.natural_exp_decay_lr(0.1, 0.9, 6, 2, 2, True) == pytest.approx([0.1] * 4 + [0.1 * math.exp(-1.8)] * 2)
    assert nn.inverse_decay_lr(0.1, 0.5, 6, 1, 1, True) == pytest.approx([0.1 / (1 + 0.5 * i) for i in range(6)])
    assert nn.cosine_decay_lr(0.01, 0.1, 6, 2, 2)[2:] == pytest.approx([0.055, 0.055, 0.01, 0.01])
    assert nn.polynomial_decay_lr(0.1, 0.01, 6, 2, 2, 0.5)[2:4] == pytest.approx([0.09 * 0.5**0.5 + 0.01] * 2)
    assert nn.warmup_lr(0.1, 6, 2, 2) == pytest.approx([0.0, 0.0, 0.05, 0.05, 0.1, 0.1])
    assert nn.piecewise_constant_lr([2, 5], [0.1, 0.05]) == [0.1, 0.1, 0.05, 0.05, 0.05]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.CosineDecayLR(0.4, 0.1, 8), "CosineDecayLR: max_lr 0.1 must be above 0.4"),
        (lambda: nn.WarmUpLR(0.4, 0), "WarmUpLR: warmup_steps 0 must be at least 1"),
        (lambda: nn.ExponentialDecayLR(0.0, 0.5, 4), "ExponentialDecayLR: learning_rate 0.0 must be above 0"),
        (lambda: nn.PolynomialDecayLR(0.4, 0.1, 4, 0.0), "PolynomialDecayLR: power 0.0 must be above 0"),
        (lambda: nn.InverseDecayLR(0.4, 0.5, 4, 1), "InverseDecayLR: is_stair must be True or False, not 1"),
        (lambda: nn.exponential_decay_lr(0.1, 0.9, 6, 0, 1),
         "exponential_decay_lr: step_per_epoch 0 must be at least 1"),
        (lambda: nn.cosine_decay_lr(0.2, 0.1, 6, 1, 1), "cosine_decay_lr: max_lr 0.1 must be above 0.2"),
        (lambda: nn.warmup_lr(0.1, 2.5, 1, 1), "warmup_lr: total_step must be an integer, not 2.5"),
    ],
)  # fmt: skip
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        make()
    assert raised.value.message == message
