"""Operators that update parameters, against PyTorch's optimizers, and against their formulas where it has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn
from mspc.ops import operations as P

torch = pytest.importorskip("torch")

DRAWS = np.random.default_rng(3)
START, GRADIENT = (DRAWS.standard_normal((3, 4)).astype(np.float32) for _ in range(2))
FIRST, SECOND, THIRD = (DRAWS.uniform(0.2, 1.0, (3, 4)).astype(np.float32) for _ in range(3))


def updated(operator: Any, states: tuple[np.ndarray, ...], *numbers: Any) -> list[np.ndarray]:
    """What a network's parameters hold behind one update: the first, then the states."""

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.held = [Parameter(Tensor(v), name=f"p{i}") for i, v in enumerate((START, *states))]
            self.operator = operator

        def construct(self, gradient):
            return self.operator(*self.held, *[gradient if number is GRADIENT else number for number in numbers])

    net = Net()
    net(Tensor(GRADIENT))
    return [parameter.asnumpy() for parameter in net.held]


def stepped(kind: Any, state: dict[str, np.ndarray], **options: Any) -> np.ndarray:
    """PyTorch's parameter behind one step of an optimizer that begins with this state."""
    weight = torch.nn.Parameter(torch.from_numpy(START.copy()))
    optimizer = kind([weight], **options)
    optimizer.state[weight] = {"step": torch.tensor(0.0)} | {k: torch.from_numpy(v.copy()) for k, v in state.items()}
    weight.grad = torch.from_numpy(GRADIENT)
    optimizer.step()
    return weight.detach().numpy()


OPTIMIZERS = {
    "ApplyGradientDescent": (P.ApplyGradientDescent(), (), (0.1, GRADIENT), (torch.optim.SGD, {}, {"lr": 0.1})),
    "ApplyAdagrad": (P.ApplyAdagrad(), (FIRST,), (0.1, GRADIENT),
                     (torch.optim.Adagrad, {"sum": FIRST}, {"lr": 0.1, "eps": 0.0})),
    "ApplyAdagradV2": (P.ApplyAdagradV2(1e-2), (FIRST,), (0.1, GRADIENT),
                       (torch.optim.Adagrad, {"sum": FIRST}, {"lr": 0.1, "eps": 1e-2})),
    "ApplyAdadelta": (P.ApplyAdadelta(), (FIRST, SECOND), (0.5, 0.9, 1e-3, GRADIENT),
                      (torch.optim.Adadelta, {"square_avg": FIRST, "acc_delta": SECOND},
                       {"lr": 0.5, "rho": 0.9, "eps": 1e-3})),
    "ApplyAdaMax": (P.ApplyAdaMax(), (FIRST, SECOND), (0.9, 0.1, 0.9, 0.99, 0.0, GRADIENT),
                    (torch.optim.Adamax, {"exp_avg": FIRST, "exp_inf": SECOND},
                     {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-9})),
    "ApplyAdamWithAmsgrad": (
        P.ApplyAdamWithAmsgrad(0.9, 0.99, 0.0), (FIRST, SECOND, THIRD), (0.9, 0.99, 0.1, GRADIENT),
        (torch.optim.Adam, {"exp_avg": FIRST, "exp_avg_sq": SECOND, "max_exp_avg_sq": THIRD},
         {"lr": 0.1, "betas": (0.9, 0.99), "eps": 0.0, "amsgrad": True})),
    "ApplyRMSProp": (P.ApplyRMSProp(), (FIRST, SECOND), (0.1, GRADIENT, 0.9, 0.0, 0.0),
                     (torch.optim.RMSprop, {"square_avg": FIRST}, {"lr": 0.1, "alpha": 0.9, "eps": 0.0})),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_an_optimizer(name: str) -> None:
    operator, states, numbers, (kind, state, options) = OPTIMIZERS[name]
    found = updated(operator, states, *numbers)[0]
    np.testing.assert_allclose(found, stepped(kind, state, **options), rtol=2e-5, atol=2e-6)


def shrunk(x: np.ndarray, by: Any) -> np.ndarray:
    return np.sign(x) * np.maximum(np.abs(x) - by, 0)


MEAN = 0.9 * FIRST + 0.1 * GRADIENT
SQUARE = FIRST + GRADIENT**2
FORMULAS = {
    "ApplyAddSign": (P.ApplyAddSign(), (FIRST,), (0.1, 0.8, 0.7, 0.9, GRADIENT),
                     START - 0.1 * (0.8 + 0.7 * np.sign(GRADIENT) * np.sign(MEAN)) * GRADIENT),
    "ApplyPowerSign": (P.ApplyPowerSign(), (FIRST,), (0.1, 0.8, 0.7, 0.9, GRADIENT),
                       START - 0.1 * np.exp(0.56 * np.sign(GRADIENT) * np.sign(MEAN)) * GRADIENT),
    "ApplyKerasMomentum": (P.ApplyKerasMomentum(use_nesterov=True), (FIRST,), (0.1, GRADIENT, 0.9),
                           START + 0.9 * (0.9 * FIRST - 0.1 * GRADIENT) - 0.1 * GRADIENT),
    "ApplyProximalGradientDescent": (P.ApplyProximalGradientDescent(), (), (0.1, 0.5, 0.3, GRADIENT),
                                     shrunk(START - 0.1 * GRADIENT, 0.05) / 1.03),
    "ApplyProximalAdagrad": (P.ApplyProximalAdagrad(), (FIRST,), (0.1, 0.5, 0.3, GRADIENT),
                             shrunk(START - 0.1 * GRADIENT / np.sqrt(SQUARE), 0.05 / np.sqrt(SQUARE))
                             / (1 + 0.03 / np.sqrt(SQUARE))),
    "ApplyAdagradDA": (P.ApplyAdagradDA(), (SECOND, FIRST), (GRADIENT, 0.1, 0.05, 0.3, 2),
                       -0.1 * shrunk(SECOND + GRADIENT, 0.1) / (0.06 + np.sqrt(SQUARE))),
    "ApplyCenteredRMSProp": (
        P.ApplyCenteredRMSProp(), (FIRST - 0.5, FIRST + 1, SECOND), (GRADIENT, 0.1, 0.9, 0.8, 1e-3),
        START - 0.8 * SECOND - 0.1 * GRADIENT / np.sqrt(
            0.9 * (FIRST + 1) + 0.1 * GRADIENT**2 - (0.9 * (FIRST - 0.5) + 0.1 * GRADIENT) ** 2 + 1e-3)),
    "ApplyFtrl": (P.ApplyFtrl(), (FIRST, SECOND), (GRADIENT, 0.1, 0.5, 0.3, -0.5),
                  -shrunk(SECOND + GRADIENT - (np.sqrt(SQUARE) - np.sqrt(FIRST)) / 0.1 * START, 0.5)
                  / (np.sqrt(SQUARE) / 0.1 + 0.6)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_a_step_by_its_formula(name: str) -> None:
    operator, states, numbers, wanted = FORMULAS[name]
    np.testing.assert_allclose(updated(operator, states, *numbers)[0], wanted, rtol=2e-5, atol=2e-6)
